"""Discrete actions and action masks of a log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.core.errors import DatasetError

MASKS = ("valid_actions", "next_valid_actions")
"""Which choices were possible: 1 for each that was, 0 for the others."""

FIRST_ROWS = 5
"""Rows that a message names."""


def read_choices(spelling: str, array: NDArray[Any]) -> NDArray[np.int64]:
    """Integer actions as one number per row; rows of 0 with a single 1 say the number of the choice by its place."""
    array = as_vector(array)
    if is_one_hot(array):
        array = array.argmax(axis=1)
    if array.ndim != 1:
        hint = (
            "expected one choice per row, or one-hot rows; save continuous actions as floating-point numbers, and "
            "several choices at once as the number of their combination, numpy.ravel_multi_index(actions.T, sizes)"
        )
        raise DatasetError(f"{spelling} are integers of shape {array.shape}; {hint}")
    return np.ascontiguousarray(array, dtype=np.int64)


def is_one_hot(array: NDArray[Any]) -> bool:
    """Whether every row of a matrix is a single 1 among zeros."""
    return array.ndim == 2 and bool(((array == 0) | (array == 1)).all() and (array.sum(axis=1) == 1).all())


def one_hot_width(actions: Any) -> int | None:
    """How many choices there are by the width of integer actions that are logged one-hot; None where they are not."""
    shape, kind = np.shape(actions), np.asarray(actions).dtype.kind
    return shape[1] if len(shape) == 2 and shape[1] > 1 and kind in "iub" else None


def as_vector(array: NDArray[Any]) -> NDArray[Any]:
    """A matrix of one column as a vector."""
    return array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array


def with_masks(fields: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Masks of choices, of which every one leaves at least one; after the end of the task all are possible."""
    if "valid_actions" not in fields:
        return fields
    actions = fields["actions"]
    if actions.ndim == 2 and actions.shape[1] == 1 and (actions == actions.round()).all():
        fields = {**fields, "actions": read_choices("actions", actions.astype(np.int64))}
    elif actions.ndim == 2:
        raise DatasetError(
            "valid_actions say which choices were possible, and the actions are no choices: leave them out"
        )
    if "next_valid_actions" in fields:
        # What stands there means nothing.
        after = np.where(fields["dones"][:, None], np.float32(1), fields["next_valid_actions"])
        fields = {**fields, "next_valid_actions": after}
    for name in (name for name in MASKS if name in fields):
        none = np.flatnonzero(~fields[name].any(axis=1))
        if len(none):
            rows = ", ".join(map(str, none[:FIRST_ROWS])) + (", ..." if len(none) > FIRST_ROWS else "")
            raise DatasetError(f"{name} leave no choice in {len(none)} rows ({rows}): at least one must be 1")
    return fields


def misses_next_masks(logged: Mapping[str, Any]) -> bool:
    """Whether it is known which choices were possible in each row, but not which were after it."""
    return "valid_actions" in logged and "next_valid_actions" not in logged
