"""Guards: what a run watches at every log line, so that a failure is noticed, explained and answered."""

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
"""What an alarm is called whose cause is the data or the environment: going back would not help."""

LOWER = "try a lower learning_rate or max_grad_norm"

SMALLEST_UNIT = 1.0
"""Values within this distance of what rewards allow are never an alarm: those of fresh networks are of this size."""

AVERAGES = ("q_mean", "target_q_mean", "v_mean")
"""Averages of a log line that are values of logged actions or states."""


@dataclass(frozen=True)
class GuardAlarm:
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
    def rolls_back(self) -> bool:
        """Whether the run goes back to a checkpoint when a guard finds something."""
        return self.options.on_divergence == "rollback"

    @property
    def learning_rate_factor(self) -> float:
        """What is left of the learning rate after going back."""
        return 0.5 ** len(self.rollbacks)

    def find_broken(self, window: MetricWindow, updates: int) -> GuardAlarm | None:
        """A metric that is not a finite number, and where that comes from: from outside, or from training."""
        name = window.find_broken()
        if name is None:
            return None
        outside = find_not_finite(self.log, self.buffer) or find_broken_goals(self.hindsight)
        what = f"{name} is not a number after {updates} updates"
        if outside is not None:
            return GuardAlarm(OUTSIDE, math.nan, 0.0, what, outside, "training has not diverged: look there")
        return GuardAlarm("loss", math.nan, 0.0, what, "training has diverged", LOWER)

    def look(self, line: Mapping[str, float], updates: int) -> list[GuardAlarm]:
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

    def _judge_values(self, line: Mapping[str, float], found: Mapping[str, float]) -> Iterator[GuardAlarm]:
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
            yield GuardAlarm(
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

    def _judge_actor(self, found: Mapping[str, float]) -> Iterator[GuardAlarm]:
        most, least = self.options.guard_saturation, self.options.guard_action_spread
        blame = (
            "the actor follows errors of the critics"
            if hasattr(self.algorithm.model, "critic")
            else "too large updates moved it"
        )
        if most is not None and found.get("saturation", 0.0) >= most:
            yield GuardAlarm(
                "saturated_actor",
                found["saturation"],
                most,
                f"{found['saturation']:.0%} of the policy's actions are on the same bound",
                f"likely cause: {blame} to where tanh has no gradient",
                self._advise("lower", "actor_learning_rate", "learning_rate") + ", or set normalize_obs: true",
            )
        if least is not None and found.get("action_spread", math.inf) <= least:
            yield GuardAlarm(
                "dead_actor",
                found["action_spread"],
                least,
                "the policy gives the same action for all observations",
                "likely cause: updates that were too large turned all units of a layer off, or observations are tiny",
                self._advise("lower", "actor_learning_rate", "learning_rate")
                + ", or set normalize_obs: true or activation: silu",
            )

    def _judge_weights(self, found: Mapping[str, float]) -> Iterator[GuardAlarm]:
        most = self.options.guard_weight_growth
        growths = {child: found[f"weights_{child}"] / norm for child, norm in self.initial.items()}
        child = max(growths, key=growths.__getitem__, default=None)
        if most is not None and child is not None and not growths[child] <= most:
            yield GuardAlarm(
                "weights",
                growths[child],
                most,
                f"the weights of the network {child} are {growths[child]:.4g} times as large as at the start",
                "likely cause: updates are too large for it",
                self._advise("lower", f"{child}_learning_rate", "learning_rate") + ", or set max_grad_norm",
            )

    def _judge_ensemble(self, found: Mapping[str, float]) -> Iterator[GuardAlarm]:
        least = self.options.guard_ensemble_spread
        if least is not None and found.get("ensemble_spread", math.inf) < least:
            yield GuardAlarm(
                "ensemble",
                found["ensemble_spread"],
                least,
                f"the critics agree at random actions to {found['ensemble_spread']:.1g} of their values",
                "likely cause: they have the same weights, so that the smallest of them is no caution",
                "start from weights that differ (initial_checkpoint, or the model's own initialisation), or "
                + self._advise("raise", "diversity_weight", "num_critics", "critic_hidden_sizes", "hidden_sizes"),
            )

    def _judge_clone(self, found: Mapping[str, float], updates: int) -> Iterator[GuardAlarm]:
        most = self.options.guard_clone_error
        is_due = updates >= self.options.guard_clone_after
        if most is not None and is_due and found.get("clone_error", 0.0) > most:
            error = found["clone_error"]
            yield GuardAlarm(
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


@options
class GuardOptions:
    """What a run watches at every log line and checkpoint, and what it does when something has gone wrong.

    Each threshold belongs to one guard. A guard whose threshold is null does not look.
    """

    on_divergence: Literal["stop", "warn", "rollback"] = option(
        "warn",
        "what a guard does: end the run, only say so, or go back to the last good checkpoint with half the learning "
        "rate, at most three times; a loss that is no number ends the run unless it goes back",
    )
    guard_value_slack: float | None = option(
        1.0, "how far values may lie beyond the range that the rewards allow, in widths of that range", ge=0
    )
    guard_saturation: float | None = option(
        0.99, "share of the policy's actions on the same bound from which the actor counts as saturated", gt=0, le=1
    )
    guard_action_spread: float | None = option(
        1e-6, "largest spread of the policy's actions over observations at which the actor counts as dead", ge=0
    )
    guard_weight_growth: float | None = option(
        100.0, "how many times as large as at the start the weights of a network may become", gt=1
    )
    guard_ensemble_spread: float | None = option(
        1e-5, "spread of critics over their size, at random actions, below which the ensemble has collapsed", ge=0
    )
    guard_clone_error: float | None = option(
        1.5, "error of a behaviour clone over that of the best constant action, from which it does not fit", gt=1
    )
    guard_clone_after: int = option(1000, "updates that a behaviour clone has to fit before its guard looks", ge=0)


ROWS = 64
"""Rows that the networks are asked about; some policies look at a hundred actions for each."""

ON_BOUND = 0.99
"""Size of an action in [-1, 1] from which it counts as one on its bound."""

SMALLEST_WEIGHT = 0.01
"""The growth of weights that start at less, such as zeros, is counted from this root of their mean square."""

CHUNK = 65_536
"""Rows that are searched at a time for what is not finite."""

RARE = 0.05
"""The best constant choice counts as wrong in at least this share of rows, so that one slip is no misfit."""


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
    """All that can be measured of an algorithm, by name; no random number of the run is used, and nothing changes."""
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

    A policy that goes from one bound to the other, as the best one may do, answers to what it observes.
    """
    sides = torch.stack([actions > ON_BOUND, actions < -ON_BOUND]).float().mean(1)
    return sides.amax(0).mean()


def _action_spread(algorithm: Algorithm, obs: Tensor, actions: Tensor) -> Tensor:
    """How much the policy's answer depends on the observation: the largest spread of an action's dimension.

    Of choices it is the spread of what decides between them, by the first choice: its value or its probability.
    """
    if not isinstance(algorithm.action_space, BoxActions):
        first, model = torch.zeros_like(actions), algorithm.model
        values = model.values(obs, first) if hasattr(model, "critic") else model.log_probs(obs, first)
        actions = actions.float() if values is None else values
    low, high = actions.reshape(len(obs), -1).aminmax(dim=0)
    return (high - low).max()


def _clone_error(algorithm: Algorithm, actions: Tensor, logged: Tensor) -> Tensor:
    """The error of a clone's actions, over that of the constant action which is best for these rows."""
    if isinstance(algorithm.action_space, BoxActions):
        best = (logged - logged.mean(0)).square().mean()
        return (actions - logged).square().mean() / best.clamp_min(1e-6)
    best = (logged != logged.mode().values).float().mean()
    return (actions != logged).float().mean() / best.clamp_min(RARE)


@dataclass
class RewardRange:
    """The rewards that training has seen, as it sees them, and whether anything came after one of them."""

    low: float = math.inf
    high: float = -math.inf
    goes_on: bool = False
    """In a log of single decisions nothing comes after a reward."""
    seen: int = 0
    """Rows of the buffer that were looked at."""

    def add(self, rewards: Tensor, dones: Tensor) -> None:
        """Take in some rows."""
        if len(rewards):
            self.low, self.high = min(self.low, float(rewards.min())), max(self.high, float(rewards.max()))
            self.goes_on |= bool((dones == 0).any())

    def add_new(self, buffer: ReplayBuffer) -> None:
        """Take in the rows that came since the last call, as far as the buffer still has them."""
        numbers = buffer.rows.numbers(max(self.seen, buffer.rows.first))
        self.add(buffer.stored_rewards(numbers), buffer.rows.get("dones", numbers))
        self.seen = buffer.added

    def add_hindsight(self, source: UniformSource) -> None:
        """Take in the rewards of some rows for goals that they reached."""
        first, stop = source.drawable()
        if source.hindsight is not None and stop > first:
            numbers = _spread(first, stop).to(source.rows.device)
            goals = source.rows.get("achieved_goals", numbers)
            rewards, ended = source.hindsight.outcomes(source.rows, numbers[:, None], goals)
            self.add(source.transformed(rewards), torch.zeros_like(rewards) if ended is None else ended)

    def allowed(self, gamma: float) -> tuple[float, float] | None:
        """The smallest and the largest value that discounted sums of such rewards can have; None if any can.

        0 is among them: so little is left where a task ends, and networks start there.
        """
        if self.low > self.high or (self.goes_on and gamma >= 1):
            return None
        steps = 1 / (1 - gamma) if self.goes_on else 1.0
        return min(self.low, 0.0) * steps, max(self.high, 0.0) * steps

    def state_dict(self) -> dict[str, Any]:
        """All fields, as plain values."""
        return asdict(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        vars(self).update(state)


def find_not_finite(log: TransitionDataset | None, buffer: ReplayBuffer | None) -> str | None:
    """The first value of the data, or of what environments gave, that is not a finite number, in words."""
    columns = {} if log is None else {f"the data has {{}} in {name}": value for name, value in log.fields.items()}
    if buffer is not None and len(buffer):
        numbers = buffer.rows.numbers()
        seen = buffer.rows.take(("obs", "rewards", "next_obs"), numbers)
        columns |= {f"the replay buffer has {{}} in {name}": value for name, value in seen.items()}
    for words, values in columns.items():
        for number, part in enumerate(torch.split(values, CHUNK) if values.is_floating_point() else ()):
            wrong = (~part.isfinite()).nonzero()
            if len(wrong):
                row, *column = wrong[0].tolist()
                place = f"row {number * CHUNK + row}" + (f", column {column[0]}" if column else "")
                return f"{words.format(float(part[tuple(wrong[0])]))}, {place}"
    return None


def find_broken_goals(sources: Sequence[UniformSource]) -> str | None:
    """Whether rewards for exchanged goals were not finite since the last log line, in words."""
    totals = [float(source.relabelled[2]) for source in sources]
    broken = [total for total in totals if not math.isfinite(total)]
    return f"the environment's compute_reward gave {broken[0]} for an exchanged goal" if broken else None


def hindsight_sources(source: Source) -> Iterator[UniformSource]:
    """The sources in a source that exchange goals."""
    if isinstance(source, UniformSource) and source.hindsight is not None:
        yield source
    for name in ("inner", "prior", "online"):
        part = getattr(source, name, None)
        if isinstance(part, Source):
            yield from hindsight_sources(part)
