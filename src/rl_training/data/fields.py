"""Fields from logged arrays: names, shapes, discrete actions and their masks, one meaning for each episode end."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.core.errors import DatasetError, nearest

MASKS = ("valid_actions", "next_valid_actions")
"""Action masks: 1 for each discrete action that was valid, 0 for the others."""

FIRST_ROWS = 5
"""Rows that a message names."""

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
    "timestamps": ("timestamp",),
    "behavior_log_probs": ("infos/action_log_probs", "action_log_probs", "action_logp_normalised"),
    "propensities": (),
    "valid_actions": ("action_masks", "action_mask"),
    "next_valid_actions": ("next_action_masks",),
    "masks": (),
    "episode_ends": ("episode_terminals",),
    "next_action_mask": (),
    "tail_rewards": (),
}
"""Field name to other spellings. `masks` is 1 where values are bootstrapped, `episode_ends` on an episode's last row.

The last two are what reading a log without `next_obs` makes of it: they are in files that it was converted to."""

KNOWN = frozenset(spelling for field, others in ALIASES.items() for spelling in (field, *others))

REQUIRED = ("obs", "actions")
"""Rewards may be missing: an algorithm that clones the log reads none."""

DONE_QUESTION = (
    "what does 'done' mean? If the task itself ended there, so that nothing comes after it (a fall, a goal, a fault), "
    "name the array 'terminals'. If only the recording ended (a time limit, the end of a shift), name it 'timeouts'. "
    "If it is set in both cases, split it into these two"
)

_BASIC = ("obs", "next_obs", "actions", "rewards", "dones", "truncations", "masks", "episode_ends")

BESIDE_STEPS = tuple(name for name in ALIASES if name not in _BASIC)
"""Fields that an episode may have for every step."""

VECTORS = ("obs", "next_obs", "actions", "next_actions", "achieved_goals", *MASKS)
"""Fields with several numbers per row."""

REWARDS_HINT = "add an array named 'rewards' or, of a table, set dataset_columns.reward; bc needs none"

ROW_LIMIT = 1 << 14
"""Rows checked at a time, which bounds the memory that checks take beside the data."""


class NotFiniteError(DatasetError):
    """Values that are no numbers, in `count` places; `rows` are the first rows."""

    def __init__(self, message: str, count: int, rows: list[int]) -> None:
        super().__init__(message)
        self.count, self.rows = count, rows


@contextmanager
def naming(source: str | Path) -> Iterator[None]:
    """Put the name of a file before errors about its contents that lack it."""
    try:
        yield
    except DatasetError as error:
        if str(source) in str(error):
            raise
        raise DatasetError(f"{source}: {error}") from None


def rename(names: Mapping[str, Any]) -> dict[str, str]:
    """From field name to the spelling found; two spellings of one field, or a missing field, are errors."""
    found: dict[str, str] = {}
    for field, others in ALIASES.items():
        spellings = [name for name in (field, *others) if name in names]
        if len(spellings) > 1:
            first, second = map(repr, spellings[:2])
            raise DatasetError(f"{first} and {second} are two spellings of the field {field!r}; keep one")
        if spellings:
            found[field] = spellings[0]
    unknown = [name for name in names if name not in KNOWN]
    for field in (name for name in REQUIRED if name not in found):
        close = next((hint for name in unknown if (hint := nearest(name, [field, *ALIASES[field]]))), "")
        there = ", ".join(map(repr, unknown or names)) or "nothing"
        raise DatasetError(f"field {field!r} is missing (found {there}){close}")
    if not {"dones", "masks", "truncations"} & found.keys():
        if "done" in unknown:
            raise DatasetError(DONE_QUESTION)
        hint = "say where episodes terminated by 'dones' ('terminals') or 'masks', or where they were cut ('timeouts')"
        raise DatasetError(f"field 'dones' is missing: {hint}")
    for name in unknown:
        # Other fields are ignored, but a misspelt known one must not be: lost time limits change every value.
        if near := difflib.get_close_matches(name, KNOWN, n=1, cutoff=0.85):
            raise DatasetError(f"unknown field {name!r}; did you mean {near[0]!r}?")
    return found


def read_fields(arrays: Mapping[str, Any], *, copy: bool = False) -> dict[str, NDArray[Any]]:
    """Known fields as float32 matrices and vectors of equal length; discrete actions as integers, flags as booleans."""
    fields = {field: _shape(field, spelling, arrays[spelling], copy=copy) for field, spelling in rename(arrays).items()}
    rows = len(fields["obs"])
    fields.setdefault("rewards", np.zeros(rows, dtype=np.float32))
    for field, array in fields.items():
        if len(array) != rows:
            raise DatasetError(f"{field} has {len(array)} rows, obs has {rows}")
    if rows == 0:
        raise DatasetError("the dataset is empty")
    for first, second in (("obs", "next_obs"), ("actions", "next_actions"), MASKS):
        if second in fields and first not in fields:
            raise DatasetError(f"{second} are there, but no {first}")
        if second in fields and fields[second].shape != fields[first].shape:
            raise DatasetError(f"{second} has {_width(fields[second])}, {first} has {_width(fields[first])}")
    return with_masks(_ends(_with_log_probs(fields)))


def _with_log_probs(fields: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Probabilities of logged actions as their logarithms: one fact, one field."""
    if "propensities" not in fields:
        return fields
    if "behavior_log_probs" in fields:
        raise DatasetError("'propensities' and 'behavior_log_probs' say the same of the logged actions; keep one")
    found = fields.pop("propensities")
    most = np.inf if fields["actions"].ndim == 2 else 1 + 1e-5
    wrong = np.flatnonzero((found < 0) | (found > most))
    if len(wrong):
        expected = "a probability from 0 to 1" if np.isfinite(most) else "a density, which is not negative"
        raise DatasetError(f"propensities must be {expected}, got {found[wrong[0]]:g} in row {wrong[0]}")
    with np.errstate(divide="ignore"):
        return {**fields, "behavior_log_probs": np.log(found)}


