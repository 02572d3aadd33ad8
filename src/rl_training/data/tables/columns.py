"""The roles of a table's columns: the option group, its patterns, and arithmetic over columns."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from rl_training.core.errors import ConfigError, DatasetError, nearest
from rl_training.core.options import option, options
from rl_training.core.text import first_of

_EPISODE_LIKE = re.compile(
    r"(run|ep|episode|traj|trajectory|session)([ _-]?(id|no|nr|num|number|index|name))?", re.IGNORECASE
)

_FLAGS = ("terminated", "truncated", "done")

_ORDERS = ("step", "timestamp")

_SINGLE = ("reward", "episode", *_ORDERS, *_FLAGS, "propensity", "behavior_log_prob")

_SEVERAL = ("obs", "next_obs", "actions", "valid_actions")

FURTHER = (
    *("achieved_goals", "next_actions", "next_action_mask", "next_valid_actions"),
    *("returns_to_go", "tail_rewards", "timestamps"),
)
"""Fields that have no key of their own."""

_SPELLINGS = {"next_action_masks": "next_valid_actions"}
"""Other names of these fields."""

_EXCLUSIVE = (
    ("episode", "episodes", "both say what an episode is"),
    ("step", "timestamp", "both order rows"),
    ("propensity", "behavior_log_prob", "say the same"),
)

_ASKS_EPISODES = (
    "which rows belong to the same episode (run, batch, day, patient)? Name the column that says so "
    "(episode), or set episodes: one (all rows follow each other), episodes: flags (an episode ends where terminated, "
    "truncated or done is 1), or episodes: each_row (every row is a decision of its own, as in a bandit)"
)

_ASKS_DONE = (
    "what does a 1 in the column {done!r} mean? Set done_means: terminated if the task itself was "
    "over there, by success or failure, so that nothing good or bad could follow. Set done_means: episode_end if only "
    "the recording stopped there, such as at a time limit or the end of a shift, while the process could continue. "
    "The two are learned differently: after a termination, the future is worth nothing"
)


@options
class ColumnsConfig:
    """The roles of a table's columns. Names may be patterns such as `x_*` where several columns are taken."""

    obs: tuple[str, ...] = Field(description="observation, in this order; patterns expand in natural order")
    actions: tuple[str, ...] = Field(description="action; one column of text or of integers holds discrete actions")
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
    valid_actions: tuple[str, ...] = option((), "1 where an action was valid, one column per discrete action")
    fields: dict[str, tuple[str, ...]] = option({}, f"further fields and their columns: {', '.join(FURTHER)}")
    missing: Literal["error", "drop_episode", "forward_fill"] = option("error", "what to do about empty cells")
    one_hot: tuple[str, ...] | dict[str, tuple[str, ...]] = option(
        (), "observation columns seen as one number per category; a mapping lists the categories"
    )
    action_kind: Literal["continuous", "discrete"] | None = option(None, "of actions; default as they look")
    choices: tuple[str, ...] = option(
        (), "names of all discrete actions, in the order of their numbers; default those logged"
    )

    def __post_init__(self) -> None:
        renamed = {_SPELLINGS.get(name, name): columns for name, columns in self.fields.items()}
        object.__setattr__(self, "fields", renamed)
        if problems := [*self._problems(), *self._end_problems()]:
            raise ConfigError("; ".join(f"dataset_columns: {problem}" for problem in problems))

    def _problems(self) -> Iterator[str]:
        yield from (f"{name} must not be empty" for name in ("obs", "actions") if not getattr(self, name))
        if self.episode is None and self.episodes is None:
            yield _ASKS_EPISODES
        for one, other, reason in _EXCLUSIVE:
            if getattr(self, one) is not None and getattr(self, other) is not None:
                yield f"{one} and {other} {reason}; give one"
        for name in (name for name in self.fields if name not in FURTHER):
            yield f"fields: {name!r} is no field{nearest(name, FURTHER) or f'; there are {FURTHER}'}"
        if self.choices and self.action_kind == "continuous":
            yield "choices do not go with action_kind: continuous"
        if twice := [name for name, count in Counter(self.choices).items() if count > 1]:
            yield f"choices: {twice[0]!r} is there twice"

    def _end_problems(self) -> Iterator[str]:
        flags, orders = ([name for name in names if getattr(self, name) is not None] for names in (_FLAGS, _ORDERS))
        if self.done is not None and self.done_means is None:
            yield _ASKS_DONE.format(done=self.done)
        if self.done_means is not None and self.done is None:
            yield "done_means has no effect without done"
        other = {"terminated": self.terminated, "episode_end": self.truncated}.get(self.done_means or "")
        if self.done is not None and other:
            yield f"done and {other!r} say the same; give one"
        if self.episodes == "flags" and not flags:
            yield "episodes: flags needs terminated, truncated or done"
        if self.episodes == "each_row" and (useless := [*flags, *orders]):
            yield f"{useless[0]} has no effect with episodes: each_row, where each row is an episode"

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
        roles = single.union(*(exact[other] for other in _SEVERAL if other != role), *map(set, found.values()))
        taken: dict[str, None] = {}
        for pattern in getattr(columns, role):
            matches = [pattern] if pattern in known else []
            if not matches and any(sign in pattern for sign in "*?["):
                matches = sorted((n for n in names if fnmatchcase(n, pattern) and n not in roles), key=natural)
            if not matches:
                problems.append(_unknown(role, pattern, names))
            taken |= dict.fromkeys(matches)
        found[role] = tuple(taken)
    others = [(role, name) for role in _SINGLE[1:] if (name := getattr(columns, role)) is not None]
    others += [(f"fields: {field}", name) for field, several in columns.fields.items() for name in several]
    problems += [_unknown(role, name, names) for role, name in others if name not in known]
    if not problems:
        strange = [name for name in columns.categories if name not in found["obs"]]
        problems += [f"one_hot names {each!r}, which is not among obs{nearest(each, found['obs'])}" for each in strange]
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


