"""TD3: a deterministic actor that follows the more pessimistic of two critics.

    critic minimises  sum_i mean (Q_i(s, a) - y)^2,      y = r + gamma * (1 - done) * min_i Q'_i(s', pi'(s') + noise)
    actor minimises   - mean Q_1(s, pi(s)),              on every `policy_delay`-th update, as do all target networks

Fujimoto et al., "Addressing Function Approximation Error in Actor-Critic Methods", ICML 2018.

Differs from the paper: networks, learning rates and batches are those of the authors' later code, 2x256, 3e-4 and 256,
as is the warm-up of 25 000 steps.
"""

from __future__ import annotations

from rl_training.algorithms.base import Algorithm, SmoothingHyper, Step, losses, register
from rl_training.core.batches import Batch, Metrics
from rl_training.core.options import option, options
from rl_training.models import MLPTD3Model


@options
class TD3Hyper(SmoothingHyper):
    """Hyper-parameters of TD3."""

    num_critics: int = option(2, "number of critics; targets use the minimum", ge=1, le=1000)


td3_loss = losses.combine("td3_loss", losses.critic_objective, losses.value_actor_objective)


@register("td3", mode="online")
class TD3(Algorithm[TD3Hyper, MLPTD3Model]):
    """Twin delayed deterministic policy gradient."""

    steps = (Step("critic"), Step("actor", every="policy_delay", tracks=("actor", "critic")))
    defaults = {"exploration_noise": 0.1, "learning_starts": 25_000}

    def critic_loss(self, batch: Batch) -> Metrics:
        """All critics against the smallest of the target critics, at a smoothed target action."""
        hyper = self.hyper
        next_actions = losses.smooth(self.target.actor(batch["next_obs"]), hyper.policy_noise, hyper.noise_clip)
        return losses.evaluation_loss(self, batch, next_actions)

    def actor_loss(self, batch: Batch) -> Metrics:
        """Value of the policy's own action, by the first critic."""
        actions = self.model.actor(batch["obs"])
        (q,) = self.model.critic(batch["obs"], actions, first=1)
        return losses.value_actor_objective(policy_q_values=q) | {"action_saturation": losses.saturation(actions)}


TD3Algorithm = TD3