def _width(array: NDArray[Any]) -> str:
    return "discrete actions" if array.ndim == 1 else f"{array.shape[1]} columns"


def as_numpy(tensor: Tensor) -> NDArray[Any]:
    """A tensor as an array; NumPy has no bfloat16, so such numbers are widened."""
    array: NDArray[Any] = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy(force=True)
    return array


def as_array(spelling: str, value: Any, *, copy: bool = False) -> NDArray[Any]:
    """Numbers as an array."""
    value = as_numpy(value) if isinstance(value, Tensor) else value
    try:
        array = np.array(value) if copy else np.asarray(value)
    except ValueError:
        raise DatasetError(f"{spelling} must be an array, got rows of unequal lengths") from None
    if array.dtype == object or array.dtype.kind not in "fiub":
        raise DatasetError(f"{spelling} must hold numbers, got an array of type {array.dtype}")
    return array


def _shape(field: str, spelling: str, value: Any, *, copy: bool) -> NDArray[Any]:
    array = as_array(spelling, value, copy=copy)
    if field in VECTORS:
        if field in ("actions", "next_actions") and array.dtype.kind in "iub":
            return read_discrete(spelling, array)
        if array.ndim == 1:
            array = array[:, None]
        if array.ndim != 2:
            raise DatasetError(f"{spelling} must be rows of vectors, got shape {array.shape}")
    else:
        array = as_vector(array)
        if array.ndim != 1:
            raise DatasetError(f"{spelling} must be one number per row, got shape {array.shape}")
    if field in ("dones", "truncations", "masks", "episode_ends", "next_action_mask"):
        return _flags(spelling, array)
    if field in MASKS:
        return _flags(spelling, array).astype(np.float32)
    return _numbers(field, spelling, array)


def _numbers(field: str, spelling: str, array: NDArray[Any]) -> NDArray[Any]:
    """Finite numbers in single precision; timestamps, seconds since 1970, need more digits than that has."""
    # Checked as it will be kept: a float64 beyond the range of float32 becomes infinite.
    with np.errstate(over="ignore"):
        array = np.ascontiguousarray(array, dtype=np.float64 if field == "timestamps" else np.float32)
    if field == "behavior_log_probs":
        # The logarithm of a probability that was logged as 0.
        _check_finite(spelling, np.where(np.isneginf(array), 0, array))
    elif field != "tail_rewards":
        _check_finite(spelling, array)
    return array


def _flags(spelling: str, array: NDArray[Any]) -> NDArray[np.bool_]:
    flags = array.astype(bool)
    wrong = np.argwhere(flags != array)
    if len(wrong):
        raise DatasetError(f"{spelling} must be 0 or 1, got {_at(array, wrong[0])}")
    return flags