Numbers: TypeAlias = "NDArray[np.float64]"

LONGEST = 1000
"""Characters in an expression; deeper nesting than that allows would exhaust the parser."""

LARGEST = sys.float_info.max
"""Numbers beyond it, which may be integers of any length, are no finite floating-point numbers."""

SHOWN = 10
"""Columns that a message names."""

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.Pow: np.power,
}

_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
}

_FUNCTIONS: dict[str, tuple[Callable[..., Any], int]] = {
    "abs": (np.abs, 1),
    "sqrt": (np.sqrt, 1),
    "exp": (np.exp, 1),
    "log": (np.log, 1),
    "min": (np.minimum, 2),
    "max": (np.maximum, 2),
}
"""Functions, and how many arguments they take."""

ALLOWED = "numbers, columns, + - * / ^, comparisons, abs, min, max, sqrt, exp and log"


def columns_hint(name: str, names: Sequence[str]) -> str:
    """The column that may be meant, or those that there are."""
    return nearest(name, names) or f"; the table has {first_of([*map(repr, names)], SHOWN) or 'none'}"


class Expression:
    """Arithmetic over columns, such as `-(temp - 21)^2 - 0.1 * power`. Unusual names stand in backquotes."""

    def __init__(self, text: str, names: Sequence[str]) -> None:
        self.text = text
        self._quoted: dict[str, str] = {}
        self.columns: list[str] = []
        if len(text) > LONGEST:
            raise DatasetError(f"reward: the expression has {len(text)} characters, at most {LONGEST} are read")
        # In Python's grammar ^ binds less tightly than +, so it is replaced before parsing.
        plain = re.sub(r"`([^`]*)`", self._quote, text).replace("^", "**")
        try:
            self._tree = ast.parse(plain.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            hint = nearest(text, names)
            wrong = f"reward: {text!r} is neither a column nor an expression that can be read{hint}"
            raise DatasetError(f"{wrong}; expressions have {ALLOWED}; put unusual names in backquotes") from None
        self._check(self._tree, names)

    def __call__(self, values: Mapping[str, Numbers], rows: int) -> Numbers:
        """The value on every row."""
        with np.errstate(all="ignore"):
            return np.broadcast_to(np.asarray(self._compute(self._tree, values), dtype=np.float64), (rows,)).copy()

    def _quote(self, match: re.Match[str]) -> str:
        name = f"quoted_{len(self._quoted)}_"
        self._quoted[name] = match[1]
        return name

    def _check(self, node: ast.expr, names: Sequence[str]) -> None:
        """Refuse whatever is not arithmetic, and columns that do not exist."""
        parts: list[ast.expr] = []
        number: Any = getattr(node, "value", None)
        if isinstance(node, ast.Name):
            self._check_name(node, names)
        elif isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            parts = [node.left, node.right]
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
            parts = [node.operand]
        elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARISONS:
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.Call):
            parts = self._arguments(node)
        elif not (isinstance(node, ast.Constant) and type(number) in (int, float) and abs(number) <= LARGEST):
            raise DatasetError(f"reward: {ast.unparse(node)!r} in {self.text!r} is not allowed; there are {ALLOWED}")
        for part in parts:
            self._check(part, names)

    def _check_name(self, node: ast.Name, names: Sequence[str]) -> None:
        name = self._quoted.get(node.id, node.id)
        if name not in names:
            where = "" if name == self.text.strip() else f", which {self.text!r} names"
            raise DatasetError(f"reward: there is no column {name!r}{where}{columns_hint(name, names)}")
        self.columns.append(name)

    def _arguments(self, node: ast.Call) -> list[ast.expr]:
        name = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)
        if name not in _FUNCTIONS:
            raise DatasetError(f"reward: there is no function {name!r}{nearest(name, _FUNCTIONS)}; there are {ALLOWED}")
        count = _FUNCTIONS[name][1]
        if len(node.args) != count or node.keywords:
            raise DatasetError(f"reward: {name} takes {count} argument{'s' if count > 1 else ''} in {self.text!r}")
        return node.args

    def _compute(self, node: ast.expr, values: Mapping[str, Numbers]) -> Any:
        if isinstance(node, ast.Name):
            return values[self._quoted.get(node.id, node.id)]
        if isinstance(node, ast.BinOp):
            return _BINARY[type(node.op)](self._compute(node.left, values), self._compute(node.right, values))
        if isinstance(node, ast.UnaryOp):
            value = self._compute(node.operand, values)
            return np.negative(value) if isinstance(node.op, ast.USub) else value
        if isinstance(node, ast.Compare):
            left, right = self._compute(node.left, values), self._compute(node.comparators[0], values)
            # An empty cell is neither more nor less than anything: the reward of its row is missing too.
            unknown = np.isnan(left) | np.isnan(right)
            return np.where(unknown, np.nan, _COMPARISONS[type(node.ops[0])](left, right))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return _FUNCTIONS[node.func.id][0](*(self._compute(part, values) for part in node.args))
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            return np.float64(node.value)
        raise AssertionError(ast.dump(node))
