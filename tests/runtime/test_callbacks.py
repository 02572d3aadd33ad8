"""What may watch a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import blank_state, online_config

from rl_training.config import TrainConfig
from rl_training.core.batches import Metrics
from rl_training.core.errors import ConfigError
from rl_training.runtime import Callback, TrainerState, callbacks, predict, resume, train
from rl_training.runtime.callbacks import (
    CheckpointCallback,
    ThresholdCallback,
    TimeBudgetCallback,
    VideoCallback,
)
from rl_training.storage import load_checkpoint, read_metrics

MakeConfig = Callable[..., TrainConfig]


class _Diary(Callback):
    """Writes down what happened and after how many updates."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []
        self.metrics: list[dict[str, float]] = []
        self.closed = 0

    def on_train_start(self, state: TrainerState) -> None:
        self.events.append(("start", state.update_count))

    def on_update_end(self, state: TrainerState, metrics: Mapping[str, float]) -> None:
        self.events.append(("log", state.update_count))
        self.metrics.append(dict(metrics))

    def on_eval_end(self, state: TrainerState, metrics: Mapping[str, float]) -> None:
        self.events.append(("eval", state.update_count))
        self.metrics.append(dict(metrics))

    def on_train_end(self, state: TrainerState) -> None:
        self.events.append(("end", state.update_count))

    def close(self) -> None:
        self.closed += 1


class _Counter(Callback):
    """Has a state that belongs into checkpoints."""

    def __init__(self) -> None:
        self.evaluations = 0

    def on_eval_end(self, state: TrainerState, metrics: Mapping[str, float]) -> None:
        self.evaluations += 1

    def state_dict(self) -> dict[str, Any]:
        return {"evaluations": self.evaluations}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.evaluations = state["evaluations"]


def test_events_come_in_order_and_as_often_as_their_intervals_say(tiny_config: MakeConfig) -> None:
    diary = _Diary()

    train(tiny_config("td3_bc", "log_interval=5", "algo_kwargs.eval_interval=10"), callbacks=[diary])

    assert diary.events == [
        ("start", 0),
        ("log", 5),
        ("log", 10),
        ("eval", 10),
        ("log", 15),
        ("log", 20),
        ("eval", 20),
        ("end", 20),
    ]
    assert diary.closed == 1


def test_callbacks_see_losses_after_updates_and_returns_after_evaluations(tiny_config: MakeConfig) -> None:
    diary = _Diary()

    result = train(tiny_config("td3_bc", "total_timesteps=10"), callbacks=[diary])

    losses, evaluation = diary.metrics
    # The actor is updated on every second update only and is in each log line all the same.
    assert {"critic_loss", "actor_loss", "updates_per_second", "learning_rate"} <= set(losses)
    assert evaluation == result.metrics


@pytest.mark.parametrize("event", ["on_train_start", "on_update_end", "on_eval_end"])
def test_a_callback_can_stop_the_run(tiny_config: MakeConfig, event: str) -> None:
    def stop(state: TrainerState, *_: object) -> None:
        state.request_stop("seen enough")

    stopper, diary = Callback(), _Diary()
    setattr(stopper, event, stop)

    result = train(tiny_config("bc", "log_interval=5"), callbacks=[stopper, diary])

    updates = {"on_train_start": 0, "on_update_end": 5, "on_eval_end": 10}[event]
    stored = json.loads((result.run_dir / "result.json").read_text())
    assert (stored["stop_reason"], stored["update_count"]) == ("seen enough", updates)
    assert load_checkpoint(result.checkpoint_path)["trainer"]["state"]["update_count"] == updates
    assert diary.events[-1] == ("end", updates)


def test_a_callback_is_closed_also_when_the_run_fails(tiny_config: MakeConfig) -> None:
    class Broken(Callback):
        def on_eval_end(self, state: TrainerState, metrics: Mapping[str, float]) -> None:
            raise ZeroDivisionError

    diary = _Diary()

    with pytest.raises(ZeroDivisionError):
        train(tiny_config("bc"), callbacks=[diary, Broken()])

    assert diary.closed == 1
    assert diary.events[-1] == ("eval", 10)


def test_the_state_of_a_callback_is_restored_when_the_run_is_resumed(tiny_config: MakeConfig) -> None:
    result = train(tiny_config("bc"), callbacks=[_Counter()])
    counter = _Counter()

    resume(result.run_dir, callbacks=[counter], total_timesteps=40)

    assert counter.evaluations == 4


def test_a_callback_that_is_new_to_a_resumed_run_starts_afresh(tiny_config: MakeConfig) -> None:
    result = train(tiny_config("bc"))
    counter = _Counter()

    resume(result.run_dir, callbacks=[counter], total_timesteps=40)

    assert counter.evaluations == 2


class Watch(Callback):
    """Looks at everything there is to see."""

    def __init__(self) -> None:
        self.rewards: list[float] = []
        self.updates: list[int] = []

    def on_collect_end(self, state: TrainerState) -> None:
        step = state.last_step
        assert step is not None
        assert step.obs.shape == step.next_obs.shape == (1, 3)
        # In the environment's units, which are [-2, 2].
        assert np.abs(step.actions).max() <= 2
        self.rewards += step.rewards.tolist()

    def on_each_update(self, state: TrainerState, metrics: Metrics) -> None:
        assert metrics["critic_loss"].ndim == 0
        assert state.algorithm.name == "sac"
        assert state.policy.spaces.obs_dim == 3
        self.updates.append(state.update_count)


