"""Which known answers `make test` looks at: those of one algorithm per family. `make slow` looks at all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet

FAMILIES = {
    "offline value": "iql",
    "offline imitation": "bc",
    "offline weighted imitation": "awr",
    "online": "sac",
    "discrete": "dqn",
    "on-policy": "ppo",
}
"""The algorithm that speaks for each family. Updates of all algorithms are compared with other implementations."""


def cases(given: Iterable[Any]) -> list[ParameterSet]:
    """The cases of a test, names of algorithms or tuples that begin with one; slow where another speaks for it."""
    return [_case(each if isinstance(each, tuple) else (each,)) for each in given]


def _case(values: tuple[Any, ...]) -> ParameterSet:
    return pytest.param(*values, marks=[] if values[0] in FAMILIES.values() else [pytest.mark.slow])
