"""Budgets, cadences and learning rates, by themselves and as a short run shows them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl_training.algorithms import Algorithm
from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError, DatasetError
from rl_training.runtime import Callback, ScheduleSpec, TrainerState, train
from rl_training.runtime.controls import ControlOptions
from rl_training.storage.run_directory import read_metrics

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
