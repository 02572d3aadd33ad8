"""The value of a policy from a log, and when not to believe it."""
