"""Callbacks: objects that watch a run and may stop it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rl_training.runtime.option_groups import EarlyStoppingConfig
from rl_training.types import ConfigError, nearest

if TYPE_CHECKING:
    from rl_training.runtime.trainer import TrainerState


class Callback:
    """Events of a run; override what you need. To end the run call `state.request_stop(reason)`."""

    def on_train_start(self, state: TrainerState) -> None:
        """Before the first update."""

    def on_collect_end(self, state: TrainerState) -> None:
        """After a step of all environments, in runs that act."""

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
        """The best value and how long ago it was."""
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on waiting where the run was stopped."""
        self.best, self.waited = state["best"], state["waited"]
