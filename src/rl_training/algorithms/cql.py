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
count as at least the return that was logged from s: Cal-QL, see `calibration`.

Kumar et al., "Conservative Q-Learning for Offline Reinforcement Learning", NeurIPS 2020.

Differs from the authors' code: order of updates, initial weights, standard deviation of the actor and no cloning at
first, all as in CORL, whose settings are the defaults; `bc_updates: 40000` brings the cloning back.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from rl_training.algorithms.base import TRANSITION, Algorithm, Step, ValueHyper, register
from rl_training.algorithms.calibration import calibrate, calibration_bounds, calibration_report
from rl_training.algorithms.hyper import EntropyHyper
from rl_training.algorithms.losses import bellman, critic_objective, soft_actor_objective, temperature_loss
from rl_training.algorithms.penalty import LagrangeForm, PenaltyHyper, conservative_gaps, lagrange_objective
from rl_training.binding import option, options, refuse_unused
from rl_training.models import MLPCQLModel
from rl_training.reading import Transitions
from rl_training.types import Batch, Metrics

__all__ = ["CQL", "CQLAlgorithm", "CQLHyper", "LagrangeForm", "conservative_gaps", "cql_loss", "lagrange_objective"]


@options
class CQLHyper(ValueHyper, EntropyHyper, PenaltyHyper, hidden_sizes=(256, 256, 256), actor_learning_rate=3e-5):
    """Hyper-parameters of CQL."""

    temperature_learning_rate: float | None = option(None, "learning rate of the temperature; null: the actor's", gt=0)
    orthogonal_actor: bool = option(False, "the actor starts orthogonal too, as the critics do")
    target_action: Literal["sample", "mean"] = option("sample", "the policy's action in the target")
    max_backup: Literal["none", "max_of_min", "min_of_max"] = option("none", "best of num_action_samples in the target")
    backup_entropy: bool = option(False, "subtract the temperature times log pi in the target")
    bc_updates: int = option(0, "updates at the start in which the actor clones", ge=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_unused(self, "target_action", unless="max_backup: none", holds=self.max_backup == "none")
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
    uniform = torch.full_like(policy_log_probs, -action_dim * math.log(2))
    sampled = [random_q_values, *(calibrate(each, returns_to_go) for each in (policy_q_values, next_policy_q_values))]
    gaps = conservative_gaps(
        q_values=q_values,
        sampled_q_values=torch.cat(sampled),
        log_densities=torch.cat([uniform, policy_log_probs, next_policy_log_probs]) if importance_sampled else None,
        temperature=penalty_temperature,
        clip_min=penalty_clip_min,
        clip_max=penalty_clip_max,
    )
    td = critic_objective(q_values=q_values, target_q_values=target_q_values)
    penalty: Tensor = conservative_weight * gaps.sum()
    lagrange: Metrics = {}
    if multiplier is not None:
        penalty, lagrange = lagrange_objective(
            gaps=gaps,
            multiplier=multiplier,
            conservative_weight=conservative_weight,
            conservative_gap=conservative_gap,
            form=lagrange_form,
        )
    # One metric per critic, counted from 1.
    penalties = {f"cql_penalty_{number}": gap for number, gap in enumerate(gaps.unbind(), start=1)}
    return td | {"critic_loss": td["critic_loss"] + penalty, "td_loss": td["critic_loss"]} | penalties | lagrange


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
        hyper, model, obs, temperature = self.hyper, self.model, batch["obs"], self.model.temperature
        actions, log_probs = model.actor.sample(obs)
        gain = model.critic(obs, actions).amin(0)
        if hyper.bc_updates:
            cloning = self.clock < hyper.bc_updates
            gain = torch.where(cloning, model.actor.log_prob(obs, batch["actions"]), gain)
        metrics = soft_actor_objective(gain, log_probs, temperature.log_value)
        if not temperature.learned:
            return metrics | {"temperature": temperature()}
        return metrics | temperature_loss(self, log_probs)

    def critic_loss(self, batch: Batch) -> Metrics:
        """Critics against the target, with the penalty on what they think of sampled actions."""
        hyper, obs, actions = self.hyper, batch["obs"], batch["actions"]
        samples, (log_probs, next_log_probs) = self._samples(batch)
        values = self.model.critic(obs, torch.cat([actions[None], samples]))
        q, random_q, policy_q, next_policy_q = values.split([1, *[hyper.num_action_samples] * 3])
        metrics = {"q_rand": random_q.mean(), "q_pi": policy_q.mean(), "q_next_pi": next_policy_q.mean()}
        metrics["q_ood_std"] = values[1:].std(0).mean()
        bounds = None
        if hyper.calibrated:
            bounds = calibration_bounds(batch["returns_to_go"], hyper, self.online_share)
            metrics |= calibration_report(policy_q_values=policy_q, next_policy_q_values=next_policy_q, bounds=bounds)
            metrics["mc_return_mean"] = batch["returns_to_go"].mean()
        return metrics | cql_loss(
            q_values=q[0],
            target_q_values=self._targets(batch),
            random_q_values=random_q,
            policy_q_values=policy_q,
            next_policy_q_values=next_policy_q,
            policy_log_probs=log_probs,
            next_policy_log_probs=next_log_probs,
            action_dim=actions.shape[-1],
            conservative_weight=hyper.conservative_weight_at(self.online_share),
            penalty_temperature=hyper.penalty_temperature,
            returns_to_go=bounds,
            importance_sampled=hyper.importance_sampled,
            penalty_clip_min=hyper.penalty_clip_min,
            penalty_clip_max=hyper.penalty_clip_max,
            multiplier=None if hyper.conservative_gap is None else self.model.lagrange(),
            conservative_gap=hyper.conservative_gap or 0.0,
            lagrange_form=hyper.lagrange_form,
        )

    @torch.no_grad()
    def _samples(self, batch: Batch) -> tuple[Tensor, list[Tensor]]:
        """Uniform actions, then the policy's at s, then at s', (3 N, B, dim), and log-densities (N, B) of those."""
        both = torch.cat([batch["obs"], batch["next_obs"]])
        actions, log_probs = self.model.actor.sample(both, count=self.hyper.num_action_samples)
        current, following = actions.chunk(2, dim=1)
        uniform = 2 * torch.rand_like(current) - 1
        return torch.cat([uniform, current, following]), list(log_probs.chunk(2, dim=1))

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


CQLAlgorithm = CQL