def _at(array: NDArray[Any], index: NDArray[np.int64]) -> str:
    """A value with its place."""
    row, *column = index.tolist()
    return f"{array[tuple(index)]} in row {row}" + (f", column {column[0]}" if column else "")


def _check_finite(spelling: str, array: NDArray[Any]) -> None:
    parts = (array[start : start + ROW_LIMIT] for start in range(0, len(array), ROW_LIMIT))
    bad = sum(part.size - np.count_nonzero(np.isfinite(part)) for part in parts)
    if bad:
        places = np.argwhere(~np.isfinite(array))
        rows = np.unique(places[:, 0])
        message = f"{spelling} has {bad} values that are not finite; the first is {_at(array, places[0])}"
        raise NotFiniteError(message, len(rows), rows[:FIRST_ROWS].tolist())


def _ends(fields: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Reduce every convention for the end of an episode to `dones` (termination) and `truncations` (cut)."""
    none = np.zeros(len(fields["obs"]), dtype=bool)
    if not {"dones", "masks"} & fields.keys():
        # A plant that never stops: its episodes are cut, and none terminates.
        fields["dones"] = none.copy()
    if "masks" in fields:
        # OGBench: masks say where the task ended, `terminals` only where the recording did.
        recorded, fields["dones"] = fields.get("dones", none), ~fields.pop("masks")
        fields["truncations"] = fields.get("truncations", none) | recorded
    if "episode_ends" in fields:
        # d3rlpy 1: `terminals` may be set on a row before the last; it counts only where the episode ends.
        ends = fields.pop("episode_ends")
        fields["dones"] = fields["dones"] & ends
        fields["truncations"] = fields.get("truncations", none) | ends
    if "truncations" not in fields:
        fields["truncations"] = _jumps(fields["obs"], fields["next_obs"]) if "next_obs" in fields else none
    # A step that ends the task on the very step of the time limit has terminated.
    fields["truncations"] = fields["truncations"] & ~fields["dones"]
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


def read_discrete(spelling: str, array: NDArray[Any]) -> NDArray[np.int64]:
    """Discrete actions as one integer per row; in a one-hot row, the place of the 1 is the action."""
    array = as_vector(array)
    if is_one_hot(array):
        array = array.argmax(axis=1)
    if array.ndim != 1:
        hint = (
            "expected one discrete action per row, or one-hot rows; save continuous actions as floating-point numbers, "
            "and several at once as the number of their combination, numpy.ravel_multi_index(actions.T, sizes)"
        )
        raise DatasetError(f"{spelling} are integers of shape {array.shape}; {hint}")
    return np.ascontiguousarray(array, dtype=np.int64)


def is_one_hot(array: NDArray[Any]) -> bool:
    """Whether every row of a matrix is a single 1 among zeros."""
    return array.ndim == 2 and bool(((array == 0) | (array == 1)).all() and (array.sum(axis=1) == 1).all())


def one_hot_width(actions: Any) -> int | None:
    """The number of discrete actions by the width of one-hot integer rows; None where actions are not logged so."""
    shape, kind = np.shape(actions), np.asarray(actions).dtype.kind
    return shape[1] if len(shape) == 2 and shape[1] > 1 and kind in "iub" else None


def as_vector(array: NDArray[Any]) -> NDArray[Any]:
    """A matrix of one column as a vector."""
    return array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array


def with_masks(fields: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The fields with checked action masks, each with a valid action; after the end of the task all are valid."""
    if "valid_actions" not in fields:
        return fields
    actions = fields["actions"]
    if actions.ndim == 2 and actions.shape[1] == 1 and (actions == actions.round()).all():
        fields = {**fields, "actions": read_discrete("actions", actions.astype(np.int64))}
    elif actions.ndim == 2:
        raise DatasetError("valid_actions are masks of discrete actions, and actions are continuous: leave them out")
    if "next_valid_actions" in fields:
        # After a termination, the mask means nothing.
        after = np.where(fields["dones"][:, None], np.float32(1), fields["next_valid_actions"])
        fields = {**fields, "next_valid_actions": after}
    for name in (name for name in MASKS if name in fields):
        none = np.flatnonzero(~fields[name].any(axis=1))
        if len(none):
            wrong = f"{name} mark no action as valid in {len(none)} rows ({row_list(none)})"
            raise DatasetError(f"{wrong}: at least one must be 1")
    return fields


def row_list(rows: Sequence[int] | NDArray[np.int64]) -> str:
    """The first few row numbers, as a message has them."""
    return ", ".join(map(str, rows[:FIRST_ROWS])) + (", ..." if len(rows) > FIRST_ROWS else "")


def misses_next_masks(logged: Mapping[str, Any]) -> bool:
    """Whether rows have action masks, but not the masks after them."""
    return "valid_actions" in logged and "next_valid_actions" not in logged


def read_transitions(
    arrays: Mapping[str, Any], *, copy: bool = False
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Known fields with what is derived from the next row, and the facts about them that a dataset keeps."""
    logged, names = add_next_actions(read_fields(arrays, copy=copy)), rename(arrays)
    rows, notes = len(logged["obs"]), []
    if "next_obs" not in logged or misses_next_masks(logged):
        logged = add_next_obs(logged)
    dropped = rows - len(logged["obs"])
    if dropped:
        notes.append(f"dropped {dropped} rows without a next {'mask' if 'next_obs' in names else 'observation'}")
    width = one_hot_width(arrays[names["actions"]])
    if width is not None:
        notes.append(f"actions are one-hot rows: read as {width} discrete actions")
    logged["dones"] = logged["dones"].astype(np.float32)
    facts = {"num_dropped": dropped, "num_choices": width, "notes": tuple(notes), "has_rewards": "rewards" in names}
    return logged, {**facts, "origin": Origin.of(arrays)}


def add_next_actions(logged: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Take the next row's action as `next_actions`, unless they were logged; `next_action_mask` says where it exists.

    The mask is true on terminated rows too: they have no next action, but nothing depends on it there.
    """
    dones = logged["dones"]
    if "next_actions" in logged:
        return {"next_action_mask": np.ones_like(dones), **logged}
    follows = ~(dones | logged["truncations"])
    added = {"next_actions": following(logged["actions"])} if follows.any() else {}
    return {**logged, **added, "next_action_mask": follows | dones}


def add_next_obs(logged: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Take the next row as `next_obs`; drop rows that end an episode without terminating, for they have none.

    A terminated row keeps its own observation as `next_obs`: nothing is bootstrapped from it. `tail_rewards` has the
    reward of the dropped row after each row, and NaN where none was dropped. The next row also has the
    mask of the next actions, where rows have masks.
    """
    obs, dones, truncations = logged["obs"], logged["dones"], logged["truncations"]
    if misses_next_masks(logged):
        logged["next_valid_actions"] = following(logged["valid_actions"])
        logged["next_valid_actions"][dones] = 1
    kept = ~truncations
    if not kept.any():
        missing = "'next_obs' is missing" if "next_valid_actions" not in logged else "'next_valid_actions' are missing"
        raise DatasetError(f"no row has a next observation: every row ends an episode, and {missing}")
    starts_anew = np.concatenate([[True], (dones | truncations)[:-1]])
    # The row before a dropped one is where its episode is cut from here on.
    before_dropped = np.append(truncations[1:] & ~starts_anew[1:], False)
    logged["tail_rewards"] = np.where(before_dropped, following(logged["rewards"]), np.float32(np.nan))
    logged["truncations"] = before_dropped
    # One by one, so that the whole log is not in memory twice.
    for name in logged:
        logged[name] = logged[name][kept]
    if "next_obs" not in logged:
        rows = np.flatnonzero(kept)
        # The last row of a piece of a log has itself.
        logged["next_obs"] = obs[np.minimum(rows + ~dones[rows], len(obs) - 1)]
    return logged


def following(array: NDArray[Any]) -> NDArray[Any]:
    """The next row on every row, and the last row on itself."""
    return np.concatenate([array[1:], array[-1:]])


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


@dataclass(frozen=True, eq=False)
class Origin:
    """Facts about a log that its rows do not show any more; the audit asks for them."""

    end_conflict: EndConflict | None = None
    """Rows whose end flags contradicted each other."""
    ignored: tuple[str, ...] = ()
    """Names of arrays that no field was made of."""
    row_numbers: NDArray[np.int64] | None = None
    """Of a table: where each row that was read stands in it, counted from 1; rows that were dropped are among them."""

    @classmethod
    def of(cls, arrays: Mapping[str, Any]) -> Origin:
        """The origin of rows made of named arrays, which `read_fields` can read."""
        return cls(end_conflict(arrays), tuple(name for name in arrays if name not in KNOWN))


UNKNOWN = Origin()
"""The origin of rows that are not all of a log, or in another order."""
