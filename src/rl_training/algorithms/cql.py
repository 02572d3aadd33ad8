"""CQL: SAC whose critics are pushed down where actions are sampled and up where they were logged.

    critic minimises       sum_i mean (Q_i(s, a) - y)^2 + conservative_weight * D_i
                           y = r + gamma * (1 - done) * min_i Q'_i(s', a'),   a' ~ pi(s')
                           D_i = mean (T logsumexp_j((Q_i(s, a_j) - log density of a_j) / T) - Q_i(s, a))
                           a_j: num_action_samples each uniform, from pi(s) and from pi(s')
    actor and temperature  as in SAC

All gradients are taken before anything moves. With a `conservative_gap`, a learned multiplier maximises the penalty,
multiplier * conservative_weight * (D_i - gap), or multiplier * (conservative_weight * D_i - gap) with `lagrange_form:
weight_inside`. With `calibrated`, the policy's values count as at least the logged return from s: Cal-QL, see `cal_ql`.

Kumar et al., "Conservative Q-Learning for Offline Reinforcement Learning", NeurIPS 2020.

Differs from the authors' code: order of updates, initial weights, standard deviation of the actor and no cloning at
first, all as in CORL, whose settings are the defaults; `bc_updates: 40000` brings the cloning back.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm, CalibrationHyper, EntropyHyper, Step, ValueHyper, losses, register
from rl_training.core.batches import TRANSITION, Batch, Metrics, Transitions
from rl_training.core.options import option, options, refuse_unused
from rl_training.models import MLPCQLModel

LagrangeForm = Literal["weight_outside", "weight_inside"]


@options
class CQLHyper(ValueHyper, EntropyHyper, CalibrationHyper, hidden_sizes=(256, 256, 256), actor_learning_rate=3e-5):
    """Hyper-parameters of CQL."""

    conservative_weight: float = option(10.0, "weight of the penalty", ge=0)
    online_conservative_weight: float | None = option(None, "penalty's weight online; null: conservative_weight", ge=0)
    num_action_samples: int = option(10, "actions of each of the three kinds in the penalty", ge=1)
    penalty_temperature: float = option(1.0, "how soft the maximum in the penalty is", gt=0)
    importance_sampled: bool = option(True, "correct for the samples' densities; false: add the logged action to them")
    penalty_clip_min: float | None = option(None, "lower bound on a row's part of the penalty")
    penalty_clip_max: float | None = option(None, "upper bound on a row's part of the penalty")
    conservative_gap: float | None = option(None, "penalty to reach by a learned multiplier; null: no multiplier")
    lagrange_form: LagrangeForm = option("weight_outside", "whether the weight applies to the gap too")
    initial_log_lagrange: float = option(1.0, "logarithm of the multiplier at the start")
    lagrange_learning_rate: float | None = option(None, "learning rate of the multiplier; null: the critics'", gt=0)
    temperature_learning_rate: float | None = option(None, "learning rate of temperature; null: the actor's", gt=0)
    orthogonal_actor: bool = option(False, "the actor starts orthogonal too, as the critics do")
    target_action: Literal["sample", "mean"] = option("sample", "the policy's action in the target")
    max_backup: Literal["none", "max_of_min", "min_of_max"] = option("none", "best of num_action_samples in the target")
    backup_entropy: bool = option(False, "subtract the temperature times log pi in the target")
    bc_updates: int = option(0, "updates at the start in which the actor clones", ge=0)
    learning_rate_like = {"temperature": "actor", "lagrange": "critic"}

    def __post_init__(self) -> None:
        super().__post_init__()
        names = ("lagrange_form", "initial_log_lagrange", "lagrange_learning_rate")
        refuse_unused(self, *names, unless="a conservative_gap", holds=self.conservative_gap is not None)
        refuse_unused(self, "target_action", unless="max_backup: none", holds=self.max_backup == "none")
        # The entropy is that of the action whose value is taken, so there has to be one, and a sampled one.
        sampled = self.max_backup != "min_of_max" and self.target_action == "sample"
        refuse_unused(self, "backup_entropy", unless="one sampled action in the target", holds=sampled)
        self.require("penalty_clip_min", "<=", "penalty_clip_max")


def conservative_gaps(
    q_values: Tensor,
    sampled_q_values: Tensor,
    log_densities: Tensor | None,
    *,
    temperature: float,
    clip_min: float | None = None,
    clip_max: float | None = None,
) -> Tensor:
    """D (E,): by how much the soft maximum over sampled values (samples, E, B) exceeds the logged ones (E, B)."""
    if log_densities is None:
        z = torch.cat([sampled_q_values, q_values[None]])  # The logged action is one of the samples.
    else:
        z = sampled_q_values - log_densities.detach()[:, None]
    differences = temperature * (z / temperature).logsumexp(0) - q_values
    if clip_min is not None or clip_max is not None:
        differences = differences.clamp(clip_min, clip_max)
    return differences.mean(-1)


def lagrange_objective(
    gaps: Tensor, multiplier: Tensor, conservative_weight: float | Tensor, conservative_gap: float, form: LagrangeForm
) -> tuple[Tensor, Metrics]:
    """The critics' penalty under a learned multiplier, and the multiplier's own loss."""
    multiplier = multiplier.clamp(0, 1e6)
    if form == "weight_outside":
        excess = conservative_weight * (gaps - conservative_gap)
    else:
        excess = conservative_weight * gaps - conservative_gap
    penalty = (multiplier.detach() * excess).sum()
    return penalty, {"lagrange_loss": -(multiplier * excess.detach()).mean(), "lagrange": multiplier.detach()}


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
    conservative_weight: float | Tensor,
    penalty_temperature: float = 1.0,
    returns_to_go: Tensor | None = None,
    importance_sampled: bool = True,
    penalty_clip_min: float | None = None,
    penalty_clip_max: float | None = None,
    multiplier: Tensor | None = None,
    conservative_gap: float = 0.0,
    lagrange_form: LagrangeForm = "weight_outside",
) -> Metrics:
    """The critics' objective of CQL, from tensors alone: values (N, E, B) of samples and their log-densities (N, B)."""
    sampled = [random_q_values, policy_q_values, next_policy_q_values]
    if returns_to_go is not None:
        sampled[1:] = [values.maximum(returns_to_go) for values in sampled[1:]]
    uniform = torch.full_like(policy_log_probs, -action_dim * math.log(2))
    densities = torch.cat([uniform, policy_log_probs, next_policy_log_probs]) if importance_sampled else None
    clips = {"clip_min": penalty_clip_min, "clip_max": penalty_clip_max}
    gaps = conservative_gaps(q_values, torch.cat(sampled), densities, temperature=penalty_temperature, **clips)
    report = {f"cql_penalty_{number}": gap for number, gap in enumerate(gaps.unbind(), start=1)}
    penalty: Tensor = conservative_weight * gaps.sum()
    if multiplier is not None:
        penalty, lagrange = lagrange_objective(gaps, multiplier, conservative_weight, conservative_gap, lagrange_form)
        report |= lagrange
    td = losses.critic_objective(q_values=q_values, target_q_values=target_q_values)
    return td | {"critic_loss": td["critic_loss"] + penalty, "td_loss": td["critic_loss"]} | report


