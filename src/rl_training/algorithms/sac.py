"""SAC: a stochastic actor that is paid for entropy as well as for value.

    critic minimises       1/2 sum_i mean (Q_i(s, a) - y)^2
                           y = r + gamma * (1 - done) * (min_i Q'_i(s', a') - alpha log pi(a' | s')),  a' ~ pi(s')
    actor minimises        mean (alpha log pi(a_pi | s) - min_i Q_i(s, a_pi)),                         a_pi ~ pi(s)
    temperature minimises  - mean log(alpha) (log pi(a_pi | s) + target_entropy)

in this order; actor and temperature move together, by gradients at the same sample.

Haarnoja et al., "Soft Actor-Critic Algorithms and Applications", 2018.

Differs from the paper: the temperature's gradient is that of log(alpha), as in most code bases.
"""

from __future__ import annotations

from torch import Tensor

from rl_training.algorithms.base import Algorithm, EntropyHyper, Step, ValueHyper, losses, register
from rl_training.core.batches import Batch, Metrics
from rl_training.core.options import option, options
from rl_training.models import MLPSACModel


@options
class SACHyper(ValueHyper, EntropyHyper):
    """Hyper-parameters of SAC."""

    num_critics: int = option(2, "number of critics; the minimum is used", ge=1, le=1000)


def half_squared_error(*, q_values: Tensor, target_q_values: Tensor) -> Metrics:
    """Half the squared error, summed over critics."""
    metrics = losses.critic_objective(q_values=q_values, target_q_values=target_q_values)
    return metrics | {"critic_loss": 0.5 * metrics["critic_loss"]}


def actor_objective(policy_q_values: Tensor, *, policy_log_probs: Tensor, log_temperature: Tensor) -> Metrics:
    """Entropy and the smallest of the critics (E, B) at the policy's own actions."""
    return losses.soft_actor_objective(policy_q_values.amin(0), policy_log_probs, log_temperature)


sac_loss = losses.combine("sac_loss", half_squared_error, actor_objective, losses.temperature_objective)


@register("sac", mode="online")
class SAC(Algorithm[SACHyper, MLPSACModel]):
    """Soft actor-critic with a learned temperature."""

    steps = (Step("critic", tracks=("critic",)), Step("actor", trains=("actor", "temperature")))
    defaults = {"learning_starts": 5_000}
    targets = losses.soft_targets

    def critic_loss(self, batch: Batch) -> Metrics:
        """All critics against the smallest of the target critics, entropy included."""
        q = self.model.critic(batch["obs"], batch["actions"])
        return half_squared_error(q_values=q, target_q_values=self.targets(batch))

    def actor_loss(self, batch: Batch) -> Metrics:
        """Value and entropy of the policy's own actions, and the temperature by the same sample."""
        return losses.soft_policy_loss(self, batch["obs"], self.model.critic, actor_objective)


SACAlgorithm = SAC
