"""Schedules against values worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rl_training.core.errors import ConfigError
from rl_training.runtime import ScheduleSpec, resolve_schedule_value
from rl_training.runtime.schedules import as_schedule


@pytest.mark.parametrize(
    ("spec", "total", "values"),
    [
        ({}, 10, {0: 1.0, 5: 1.0, 9: 1.0}),
        # final_ratio says where a way down ends; a constant has none.
        ({"final_ratio": 0.5}, 10, {0: 1.0, 9: 1.0}),
        ({"warmup": 4}, 10, {0: 0.25, 1: 0.5, 2: 0.75, 3: 1.0, 4: 1.0, 9: 1.0}),
        ({"kind": "linear"}, 10, {0: 1.0, 1: 0.9, 5: 0.5, 9: 0.1, 10: 0.0}),
        # Two steps up, then ten steps down to a fifth: 0.2 + 0.8 * (1 - (step - 2) / 10).
        ({"kind": "linear", "warmup": 2, "final_ratio": 0.2}, 12, {0: 0.5, 1: 1.0, 2: 1.0, 7: 0.6, 11: 0.28, 12: 0.2}),
        # (1 + cos(pi * step / 12)) / 2 at a quarter, a third, a half and two thirds of the way.
        ({"kind": "cosine"}, 12, {0: 1.0, 3: (2 + math.sqrt(2)) / 4, 4: 0.75, 6: 0.5, 8: 0.25, 12: 0.0}),
        ({"kind": "cosine", "final_ratio": 0.1}, 12, {0: 1.0, 4: 0.775, 6: 0.55, 12: 0.1}),
        ({"kind": "cosine", "warmup": 3, "final_ratio": 0.5}, 15, {0: 1 / 3, 2: 1.0, 3: 1.0, 7: 0.875, 15: 0.5}),
    ],
)
def test_a_schedule_has_the_values_worked_out_by_hand(
    spec: dict[str, Any], total: int, values: dict[int, float]
) -> None:
    schedule = ScheduleSpec(**spec)

    for step, expected in values.items():
        assert resolve_schedule_value(schedule, step=step, total_steps=total) == pytest.approx(expected), step


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_beyond_the_planned_end_a_schedule_stays_where_it_ended(kind: Any) -> None:
    spec = ScheduleSpec(kind=kind, final_ratio=0.3)

    assert resolve_schedule_value(spec, step=50, total_steps=10) == pytest.approx(0.3)


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine"])
def test_a_warm_up_as_long_as_the_run_never_comes_down(kind: Any) -> None:
    spec = ScheduleSpec(kind=kind, warmup=10)

    values = [resolve_schedule_value(spec, step=step, total_steps=10) for step in range(11)]

    assert values == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0])


def test_values_are_relative_to_the_base() -> None:
    value = resolve_schedule_value(ScheduleSpec(kind="linear"), step=5, total_steps=10, base_value=3e-4)

    assert value == pytest.approx(1.5e-4)


@pytest.mark.parametrize(("value", "expected"), [("cosine", {"kind": "cosine"}), ({"warmup": 3}, {"warmup": 3})])
def test_a_bare_word_is_the_kind_of_a_schedule(value: Any, expected: Any) -> None:
    assert as_schedule(value) == expected


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"warmup": -1}, "warmup must be >= 0, got -1"),
        ({"final_ratio": 1.5}, "final_ratio must be <= 1, got 1.5"),
        (
            {"kind": "cosin"},
            "kind must be one of 'constant', 'linear' or 'cosine', got 'cosin'; did you mean 'cosine'?",
        ),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(spec: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ScheduleSpec(**spec)

    assert str(caught.value) == problem


def test_a_schedule_may_come_to_its_end_before_the_run_does() -> None:
    spec = ScheduleSpec(kind="linear", final_ratio=0.05, fraction=0.2)
    values = [resolve_schedule_value(spec, step=step, total_steps=1000) for step in (0, 100, 200, 201, 1000)]
    # Half of the way after half of the fraction: (1 + 0.05) / 2.
    assert values == pytest.approx([1.0, 0.525, 0.05, 0.05, 0.05])