@register("cql", mode="offline")
class CQL(Algorithm[CQLHyper, MLPCQLModel]):
    """Conservative Q-learning."""

    steps = (Step("joint", trains=("temperature", "actor", "critic", "lagrange"), tracks=("critic",)),)
    defaults = {"normalize_obs": True}

    @classmethod
    def make_reads(cls, hyper: Any) -> Transitions:
        """Calibration needs the logged returns."""
        return Transitions((*TRANSITION, "returns_to_go") if hyper.calibrated else TRANSITION)

    def joint_loss(self, batch: Batch) -> Metrics:
        """Actor, temperature, critics and multiplier, each by its own loss at the same point."""
        return self.actor_loss(batch) | self.critic_loss(batch)

    def actor_loss(self, batch: Batch) -> Metrics:
        """Value and entropy of the policy's own action; the data's likelihood instead of value while cloning."""
        hyper, model, obs = self.hyper, self.model, batch["obs"]
        actions, log_probs = model.actor.sample(obs)
        gain = model.critic(obs, actions).amin(0)
        if hyper.bc_updates:
            gain = torch.where(self.clock < hyper.bc_updates, model.actor.log_prob(obs, batch["actions"]), gain)
        metrics = losses.soft_actor_objective(gain, log_probs, model.temperature.log_value)
        return metrics | losses.temperature_loss(self, log_probs)

    def critic_loss(self, batch: Batch) -> Metrics:
        """Critics against the target, with the penalty on their values of sampled actions."""
        hyper, obs, actions = self.hyper, batch["obs"], batch["actions"]
        with torch.no_grad():
            drawn = self.model.actor.sample(torch.cat([obs, batch["next_obs"]]), count=hyper.num_action_samples)
        (current, following), (log_probs, next_log_probs) = (each.chunk(2, dim=1) for each in drawn)
        uniform = 2 * torch.rand_like(current) - 1
        values = self.model.critic(obs, torch.cat([actions[None], uniform, current, following]))
        q, random_q, policy_q, next_policy_q = values.split([1, *[hyper.num_action_samples] * 3])
        metrics = {"q_rand": random_q.mean(), "q_pi": policy_q.mean(), "q_next_pi": next_policy_q.mean()}
        metrics["q_ood_std"] = values[1:].std(0).mean()
        bounds = None
        if hyper.calibrated:
            # Imported here, since the module of Cal-QL imports this one.
            from rl_training.algorithms.cal_ql import calibration

            bounds, report = calibration(self, batch["returns_to_go"], policy_q, next_policy_q)
            metrics |= report
        return metrics | cql_loss(
            q_values=q[0],
            target_q_values=self._targets(batch),
            random_q_values=random_q,
            policy_q_values=policy_q,
            next_policy_q_values=next_policy_q,
            policy_log_probs=log_probs,
            next_policy_log_probs=next_log_probs,
            action_dim=actions.shape[-1],
            conservative_weight=losses.online_value(self, hyper.conservative_weight, hyper.online_conservative_weight),
            returns_to_go=bounds,
            multiplier=None if hyper.conservative_gap is None else self.model.lagrange(),
            **hyper.only("penalty_temperature", "importance_sampled", "penalty_clip_min", "penalty_clip_max"),
            **hyper.only("conservative_gap", "lagrange_form"),
        )

    @torch.no_grad()
    def _targets(self, batch: Batch) -> Tensor:
        """Targets of the critics, by the policy's action at s' or the best of several."""
        hyper, next_obs, actor = self.hyper, batch["next_obs"], self.model.actor
        count = None if hyper.max_backup == "none" else hyper.num_action_samples
        actions, log_probs = actor.sample(next_obs, count=count)
        if hyper.target_action == "mean":
            actions = actor(next_obs)[0].tanh()
        q = self.target.critic(next_obs, actions)
        next_q = q.amax(0).amin(0) if hyper.max_backup == "min_of_max" else q.amin(-2)
        if hyper.max_backup == "max_of_min":
            next_q, best = next_q.max(0)
            log_probs = log_probs.gather(0, best[None])[0]
        if hyper.backup_entropy:
            next_q = next_q - self.model.temperature() * log_probs
        return losses.bellman(batch, next_q, hyper.gamma)


CQLAlgorithm = CQL
