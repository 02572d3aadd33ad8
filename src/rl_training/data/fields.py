"""How logged arrays become transition fields: one alias table, one meaning for each way an episode can end."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.types import DatasetError, nearest

ALIASES: dict[str, tuple[str, ...]] = {
    "obs": ("observations", "observation", "states"),
    "actions": ("action",),
    "rewards": ("reward",),
    "next_obs": ("next_observations", "next_observation", "next_states"),
    "dones": ("terminals", "terminations", "terminated"),
    "truncations": ("timeouts", "truncated"),
    "next_actions": (),
    "returns_to_go": (),
    "achieved_goals": ("achieved_goal",),
    "masks": (),
    "episode_ends": ("episode_terminals",),
}
"""Field name to other spellings. `masks` is 1 where bootstrapping goes on, `episode_ends` on an episode's last row."""

KNOWN = frozenset(spelling for field, others in ALIASES.items() for spelling in (field, *others))
REQUIRED = ("obs", "actions", "rewards")
ROW_LIMIT = 1 << 14
"""Rows checked at a time, which bounds the memory that checks take beside the data."""


def rename(names: Mapping[str, Any]) -> dict[str, str]:
    """From field name to the spelling found; two spellings of one field, or a missing field, are errors."""
    found: dict[str, str] = {}
    for field, others in ALIASES.items():
        spellings = [name for name in (field, *others) if name in names]
        if len(spellings) > 1:
            raise DatasetError(
                f"{spellings[0]!r} and {spellings[1]!r} are two spellings of the field {field!r}; keep one"
            )
        if spellings:
            found[field] = spellings[0]
    unknown = [name for name in names if name not in KNOWN]
    for field in REQUIRED:
        if field not in found:
            close = next((hint for name in unknown if (hint := nearest(name, [field, *ALIASES[field]]))), "")
            raise DatasetError(
                f"field {field!r} is missing (found {', '.join(map(repr, unknown or names)) or 'nothing'}){close}"
            )
    if not {"dones", "masks"} & found.keys():
        raise DatasetError(
            "field 'dones' is missing: say where episodes terminated with 'dones' ('terminals') or 'masks'"
        )
    for name in unknown:
        # Other fields are ignored, but a misspelt known one must not be: lost time limits change every value.
        if near := difflib.get_close_matches(name, KNOWN, n=1, cutoff=0.85):
            raise DatasetError(f"unknown field {name!r}; did you mean {near[0]!r}?")
    return found


def read_fields(arrays: Mapping[str, Any], *, copy: bool = False) -> dict[str, NDArray[Any]]:
    """Known fields as float32 matrices and vectors of equal length; choices as integers, end flags as booleans."""
    fields = {
        field: _shape(field, spelling, _array(spelling, arrays[spelling], copy=copy))
        for field, spelling in rename(arrays).items()
    }
    rows = len(fields["obs"])
    for field, array in fields.items():
        if len(array) != rows:
            raise DatasetError(f"{field} has {len(array)} rows, obs has {rows}")
    if rows == 0:
        raise DatasetError("the dataset is empty")
    for first, second in (("obs", "next_obs"), ("actions", "next_actions")):
        if second in fields and fields[second].shape != fields[first].shape:
            raise DatasetError(f"{second} has {_width(fields[second])}, {first} has {_width(fields[first])}")
    return _ends(fields)


def _width(array: NDArray[Any]) -> str:
    return "choices" if array.ndim == 1 else f"{array.shape[1]} columns"


def _array(spelling: str, value: Any, *, copy: bool) -> NDArray[Any]:
    try:
        return np.array(value) if copy else np.asarray(value)
    except ValueError:
        raise DatasetError(f"{spelling} must be an array, got rows of unequal lengths") from None


