"""Guards: checks of metrics and networks at every log line, which notice, explain and answer failures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from rl_training.algorithms import Algorithm
from rl_training.algorithms.base import trainable
from rl_training.core.batches import Batch, Metrics
from rl_training.core.errors import CheckpointError
from rl_training.core.options import option, options
from rl_training.core.seeds import forked
from rl_training.core.spaces import BoxActions
from rl_training.data import ReplayBuffer, Source, TransitionDataset, UniformSource
from rl_training.models import BehaviorVAE, Critic, Multiplier
from rl_training.storage import MetricWindow

OUTSIDE = "outside"
"""The guard of an alarm caused by the data or the environment: a rollback would not help."""

LOWER = "try a lower learning_rate or max_grad_norm"

SMALLEST_UNIT = 1.0
"""Values within this distance of what rewards allow are never an alarm: those of fresh networks are of this size."""

AVERAGES = ("q_mean", "target_q_mean", "v_mean")
"""Averages of a log line that are values of logged actions or states."""


@dataclass(frozen=True)
class GuardAlarm:
    """The finding of a guard."""

    guard: str
    value: float
    limit: float
    what: str
    cause: str
    advice: str

    def __str__(self) -> str:
        return f"{self.what}: {self.cause}; {self.advice}"


class Guards:
    """Checks metrics and networks at every log line.

    Without a log, the rows for the networks come from the replay buffer. An algorithm that learns from
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
        """Number of updates at the last check."""
        self.rollbacks: list[dict[str, Any]] = []
        """A row of metrics for each rollback."""
        self.good: str | None = None
        """Name of the last checkpoint without an alarm; None unless the run may roll back."""

    @property
    def rolls_back(self) -> bool:
        """Whether an alarm takes the run back to a checkpoint."""
        return self.options.on_divergence == "rollback"

    @property
    def learning_rate_factor(self) -> float:
        """The remaining share of the learning rate after rollbacks."""
        return 0.5 ** len(self.rollbacks)

    def find_broken(self, window: MetricWindow, updates: int) -> GuardAlarm | None:
        """The alarm for a metric that is not finite, with its source: data, environment or training."""
        name = window.find_broken()
        if name is None:
            return None
        outside = find_not_finite(self.log, self.buffer) or find_broken_goals(self.hindsight)
        what = f"{name} is not a number after {updates} updates"
        if outside is not None:
            return GuardAlarm(OUTSIDE, math.nan, 0.0, what, outside, "training has not diverged: look there")
        return GuardAlarm("loss", math.nan, 0.0, what, "training has diverged", LOWER)

    def look(self, line: Mapping[str, float], updates: int) -> list[GuardAlarm]:
        """Check the averages of a log line, if there is one, and the networks as they are."""
        self.looked = updates
        if self.buffer is not None:
            self.rewards.add_new(self.buffer)
        for source in self.hindsight:
            self.rewards.add_hindsight(source)
        found = measure(self.algorithm, self.rows if self.log is not None else probe_rows(None, self.buffer))
        # Causes come before what they lead to.
        causes = (*self._check_weights(found), *self._check_values(line, found))
        return [*causes, *self._check_ensemble(found), *self._check_clone(found, updates), *self._check_actor(found)]

    def _check_values(self, line: Mapping[str, float], found: Mapping[str, float]) -> Iterator[GuardAlarm]:
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
            what = f"{name} is {value:.4g}, and {rewards} allow values from {low:.4g} to {high:.4g}"
            cause = "likely cause: the critics learn from their own errors, which grow"
            advice = self._advise("lower", "learning_rate", "tau", "gamma") + ", or set max_grad_norm or layer_norm"
            yield GuardAlarm("values", value, limit, what, cause, advice)

    def _entropy_bonus(self, line: Mapping[str, float], gamma: float) -> float:
        """The largest contribution of the entropy to discounted sums of rewards, in absolute terms."""
        temperature = getattr(self.algorithm.model, "temperature", None)
        if not isinstance(temperature, Multiplier) or gamma >= 1:
            return 0.0
        return abs(float(temperature().detach()) * line.get("entropy", 0.0)) / (1 - gamma)

    def _check_actor(self, found: Mapping[str, float]) -> Iterator[GuardAlarm]:
        most, least = self.options.guard_saturation, self.options.guard_action_spread
        advice = self._advise("lower", "actor_learning_rate", "learning_rate") + ", or set normalize_obs: true"
        if most is not None and (share := found.get("saturation", 0.0)) >= most:
            what = f"{share:.0%} of the policy's actions are on the same bound"
            has_critic = hasattr(self.algorithm.model, "critic")
            blame = "the actor follows errors of the critics" if has_critic else "too large updates moved it"
            cause = f"likely cause: {blame} to where tanh has no gradient"
            yield GuardAlarm("saturated_actor", share, most, what, cause, advice)
        if least is not None and (spread := found.get("action_spread", math.inf)) <= least:
            what = "the policy gives the same action for all observations"
            cause = "likely cause: too large updates turned all units of a layer off, or observations are tiny"
            yield GuardAlarm("dead_actor", spread, least, what, cause, f"{advice} or activation: silu")

    def _check_weights(self, found: Mapping[str, float]) -> Iterator[GuardAlarm]:
        most = self.options.guard_weight_growth
        growths = {child: found[f"weights_{child}"] / norm for child, norm in self.initial.items()}
        child = max(growths, key=growths.__getitem__, default=None)
        if most is not None and child is not None and not growths[child] <= most:
            growth = growths[child]
            what = f"the weights of the network {child} are {growth:.4g} times as large as at the start"
            cause = "likely cause: updates are too large for it"
            advice = self._advise("lower", f"{child}_learning_rate", "learning_rate") + ", or set max_grad_norm"
            yield GuardAlarm("weights", growth, most, what, cause, advice)

    def _check_ensemble(self, found: Mapping[str, float]) -> Iterator[GuardAlarm]:
        least = self.options.guard_ensemble_spread
        if least is not None and (spread := found.get("ensemble_spread", math.inf)) < least:
            what = f"the critics agree at random actions to {spread:.1g} of their values"
            cause = "likely cause: they have the same weights, so that their minimum is not pessimistic"
            start = "start from weights that differ (initial_checkpoint, or the model's own initialisation), or "
            advice = self._advise("raise", "diversity_weight", "num_critics", "critic_hidden_sizes", "hidden_sizes")
            yield GuardAlarm("ensemble", spread, least, what, cause, start + advice)

    def _check_clone(self, found: Mapping[str, float], updates: int) -> Iterator[GuardAlarm]:
        most, is_due = self.options.guard_clone_error, updates >= self.options.guard_clone_after
        if most is not None and is_due and (error := found.get("clone_error", 0.0)) > most:
            what = f"the error of the behaviour clone is {error:.3g} times that of the best constant action"
            cause = "likely cause: observations of very different scales, or steps that are too large"
            advice = "set normalize_obs: true, or " + self._advise("lower", "vae_learning_rate", "learning_rate")
            yield GuardAlarm("clone", error, most, what, cause, advice)

    def _advise(self, verb: str, *names: str) -> str:
        """Advice to change one of the first two of these options that the algorithm has."""
        known = [name for name in names if hasattr(self.algorithm.hyper, name)][:2]
        return f"{verb} {' or '.join(known)}"

    def state_dict(self) -> dict[str, Any]:
        """The state that a resumed run needs for the same checks and rollbacks, in plain values."""
        names = ("initial", "raised", "looked", "rollbacks", "good")
        return {name: getattr(self, name) for name in names} | {"rewards": asdict(self.rewards)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        if state["initial"].keys() != self.initial.keys():
            raise CheckpointError(f"guards watched the networks {sorted(state['initial'])}, not {sorted(self.initial)}")
        vars(self).update({name: value for name, value in state.items() if name != "rewards"})
        vars(self.rewards).update(state["rewards"])


@options
class GuardOptions:
    """Checks of a run at every log line and checkpoint, and the response to an alarm.

    Each threshold belongs to one guard. null switches a guard off.
    """

    on_divergence: Literal["stop", "warn", "rollback"] = option(
        "warn",
        "response to an alarm: end the run, only warn, or go back to the last good checkpoint with half the learning "
        "rate, at most three times; a loss that is not a number ends the run unless it goes back",
    )
    guard_value_slack: float | None = option(1.0, "how far values may exceed their possible range, in widths", ge=0)
    guard_saturation: float | None = option(0.99, "share of actions on one bound that fires the guard", gt=0, le=1)
    guard_action_spread: float | None = option(1e-6, "largest spread of actions that counts as a dead actor", ge=0)
    guard_weight_growth: float | None = option(100.0, "allowed growth of a network's weights since the start", gt=1)
    guard_ensemble_spread: float | None = option(1e-5, "relative spread of critics below which they collapsed", ge=0)
    guard_clone_error: float | None = option(
        1.5, "behaviour-cloning error relative to the best constant action; the guard fires above it", gt=1
    )
    guard_clone_after: int = option(1000, "updates before the first check of a behaviour clone", ge=0)


ROWS = 64
"""Rows that the networks are evaluated on; some policies evaluate a hundred actions for each."""

ON_BOUND = 0.99
"""Size of an action in [-1, 1] from which it counts as one on its bound."""

SMALLEST_WEIGHT = 0.01
"""The growth of weights that start at less, such as zeros, is counted from this root of their mean square."""

CHUNK = 65_536
"""Rows that are searched at a time for what is not finite."""

RARE = 0.05
"""The best constant discrete action counts as wrong in at least this share of rows: one slip is no misfit."""


def probe_rows(log: TransitionDataset | None, buffer: ReplayBuffer | None) -> Batch | None:
    """Some observations with their actions, evenly spread over the log, or else over the buffer; None without any."""
    if log is not None:
        numbers = _spread(0, len(log)).to(log.obs.device)
        return {"obs": log.obs[numbers], "actions": log.actions[numbers]}
    if buffer is None or not len(buffer):
        return None
    return buffer.rows.take(("obs", "actions"), _spread(buffer.rows.first, buffer.added).to(buffer.device))


def _spread(first: int, stop: int) -> Tensor:
    """Numbers from the first to the last one, evenly spread; all of them, if they are few."""
    return torch.linspace(first, stop - 1, min(ROWS, stop - first), dtype=torch.float64).round().long()


@torch.no_grad()
def measure(algorithm: Algorithm, rows: Batch | None) -> dict[str, float]:
    """All measures of an algorithm, by name, without changing it or drawing from the run's random numbers."""
    report = {f"weights_{child}": norm for child, norm in weight_norms(algorithm).items()}
    if rows is not None:
        with forked(0, algorithm.obs_mean.device):
            report |= _measure_networks(algorithm, rows)
    return dict(zip(report, torch.stack(list(report.values())).double().tolist(), strict=True)) if report else {}


@torch.no_grad()
def weight_norms(algorithm: Algorithm) -> Metrics:
    """The root of the mean square of each network's weights; learned numbers, such as a temperature, are none."""
    networks = {child: trainable(getattr(algorithm.model, child)) for child in algorithm.optimizers}
    return {
        child: torch.stack(torch._foreach_norm(weights)).norm() / math.sqrt(sum(each.numel() for each in weights))
        for child, weights in networks.items()
        if any(each.ndim > 1 for each in weights)
    }


def _measure_networks(algorithm: Algorithm, rows: Batch) -> Metrics:
    model, device = algorithm.model, algorithm.obs_mean.device
    raw, logged = rows["obs"].to(device), rows["actions"].to(device)
    obs, actions = algorithm.normalize(raw), algorithm.act(raw)
    report: Metrics = {}
    if (raw != raw[:1]).any():
        report["action_spread"] = _action_spread(algorithm, obs, actions)
    if isinstance(algorithm.action_space, BoxActions):
        report["saturation"] = _saturation(actions)
    if hasattr(model, "critic"):
        report["policy_value"] = model.values(obs, actions).mean()
    if isinstance(getattr(model, "critic", None), Critic):
        values: Tensor = model.critic(obs, algorithm.action_space.sample(len(obs)).to(device))
        if len(values) > 1:
            report["ensemble_spread"] = values.std(0, correction=0).mean() / values.abs().mean().clamp_min(1e-30)
    if "rewards" not in algorithm.needs:
        report["clone_error"] = _clone_error(algorithm, actions, logged)
    elif isinstance(getattr(model, "vae", None), BehaviorVAE):
        report["clone_error"] = _clone_error(algorithm, model.vae(obs, logged)[0], logged)
    return report


def _saturation(actions: Tensor) -> Tensor:
    """The share of actions on their bound, by the bound on which most are.

    A policy that switches between the bounds, as the best one may do, depends on the observation.
    """
    sides = torch.stack([actions > ON_BOUND, actions < -ON_BOUND]).float().mean(1)
    return sides.amax(0).mean()


def _action_spread(algorithm: Algorithm, obs: Tensor, actions: Tensor) -> Tensor:
    """Dependence of the action on the observation: the largest spread of an action's dimension.

    For discrete actions, it is the spread of the value or log-probability of the first action.
    """
    if not isinstance(algorithm.action_space, BoxActions):
        first, model = torch.zeros_like(actions), algorithm.model
        values = model.values(obs, first) if hasattr(model, "critic") else model.log_probs(obs, first)
        actions = actions.float() if values is None else values
    low, high = actions.reshape(len(obs), -1).aminmax(dim=0)
    return (high - low).max()


def _clone_error(algorithm: Algorithm, actions: Tensor, logged: Tensor) -> Tensor:
    """The error of a clone's actions, relative to the best constant action for these rows."""
    if isinstance(algorithm.action_space, BoxActions):
        best = (logged - logged.mean(0)).square().mean()
        return (actions - logged).square().mean() / best.clamp_min(1e-6)
    best = (logged != logged.mode().values).float().mean()
    return (actions != logged).float().mean() / best.clamp_min(RARE)


@dataclass
class RewardRange:
    """The range of rewards that training has seen, transformed, and whether any step followed one of them."""

    low: float = math.inf
    high: float = -math.inf
    goes_on: bool = False
    """False in a log of single decisions."""
    seen: int = 0
    """Rows of the buffer that were added."""

    def add(self, rewards: Tensor, dones: Tensor) -> None:
        """Add some rows."""
        if len(rewards):
            self.low, self.high = min(self.low, float(rewards.min())), max(self.high, float(rewards.max()))
            self.goes_on |= bool((dones == 0).any())

    def add_new(self, buffer: ReplayBuffer) -> None:
        """Add the rows since the last call that the buffer still has."""
        numbers = buffer.rows.numbers(max(self.seen, buffer.rows.first))
        self.add(buffer.stored_rewards(numbers), buffer.rows.get("dones", numbers))
        self.seen = buffer.added

    def add_hindsight(self, source: UniformSource) -> None:
        """Add the rewards of some rows for relabelled goals."""
        first, stop = source.drawable()
        if source.hindsight is not None and stop > first:
            numbers = _spread(first, stop).to(source.rows.device)
            goals = source.rows.get("achieved_goals", numbers)
            rewards, ended = source.hindsight.outcomes(source.rows, numbers[:, None], goals)
            self.add(source.transformed(rewards), torch.zeros_like(rewards) if ended is None else ended)

    def allowed(self, gamma: float) -> tuple[float, float] | None:
        """The range of discounted sums of such rewards; None if it is unbounded.

        It contains 0, the value after the end of a task and of fresh networks.
        """
        if self.low > self.high or (self.goes_on and gamma >= 1):
            return None
        steps = 1 / (1 - gamma) if self.goes_on else 1.0
        return min(self.low, 0.0) * steps, max(self.high, 0.0) * steps


def find_not_finite(log: TransitionDataset | None, buffer: ReplayBuffer | None) -> str | None:
    """A text about the first value of the data or the buffer that is not finite; None if all are."""
    columns = {} if log is None else {f"the data has {{}} in {name}": value for name, value in log.fields.items()}
    if buffer is not None and len(buffer):
        numbers = buffer.rows.numbers()
        seen = buffer.rows.take(("obs", "rewards", "next_obs"), numbers)
        columns |= {f"the replay buffer has {{}} in {name}": value for name, value in seen.items()}
    for template, values in columns.items():
        for number, part in enumerate(torch.split(values, CHUNK) if values.is_floating_point() else ()):
            wrong = (~part.isfinite()).nonzero()
            if len(wrong):
                row, *column = wrong[0].tolist()
                place = f"row {number * CHUNK + row}" + (f", column {column[0]}" if column else "")
                return f"{template.format(float(part[tuple(wrong[0])]))}, {place}"
    return None


def find_broken_goals(sources: Sequence[UniformSource]) -> str | None:
    """A text about rewards of relabelled goals that were not finite since the last log line; None if all were."""
    totals = [float(source.relabelled[2]) for source in sources]
    broken = [total for total in totals if not math.isfinite(total)]
    return f"the environment's compute_reward gave {broken[0]} for a relabelled goal" if broken else None


def hindsight_sources(source: Source) -> Iterator[UniformSource]:
    """The sources in a source that relabel goals."""
    if isinstance(source, UniformSource) and source.hindsight is not None:
        yield source
    for name in ("inner", "prior", "online"):
        part = getattr(source, name, None)
        if isinstance(part, Source):
            yield from hindsight_sources(part)
