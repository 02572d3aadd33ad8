"""Tables, and how they become rows."""

from __future__ import annotations

from rl_training.data.tables.to_fields import feature_names

__all__ = ["feature_names"]
