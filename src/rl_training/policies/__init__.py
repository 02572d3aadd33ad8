"""Trained policies: load, predict, evaluate, collect."""

from __future__ import annotations

from rl_training.policies.novelty_check import far_text, find_novelty
from rl_training.policies.saved import SavedPolicy, collect, evaluate, load_policy, predict
from rl_training.policies.tables import (
    check_table_path,
    find_columns,
    name_actions,
    observation_names,
    table_kind,
    table_observations,
    table_text,
    tabulate,
    write_table,
)

__all__ = [
    "SavedPolicy", "check_table_path", "collect", "evaluate", "far_text", "find_columns", "find_novelty",
    "load_policy", "name_actions", "observation_names", "predict", "table_kind", "table_observations", "table_text",
    "tabulate", "write_table",
]  # fmt: skip
