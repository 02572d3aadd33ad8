"""TD3: a deterministic actor that follows the more pessimistic of two critics.

    critic minimises  sum_i mean (Q_i(s, a) - y)^2,      y = r + gamma * (1 - done) * min_i Q'_i(s', pi'(s') + noise)
    actor minimises   - mean Q_1(s, pi(s)),              on every `policy_delay`-th update, as do all lagged copies

Fujimoto et al., "Addressing Function Approximation Error in Actor-Critic Methods", ICML 2018.

Differs from the paper: networks, step sizes and batches are those of the authors' later code, 2x256, 3e-4 and 256, as
is the warm-up of 25 000 steps.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from rl_training.algorithms.base import Algorithm, Step, ValueHyper, register
from rl_training.algorithms.losses import bellman, critic_objective, saturation, smooth
from rl_training.binding import options
from rl_training.models import MLPTD3Model
from rl_training.types import Batch, Metrics


@options
class TD3Hyper(ValueHyper):
    """Hyper-parameters of TD3."""

    num_critics: int = Field(default=2, ge=1, description="critics; the smallest of their lagged copies counts")
    policy_noise: float = Field(default=0.2, ge=0, description="standard deviation of target smoothing")
    noise_clip: float = Field(default=0.5, ge=0, description="bound on the smoothing noise")
    policy_delay: int = Field(default=2, ge=1, description="critic updates per actor update")


def td3_loss(*, q_values: Tensor, target_q_values: Tensor, policy_q_values: Tensor) -> Metrics:
    """The whole objective, from tensors alone; `policy_q_values` (B,) are the first critic's."""
    critic = critic_objective(q_values=q_values, target_q_values=target_q_values)
    return critic | {"actor_loss": -policy_q_values.mean()}


@register("td3", mode="online")
class TD3(Algorithm):
    """Twin delayed deterministic policy gradient."""

    hyper: TD3Hyper
    model: MLPTD3Model
    target: MLPTD3Model
    steps = (Step("critic"), Step("actor", every="policy_delay", tracks=("actor", "critic")))
    defaults = {"exploration_noise": 0.1, "learning_starts": 25_000}

    def critic_loss(self, batch: Batch) -> Metrics:
        """All critics against the smallest of the target critics, at a smoothed target action."""
        hyper, next_obs = self.hyper, batch["next_obs"]
        with torch.no_grad():
            next_actions = smooth(self.target.actor(next_obs), hyper.policy_noise, hyper.noise_clip)
            next_q = self.target.critic(next_obs, next_actions).amin(0)
            target_q = bellman(batch, next_q, hyper.gamma)
        q = self.model.critic(batch["obs"], batch["actions"])
        return critic_objective(q_values=q, target_q_values=target_q)

    def actor_loss(self, batch: Batch) -> Metrics:
        """Value of the policy's own action, by the first critic."""
        actions = self.model.actor(batch["obs"])
        (q,) = self.model.critic(batch["obs"], actions, count=1)
        return {"actor_loss": -q.mean(), "action_saturation": saturation(actions)}


TD3Algorithm = TD3
