"""A policy as a folder that runs without this package."""
