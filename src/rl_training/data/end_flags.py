"""What logged end flags say against each other, before `fields.py` settles it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rl_training.data.choices import FIRST_ROWS
from rl_training.data.fields import rename

FLAGS = ("dones", "truncations", "episode_ends")


@dataclass(frozen=True)
class EndConflict:
    """Rows whose end flags contradict each other, as they were logged."""

    kind: Literal["both", "early"]
    """Termination and truncation are both set, or termination is set before the last row of an episode."""
    count: int
    rows: tuple[int, ...]
    """The first ones."""


def end_conflict(arrays: Mapping[str, Any]) -> EndConflict | None:
    """The contradiction between the end flags of arrays that `read_fields` can read; None where there is none."""
    found = rename(arrays)
    if "dones" not in found or "masks" in found:
        # Beside `masks`, `terminals` says where the recording ended.
        return None
    flags = {name: np.asarray(arrays[spelling]).reshape(-1) != 0 for name, spelling in found.items() if name in FLAGS}
    conflicts: dict[Literal["both", "early"], NDArray[np.bool_]] = {}
    if "truncations" in flags:
        conflicts["both"] = flags["dones"] & flags["truncations"]
    if "episode_ends" in flags:
        conflicts["early"] = flags["dones"] & ~flags["episode_ends"]
    for kind, wrong in conflicts.items():
        if wrong.any():
            rows = np.flatnonzero(wrong)
            return EndConflict(kind, len(rows), tuple(rows[:FIRST_ROWS].tolist()))
    return None
