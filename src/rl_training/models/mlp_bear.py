"""The networks of BEAR."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from rl_training.models.actors import TanhGaussianActor
from rl_training.models.critics import QEnsemble, best_action
from rl_training.models.initializers import small_last
from rl_training.models.mlp import Multiplier
from rl_training.models.mlp_bcq import behavior_vae
from rl_training.models.model import Model, Shape


class MLPBEARModel(Model):
    """A model of the behaviour policy, a tanh-Gaussian actor, the multiplier that keeps it near, and twin critics."""

    def __init__(
        self, *, vae_hidden_sizes: Sequence[int] = (750, 750), num_action_samples: int = 100, **shape: Unpack[Shape]
    ) -> None:
        super().__init__(**shape)
        self.actor = TanhGaussianActor(**self.actor_shape, init=small_last(1e-3))
        self.critic = QEnsemble(**self.critic_shape, init=small_last(3e-3))
        self.vae = behavior_vae(vae_hidden_sizes, self)
        self.lagrange = Multiplier(bounds=(-5.0, 10.0))
        self.candidates = nn.Buffer(torch.randn(num_action_samples, 1, self.action_dim))

    def act(self, obs: Tensor, *, deterministic: bool) -> Tensor:
        """Of many actions of the policy, the one that the first critic values most.

        The candidates come from noise that was drawn once, so that an observation always gets the same action. If not
        deterministic, they come from new noise.
        """
        noise = self.candidates if deterministic else None
        raw = self.actor.sample_raw(obs, count=len(self.candidates), noise=noise)
        return best_action(self.critic, obs, raw.tanh())
