"""What guards measure once per log line: the policy and its critics on a few rows, the size of weights, rewards."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from rl_training.algorithms import Algorithm
from rl_training.algorithms.base.optimizers import trainable
from rl_training.core.batches import Batch, Metrics
from rl_training.core.randomness import forked
from rl_training.core.spaces import BoxActions
from rl_training.data import ReplayBuffer, Source, TransitionDataset
from rl_training.data.replay.samplers import UniformSource
from rl_training.models.critics import Critic
from rl_training.models.mlp_bcq import BehaviorVAE

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
