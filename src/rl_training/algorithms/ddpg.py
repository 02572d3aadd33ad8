"""DDPG: a deterministic actor that climbs the slope of its critic.

    critic minimises  mean (Q(s, a) - y)^2,      y = r + gamma * (1 - done) * Q'(s', pi'(s'))
    actor minimises   - mean Q(s, pi(s))

Lillicrap et al., "Continuous control with deep reinforcement learning", ICLR 2016.

Differs from the paper: networks of 2x256 that see the action from the first layer, without batch normalisation, small
last layers or weight decay, both with learning rate 3e-4; batches of 256 and target networks that follow at 0.005;
exploration by Gaussian noise without memory. This is the form in which DDPG is compared since TD3: at a million steps
stronger on HalfCheetah and Walker2d, a little weaker on Hopper and Ant.
"""

from __future__ import annotations

from rl_training.algorithms.base import Algorithm, Step, ValueHyper, losses, register
from rl_training.core.batches import Batch, Metrics
from rl_training.core.options import option, options
from rl_training.models import MLPDDPGModel


@options
class DDPGHyper(ValueHyper):
    """Hyper-parameters of DDPG."""

    critic_weight_decay: float = option(0.0, "weight decay of the critic; the paper has 0.01", ge=0)


ddpg_loss = losses.combine("ddpg_loss", losses.critic_objective, losses.value_actor_objective)


@register("ddpg", mode="online")
class DDPG(Algorithm[DDPGHyper, MLPDDPGModel]):
    """Deep deterministic policy gradient."""

    steps = (Step("critic"), Step("actor", tracks=("actor", "critic")))
    defaults = {"exploration_noise": 0.1, "learning_starts": 10_000}

    def critic_loss(self, batch: Batch) -> Metrics:
        """The critic against the target critic at the target actor's action."""
        return losses.evaluation_loss(self, batch, self.target.actor(batch["next_obs"]))

    def actor_loss(self, batch: Batch) -> Metrics:
        """Value of the policy's own action."""
        actions = self.model.actor(batch["obs"])
        (q,) = self.model.critic(batch["obs"], actions)
        return losses.value_actor_objective(policy_q_values=q) | {"action_saturation": losses.saturation(actions)}


DDPGAlgorithm = DDPG
