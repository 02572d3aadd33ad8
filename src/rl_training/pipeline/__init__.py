"""A log in, a policy and a report out."""