def test_callbacks_see_the_algorithm_the_policy_and_the_last_transitions(tmp_path: Path) -> None:
    watch = Watch()

    train(online_config(tmp_path), callbacks=[watch])

    assert len(watch.rewards) == 40
    assert max(watch.rewards) < 0
    assert watch.updates == list(range(1, len(watch.updates) + 1))


class Report(Callback):
    """Logs the number of each update, and a number at each evaluation."""

    def on_each_update(self, state: TrainerState, metrics: Metrics) -> None:
        state.log("update_number", state.update_count)

    def on_eval_end(self, state: TrainerState, metrics: Mapping[str, float]) -> None:
        state.log("twice_return", 2 * metrics["return_mean"])


def test_numbers_that_callbacks_log_are_part_of_the_metrics(tiny_config: MakeConfig) -> None:
    result = train(tiny_config("td3_bc"), callbacks=[Report()])

    rows = read_metrics(result.run_dir)
    assert [row["update_number"] for row in rows if row["kind"] == "train"] == [5.5, 15.5]
    returns = [row["return_mean"] for row in rows if row["kind"] == "eval"]
    assert [row["twice_return"] for row in rows if row["kind"] == "callback"] == [2 * each for each in returns]


def test_what_was_logged_before_a_stop_counts_after_it(tiny_config: MakeConfig) -> None:
    config = tiny_config("td3_bc", "log_interval=20")

    class Stop(Callback):
        def on_each_update(self, state: TrainerState, metrics: Metrics) -> None:
            if state.update_count == 7:
                state.interrupt("for a test")

    run = train(config, callbacks=[Report(), Stop()]).run_dir
    resume(run, callbacks=[Report()])

    (row,) = (row for row in read_metrics(run) if row["kind"] == "train")
    assert row["update_number"] == 10.5


def test_a_name_that_the_run_reports_itself_cannot_be_logged(tiny_config: MakeConfig) -> None:
    class Clash(Callback):
        def on_each_update(self, state: TrainerState, metrics: Metrics) -> None:
            state.log("critic_loss", 0.0)

    with pytest.raises(ConfigError, match=r"state.log\('critic_loss', ...\): the run reports a metric of this name"):
        train(tiny_config("td3_bc"), callbacks=[Clash()])


def test_callbacks_that_do_not_watch_single_updates_are_not_called_for_them() -> None:
    watch, report, plain = Watch(), Report(), CheckpointCallback("x")

    assert callbacks.overriding([watch, report, plain], "on_each_update") == [watch, report]
    assert callbacks.overriding([watch, report, plain], "on_collect_end") == [watch]


@pytest.mark.parametrize(("mode", "values", "stops"), [("max", [1.0, 2.9, 3.0], 3), ("min", [4.0, 3.0, 1.0], 2)])
def test_a_threshold_ends_the_run(mode: Any, values: list[float], stops: int) -> None:
    callback, state = ThresholdCallback("return_mean", 3.0, mode=mode), blank_state()

    seen = 0
    while not state.should_stop:
        callback.on_eval_end(state, {"return_mean": values[seen]})
        seen += 1

    assert seen == stops


def test_a_time_budget_interrupts_a_run_that_can_be_resumed(
    tiny_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]

    class Clock(Callback):
        def on_each_update(self, state: TrainerState, metrics: Metrics) -> None:
            now[0] += 30.0

    monkeypatch.setattr(callbacks.time, "monotonic", lambda: now[0])  # type: ignore[attr-defined]  # not re-exported
    watchers = [Clock(), TimeBudgetCallback(minutes=5)]

    first = train(tiny_config("td3_bc"), callbacks=watchers)
    again = resume(first.run_dir, callbacks=watchers)

    assert first.interrupted
    assert first.stop_reason == "the time budget of 300 seconds is used up"
    # Ten updates each; the second ten are the last, so that the run has ended.
    assert again.metrics["update_count"] == 20


def test_checkpoints_of_ones_own_are_policies_and_only_the_last_are_kept(
    tiny_config: MakeConfig, tmp_path: Path
) -> None:
    train(tiny_config("td3_bc", "algo_kwargs.eval_interval=5"), callbacks=[CheckpointCallback(tmp_path, keep=2)])

    files = sorted(path.name for path in tmp_path.glob("*.pt"))
    assert files == ["td3_bc_000000015.pt", "td3_bc_000000020.pt"]
    assert predict(tmp_path / files[0], [1.0, 0.0, 0.0]).shape == (1,)


def test_budgets_and_numbers_to_keep_are_positive() -> None:
    with pytest.raises(ConfigError, match="a time budget needs hours, minutes or seconds above 0"):
        TimeBudgetCallback()
    with pytest.raises(ConfigError, match="keep must be >= 1, got 0"):
        CheckpointCallback("x", keep=0)


def test_videos_of_evaluations_are_part_of_the_run(tiny_config: MakeConfig) -> None:
    pytest.importorskip("imageio_ffmpeg", reason="needs the extra video")
    short = ("algo_kwargs.eval_interval=5", "env_kwargs.max_episode_steps=3", "algo_kwargs.dataset_size=30")

    result = train(tiny_config("td3_bc", *short), callbacks=[VideoCallback(every=2)])

    videos = sorted((result.run_dir / "videos").iterdir())
    assert [video.name for video in videos] == ["td3_bc_000000010.mp4", "td3_bc_000000020.mp4"]
    assert all(video.stat().st_size > 1000 for video in videos)


def test_there_is_no_video_without_an_environment() -> None:
    with pytest.raises(ConfigError, match="VideoCallback needs an env_id"):
        VideoCallback().on_train_start(blank_state())
