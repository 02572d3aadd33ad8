"""Which columns of a table are what: the option group, and how its patterns become names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias

from numpy.typing import ArrayLike
from pydantic import Field

from rl_training.core.errors import ConfigError, DatasetError, nearest
from rl_training.core.options import option, options
from rl_training.data.tables.expressions import Expression, columns_hint

_EPISODE_LIKE = re.compile(
    r"(run|ep|episode|traj|trajectory|session)([ _-]?(id|no|nr|num|number|index|name))?", re.IGNORECASE
)
_SINGLE = (
    "reward",
    "episode",
    "step",
    "timestamp",
    "terminated",
    "truncated",
    "done",
    "propensity",
    "behavior_log_prob",
)
_SEVERAL = ("obs", "next_obs", "actions", "valid_actions")
FURTHER = (
    "achieved_goals",
    "next_actions",
    "next_action_mask",
    "next_valid_actions",
    "returns_to_go",
    "tail_rewards",
    "timestamps",
)
"""Fields that have no key of their own."""
SPELLINGS = {"next_action_masks": "next_valid_actions"}
"""Other names of these fields."""
_ASKS_EPISODES = (
    "dataset_columns: which rows belong to the same episode (run, batch, day, patient)? Name the column that says so "
    "(episode), or set episodes: one (all rows follow each other), episodes: flags (an episode ends where terminated, "
    "truncated or done is 1), or episodes: each_row (every row is a decision of its own, as in a bandit)"
)
_ASKS_DONE = (
    "dataset_columns: what does a 1 in the column {done!r} mean? Set done_means: terminated if the task itself was "
    "over there, by success or failure, so that nothing good or bad could follow. Set done_means: episode_end if only "
    "the recording stopped there, such as at a time limit or the end of a shift, while the process could go on. The "
    "two are learned differently: after a termination, the future is worth nothing"
)


@options
class ColumnsConfig:
    """What the columns of a table mean. Names may be patterns such as `x_*` where several columns are taken."""

    obs: tuple[str, ...] = Field(description="observation, in this order; patterns expand in natural order")
    actions: tuple[str, ...] = Field(description="action; one column of text or of integers holds choices")
    reward: str | None = option(None, "a column, or arithmetic over columns such as -(temp - 21)^2")
    next_obs: tuple[str, ...] = option((), "observation after the action; default that of the next row")
    episode: str | None = option(None, "says which rows belong together")
    episodes: Literal["each_row", "one", "flags"] | None = option(None, "what an episode is, without such a column")
    step: str | None = option(None, "number of the row in its episode, without gaps")
    timestamp: str | None = option(None, "time of the row, where steps are not numbered")
    terminated: str | None = option(None, "1 where the task ended")
    truncated: str | None = option(None, "1 where the episode was cut")
    done: str | None = option(None, "1 at an end of the kind that done_means says")
    done_means: Literal["terminated", "episode_end"] | None = option(None, "the task ended, or only the recording")
    propensity: str | None = option(None, "probability with which the logged action was chosen")
    behavior_log_prob: str | None = option(None, "its natural logarithm, instead of propensity")
    valid_actions: tuple[str, ...] = option((), "1 where a choice was allowed, one column per choice")
    fields: dict[str, tuple[str, ...]] = option({}, f"further fields and their columns: {', '.join(FURTHER)}")
    missing: Literal["error", "drop_episode", "forward_fill"] = option("error", "what to do about empty cells")
    one_hot: tuple[str, ...] | dict[str, tuple[str, ...]] = option(
        (), "observation columns seen as one number per category; a mapping lists the categories"
    )
    action_kind: Literal["continuous", "discrete"] | None = option(None, "quantities or choices; default as they look")
    choices: tuple[str, ...] = option((), "names of all choices, in the order of their numbers; default those logged")

    def __post_init__(self) -> None:
        renamed = {SPELLINGS.get(name, name): columns for name, columns in self.fields.items()}
        object.__setattr__(self, "fields", renamed)
        problems = [
            f"dataset_columns: {name} must not be empty" for name in ("obs", "actions") if not getattr(self, name)
        ]
        if self.episode is None and self.episodes is None:
            problems.append(_ASKS_EPISODES)
        if self.episode is not None and self.episodes is not None:
            problems.append("dataset_columns: episode and episodes both say what an episode is; give one")
        if self.step is not None and self.timestamp is not None:
            problems.append("dataset_columns: step and timestamp both order rows; give one")
        if self.propensity is not None and self.behavior_log_prob is not None:
            problems.append("dataset_columns: propensity and behavior_log_prob say the same; give one")
        problems += [
            f"dataset_columns: fields: {name!r} is no field{nearest(name, FURTHER) or f'; there are {FURTHER}'}"
            for name in self.fields
            if name not in FURTHER
        ]
        problems += self._end_problems()
        if self.choices and self.action_kind == "continuous":
            problems.append("dataset_columns: choices do not go with action_kind: continuous")
        twice = [name for name, count in Counter(self.choices).items() if count > 1]
        if twice:
            problems.append(f"dataset_columns: choices: {twice[0]!r} is there twice")
        if problems:
            raise ConfigError("; ".join(problems))

    def _end_problems(self) -> list[str]:
        problems = []
        flags = [name for name in ("terminated", "truncated", "done") if getattr(self, name) is not None]
        if self.done is not None and self.done_means is None:
            problems.append(_ASKS_DONE.format(done=self.done))
        if self.done_means is not None and self.done is None:
            problems.append("dataset_columns: done_means has no effect without done")
        if self.done is not None and (
            other := {"terminated": self.terminated, "episode_end": self.truncated}.get(self.done_means or "")
        ):
            problems.append(f"dataset_columns: done and {other!r} say the same; give one")
        if self.episodes == "flags" and not flags:
            problems.append("dataset_columns: episodes: flags needs terminated, truncated or done")
        useless = [*flags, *(name for name in ("step", "timestamp") if getattr(self, name) is not None)]
        if self.episodes == "each_row" and useless:
            problems.append(
                f"dataset_columns: {useless[0]} has no effect with episodes: each_row, where each row is an episode"
            )
        return problems

    @property
    def categories(self) -> Mapping[str, tuple[str, ...]]:
        """The columns seen as categories, with the categories as far as they are known."""
        return self.one_hot if isinstance(self.one_hot, dict) else dict.fromkeys(self.one_hot, ())

    def used(self) -> list[str]:
        """The names of all columns that are read; patterns must have been expanded."""
        names = [name for role in _SEVERAL for name in getattr(self, role)]
        names += [name for columns in self.fields.values() for name in columns]
        names += [name for role in _SINGLE[1:] if (name := getattr(self, role)) is not None]
        return list(dict.fromkeys(names))


AnyColumns: TypeAlias = ColumnsConfig | Mapping[str, Any] | None
"""A mapping of columns as a caller may give it; None where the table has its own."""
RewardOf: TypeAlias = Callable[[Any], ArrayLike]
"""A function from a table to the reward of each of its rows."""


def natural(text: str) -> list[tuple[int, int, str]]:
    """A key by which x_2 stands before x_10."""
    parts = re.split(r"(\d+)", text)
    return [(0, int(part), part) if part.isdigit() and part.isascii() else (1, 0, part) for part in parts if part]


def expand(columns: ColumnsConfig, names: Sequence[str]) -> ColumnsConfig:
    """The mapping with names instead of patterns; all names that the table does not have are reported together.

    A pattern takes no column that has another role, so that `*` means all that are left.
    """
    problems: list[str] = []
    known = set(names)
    exact = {role: {name for name in getattr(columns, role) if name in known} for role in _SEVERAL}
    single = {name for role in _SINGLE if (name := getattr(columns, role)) is not None}
    single |= {name for several in columns.fields.values() for name in several}
    if columns.reward is not None and columns.reward not in known:
        single |= set(Expression(columns.reward, names).columns)
    found: dict[str, tuple[str, ...]] = {}
    # The broadest pattern comes last: observations take what is left.
    for role in reversed(_SEVERAL):
        others = single.union(*(exact[other] for other in _SEVERAL if other != role), *map(set, found.values()))
        taken: dict[str, None] = {}
        for pattern in getattr(columns, role):
            matches = [pattern] if pattern in known else []
            if not matches and any(sign in pattern for sign in "*?["):
                matches = sorted((n for n in names if fnmatchcase(n, pattern) and n not in others), key=natural)
            if not matches:
                problems.append(_unknown(role, pattern, names))
            taken |= dict.fromkeys(matches)
        found[role] = tuple(taken)
    for role in _SINGLE[1:]:
        name = getattr(columns, role)
        if name is not None and name not in known:
            problems.append(_unknown(role, name, names))
    problems += [
        _unknown(f"fields: {field}", name, names)
        for field, several in columns.fields.items()
        for name in several
        if name not in known
    ]
    problems += [
        f"one_hot names {name!r}, which is not among obs{nearest(name, found['obs'])}"
        for name in columns.categories
        if name not in found["obs"] and not problems
    ]
    if not problems and found["next_obs"] and len(found["next_obs"]) != len(found["obs"]):
        problems.append(f"next_obs has {len(found['next_obs'])} columns, obs has {len(found['obs'])}")
    if problems:
        raise DatasetError("; ".join(problems))
    several: dict[str, Any] = found
    return replace(columns, **several)


def _unknown(role: str, name: str, names: Sequence[str]) -> str:
    return f"{role}: there is no column {name!r}{columns_hint(name, names)}"


def unused_episode_columns(columns: ColumnsConfig, names: Sequence[str]) -> list[str]:
    """Columns that are named like an episode, and that nothing reads."""
    used = columns.used()
    return [name for name in names if name not in used and _EPISODE_LIKE.fullmatch(name)]
