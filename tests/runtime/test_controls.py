"""Budgets, cadences and learning rates, by themselves and as a short run shows them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl_training.algorithms import Algorithm
from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError, DatasetError
from rl_training.runtime import Callback, ScheduleSpec, TrainerState, resolve_schedule_value, train
from rl_training.runtime.controls import ControlOptions
from rl_training.runtime.schedules import as_schedule
from rl_training.storage import read_metrics

MakeConfig = Callable[..., TrainConfig]


def _updates(run_dir: Path, kind: str) -> list[int]:
    return [row["update_count"] for row in read_metrics(run_dir) if row["kind"] == kind]


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, (100, None)),
        ({"max_updates": 30}, (30, "reached max_updates (30)")),
        ({"max_epochs": 2}, (50, "reached max_epochs (2)")),
        ({"max_updates": 30, "max_epochs": 2}, (30, "reached max_updates (30)")),
        ({"max_updates": 60, "max_epochs": 2}, (50, "reached max_epochs (2)")),
        # A budget that is not smaller than the run's own length is not what ends it.
        ({"max_updates": 100}, (100, None)),
        ({"max_updates": 1000, "max_epochs": 1000}, (100, None)),
    ],
)
def test_the_smallest_budget_ends_the_run_and_is_named(options: dict[str, Any], limit: tuple[int, str | None]) -> None:
    assert ControlOptions(**options).update_limit(100, 25) == limit


@pytest.mark.parametrize(
    ("options", "schedule"),
    [
        ({}, ScheduleSpec()),
        ({"warmup_steps": 5}, ScheduleSpec(warmup=5)),
        ({"learning_rate_schedule": "cosine"}, ScheduleSpec(kind="cosine")),
        ({"learning_rate_schedule": "cosine", "warmup_steps": 5}, ScheduleSpec(kind="cosine", warmup=5)),
        (
            {"learning_rate_schedule": {"kind": "linear", "warmup": 3, "final_ratio": 0.1}},
            ScheduleSpec(kind="linear", warmup=3, final_ratio=0.1),
        ),
    ],
)
def test_warmup_steps_is_a_shorthand_for_the_schedules_warm_up(options: dict[str, Any], schedule: ScheduleSpec) -> None:
    assert ControlOptions(**options).schedules() == {"multiplier": schedule}


def test_two_different_warm_ups_are_refused() -> None:
    with pytest.raises(ConfigError, match="are the same thing; give one"):
        ControlOptions(warmup_steps=5, learning_rate_schedule=ScheduleSpec(warmup=3)).schedules()


@pytest.mark.parametrize(
    ("overrides", "updates", "reason"),
    [
        (["total_timesteps=12"], 12, None),
        (["algo_kwargs.max_updates=7"], 7, "reached max_updates (7)"),
        # 400 rows in batches of 48 are 8 full batches and a rest: 9 updates an epoch.
        (["algo_kwargs.max_epochs=2", "algo_kwargs.batch_size=48"], 18, "reached max_epochs (2)"),
    ],
)
def test_a_run_ends_with_its_budget_evaluated_and_saved(
    tiny_config: MakeConfig, overrides: list[str], updates: int, reason: str | None
) -> None:
    result = train(tiny_config("td3_bc", "algo_kwargs.eval_interval=null", *overrides))

    stored = json.loads((result.run_dir / "result.json").read_text())
    assert (stored["update_count"], stored["stop_reason"]) == (updates, reason)
    assert result.stop_reason == reason
    assert _updates(result.run_dir, "eval") == [updates]
    assert (result.run_dir / "checkpoints" / f"update_{updates:09d}.pt").is_file()


def test_an_epoch_is_one_pass_over_the_data_rounded_up(tiny_config: MakeConfig) -> None:
    config = tiny_config("bc", "log_interval=1", "algo_kwargs.batch_size=48", "algo_kwargs.best_fraction=null")

    rows = [row for row in read_metrics(train(config).run_dir) if row["kind"] == "train"]

    assert [row["epoch"] for row in rows] == [update // 9 for update in range(1, 21)]


def test_a_display_counts_towards_the_budget_that_ends_the_run(tiny_config: MakeConfig) -> None:
    totals = []

    class Watch(Callback):
        def on_train_start(self, state: TrainerState) -> None:
            totals.append(state.total)

    train(tiny_config("bc", "algo_kwargs.max_updates=7"), callbacks=[Watch()])

    assert totals == [7]


def test_intervals_decide_when_a_run_logs_evaluates_and_saves(tiny_config: MakeConfig) -> None:
    config = tiny_config(
        "bc",
        "total_timesteps=25",
        "log_interval=4",
        "checkpoint_interval=10",
        "keep_checkpoints=all",
        "algo_kwargs.eval_interval=6",
    )

    run_dir = train(config).run_dir

    # Each event also happens at the end, and the first checkpoint is made before the first update.
    assert _updates(run_dir, "train") == [4, 8, 12, 16, 20, 24, 25]
    assert _updates(run_dir, "eval") == [6, 12, 18, 24, 25]
    assert sorted(path.stem for path in (run_dir / "checkpoints").glob("update_*.pt")) == [
        f"update_{update:09d}" for update in (0, 10, 20, 25)
    ]


def test_rows_of_metrics_show_the_learning_rate_of_their_last_update(tiny_config: MakeConfig) -> None:
    schedule = "algo_kwargs.learning_rate_schedule={kind: linear, warmup: 4, final_ratio: 0.5}"
    config = tiny_config("td3_bc", "log_interval=1", "algo_kwargs.learning_rate=0.002", schedule)

    rows = {row["update_count"]: row for row in read_metrics(train(config).run_dir) if row["kind"] == "train"}

    # Update n is step n - 1; from step 4 on the multiplier is 0.5 + 0.5 * (1 - (step - 4) / 16).
    for update, multiplier in {1: 0.25, 2: 0.5, 4: 1.0, 5: 1.0, 13: 0.75, 20: 0.53125}.items():
        assert rows[update]["learning_rate_multiplier"] == pytest.approx(multiplier)
        assert rows[update]["learning_rate"] == pytest.approx(0.002 * multiplier)


def test_every_update_is_made_with_its_own_learning_rate(
    tiny_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[float] = []
    scale = Algorithm.set_learning_rate_multiplier

    def record(self: Algorithm, multiplier: float) -> None:
        scale(self, multiplier)
        used.append(self.optimizers["actor"].learning_rate)

    monkeypatch.setattr(Algorithm, "set_learning_rate_multiplier", record)
    train(
        tiny_config(
            "bc", "total_timesteps=4", "algo_kwargs.learning_rate=0.1", "algo_kwargs.learning_rate_schedule=linear"
        )
    )

    assert used == pytest.approx([0.1, 0.075, 0.05, 0.025])


def test_a_run_on_fewer_transitions_than_asked_for_does_not_start(tiny_config: MakeConfig, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="the data has 400 transitions, min_buffer_size is 401"):
        train(tiny_config("td3_bc", "algo_kwargs.min_buffer_size=401"))

    assert not (tmp_path / "runs").exists()


def test_a_run_on_exactly_as_many_transitions_as_asked_for_starts(tiny_config: MakeConfig) -> None:
    result = train(tiny_config("td3_bc", "algo_kwargs.min_buffer_size=400", "total_timesteps=1"))

    assert result.checkpoint_path.is_file()


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