def _shape(field: str, spelling: str, array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype == object or array.dtype.kind not in "fiub":
        raise DatasetError(f"{spelling} must hold numbers, got an array of type {array.dtype}")
    if field in ("obs", "next_obs", "actions", "next_actions", "achieved_goals"):
        if field.endswith("actions") and array.dtype.kind in "iub":
            return _choices(spelling, array)
        if array.ndim == 1:
            array = array[:, None]
        if array.ndim != 2:
            raise DatasetError(f"{spelling} must be rows of vectors, got shape {array.shape}")
    else:
        if array.ndim == 2 and array.shape[1] == 1:
            array = array[:, 0]
        if array.ndim != 1:
            raise DatasetError(f"{spelling} must be one number per row, got shape {array.shape}")
    if field in ("dones", "truncations", "masks", "episode_ends"):
        return _flags(spelling, array)
    # Checked as it will be kept: a float64 beyond the range of float32 becomes infinite.
    with np.errstate(over="ignore"):
        array = np.ascontiguousarray(array, dtype=np.float32)
    _check_finite(spelling, array)
    return array


def _choices(spelling: str, array: NDArray[Any]) -> NDArray[np.int64]:
    """Integer actions as one number per row; rows of 0 with a single 1 say the number of the choice by its place."""
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim == 2 and ((array == 0) | (array == 1)).all() and (array.sum(axis=1) == 1).all():
        array = array.argmax(axis=1)
    if array.ndim != 1:
        raise DatasetError(
            f"{spelling} are integers of shape {array.shape}; expected one choice per row, or one-hot rows; "
            "save continuous actions as floating-point numbers"
        )
    return np.ascontiguousarray(array, dtype=np.int64)


def _flags(spelling: str, array: NDArray[Any]) -> NDArray[np.bool_]:
    flags = array.astype(bool)
    wrong = np.flatnonzero(flags != array)
    if len(wrong):
        raise DatasetError(f"{spelling} must be 0 or 1, got {array[wrong[0]]} in row {wrong[0]}")
    return flags


def _check_finite(spelling: str, array: NDArray[Any]) -> None:
    for start in range(0, len(array), ROW_LIMIT):
        part = array[start : start + ROW_LIMIT]
        finite = np.isfinite(part)
        if not finite.all():
            row, *column = np.argwhere(~finite)[0]
            place = f"row {start + row}" + (f", column {column[0]}" if column else "")
            bad = sum(int((~np.isfinite(array[at : at + ROW_LIMIT])).sum()) for at in range(0, len(array), ROW_LIMIT))
            raise DatasetError(
                f"{spelling} has {bad} values that are not finite; the first is {part[~finite][0]} in {place}"
            )


def _ends(fields: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Reduce every convention for the end of an episode to `dones` (termination) and `truncations` (cut)."""
    if "masks" in fields:
        # OGBench: masks say where the task ended, `terminals` only where the recording did.
        masks = fields.pop("masks")
        recorded = fields.pop("dones", np.zeros_like(masks))
        fields["dones"] = ~masks
        fields["truncations"] = fields.get("truncations", np.zeros_like(masks)) | recorded
    if "episode_ends" in fields:
        # d3rlpy 1: `terminals` may be set on a row before the last; it counts only where the episode ends.
        ends = fields.pop("episode_ends")
        fields["dones"] = fields["dones"] & ends
        fields["truncations"] = fields.get("truncations", np.zeros_like(ends)) | (ends & ~fields["dones"])
    if "truncations" in fields:
        # A step that ends the task on the very step of the time limit has terminated.
        fields["truncations"] = fields["truncations"] & ~fields["dones"]
    elif "next_obs" in fields:
        fields["truncations"] = _jumps(fields["obs"], fields["next_obs"]) & ~fields["dones"]
    else:
        fields["truncations"] = np.zeros(len(fields["obs"]), dtype=bool)
    # The log ends with its last row, whether the episode did or not.
    fields["truncations"][-1] |= not fields["dones"][-1]
    return fields


def _jumps(obs: NDArray[Any], next_obs: NDArray[Any]) -> NDArray[np.bool_]:
    """True on rows whose next observation is not the observation of the following row."""
    jumps = np.zeros(len(obs), dtype=bool)
    for start in range(0, len(obs) - 1, ROW_LIMIT):
        stop = min(start + ROW_LIMIT, len(obs) - 1)
        after, following = next_obs[start:stop], obs[start + 1 : stop + 1]
        jumps[start:stop] = (np.abs(after - following) > 1e-5 * (1 + np.abs(following))).any(axis=1)
    return jumps
