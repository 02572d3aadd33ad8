"""Arithmetic over columns, parsed and computed here; nothing is ever run as Python."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rl_training.core.errors import DatasetError, nearest

Numbers: TypeAlias = "NDArray[np.float64]"

LONGEST = 1000
"""Characters in an expression; deeper nesting than that allows would exhaust the parser."""
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
    """Which column may be meant, or which there are."""
    hint = nearest(name, names)
    if hint:
        return hint
    shown = ", ".join(map(repr, names[:SHOWN])) or "none"
    return f"; the table has {shown}{f' and {len(names) - SHOWN} more' if len(names) > SHOWN else ''}"


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
        elif not (isinstance(node, ast.Constant) and type(node.value) in (int, float) and _is_finite(node.value)):
            raise DatasetError(f"reward: {ast.unparse(node)!r} in {self.text!r} is not allowed; there are {ALLOWED}")
        for part in parts:
            self._check(part, names)

    def _check_name(self, node: ast.Name, names: Sequence[str]) -> None:
        name = self._quoted.get(node.id, node.id)
        if name not in names:
            hint = columns_hint(name, names)
            if name == self.text.strip():
                raise DatasetError(f"reward: there is no column {name!r}{hint}")
            raise DatasetError(f"reward: there is no column {name!r}, which {self.text!r} names{hint}")
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


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
