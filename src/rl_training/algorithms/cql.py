"""CQL: SAC whose critics are pushed down where actions are sampled and up where they were logged.

    critic minimises       sum_i mean (Q_i(s, a) - y)^2 + conservative_weight * D_i
                           y = r + gamma * (1 - done) * min_i Q'_i(s', a'),   a' ~ pi(s')
                           D_i = mean (T logsumexp_j((Q_i(s, a_j) - log density of a_j) / T) - Q_i(s, a))
                           a_j: num_action_samples each uniform, from pi(s) and from pi(s')
    actor minimises        mean (alpha log pi(a_pi | s) - min_i Q_i(s, a_pi)),   a_pi ~ pi(s)
    temperature minimises  - mean log(alpha) (log pi(a_pi | s) + target_entropy)
    lagrange minimises     - mean_i of its own term below

All gradients are taken before anything moves. With a `conservative_gap`, the penalty of critic i is
multiplier * conservative_weight * (D_i - gap) instead, and the multiplier is learned; with `lagrange_form:
weight_inside` it is multiplier * (conservative_weight * D_i - gap). With `calibrated`, values of the policy's actions
count as at least the return that was logged from s: Cal-QL.

Kumar et al., "Conservative Q-Learning for Offline Reinforcement Learning", NeurIPS 2020.

Differs from the authors' code: order of updates, initial weights, deviation of the actor and no cloning at first, all
as in CORL, whose settings are the defaults; `bc_updates: 40000` brings the cloning back.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from rl_training.algorithms.base import TRANSITION, Algorithm, Alpha, Sizes, Step, ValueHyper, register
from rl_training.algorithms.losses import bellman, critic_objective, temperature_objective
from rl_training.binding import options, refuse_unused
from rl_training.models import MLPCQLModel
from rl_training.types import Batch, ConfigError, Metrics

LagrangeForm = Literal["weight_outside", "weight_inside"]


@options
class CQLHyper(ValueHyper):
    """Hyper-parameters of CQL."""

    hidden_sizes: Sizes = Field(default=(256, 256, 256), min_length=1, description="widths of the hidden layers")
    actor_learning_rate: float | None = Field(default=3e-5, gt=0, description="step size of the actor")
    temperature_learning_rate: float | None = Field(
        default=None, gt=0, description="step size of the temperature; null: the actor's"
    )
    alpha: Alpha = Field(default="auto", description="entropy temperature: a number, or auto to learn it")
    orthogonal_actor: bool = Field(default=False, description="the actor starts orthogonal too, as the critics do")
    target_entropy: float | None = Field(
        default=None, description="entropy to reach; null: minus the action's dimension"
    )
    conservative_weight: float = Field(default=10.0, ge=0, description="weight of the penalty")
    num_action_samples: int = Field(default=10, ge=1, description="actions of each of the three kinds in the penalty")
    penalty_temperature: float = Field(default=1.0, gt=0, description="how soft the maximum in the penalty is")
    importance_sampled: bool = Field(
        default=True,
        description="correct for the density of samples; false: count the logged action among them instead",
    )
    penalty_clip_min: float | None = Field(default=None, description="lower bound on a row's part of the penalty")
    penalty_clip_max: float | None = Field(default=None, description="upper bound on a row's part of the penalty")
    conservative_gap: float | None = Field(
        default=None, description="penalty to reach by learning its multiplier; null: no multiplier"
    )
    lagrange_form: LagrangeForm = Field(
        default="weight_outside", description="whether the weight applies to the gap too"
    )
    initial_log_lagrange: float = Field(default=1.0, description="logarithm of the multiplier at the start")
    lagrange_learning_rate: float | None = Field(
        default=None, gt=0, description="step size of the multiplier; null: the critics'"
    )
    target_action: Literal["sample", "mean"] = Field(default="sample", description="the policy's action in the target")
    max_backup: Literal["none", "max_of_min", "min_of_max"] = Field(
        default="none",
        description="best of num_action_samples actions in the target: by the smaller critic, or by each",
    )
    backup_entropy: bool = Field(default=False, description="subtract the temperature times log pi in the target")
    bc_updates: int = Field(default=0, ge=0, description="updates at the start in which the actor clones")
    calibrated: bool = Field(default=False, description="bound the policy's values by logged returns: Cal-QL")
    online_conservative_weight: float | None = Field(
        default=None, ge=0, description="weight of the penalty in an online phase, if its own"
    )
    online_calibrated: bool = Field(default=True, description="go on with the bounds in an online phase")
    failure_reward: float | None = Field(
        default=None,
        description="reward of episodes that fail throughout: their return counts as endless; calibrated only",
    )

    def __post_init__(self) -> None:
        self._refuse_unused()
        low, high = self.penalty_clip_min, self.penalty_clip_max
        if low is not None and high is not None and low > high:
            raise ConfigError(f"penalty_clip_min must be <= penalty_clip_max, got {low:g} and {high:g}")

    def _refuse_unused(self) -> None:
        learned, bounded, single = self.alpha == "auto", self.conservative_gap is not None, self.max_backup == "none"
        refuse_unused(self, "target_entropy", "temperature_learning_rate", unless="alpha: auto", holds=learned)
        names = ("lagrange_form", "initial_log_lagrange", "lagrange_learning_rate")
        refuse_unused(self, *names, unless="a conservative_gap", holds=bounded)
        refuse_unused(self, "failure_reward", "online_calibrated", unless="calibrated: true", holds=self.calibrated)
        refuse_unused(self, "target_action", unless="max_backup: none", holds=single)
        # The entropy is that of the action whose value is taken, so there has to be one, and a sampled one.
        sampled = self.max_backup != "min_of_max" and self.target_action == "sample"
        refuse_unused(self, "backup_entropy", unless="one sampled action in the target", holds=sampled)

    def learning_rate_of(self, child: str) -> float:
        """The temperature follows the actor and the multiplier the critics, unless they have their own."""
        if getattr(self, f"{child}_learning_rate", None) is None:
            child = {"temperature": "actor", "lagrange": "critic"}.get(child, child)
        return super().learning_rate_of(child)


def cql_loss(
    *,
    q_values: Tensor,
    target_q_values: Tensor,
    random_q_values: Tensor,
    policy_q_values: Tensor,
    next_policy_q_values: Tensor,
    policy_log_probs: Tensor,
    next_policy_log_probs: Tensor,
    action_dim: int,
    conservative_weight: float,
    penalty_temperature: float = 1.0,
    returns_to_go: Tensor | None = None,
) -> Metrics:
    """The critics' objective, from tensors alone: values (N, E, B) of samples and their log-densities (N, B)."""
    if returns_to_go is not None:
        policy_q_values = policy_q_values.maximum(returns_to_go)
        next_policy_q_values = next_policy_q_values.maximum(returns_to_go)
    gaps = conservative_gaps(
        q_values=q_values,
        sampled_q_values=torch.cat([random_q_values, policy_q_values, next_policy_q_values]),
        log_densities=torch.cat(
            [
                torch.full_like(policy_log_probs, -action_dim * math.log(2)),
                policy_log_probs,
                next_policy_log_probs,
            ]
        ),
        temperature=penalty_temperature,
    )
    metrics = critic_objective(q_values=q_values, target_q_values=target_q_values)
    return metrics | {
        "critic_loss": metrics["critic_loss"] + conservative_weight * gaps.sum(),
        "td_loss": metrics["critic_loss"],
        **_numbered("cql_penalty", gaps),
    }


