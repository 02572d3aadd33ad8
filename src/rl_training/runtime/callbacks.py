"""Callbacks: objects that watch a run and may stop it."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rl_training.acting import EVAL_SEED, check_video, record_policy
from rl_training.core.batches import Metrics
from rl_training.core.errors import ConfigError, nearest
from rl_training.runtime.controls import EarlyStoppingConfig

if TYPE_CHECKING:
    from rl_training.runtime.trainer import TrainerState


class Callback:
    """Events of a run; override what you need. To end the run call `state.request_stop(reason)`."""

    def on_train_start(self, state: TrainerState) -> None:
        """Before the first update."""

    def on_collect_end(self, state: TrainerState) -> None:
        """After each step of all environments, in runs that act; `state.last_step` has the transitions."""

    def on_each_update(self, state: TrainerState, metrics: Metrics) -> None:
        """After each update, with its metrics as tensors; reading a number from one waits for the device."""

    def on_update_end(self, state: TrainerState, metrics: Mapping[str, float]) -> None:
        """After the updates between two log lines; metrics are averages over them."""

    def on_eval_end(self, state: TrainerState, metrics: Mapping[str, float]) -> None:
        """After an evaluation."""

    def on_train_end(self, state: TrainerState) -> None:
        """After the last checkpoint."""

    def close(self) -> None:
        """Last of all, also after an error: release resources, such as the terminal."""

    def state_dict(self) -> dict[str, Any]:
        """Plain values that a resumed run needs."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""


def overriding(callbacks: Sequence[Callback], event: str) -> list[Callback]:
    """The callbacks that override an event."""
    idle = getattr(Callback, event)
    return [each for each in callbacks if getattr(getattr(each, event), "__func__", None) is not idle]


class EarlyStoppingCallback(Callback):
    """Stop when a metric has not improved for `patience` evaluations, or has reached a threshold."""

    def __init__(self, config: EarlyStoppingConfig) -> None:
        self.config = config
        self.best = -math.inf
        self.waited = 0

    def on_eval_end(self, state: TrainerState, metrics: Mapping[str, float]) -> None:
        """Compare with the best so far."""
        config = self.config
        if config.metric not in metrics:
            hint = nearest(config.metric, metrics) or f"; there are {', '.join(metrics)}"
            raise ConfigError(f"early_stopping.metric {config.metric!r} is not reported{hint}")
        value = metrics[config.metric]
        sign = 1 if config.mode == "max" else -1
        if sign * value > self.best + config.min_delta:
            self.best, self.waited = sign * value, 0
        else:
            self.waited += 1
        if config.threshold is not None and sign * value >= sign * config.threshold:
            state.request_stop(f"{config.metric} reached {value:g} (threshold {config.threshold:g})")
        elif config.patience is not None and self.waited >= config.patience:
            state.request_stop(f"{config.metric} did not improve for {config.patience} evaluations")

    def state_dict(self) -> dict[str, Any]:
        """The best value, and the evaluations since then."""
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the best value and the count."""
        self.best, self.waited = state["best"], state["waited"]


class ThresholdCallback(EarlyStoppingCallback):
    """Stop when a metric has reached a threshold: at least as much, or with mode "min" at most as much."""

    def __init__(self, metric: str, threshold: float, *, mode: Literal["max", "min"] = "max") -> None:
        super().__init__(EarlyStoppingConfig(metric=metric, threshold=threshold, mode=mode))


class TimeBudgetCallback(Callback):
    """Interrupt the run after some time, with a checkpoint; a resumed run has as much time again."""

    def __init__(self, *, hours: float = 0.0, minutes: float = 0.0, seconds: float = 0.0) -> None:
        self.seconds = 3600 * hours + 60 * minutes + seconds
        if self.seconds <= 0:
            raise ConfigError("a time budget needs hours, minutes or seconds above 0")
        self.deadline = math.inf

    def on_train_start(self, state: TrainerState) -> None:
        """Start the clock."""
        self.deadline = time.monotonic() + self.seconds

    def on_each_update(self, state: TrainerState, metrics: Metrics) -> None:
        """Check the clock."""
        self.on_collect_end(state)

    def on_collect_end(self, state: TrainerState) -> None:
        """Check the clock."""
        if time.monotonic() >= self.deadline:
            state.interrupt(f"the time budget of {self.seconds:g} seconds is used up")


class CheckpointCallback(Callback):
    """Write the policy to a folder after every evaluation, and keep the last few files or all.

    Each file is a checkpoint for `predict` and `eval`. The run's own checkpoints are written in any case.
    """

    def __init__(self, folder: str | Path, *, keep: int | None = None) -> None:
        if keep is not None and keep < 1:
            raise ConfigError(f"keep must be >= 1, got {keep}")
        self.folder, self.keep = Path(folder), keep
        self.written: list[str] = []

    def on_eval_end(self, state: TrainerState, metrics: Mapping[str, float]) -> None:
        """Write one file, and remove those that are too many."""
        name = f"{state.algorithm.name}_{state.global_step:09d}.pt"
        self.folder.mkdir(parents=True, exist_ok=True)
        state.save(self.folder / name)
        self.written = [*(other for other in self.written if other != name), name]
        while self.keep is not None and len(self.written) > self.keep:
            (self.folder / self.written.pop(0)).unlink(missing_ok=True)

    def state_dict(self) -> dict[str, Any]:
        """The files written so far."""
        return {"written": list(self.written)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the list of files."""
        self.written = list(state["written"])


class VideoCallback(Callback):
    """Record a video after every `every`-th evaluation, into a folder: by default `videos` in the run directory.

    It needs the extra `video` and an environment that draws pictures.
    """

    def __init__(self, folder: str | Path | None = None, *, every: int = 1, episodes: int = 1) -> None:
        if every < 1 or episodes < 1:
            raise ConfigError(f"every and episodes must be >= 1, got {every} and {episodes}")
        self.folder, self.every, self.episodes = folder, every, episodes
        self.evaluations = 0

    def on_train_start(self, state: TrainerState) -> None:
        """Refuse a run that cannot be recorded, before it begins."""
        if state.config.env_id is None:
            raise ConfigError("VideoCallback needs an env_id: without an environment there is nothing to record")
        path = self._path(state)
        path.parent.mkdir(parents=True, exist_ok=True)
        check_video(path)

    def on_eval_end(self, state: TrainerState, metrics: Mapping[str, float]) -> None:
        """Record the first episodes that an evaluation has."""
        self.evaluations += 1
        if self.evaluations % self.every == 0:
            task, seed = (str(state.config.env_id), state.config.env_kwargs), EVAL_SEED
            record_policy(self._path(state), state.policy, *task, episodes=self.episodes, seed=seed)

    def _path(self, state: TrainerState) -> Path:
        folder = state.run_dir / "videos" if self.folder is None else Path(self.folder)
        return folder / f"{state.algorithm.name}_{state.global_step:09d}.mp4"

    def state_dict(self) -> dict[str, Any]:
        """The number of evaluations so far."""
        return {"evaluations": self.evaluations}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the count."""
        self.evaluations = state["evaluations"]
