"""Going back: the last good checkpoint, half the learning rate, and the same end whenever the process is killed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import differences, online_config

from rl_training.config import TrainConfig
from rl_training.core.errors import TrainingError
from rl_training.runtime import (
    Callback,
    TrainerState,
    resume,
    saving,
    train,
)
from rl_training.runtime import saving as recovery
from rl_training.storage import ReplayStore, RunDirectory, load_checkpoint, read_metrics

pytestmark = pytest.mark.filterwarnings("ignore:timestep")

MakeConfig = Callable[..., TrainConfig]

TOO_FAST = (
    "algo_kwargs.on_divergence=rollback",
    "algo_kwargs.learning_rate=16",
    "algo_kwargs.guard_weight_growth=200",
    "algo_kwargs.guard_saturation=null",
    "algo_kwargs.guard_action_spread=null",
    "algo_kwargs.guard_value_slack=null",
)
"""Overrides with which weights grow too fast at first, but not with half the learning rate."""

ONLINE = (
    "algo_kwargs.learning_rate=1",
    "algo_kwargs.guard_weight_growth=12",
    "algo_kwargs.buffer_capacity=4",
    "checkpoint_interval=6",
)
"""The same for a run that acts. No row of the good checkpoint is left in its small ring when the run goes back."""


def _rows(run_dir: Path, *kinds: str) -> list[dict[str, Any]]:
    """The metrics of a run, of some kinds, without what depends on the clock."""
    return [
        {name: value for name, value in row.items() if not name.endswith("_per_second")}
        for row in read_metrics(run_dir)
        if not kinds or row["kind"] in kinds
    ]


def test_going_back_halves_the_learning_rate_and_is_in_the_metrics(tiny_config: MakeConfig) -> None:
    result = train(tiny_config("td3_bc", *TOO_FAST))

    (row,) = _rows(result.run_dir, "guard")
    assert (row["guard"], row["action"], row["rollbacks"]) == ("weights", "rollback", 1)
    assert (row["noticed_at"], row["global_step"], row["learning_rate"]) == (10, 0, 8.0)
    lines = _rows(result.run_dir, "train")
    assert [(line["global_step"], line["learning_rate"]) for line in lines] == [(10, 8.0), (20, 8.0)]
    assert load_checkpoint(result.checkpoint_path)["trainer"]["guards"]["rollbacks"] == [row]


def test_a_run_goes_back_three_times_and_then_ends(tiny_config: MakeConfig) -> None:
    config = tiny_config("td3_bc", *TOO_FAST, "algo_kwargs.learning_rate=1e30")

    with pytest.raises(TrainingError, match=r"is not a number after .* training has diverged.*went back 3 times"):
        train(config)

    (run,) = Path(config.output_dir).iterdir()
    assert [row["learning_rate_multiplier"] for row in _rows(run, "guard")] == [0.5, 0.25, 0.125]


def test_the_best_checkpoint_is_not_one_that_the_run_went_back_from(tiny_config: MakeConfig) -> None:
    result = train(tiny_config("td3_bc", *TOO_FAST, "algo_kwargs.eval_interval=5", "total_timesteps=10"))

    assert [row["noticed_at"] for row in _rows(result.run_dir, "guard")] == [10]
    best = load_checkpoint(result.run_dir / "checkpoints" / "best.pt")["trainer"]
    assert len(best["guards"]["rollbacks"]) == 1
    assert best["state"]["best_step"] == load_checkpoint(result.checkpoint_path)["trainer"]["state"]["best_step"]


class KilledError(Exception):
    """Stands for the end of a process."""


PLACES: dict[str, tuple[Any, str]] = {
    "before the checkpoint is read": (saving, "load_session"),
    "before anything is written": (recovery, "write_latest"),
    "before the checkpoint is the latest": (saving, "save"),
    "before the checkpoint has its number": (recovery, "number_latest"),
    "before rows are deleted": (ReplayStore, "prune"),
    "before the metrics are rewound": (RunDirectory, "rewind_metrics"),
    "before policies are dropped": (recovery, "drop_policies"),
}


def _train_until_killed(config: TrainConfig, place: str) -> Path:
    """The directory of a run whose process ended, so to speak, at some place while it went back."""
    owner, name = PLACES[place]
    before, go_back = set(Path(config.output_dir).iterdir()), saving._roll_back

    def end(*_: Any, **__: Any) -> None:
        raise KilledError

    def go_back_and_die(*arguments: Any) -> None:
        patch.setattr(owner, name, end)
        go_back(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saving, "_roll_back", go_back_and_die)
        with pytest.raises(KilledError):
            train(config)
    (killed,) = set(Path(config.output_dir).iterdir()) - before
    return killed


def _same_end(straight: Path, other: Path) -> None:
    ours, theirs = (load_checkpoint(run / "checkpoints" / "latest.pt") for run in (straight, other))
    for part in ("algorithm", "source", "collector", "random", "trainer"):
        assert not differences(ours[part], theirs[part], part)
    assert _rows(straight) == _rows(other)
    assert _files(straight) == _files(other)


def _files(run_dir: Path) -> list[str]:
    """The checkpoints and policies of a run."""
    return sorted(str(path.relative_to(run_dir)) for path in run_dir.glob("*/*.pt") if path.parent.name != "replay")


def test_a_run_that_is_killed_while_it_goes_back_ends_as_if_it_had_not_been(tiny_config: MakeConfig) -> None:
    config = tiny_config("td3_bc", *TOO_FAST, "algo_kwargs.eval_interval=20")
    straight = train(config).run_dir
    for place in PLACES:
        if place == "before rows are deleted":
            # It has no buffer.
            continue
        killed = _train_until_killed(config, place)

        resume(killed)

        _same_end(straight, killed)


def test_a_run_that_acts_goes_back_with_its_environments_and_its_buffer(tmp_path: Path) -> None:
    config = online_config(tmp_path / "runs", "td3", *TOO_FAST, *ONLINE)
    straight = train(config).run_dir
    first = _rows(straight, "guard")[0]
    assert (first["action"], first["noticed_at"], first["global_step"]) == ("rollback", 30, 24)
    for place in ("before rows are deleted", "before the metrics are rewound"):
        killed = _train_until_killed(config, place)

        resume(killed)

        _same_end(straight, killed)


class InterruptAt(Callback):
    """Interrupts a run after some updates, as Ctrl-C does."""

    def __init__(self, update: int) -> None:
        self.update = update

    def on_each_update(self, state: TrainerState, metrics: Any) -> None:
        if state.update_count == self.update:
            state.interrupt("test")


def test_what_an_interrupted_run_saves_is_no_checkpoint_to_go_back_to(tiny_config: MakeConfig) -> None:
    config = tiny_config("td3_bc", *TOO_FAST, "algo_kwargs.eval_interval=20")
    straight = train(config, callbacks=[InterruptAt(-1)]).run_dir
    for update in (3, 10):
        stopped = train(config, callbacks=[InterruptAt(update)])
        assert stopped.interrupted

        resume(stopped.run_dir, callbacks=[InterruptAt(-1)])

        _same_end(straight, stopped.run_dir)


class Explode(Callback):
    """Makes the weights of the critics a thousand times as large, once."""

    is_new = True

    def on_each_update(self, state: TrainerState, metrics: Any) -> None:
        if state.update_count == 17 and self.is_new:
            self.is_new = False
            with torch.no_grad():
                for weights in state.algorithm.model.critic.parameters():
                    weights.mul_(1000)


def test_a_run_goes_back_to_where_its_options_had_not_changed_yet(tiny_config: MakeConfig) -> None:
    often = ("total_timesteps=30", "checkpoint_interval=10", "algo_kwargs.eval_interval=3")
    config = tiny_config("td3_bc", *TOO_FAST, "algo_kwargs.learning_rate=0.001", *often)
    stopped = train(config, callbacks=[InterruptAt(13)]).run_dir

    resume(stopped, callbacks=[Explode()], algo_kwargs={"batch_size": 8})

    assert [(row["global_step"], row["noticed_at"]) for row in _rows(stopped, "guard")] == [(10, 20)]
    trainer, best = (load_checkpoint(stopped / "checkpoints" / f"{name}.pt")["trainer"] for name in ("latest", "best"))
    assert trainer["branches"] == [10]
    assert best["branches"] == [10] or best["state"]["global_step"] <= 10
    assert trainer["state"]["best_step"] == best["state"]["global_step"]
    assert "checkpoints/update_000000013.pt" not in _files(stopped)
    assert [row["global_step"] for row in _rows(stopped, "train")] == [10, 20, 30]


def test_the_checkpoint_to_go_back_to_stays_with_its_rows_whatever_is_kept(tmp_path: Path) -> None:
    config = online_config(tmp_path / "runs", "td3", *TOO_FAST, *ONLINE, "keep_checkpoints=1")
    # Updates begin after 12 steps: this is in step 27, after the good checkpoint and before the alarm.
    straight = train(config, callbacks=[InterruptAt(-1)]).run_dir
    stopped = train(config, callbacks=[InterruptAt(15)])
    checkpoints = stopped.run_dir / "checkpoints"
    assert {path.name for path in checkpoints.glob("step_*")} == {"step_000000024.pt", "step_000000027.pt"}

    resume(stopped.run_dir, callbacks=[InterruptAt(-1)])

    _same_end(straight, stopped.run_dir)


def test_a_good_checkpoint_that_a_kill_left_without_its_number_gets_it_when_the_run_continues(
    tiny_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config("td3_bc", *TOO_FAST, "algo_kwargs.eval_interval=20")
    straight = train(config).run_dir

    def end(*_: Any) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(saving, "link_checkpoint", end)
        with pytest.raises(KilledError):
            train(config)
    (killed,) = set(Path(config.output_dir).iterdir()) - {straight}
    assert _files(killed) == ["checkpoints/latest.pt", "policies/step_000000000.pt"]

    resume(killed)

    _same_end(straight, killed)


def test_a_run_that_cannot_go_back_says_why_and_what_went_wrong(tiny_config: MakeConfig) -> None:
    class Damage(Callback):
        def on_each_update(self, state: TrainerState, metrics: Any) -> None:
            path = state.run_dir / "checkpoints" / "update_000000000.pt"
            path.write_bytes(path.read_bytes()[:-100])

    with pytest.raises(
        TrainingError,
        match=r"the weights of the network critic .*cannot go back: .*update_000000000.pt is not",
    ):
        train(tiny_config("td3_bc", *TOO_FAST), callbacks=[Damage()])


class FailOnce(Callback):
    """Code of the user's own that fails at one event, the first time."""

    def __init__(self, event: str) -> None:
        self.event, self.is_new = event, True

    def _pass(self, event: str) -> None:
        if event == self.event and self.is_new:
            self.is_new = False
            raise RuntimeError(event)

    def load_state_dict(self, state: Any) -> None:
        self._pass("load")

    def on_update_end(self, state: TrainerState, metrics: Any) -> None:
        self._pass("log")