def conservative_gaps(
    *,
    q_values: Tensor,
    sampled_q_values: Tensor,
    log_densities: Tensor | None,
    temperature: float,
    clip_min: float | None = None,
    clip_max: float | None = None,
) -> Tensor:
    """D (E,): by how much the soft maximum over sampled values (samples, E, B) exceeds the logged ones (E, B).

    Without log-densities (samples, B), the logged action is one of the samples.
    """
    if log_densities is None:
        z = torch.cat([sampled_q_values, q_values[None]])
    else:
        z = sampled_q_values - log_densities.detach()[:, None]
    differences = temperature * (z / temperature).logsumexp(0) - q_values
    if clip_min is not None or clip_max is not None:
        differences = differences.clamp(clip_min, clip_max)
    return differences.mean(-1)


def lagrange_objective(
    *,
    gaps: Tensor,
    multiplier: Tensor,
    conservative_weight: float | Tensor,
    conservative_gap: float,
    form: LagrangeForm,
) -> tuple[Tensor, Metrics]:
    """The critics' penalty under a learned multiplier, and the multiplier's own loss."""
    multiplier = multiplier.clamp(0, 1e6)
    if form == "weight_outside":
        excess = conservative_weight * (gaps - conservative_gap)
    else:
        excess = conservative_weight * gaps - conservative_gap
    penalty = (multiplier.detach() * excess).sum()
    return penalty, {"lagrange_loss": -(multiplier * excess.detach()).mean(), "lagrange": multiplier.detach()}


