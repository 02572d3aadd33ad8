"""When evaluations end a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from small_runs import blank_state

from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError
from rl_training.runtime import EarlyStoppingCallback, EarlyStoppingConfig, resume, train
from rl_training.storage import load_checkpoint

MakeConfig = Callable[..., TrainConfig]


def _stopped_at(callback: EarlyStoppingCallback, values: Sequence[float]) -> tuple[int | None, str | None]:
    """Number of the evaluation, from 1, that ends the run, and the reason it gives."""
    state = blank_state()
    for number, value in enumerate(values, start=1):
        callback.on_eval_end(state, {"return_mean": value, "length_mean": 1.0})
        if state.should_stop:
            return number, state.stop_reason
    return None, None


@pytest.mark.parametrize(
    ("config", "values", "number"),
    [
        ({"patience": 2}, [1, 2, 3, 4], None),
        ({"patience": 2}, [1, 0, 0], 3),
        ({"patience": 2}, [1, 0, 2, 0, 1], 5),
        # Equal is not better.
        ({"patience": 1}, [1, 1], 2),
        ({"patience": 1, "min_delta": 0.5}, [1, 1.6, 2.0], 3),
        # Slow progress adds up: what counts is the distance to the last value that was good enough.
        ({"patience": 2, "min_delta": 0.5}, [1, 1.4, 1.6, 1.7, 2.0], 5),
        ({"patience": 2, "mode": "min"}, [3, 2, 1, 0], None),
        ({"patience": 2, "mode": "min"}, [1, 2, 3], 3),
        ({"patience": 1, "min_delta": 0.5, "mode": "min"}, [3, 2, 1.8], 3),
        # A value that is no number is no improvement.
        ({"patience": 1}, [1, float("nan")], 2),
    ],
)
def test_a_run_ends_after_patience_evaluations_without_improvement(
    config: dict[str, Any], values: list[float], number: int | None
) -> None:
    stopped, reason = _stopped_at(EarlyStoppingCallback(EarlyStoppingConfig(**config)), values)

    assert stopped == number
    assert reason == (None if number is None else f"return_mean did not improve for {config['patience']} evaluations")


@pytest.mark.parametrize(
    ("config", "values", "number", "reason"),
    [
        ({"threshold": 10.0}, [1, 9.9, 10], 3, "return_mean reached 10 (threshold 10)"),
        ({"threshold": 10.0}, [1, 2], None, None),
        ({"threshold": 0.5, "mode": "min"}, [1, 0.6, 0.25], 3, "return_mean reached 0.25 (threshold 0.5)"),
        ({"threshold": 10.0, "patience": 1}, [12.5], 1, "return_mean reached 12.5 (threshold 10)"),
        ({"threshold": 10.0, "patience": 1}, [1, 1], 2, "return_mean did not improve for 1 evaluations"),
    ],
)
def test_a_run_ends_when_the_threshold_is_reached(
    config: dict[str, Any], values: list[float], number: int | None, reason: str | None
) -> None:
    assert _stopped_at(EarlyStoppingCallback(EarlyStoppingConfig(**config)), values) == (number, reason)


@pytest.mark.parametrize("mode", ["max", "min"])
def test_waiting_continues_from_a_saved_state(mode: Any) -> None:
    config = EarlyStoppingConfig(patience=3, mode=mode)
    before, after = EarlyStoppingCallback(config), EarlyStoppingCallback(config)
    _stopped_at(before, [1, 1, 1])

    after.load_state_dict(json.loads(json.dumps(before.state_dict())))

    assert _stopped_at(after, [1]) == (1, "return_mean did not improve for 3 evaluations")


def test_a_metric_that_is_not_reported_is_answered_with_the_nearest_one() -> None:
    callback = EarlyStoppingCallback(EarlyStoppingConfig(metric="return_men", patience=1))

    with pytest.raises(ConfigError) as caught:
        callback.on_eval_end(blank_state(), {"return_mean": 1.0, "length_mean": 1.0})

    assert str(caught.value) == "early_stopping.metric 'return_men' is not reported; did you mean 'return_mean'?"


def test_a_metric_that_is_like_no_other_is_answered_with_all_of_them() -> None:
    callback = EarlyStoppingCallback(EarlyStoppingConfig(metric="zzz", patience=1))

    with pytest.raises(ConfigError, match="; there are return_mean, length_mean"):
        callback.on_eval_end(blank_state(), {"return_mean": 1.0, "length_mean": 1.0})


def test_the_first_reason_to_stop_is_kept() -> None:
    state = blank_state()

    state.request_stop("first")
    state.request_stop("second")

    assert (state.should_stop, state.stop_reason) == (True, "first")


# Every Pendulum episode has 200 steps, so length_mean never improves and reaches 200 at once.
@pytest.mark.parametrize(
    ("options", "updates", "reason"),
    [
        ("{metric: length_mean, patience: 2}", 15, "length_mean did not improve for 2 evaluations"),
        ("{metric: length_mean, threshold: 200}", 5, "length_mean reached 200 (threshold 200)"),
        ("{metric: length_mean, patience: 9}", 20, None),
    ],
)
def test_a_run_that_stops_early_says_so_and_keeps_its_last_state(
    tiny_config: MakeConfig, options: str, updates: int, reason: str | None
) -> None:
    config = tiny_config("bc", "algo_kwargs.eval_interval=5", f"algo_kwargs.early_stopping={options}")

    result = train(config)

    stored = json.loads((result.run_dir / "result.json").read_text())
    assert (stored["update_count"], stored["stop_reason"]) == (updates, reason)
    assert load_checkpoint(result.checkpoint_path)["trainer"]["state"]["update_count"] == updates


def test_a_run_that_stopped_early_has_ended_for_a_resume_too(tiny_config: MakeConfig) -> None:
    options = "algo_kwargs.early_stopping={metric: length_mean, threshold: 200}"
    result = train(tiny_config("bc", "algo_kwargs.eval_interval=5", options))

    again = resume(result.run_dir)

    assert again.stop_reason == result.stop_reason
    assert load_checkpoint(again.checkpoint_path)["trainer"]["state"]["update_count"] == 5


def test_early_stopping_may_be_added_when_a_run_is_resumed(tiny_config: MakeConfig) -> None:
    result = train(tiny_config("bc"))

    again = resume(
        result.run_dir,
        total_timesteps=60,
        algo_kwargs={"early_stopping": {"metric": "length_mean", "patience": 1}},
    )

    # Evaluations after 30 and 40 updates are the first two that the new callback sees.
    assert again.stop_reason == "length_mean did not improve for 1 evaluations"
    assert load_checkpoint(again.checkpoint_path)["trainer"]["state"]["update_count"] == 40


@pytest.mark.parametrize(("mode", "choose"), [("max", max), ("min", min)])
def test_the_best_checkpoint_is_best_by_the_metric_of_early_stopping(
    tiny_config: MakeConfig, mode: str, choose: Callable[[list[float]], float]
) -> None:
    options = f"algo_kwargs.early_stopping={{metric: return_mean, mode: {mode}, patience: 9}}"
    result = train(tiny_config("td3_bc", "algo_kwargs.eval_interval=5", "algo_kwargs.learning_rate=0.01", options))

    rows = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    returns = [row["return_mean"] for row in rows if row["kind"] == "eval"]
    assert len(set(returns)) > 1
    best = load_checkpoint(result.run_dir / "checkpoints" / "best.pt")["trainer"]["state"]
    assert best["best_score"] == choose(returns)
    assert best["update_count"] == 5 * (returns.index(choose(returns)) + 1)
    assert result.best_metrics["return_mean"] == choose(returns)


def test_an_unknown_metric_ends_a_run_with_a_message_for_its_user(tiny_config: MakeConfig) -> None:
    with pytest.raises(ConfigError, match="'retrun_mean' is not reported; did you mean 'return_mean'"):
        train(tiny_config("bc", "algo_kwargs.early_stopping={metric: retrun_mean, patience: 1}"))
