"""Worlds in which actions change nothing: no policy of their logs may be called better, but by chance.

These are a few logs of the cases of `benchmarks/claims.py`, which has many.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from claims import MOST_FALSE, Said, calls_of, count_false, said_in
from claims_cases import CANNOT, PLANS, Statement, ask
from claims_tables import Tabular
from claims_worlds import Linear, World

WORLDS = [name for name in PLANS if name.startswith("null-")]
LOGS = {"trained": 10, "pipeline": 7, "tune": 1}
"""Logs of each world by question: of `estimate` and `select` about policies that the log made, of `pipeline`, and of
`tune`."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", LOGS)
def test_nothing_is_called_better_where_actions_change_nothing(kind: str, tmp_path: Path) -> None:
    jobs = [(world, kind, seed) for world in WORLDS for seed in range(LOGS[kind])]
    said = [each for job in jobs for each in said_in(ask(*job, tmp_path / "_".join(map(str, job))))]
    assert said
    questions = {each.call for each in said}
    calls = {name: calls_of(each for each in said if each.call == name).values() for name in questions}
    false = {name: count_false(each) for name, each in calls.items()}
    assert not {name: count for name, count in false.items() if count > MOST_FALSE * len(calls[name])}


@pytest.mark.parametrize("world", [Tabular(0), Linear()])
@pytest.mark.parametrize("gamma", [0.0, 0.9, 0.95])
def test_exact_values_are_those_of_rollouts(world: World, gamma: float) -> None:
    for policy in world.policies().values():
        exact, tried = world.truth(policy, gamma), World.truth(world, policy, gamma)
        assert tried.difference == pytest.approx(exact.difference, abs=4 * tried.error + 0.01)


def said_of(said: str, difference: float, **fields: Any) -> Said:
    statement = Statement("estimate", "policy", said, difference=difference, **fields)
    return Said("tanks", "elsewhere", 0, False, (), asdict(statement))


@pytest.mark.parametrize(
    ("said", "difference", "error", "right", "is_reversed"),
    [
        ("better than the data", 0.5, 0.1, True, False),
        ("better than the data", -0.5, 0.1, False, True),
        ("better than the data", 0.0, 0.0, False, False),
        ("worse than the data", -0.5, 0.1, True, False),
        ("worse than the data", 0.5, 0.1, False, True),
        ("worse than the default options", 0.1, 0.1, False, False),
        ("not distinguishable", 0.5, 0.1, None, False),
        (CANNOT, 0.5, 0.1, None, False),
    ],
)
def test_a_verdict_is_right_by_the_sign_of_the_true_difference(
    said: str, difference: float, error: float, right: bool | None, is_reversed: bool
) -> None:
    found = said_of(said, difference, error=error)
    assert found.right is right
    assert found.is_reversed == is_reversed


def test_an_interval_counts_where_something_is_said() -> None:
    known: dict[str, Any] = {"value": 1.0, "interval": [0.0, 2.0], "spread": 4.0}
    assert said_of("not distinguishable", 0.0, truth=1.5, **known).covered is True
    assert said_of("not distinguishable", 0.0, truth=2.5, **known).covered is False
    assert said_of(CANNOT, 0.0, truth=1.5, **known).covered is None
    assert said_of("not distinguishable", 0.0, truth=1.5, **known).width == 0.5