@register("cql", mode="offline")
class CQL(Algorithm):
    """Conservative Q-learning."""

    hyper: CQLHyper
    model: MLPCQLModel
    target: MLPCQLModel
    steps = (Step("joint", trains=("temperature", "actor", "critic", "lagrange"), tracks=("critic",)),)
    defaults = {"normalize_obs": True}

    @classmethod
    def make_needs(cls, hyper: Any) -> tuple[str, ...]:
        """Calibration needs the logged returns."""
        return (*TRANSITION, "returns_to_go") if hyper.calibrated else TRANSITION

    def joint_loss(self, batch: Batch) -> Metrics:
        """Actor, temperature, critics and multiplier, each by its own loss at the same point."""
        return self.actor_loss(batch) | self.critic_loss(batch)

    def actor_loss(self, batch: Batch) -> Metrics:
        """Value and entropy of the policy's own action; the data's likelihood instead of value while cloning."""
        hyper, model, obs = self.hyper, self.model, batch["obs"]
        actions, log_probs = model.actor.sample(obs)
        gain = model.critic(obs, actions).amin(0)
        if hyper.bc_updates:
            cloning = self.clock < hyper.bc_updates
            gain = torch.where(cloning, model.actor.log_prob(obs, batch["actions"]), gain)
        temperature = model.temperature().detach()
        metrics = {"actor_loss": (temperature * log_probs - gain).mean()}
        if not model.temperature.learned:
            return metrics | {"temperature": temperature, "entropy": -log_probs.mean()}
        target = -actions.shape[-1] if hyper.target_entropy is None else hyper.target_entropy
        return metrics | temperature_objective(
            log_temperature=model.temperature.log_value, log_probs=log_probs, target_entropy=target
        )

    def critic_loss(self, batch: Batch) -> Metrics:
        """Critics against the target, with the penalty on what they think of sampled actions."""
        hyper, obs, actions = self.hyper, batch["obs"], batch["actions"]
        samples, log_densities = self._samples(batch)
        q, *sampled = self.model.critic(obs, torch.cat([actions[None], samples])).split(
            [1, *[hyper.num_action_samples] * 3]
        )
        metrics = self._describe(sampled)
        if hyper.calibrated:
            metrics |= self._calibrate(sampled, self._bounds(batch["returns_to_go"]))
            metrics["mc_return_mean"] = batch["returns_to_go"].mean()
        gaps = conservative_gaps(
            q_values=q[0],
            sampled_q_values=torch.cat(sampled),
            log_densities=log_densities if hyper.importance_sampled else None,
            temperature=hyper.penalty_temperature,
            clip_min=hyper.penalty_clip_min,
            clip_max=hyper.penalty_clip_max,
        )
        td = critic_objective(q_values=q[0], target_q_values=self._targets(batch))
        weight = self._conservative_weight()
        penalty = weight * gaps.sum()
        if hyper.conservative_gap is not None:
            penalty, lagrange = lagrange_objective(
                gaps=gaps,
                multiplier=self.model.lagrange(),
                conservative_weight=weight,
                conservative_gap=hyper.conservative_gap,
                form=hyper.lagrange_form,
            )
            metrics |= lagrange
        loss = {"critic_loss": td["critic_loss"] + penalty, "td_loss": td["critic_loss"]}
        return td | metrics | loss | _numbered("cql_penalty", gaps)

    @torch.no_grad()
    def _samples(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Uniform actions, then the policy's at s, then at s', (3 N, B, dim), and their log-densities (3 N, B)."""
        both = torch.cat([batch["obs"], batch["next_obs"]])
        actions, log_probs = self.model.actor.sample(both, count=self.hyper.num_action_samples)
        current, following = actions.chunk(2, dim=1)
        uniform = 2 * torch.rand_like(current) - 1
        log_prob, next_log_prob = log_probs.chunk(2, dim=1)
        density = torch.full_like(log_prob, -actions.shape[-1] * math.log(2))
        return torch.cat([uniform, current, following]), torch.cat([density, log_prob, next_log_prob])

    @torch.no_grad()
    def _targets(self, batch: Batch) -> Tensor:
        """What the critics should be, by the policy's action at s' or the best of several."""
        hyper, next_obs, actor = self.hyper, batch["next_obs"], self.model.actor
        if hyper.max_backup != "none":
            samples, log_probs = actor.sample(next_obs, count=hyper.num_action_samples)
            q = self.target.critic(next_obs, samples)
            if hyper.max_backup == "min_of_max":
                return bellman(batch, q.amax(0).amin(0), hyper.gamma)
            next_q, best = q.amin(-2).max(0)
            log_prob = log_probs.gather(0, best[None])[0]
        else:
            actions, log_prob = actor.sample(next_obs)
            if hyper.target_action == "mean":
                actions = actor(next_obs)[0].tanh()
            next_q = self.target.critic(next_obs, actions).amin(0)
        if hyper.backup_entropy:
            next_q = next_q - self.model.temperature() * log_prob
        return bellman(batch, next_q, hyper.gamma)

    def _conservative_weight(self) -> float | Tensor:
        offline, online = self.hyper.conservative_weight, self.hyper.online_conservative_weight
        return offline if online is None else torch.where(self.online_share > 0, online, offline)

    def _bounds(self, returns: Tensor) -> Tensor:
        """Lower bounds on the values of the policy's actions; none in an online phase, if so asked for."""
        if self.hyper.online_calibrated:
            return returns
        return torch.where(self.online_share > 0, -math.inf, returns)

    @staticmethod
    def _calibrate(sampled: list[Tensor], bounds: Tensor) -> Metrics:
        """Bound the values of the policy's actions, in place in the list, and say how many were below."""
        _, current, following = sampled
        sampled[1:] = [current.maximum(bounds), following.maximum(bounds)]
        return {
            "calibration_bound_rate_pi": (current < bounds).to(bounds.dtype).mean(),
            "calibration_bound_rate_next": (following < bounds).to(bounds.dtype).mean(),
        }

    @staticmethod
    def _describe(sampled: list[Tensor]) -> Metrics:
        names = ("q_rand", "q_pi", "q_next_pi")
        means = {name: values.mean() for name, values in zip(names, sampled, strict=True)}
        return means | {"q_ood_std": torch.cat(sampled).std(0).mean()}


def _numbered(name: str, values: Tensor) -> Metrics:
    """One metric per critic, counted from 1."""
    return {f"{name}_{number}": value for number, value in enumerate(values.unbind(), start=1)}


CQLAlgorithm = CQL
