"""A policy in an environment: collect, evaluate, show."""