def test_a_callback_that_fails_while_a_run_goes_back_leaves_the_last_checkpoint(tiny_config: MakeConfig) -> None:
    config = tiny_config("td3_bc", *TOO_FAST, "algo_kwargs.eval_interval=20")
    straight, failing = train(config, callbacks=[FailOnce("never")]).run_dir, FailOnce("load")
    with pytest.raises(RuntimeError, match="load"):
        train(config, callbacks=[failing])
    (failed,) = set(Path(config.output_dir).iterdir()) - {straight}
    assert load_checkpoint(failed / "checkpoints" / "latest.pt")["trainer"]["guards"]["rollbacks"] == []

    resume(failed, callbacks=[failing])

    _same_end(straight, failed)


def test_a_warning_of_a_log_line_that_failed_is_made_again_with_it(tiny_config: MakeConfig) -> None:
    config = tiny_config("td3_bc", *TOO_FAST, "algo_kwargs.on_divergence=warn")
    straight, failing = train(config, callbacks=[FailOnce("never")]).run_dir, FailOnce("log")
    assert [row["action"] for row in _rows(straight, "guard")] == ["warn"]
    with pytest.raises(RuntimeError, match="log"):
        train(config, callbacks=[failing])
    (failed,) = set(Path(config.output_dir).iterdir()) - {straight}

    resume(failed, callbacks=[failing])

    assert _rows(straight) == _rows(failed)


def test_a_policy_that_gives_no_numbers_is_called_divergence_and_not_the_environments_fault(tmp_path: Path) -> None:
    class Ruin(Callback):
        def on_each_update(self, state: TrainerState, metrics: Any) -> None:
            if state.env_steps == 25 and state.config.algo_kwargs["on_divergence"] == "warn":
                with torch.no_grad():
                    next(state.algorithm.model.actor.parameters()).fill_(torch.nan)

    with pytest.raises(
        TrainingError, match=r"timestep 25: the policy gave an action that is nan: training has diverged"
    ):
        train(online_config(tmp_path / "runs"), callbacks=[Ruin()])
