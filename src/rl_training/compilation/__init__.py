"""Faster gradients with the same numbers."""
