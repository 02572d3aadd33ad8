"""Fitted Q evaluation (FQE): the loss, the fit, and the value of a policy from a log."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from rl_training.algorithms.base import AdamW, Algorithm, Hyper, Step
from rl_training.compilation import can_compile
from rl_training.core.batches import TRANSITION, Batch, Metrics, Transitions
from rl_training.core.errors import LARGEST_BATCH, LARGEST_SEED, ConfigError, DatasetError
from rl_training.core.options import option, options
from rl_training.core.rewards import returns_to_go
from rl_training.core.seeds import forked
from rl_training.core.spaces import BoxActions, DiscreteActions, SpaceSpec
from rl_training.data import TransitionDataset
from rl_training.data.replay import BlockSampler
from rl_training.models import MLPFQEModel

SLACK = 0.01
"""How far beyond its bounds a target counts as clipped, relative to the range; less is noise."""


@options
class FQEHyper(Hyper, learning_rate=1e-3):
    """Hyper-parameters of FQE."""

    gamma: float = option(0.99, "discount per step", ge=0, le=1)
    tau: float = option(0.05, "rate at which target networks follow", gt=0, le=1)
    num_critics: int = option(11, "ensemble members: one for all episodes, others for resampled ones", ge=1, le=1000)
    critic_weight_decay: float = option(1e-5, "weight decay of the critics", ge=0)
    target_low: float = option(0.0, "smallest possible target, in scaled units")
    target_high: float = option(1.0, "largest possible target, in scaled units")


def fqe_targets(
    *, rewards: Tensor, dones: Tensor, next_values: Tensor, gamma: float, target_low: float, target_high: float
) -> tuple[Tensor, Tensor]:
    """Targets (E, B) from next values (E, B), all in scaled units, and the share of them that had to be clipped."""
    raw = rewards + gamma * (1 - dones) * next_values
    clipped = raw.clamp(target_low, target_high)
    slack = SLACK * ((target_high - target_low) or abs(target_high))
    return clipped, ((raw - clipped).abs() > slack).to(raw.dtype).mean()


def fqe_loss(*, q_values: Tensor, target_q_values: Tensor, weights: Tensor) -> Metrics:
    """Weighted squared error of E ensemble members (E, B), each against its own targets: mean over rows, then sum."""
    if q_values.ndim != 2 or not q_values.shape == target_q_values.shape == weights.shape:
        tensors = {"q_values": q_values, "target_q_values": target_q_values, "weights": weights}
        shapes = ", ".join(f"{name} {tuple(value.shape)}" for name, value in tensors.items())
        raise ValueError(f"every member has its own targets and weights: all must be (E, B), got {shapes}")
    return {
        "critic_loss": (weights * (q_values - target_q_values).square()).mean(-1).sum(),
        "q_mean": q_values.mean(),
        "q_std_ensemble": q_values.std(0, correction=0).mean(),
        "target_q_mean": target_q_values.mean(),
    }


class FQE(Algorithm[FQEHyper, MLPFQEModel]):
    """Fitted Q evaluation with an ensemble: a bootstrap over episodes."""

    name = "fqe"
    action_kinds = ("continuous", "discrete")
    steps = (Step("critic", tracks=("critic",), optimizer=AdamW),)
    reads = Transitions((*TRANSITION, "next_actions", "episodes", "row_weights"))
    """`next_actions` are those of the policy, as probabilities where actions are discrete. `episodes` are numbers.
    `row_weights` are 0 where the next action is unknown."""
    episode_weights: Tensor

    def set_episode_weights(self, weights: Tensor) -> None:
        """Set how often each ensemble member has each episode, (E, episodes); before the first update."""
        self.register_buffer("episode_weights", weights, persistent=False)

    def critic_loss(self, batch: Batch) -> Metrics:
        """The loss of each ensemble member against its own targets, weighted by its own episodes."""
        hyper = self.hyper
        with torch.no_grad():
            targets, clipped = fqe_targets(
                rewards=batch["rewards"],
                dones=batch["dones"],
                next_values=self.target.critic(batch["next_obs"], batch["next_actions"]),
                **hyper.only("gamma", "target_low", "target_high"),
            )
        metrics = fqe_loss(
            q_values=self.model.critic(batch["obs"], batch["actions"]),
            target_q_values=targets,
            weights=self.episode_weights[:, batch["episodes"]] * batch["row_weights"],
        )
        return metrics | {"clipped_share": clipped}


CHUNK = 1024
"""Observations per call of a policy or of the ensemble."""

LARGEST_GAMMA = 0.995
"""The largest default discount where episodes do not terminate: the work grows with 1 / (1 - gamma)."""

MOST_TERMINATE, LONGEST = 0.95, 500
"""If this share of episodes terminates, and the mean length is at most this, there is no discount by default."""

POINTS = 40
"""How many estimates are recorded during a fit."""

LAST = 0.1
"""The share of updates, at the end, over which clipped targets are counted."""

SHORT = 10 - 1e-6

LEAST_UPDATES = 1000
"""With a horizon below ten steps, kappa is reached before a network has learned the rewards."""

EARNED_AFTER = 40_000
"""Updates of all fits together from which compilation pays: it takes about 20 s and saves 1 ms per update."""

REPEATED = 0.5
"""The share of distinct observations up to which the states of a log of discrete actions count as repeating."""

Actions = Callable[[Tensor], Tensor]
"""From observations to actions as FQE sees them: vectors, or probabilities of discrete actions."""

FitProgress = Callable[[int, int], None]
"""Called with the updates done and those to do."""

Progress = Callable[[str, int, int], None]
"""Called with the name of the policy, the updates done and those to do."""


class OutOfTimeError(Exception):
    """Raised by a `progress` function if there is no time for the rest of a fit."""


@options
class FitOptions:
    """Options of FQE."""

    gamma: float = option(0.99, "discount per step; 1: none", ge=0, le=1)
    episode_steps: float | None = option(None, "mean length of episodes, if they terminate", ge=1)
    members: int = option(10, "ensemble members for resampled episodes, beside the one for all episodes", ge=0)
    kappa: float = option(5.0, "convergence, updates * tau / horizon: about exp(-kappa) of the value is missing", gt=0)
    updates: int | None = option(None, "updates; null: as many as kappa needs", ge=1)
    hidden_sizes: tuple[int, ...] = option((64, 64), "widths of the hidden layers", min_length=1)
    learning_rate: float = option(1e-3, "learning rate", gt=0)
    tau: float = option(0.05, "rate at which target networks follow", gt=0, le=1)
    batch_size: int = option(256, "rows per update", ge=1, le=LARGEST_BATCH)
    weight_decay: float = option(1e-5, "weight decay", ge=0)
    seed: int = option(0, "seed of batches, of resampled episodes and of initial weights", ge=0, le=LARGEST_SEED)

    @property
    def horizon(self) -> float:
        """How many steps a value looks ahead: as the discount says, at most an episode that terminates."""
        endless = math.inf if self.gamma == 1 else 1 / (1 - self.gamma)
        found = min(endless, self.episode_steps or math.inf)
        if found == math.inf:
            raise ConfigError("gamma 1 needs episode_steps, the mean length of episodes that terminate")
        return found

    @property
    def num_updates(self) -> int:
        """The updates of a fit: those asked for, or the fewest that reach kappa and learn the rewards."""
        needed = math.ceil(round(self.kappa * self.horizon / self.tau, 6))
        return self.updates or (max(needed, LEAST_UPDATES) if self.horizon < SHORT else needed)

    @property
    def reached_kappa(self) -> float:
        """The convergence number: about exp(-kappa) of the value is still missing."""
        return self.num_updates * self.tau / self.horizon


@dataclass(frozen=True, eq=False)
class EvaluationLog:
    """Logged episodes for estimates: rewards as logged, actions as networks see them."""

    dataset: TransitionDataset
    spaces: SpaceSpec

    def __post_init__(self) -> None:
        if not self.dataset.has_episodes:
            raise DatasetError("values need whole episodes, and the rows seem shuffled")
        if self.dataset.reward_transforms:
            raise DatasetError("values need rewards as logged, and these rewards were transformed")

    @cached_property
    def bounds(self) -> NDArray[np.int64]:
        """First row and row after the last of each episode."""
        bounds: NDArray[np.int64] = self.dataset.episode_bounds().numpy(force=True)
        return bounds

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """The rows of each episode."""
        return self.bounds[:, 1] - self.bounds[:, 0]

    @cached_property
    def starts(self) -> Tensor:
        """The first row of each episode."""
        return torch.from_numpy(self.bounds[:, 0].copy())

    @cached_property
    def episodes(self) -> Tensor:
        """The number of the episode of each row."""
        return torch.from_numpy(np.repeat(np.arange(len(self.bounds)), self.bounds[:, 1] - self.bounds[:, 0]))

    @cached_property
    def states(self) -> NDArray[np.int64] | None:
        """The number of each row's state; None unless actions are discrete and states repeat."""
        if not self.dataset.is_discrete:
            return None
        states, numbers = np.unique(self.dataset.obs.numpy(force=True), axis=0, return_inverse=True)
        return numbers.reshape(-1) if len(states) <= REPEATED * len(self.dataset) else None

    @cached_property
    def reward_range(self) -> tuple[float, float]:
        """The extreme rewards, and 0 if any episode terminates."""
        rewards, dones = self.dataset.rewards, self.dataset.dones
        ends = [0.0] if bool(dones.any()) else []
        return min(float(rewards.min()), *ends, math.inf), max(float(rewards.max()), *ends, -math.inf)

    def value_range(self, gamma: float) -> tuple[float, float]:
        """Bounds of values: an extreme reward at every step, without a discount in as many as the longest episode."""
        steps = 1 / (1 - gamma) if gamma < 1 else float(self.lengths.max())
        return self.reward_range[0] * steps, self.reward_range[1] * steps

    def usual_values(self, gamma: float) -> tuple[float, float]:
        """Mean and standard deviation of the values of all rows, by the rewards that followed.

        FQE learns how far values are from that mean, in units of that deviation, so neither the unit of rewards nor a
        constant among them matters. The mean reward continues truncated episodes.
        """
        data = self.dataset
        rewards = data.rewards.double()
        cut = data.episode_ends.to(rewards.device) & (data.dones == 0)
        tails = rewards.mean() / (1 - gamma) * cut if gamma < 1 else None
        values = returns_to_go(rewards, data.episode_ends, gamma=gamma, tails=tails)
        mean, std = float(values.mean()), float(values.std(correction=0))
        return mean, max(std, 1e-4 * abs(mean)) or 1.0

    @cached_property
    def ends_everywhere(self) -> bool:
        """Whether every row terminates, as in a log of single decisions, so that no row has a next action."""
        return bool(self.dataset.dones.bool().all())

    @cached_property
    def known(self) -> Tensor:
        """1 on rows whose next action was logged or does not matter, else 0."""
        if "next_actions" not in self.dataset.fields and not self.ends_everywhere:
            raise DatasetError("the data has no next actions, so the value of the logged behaviour cannot be estimated")
        mask = self.dataset.next_action_mask
        return torch.ones(len(self.dataset)) if mask is None else mask.float()

    def logged_actions(self, name: str = "actions") -> Tensor:
        """The logged actions, or the next ones; discrete actions become probabilities."""
        if name == "next_actions" and self.ends_everywhere:
            # Nothing follows, so any action will do.
            name = "actions"
        return self.as_inputs(self.dataset.fields[name])

    def as_inputs(self, actions: Tensor) -> Tensor:
        """Encoded actions as FQE sees them; discrete actions become probabilities."""
        if isinstance(self.spaces.action, BoxActions) or actions.is_floating_point():
            return actions
        return functional.one_hot(actions.clamp(0, self.spaces.action_dim - 1), self.spaces.action_dim).float()


