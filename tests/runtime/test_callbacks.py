"""What may watch a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from rl_training.config import TrainConfig
from rl_training.runtime import Callback, TrainerState, resume, train
from rl_training.storage.checkpoint import load_checkpoint

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
