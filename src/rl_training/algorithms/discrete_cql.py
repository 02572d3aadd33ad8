"""Discrete CQL: DQN whose values are pushed down over all actions and up at the logged ones.

    critic minimises  TD + conservative_weight * D,    D = mean (log sum_a exp Q(s, a) - Q(s, a_logged))

TD is the loss of double DQN or, with `num_quantiles`, that of QR-DQN. D is the cross-entropy of the logged actions with
the values as logits. If its weight is large, the algorithm clones the data. The weight is relative to the rewards: at
every step, the penalty can raise the value of a frequent action by up to the weight. It should therefore be smaller
where episodes are longer: about 0.1 for single decisions with returns between 0 and 1, and 0.01 to 0.02 for ten steps.
It is also relative to `huber_delta`, the largest slope of TD: with a small one, the penalty outweighs all rewards. The
values are no returns any more; judge the policy by `rl-training estimate`.

Kumar et al., "Conservative Q-Learning for Offline Reinforcement Learning", NeurIPS 2020.

Differs from the authors' code: double DQN instead of QR-DQN by default, and a weight of 1 instead of 4 or 1 by the size
of the data.
"""

from __future__ import annotations

from torch import Tensor

from rl_training.algorithms.base import losses, register
from rl_training.algorithms.dqn import DQN, DQNHyper, dqn_loss
from rl_training.core.batches import Batch, Metrics
from rl_training.core.options import option, options


@options
class DiscreteCQLHyper(DQNHyper, learning_rate=3e-4, max_grad_norm=None, tau=0.005, target_update_interval=1):
    """Hyper-parameters of discrete CQL."""

    conservative_weight: float = option(1.0, "weight of the penalty", ge=0)
    online_conservative_weight: float | None = option(None, "penalty's weight online; null: conservative_weight", ge=0)


def with_penalty(
    metrics: Metrics, *, q_values: Tensor, actions: Tensor, conservative_weight: float | Tensor
) -> Metrics:
    """A loss of the critic and the penalty on values (B, actions) that exceed those of the logged actions (B,)."""
    gap = losses.conservative_gap(q_values, actions)
    return metrics | {
        "critic_loss": metrics["critic_loss"] + conservative_weight * gap,
        "td_loss": metrics["critic_loss"],
        "cql_penalty": gap,
        "q_soft_max": q_values.logsumexp(-1).mean(),
    }


def discrete_cql_loss(
    *,
    q_values: Tensor,
    actions: Tensor,
    target_q_values: Tensor,
    conservative_weight: float,
    huber_delta: float | None = 1.0,
) -> Metrics:
    """The whole objective, from tensors alone: values (B, actions), actions (B,), and targets (B,)."""
    metrics = dqn_loss(q_values=q_values, actions=actions, target_q_values=target_q_values, huber_delta=huber_delta)
    return with_penalty(metrics, q_values=q_values, actions=actions, conservative_weight=conservative_weight)


@register("discrete_cql", mode="offline")
class DiscreteCQL(DQN):
    """Conservative Q-learning for discrete actions."""

    hyper: DiscreteCQLHyper
    defaults = {"exploration_noise": 0.05}

    def critic_loss(self, batch: Batch) -> Metrics:
        """The loss of DQN, and the penalty."""
        hyper, quantiles = self.hyper, self.model.critic.quantiles(batch["obs"])
        weight = losses.online_value(self, hyper.conservative_weight, hyper.online_conservative_weight)
        metrics = self.td_loss(quantiles, batch)
        return with_penalty(metrics, q_values=quantiles.mean(-1), actions=batch["actions"], conservative_weight=weight)


DiscreteCQLAlgorithm = DiscreteCQL