@dataclass(frozen=True, eq=False)
class ValueFit:
    """The result of a fit, in the units of logged rewards. The first ensemble member has every episode once."""

    values: NDArray[np.float64]
    """The discounted return from the logged first states, by ensemble member: (E + 1,)."""
    clipped_share: float
    """The share of targets that were clipped near the end."""
    curve: list[tuple[float, list[float]]] = field(default_factory=list)
    """The values at growing kappa."""

    @property
    def course(self) -> NDArray[np.float64]:
        """The first ensemble member's value at growing kappa."""
        return np.array([values[0] for _, values in self.curve])


class ValueFitter:
    """Fits one policy after the other to the same episodes.

    All fits share rows, batches, resampled episodes, initial weights and, if compiled, the graph. Errors that two fits
    have in common therefore cancel in their difference.
    """

    def __init__(
        self, log: EvaluationLog, options: FitOptions, *, weights: Tensor | None = None, compiled: bool = False
    ) -> None:
        """`weights` say how often each ensemble member has each episode, (E + 1, episodes); default: as resampled."""
        self.log, self.options = log, options
        self.center, self.scale = log.usual_values(options.gamma)
        low, high = ((end - self.center) / self.scale for end in log.value_range(options.gamma))
        self.hyper = FQEHyper(
            gamma=options.gamma,
            tau=options.tau,
            num_critics=options.members + 1,
            hidden_sizes=options.hidden_sizes,
            learning_rate=options.learning_rate,
            critic_weight_decay=options.weight_decay,
            target_low=low,
            target_high=high,
        )
        resampled = resampled_episodes(len(log.bounds), options.members, options.seed)
        self.weights = resampled if weights is None else weights
        self.algorithm = self._build()
        self.initial = copy.deepcopy(self.algorithm.state_dict())
        if compiled:
            self.algorithm.compile_steps()

    def _build(self) -> FQE:
        """Build an ensemble; the initial weights of each member do not depend on how many there are."""
        algorithm = FQE.build(self.log.spaces, self.hyper)
        alone = replace(self.hyper, num_critics=1)
        for member in range(self.hyper.num_critics):
            with forked(self.options.seed + 1_000_003 * member), torch.no_grad():
                fresh = FQE.build_model(self.log.spaces, alone).parameters()
                for own, new in zip(algorithm.model.parameters(), fresh, strict=True):
                    own[member].copy_(new[0])
        algorithm.target.load_state_dict(algorithm.model.state_dict())
        described = self.log.dataset.with_obs_statistics()
        assert described.obs_mean is not None and described.obs_std is not None  # noqa: PT018, S101 - just computed
        algorithm.set_obs_statistics(described.obs_mean, described.obs_std)
        algorithm.set_episode_weights(self.weights.float())
        return algorithm

    def fit_policy(self, policy: Actions, *, progress: FitProgress | None = None) -> ValueFit:
        """Fit the value of a policy, whose next actions are computed once."""
        data = self.log.dataset
        next_actions = in_chunks(policy, data.next_obs)
        first_actions = in_chunks(policy, data.obs[self.log.starts])
        return self._fit(next_actions, first_actions, torch.ones(len(data)), progress)

    def fit_behavior(self, *, progress: FitProgress | None = None) -> ValueFit:
        """Fit the value of the logged behaviour."""
        known, first_actions = self.log.known, self.log.logged_actions()[self.log.starts]
        return self._fit(self.log.logged_actions("next_actions"), first_actions, known, progress)

    def _fit(
        self, next_actions: Tensor, first_actions: Tensor, row_weights: Tensor, progress: FitProgress | None
    ) -> ValueFit:
        self.algorithm.load_state_dict(self.initial)
        names = ("obs", "actions", "rewards", "next_obs", "dones")
        fields = {name: self.log.dataset.fields[name] for name in names}
        follows = self.options.gamma * (1 - fields["dones"].double())
        fields["rewards"] = ((fields["rewards"].double() - (1 - follows) * self.center) / self.scale).float()
        more = {"next_actions": next_actions, "episodes": self.log.episodes, "row_weights": row_weights}
        sampler = BlockSampler(fields | more, seed=self.options.seed)
        total = self.options.num_updates
        marks = {math.ceil(total * point / POINTS) for point in range(1, POINTS + 1)}
        curve, clipped = [], []
        first_obs = self.log.dataset.obs[self.log.starts]
        for update in range(1, total + 1):
            metrics = self.algorithm.update(sampler.sample(self.options.batch_size)).metrics
            if update > (1 - LAST) * total:
                clipped.append(metrics["clipped_share"])
            if update in marks:
                values = self.mean_values(self.q_values(first_obs, first_actions))
                curve.append((self.options.reached_kappa * update / total, values.tolist()))
                if progress is not None:
                    progress(update, total)
        return ValueFit(np.array(curve[-1][1]), float(torch.stack(clipped).mean()), curve)

    @torch.no_grad()
    def q_values(self, obs: Tensor, actions: Tensor) -> NDArray[np.float64]:
        """Discounted returns after actions, by the target networks of the last fit: (E + 1, B)."""
        parts = zip(torch.split(obs, CHUNK), torch.split(actions, CHUNK), strict=True)
        critic = self.algorithm.target.critic
        scaled = torch.cat([critic(self.algorithm.normalize(rows), taken) for rows, taken in parts], dim=1)
        values: NDArray[np.float64] = scaled.double().numpy(force=True)
        return self.center + self.scale * values

    def logged_returns(self) -> NDArray[np.float64]:
        """The discounted return of each logged episode, (E + 1, episodes); after `fit_behavior`.

        Truncated episodes bootstrap from each ensemble member's value of the last logged action.
        """
        log, gamma = self.log, self.options.gamma
        data, known = log.dataset, log.known.bool()
        known_rewards = torch.where(known, data.rewards, torch.zeros_like(data.rewards))
        sums = returns_to_go(known_rewards, data.episode_ends, gamma=gamma)[log.starts].double().numpy()
        last = np.array([np.flatnonzero(known[start:stop].numpy())[-1:].sum() for start, stop in log.bounds])
        has_row = np.array([bool(known[start:stop].any()) for start, stop in log.bounds])
        rows = torch.from_numpy(log.bounds[:, 0] + last)
        tails = self.q_values(data.next_obs[rows], log.logged_actions("next_actions")[rows])
        continues = (1 - data.dones[rows].double().numpy()) * has_row
        returns: NDArray[np.float64] = sums + gamma ** (last + 1) * continues * tails
        return returns

    def mean_values(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Means over episodes, (E + 1, episodes) to (E + 1,), by the episodes of each ensemble member."""
        weights = self.weights.numpy()
        means: NDArray[np.float64] = (weights * values).sum(1) / weights.sum(1)
        return means


@dataclass(frozen=True)
class FitSettings:
    """The options of fits, with what does not change their results."""

    options: FitOptions
    compiled: bool | None = None
    """None: compiled if that pays."""
    progress: Progress | None = None

    def fitter(self, log: EvaluationLog, fits: int) -> ValueFitter:
        """A fitter for this many fits."""
        pays = self.options.num_updates * fits >= EARNED_AFTER
        return ValueFitter(log, self.options, compiled=can_compile(pays if self.compiled is None else self.compiled))

    def progress_of(self, name: str) -> FitProgress | None:
        """The progress function of one fit, which passes on its name."""
        told = self.progress
        return None if told is None else lambda done, total: told(name, done, total)


def resampled_episodes(episodes: int, members: int, seed: int) -> Tensor:
    """How often each ensemble member has each episode, (members + 1, episodes): once in the first, then as drawn."""
    draws = [
        np.random.default_rng([seed, member]).multinomial(episodes, np.full(episodes, 1 / episodes))
        for member in range(1, members + 1)
    ]
    return torch.from_numpy(np.stack([np.ones(episodes, dtype=np.int64), *draws]))


def discount_options(dataset: TransitionDataset, gamma: float | None = None) -> dict[str, Any]:
    """The options of a fit that say how far it looks ahead, for this discount or for the one that suits the data.

    If nearly all episodes terminate, there is none by default: a value is a return. Else the horizon is about the
    median length of an episode.
    """
    bounds = dataset.episode_bounds().numpy(force=True)
    steps, ended = len(dataset) / len(bounds), float(dataset.dones[bounds[:, 1] - 1].float().mean())
    usual = min(round(1 - 1 / float(np.median(bounds[:, 1] - bounds[:, 0])), 4), LARGEST_GAMMA)
    terminates = ended >= MOST_TERMINATE
    if terminates and steps > 1:
        usual = 1.0 if steps <= LONGEST else 1 - 1 / LONGEST
    elif gamma == 1 and not terminates:
        raise ConfigError(
            f"gamma 1 needs episodes that terminate, and {100 * ended:.0f} % of these do (at least "
            f"{100 * MOST_TERMINATE:.0f} % are needed): without an end a return is infinite; {usual:g} would suit the "
            "length of the episodes"
        )
    gamma = usual if gamma is None else gamma
    return {"gamma": gamma, "episode_steps": steps if terminates and gamma > LARGEST_GAMMA else None}


@torch.no_grad()
def in_chunks(function: Actions, obs: Tensor) -> Tensor:
    """Apply a function to observations, some at a time."""
    return torch.cat([function(rows) for rows in torch.split(obs, CHUNK)])


def policy_inputs(policy: Any, log: EvaluationLog, name: str) -> Actions:
    """A policy as a function from observations to actions as FQE sees them.

    A policy is an object with `predict`, or a function of an array of observations. It gives actions in native units,
    or probabilities of discrete actions.
    """
    predict = getattr(policy, "predict", policy)
    if not callable(predict):
        raise ConfigError(f"{name} is neither a run, nor a function of observations, nor an object with predict")
    space = log.spaces.action

    def act(obs: Tensor) -> Tensor:
        found = np.asarray(predict(obs.numpy(force=True)))
        native = torch.from_numpy(_checked_actions(found, len(obs), space, name))
        is_distribution = isinstance(space, DiscreteActions) and native.ndim == 2
        return native if is_distribution else log.as_inputs(space.encode(native))

    return act


def _checked_actions(actions: NDArray[Any], rows: int, space: BoxActions | DiscreteActions, name: str) -> NDArray[Any]:
    """The answer of a policy, if it has the shape of actions."""
    if isinstance(space, DiscreteActions) and actions.shape == (rows,) and np.issubdtype(actions.dtype, np.integer):
        space.check(torch.from_numpy(actions), name="actions", origin=name)
        return actions.astype(np.int64)
    numbers = actions.astype(np.float32)
    if numbers.shape != (rows, space.size):
        shapes = f"({rows},) or ({rows}, {space.size})" if space.kind == "discrete" else f"({rows}, {space.size})"
        raise ConfigError(f"{name} answers {rows} observations with an array of shape {actions.shape}, not {shapes}")
    if not np.isfinite(numbers).all():
        raise ConfigError(f"{name} answers with actions that are not finite numbers")
    is_distribution = (numbers >= 0).all() and np.allclose(numbers.sum(1), 1, atol=1e-3)
    if isinstance(space, DiscreteActions) and not is_distribution:
        raise ConfigError(f"{name} answers with probabilities of actions that do not add up to 1")
    return numbers
