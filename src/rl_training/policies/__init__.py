"""Trained policies: load, predict, evaluate, collect."""

from __future__ import annotations

from rl_training.policies.novelty_check import find_novelty, novelty_text
from rl_training.policies.saved import (
    SavedPolicy,
    collect,
    evaluate,
    find_columns,
    load_policy,
    name_actions,
    observation_names,
    predict,
    table_observations,
)

__all__ = [
    "SavedPolicy", "collect", "evaluate", "find_columns", "find_novelty", "load_policy", "name_actions",
    "novelty_text", "observation_names", "predict", "table_observations",
]  # fmt: skip
