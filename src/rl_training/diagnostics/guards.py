"""Guards: what a run watches at every log line, so that a failure is noticed, explained and answered."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rl_training.algorithms import Algorithm
from rl_training.core.errors import CheckpointError
from rl_training.data import ReplayBuffer, Source, TransitionDataset
from rl_training.diagnostics.probing import (
    SMALLEST_WEIGHT,
    RewardRange,
    find_broken_goals,
    find_not_finite,
    hindsight_sources,
    measure,
    probe_rows,
    weight_norms,
)
from rl_training.models.mlp import Multiplier
from rl_training.runtime.controls import GuardOptions
from rl_training.storage.run_directory import MetricWindow

MOST_ROLLBACKS = 3
OUTSIDE = "outside"
"""What an alarm is called whose cause is the data or the environment: going back would not help."""
LOWER = "try a lower learning_rate or max_grad_norm"
SMALLEST_UNIT = 1.0
"""Values within this distance of what rewards allow are never an alarm: those of fresh networks are of this size."""
AVERAGES = ("q_mean", "target_q_mean", "v_mean")
"""Averages of a log line that are values of logged actions or states."""


@dataclass(frozen=True)
class Alarm:
    """What a guard found."""

    guard: str
    value: float
    limit: float
    what: str
    cause: str
    advice: str

    def __str__(self) -> str:
        return f"{self.what}: {self.cause}; {self.advice}"


class Guards:
    """Looks at a run's log line and networks, and remembers what it needs to judge them.

    Without a log the rows that networks are asked about come from the replay buffer. An algorithm that learns from
    rollouts forgets its rows before it is looked at: only its weights and losses are watched.
    """

    def __init__(
        self,
        options: GuardOptions,
        algorithm: Algorithm,
        source: Source,
        *,
        log: TransitionDataset | None = None,
        buffer: ReplayBuffer | None = None,
    ) -> None:
        self.options, self.algorithm, self.log, self.buffer = options, algorithm, log, buffer
        self.rows = probe_rows(log, None)
        self.hindsight = list(hindsight_sources(source))
        self.rewards = RewardRange()
        if log is not None:
            self.rewards.add(log.rewards, log.dones)
        self.initial = {child: max(float(norm), SMALLEST_WEIGHT) for child, norm in weight_norms(algorithm).items()}
        """The size of each network's weights at the start of the run."""
        self.raised: list[str] = []
        """Guards that warned and have found nothing better since."""
        self.looked = 0
        """Updates that had been made at the last look."""
        self.rollbacks: list[dict[str, Any]] = []
        """A row of metrics for each time that the run went back."""
        self.good: str | None = None
        """The last checkpoint at which no guard found anything, by its name; None unless the run may go back."""

    @property
    def goes_back(self) -> bool:
        """Whether the run goes back to a checkpoint when a guard finds something."""
        return self.options.on_divergence == "rollback"

    @property
    def learning_rate_factor(self) -> float:
        """What is left of the learning rate after going back."""
        return 0.5 ** len(self.rollbacks)

    def find_broken(self, window: MetricWindow, updates: int) -> Alarm | None:
        """A metric that is not a finite number, and where that comes from: from outside, or from training."""
        name = window.find_broken()
        if name is None:
            return None
        outside = find_not_finite(self.log, self.buffer) or find_broken_goals(self.hindsight)
        what = f"{name} is not a number after {updates} updates"
        if outside is not None:
            return Alarm(OUTSIDE, math.nan, 0.0, what, outside, "training has not diverged: look there")
        return Alarm("loss", math.nan, 0.0, what, "training has diverged", LOWER)

    def look(self, line: Mapping[str, float], updates: int) -> list[Alarm]:
        """What all guards find in the averages of a log line, if there is one, and in the networks as they are."""
        self.looked = updates
        if self.buffer is not None:
            self.rewards.add_new(self.buffer)
        for source in self.hindsight:
            self.rewards.add_hindsight(source)
        rows = self.rows if self.log is not None else probe_rows(None, self.buffer)
        found = measure(self.algorithm, rows)
        # Causes come before what they lead to.
        return [
            *self._judge_weights(found),
            *self._judge_values(line, found),
            *self._judge_ensemble(found),
            *self._judge_clone(found, updates),
            *self._judge_actor(found),
        ]

    def _judge_values(self, line: Mapping[str, float], found: Mapping[str, float]) -> Iterator[Alarm]:
        slack, gamma = self.options.guard_value_slack, getattr(self.algorithm.hyper, "gamma", 1.0)
        allowed = self.rewards.allowed(gamma)
        if slack is None or allowed is None:
            return
        low, high = allowed
        room = slack * max(high - low, SMALLEST_UNIT) + self._entropy_bonus(line, gamma)
        averages = {name: line[name] for name in AVERAGES if name in line}
        # Pessimistic critics value the policy's own actions as low as they like.
        highest = averages | {name: found[name] for name in ("policy_value",) if name in found}
        over = [(name, value, high) for name, value in highest.items() if value > high + room]
        under = [(name, value, low) for name, value in averages.items() if value < low - room]
        for name, value, limit in (over or under)[:1]:
            rewards = f"rewards from {self.rewards.low:.4g} to {self.rewards.high:.4g} with gamma {gamma:g}"
            yield Alarm(
                "values",
                value,
                limit,
                f"{name} is {value:.4g}, and {rewards} allow values from {low:.4g} to {high:.4g}",
                "likely cause: the critics learn from their own errors, which grow",
                self._advise("lower", "learning_rate", "tau", "gamma") + ", or set max_grad_norm or layer_norm",
            )

    def _entropy_bonus(self, line: Mapping[str, float], gamma: float) -> float:
        """What the entropy of a policy may add to discounted sums of rewards, or take from them."""
        temperature = getattr(self.algorithm.model, "temperature", None)
        if not isinstance(temperature, Multiplier) or gamma >= 1:
            return 0.0
        return abs(float(temperature().detach()) * line.get("entropy", 0.0)) / (1 - gamma)

    def _judge_actor(self, found: Mapping[str, float]) -> Iterator[Alarm]:
        most, least = self.options.guard_saturation, self.options.guard_action_spread
        blame = (
            "the actor follows errors of the critics"
            if hasattr(self.algorithm.model, "critic")
            else "too large updates moved it"
        )
        if most is not None and found.get("saturation", 0.0) >= most:
            yield Alarm(
                "saturated_actor",
                found["saturation"],
                most,
                f"{found['saturation']:.0%} of the policy's actions are on the same bound",
                f"likely cause: {blame} to where tanh has no gradient",
                self._advise("lower", "actor_learning_rate", "learning_rate") + ", or set normalize_obs: true",
            )
        if least is not None and found.get("action_spread", math.inf) <= least:
            yield Alarm(
                "dead_actor",
                found["action_spread"],
                least,
                "the policy gives the same action for all observations",
                "likely cause: updates that were too large turned all units of a layer off, or observations are tiny",
                self._advise("lower", "actor_learning_rate", "learning_rate")
                + ", or set normalize_obs: true or activation: silu",
            )

    def _judge_weights(self, found: Mapping[str, float]) -> Iterator[Alarm]:
        most = self.options.guard_weight_growth
        growths = {child: found[f"weights_{child}"] / norm for child, norm in self.initial.items()}
        child = max(growths, key=growths.__getitem__, default=None)
        if most is not None and child is not None and not growths[child] <= most:
            yield Alarm(
                "weights",
                growths[child],
                most,
                f"the weights of the network {child} are {growths[child]:.4g} times as large as at the start",
                "likely cause: updates are too large for it",
                self._advise("lower", f"{child}_learning_rate", "learning_rate") + ", or set max_grad_norm",
            )

    def _judge_ensemble(self, found: Mapping[str, float]) -> Iterator[Alarm]:
        least = self.options.guard_ensemble_spread
        if least is not None and found.get("ensemble_spread", math.inf) < least:
            yield Alarm(
                "ensemble",
                found["ensemble_spread"],
                least,
                f"the critics agree at random actions to {found['ensemble_spread']:.1g} of their values",
                "likely cause: they have the same weights, so that the smallest of them is no caution",
                "start from weights that differ (initial_checkpoint, or the model's own initialisation), or "
                + self._advise("raise", "diversity_weight", "num_critics", "critic_hidden_sizes", "hidden_sizes"),
            )

    def _judge_clone(self, found: Mapping[str, float], updates: int) -> Iterator[Alarm]:
        most = self.options.guard_clone_error
        is_due = updates >= self.options.guard_clone_after
        if most is not None and is_due and found.get("clone_error", 0.0) > most:
            error = found["clone_error"]
            yield Alarm(
                "clone",
                error,
                most,
                f"the error of the behaviour clone is {error:.3g} times that of the best constant action",
                "likely cause: observations of very different scales, or steps that are too large",
                "set normalize_obs: true, or " + self._advise("lower", "vae_learning_rate", "learning_rate"),
            )

    def _advise(self, verb: str, *names: str) -> str:
        """Advice to change one of the first two of these options that the algorithm has."""
        known = [name for name in names if hasattr(self.algorithm.hyper, name)][:2]
        return f"{verb} {' or '.join(known)}"

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to judge and to go back alike, in plain values."""
        names = ("initial", "raised", "looked", "rollbacks", "good")
        return {name: getattr(self, name) for name in names} | {"rewards": self.rewards.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        if state["initial"].keys() != self.initial.keys():
            raise CheckpointError(f"guards watched the networks {sorted(state['initial'])}, not {sorted(self.initial)}")
        vars(self).update({name: value for name, value in state.items() if name != "rewards"})
        self.rewards.load_state_dict(state["rewards"])
