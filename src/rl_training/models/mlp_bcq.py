"""The networks of BCQ: a generative model of the behaviour policy, and perturbations of its actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from rl_training.models.actors import PerturbationActor
from rl_training.models.critics import QEnsemble, best_action
from rl_training.models.encoders import encoder_for
from rl_training.models.mlp import MLP, join
from rl_training.models.model import Model, Shape, StateShape

LOG_STD_MIN, LOG_STD_MAX = -4.0, 15.0

LATENT_CLIP = 0.5
"""Bound on latents that are drawn to generate actions. Latents of logged actions are not clipped."""


class BehaviorVAE(nn.Module):
    """A variational autoencoder of actions given observations; `raw` actions are those before the tanh."""

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        *,
        hidden_sizes: Sequence[int],
        encoder: nn.Module | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.latent_dim = 2 * action_dim
        # Not called `encoder`, as in other networks: here that is one half of the autoencoder.
        self.obs_encoder = encoder_for(obs_dim, encoder)
        features = self.obs_encoder.output_size
        self.encoder = MLP(features + action_dim, hidden_sizes, 2 * self.latent_dim, **options)
        self.decoder = MLP(features + self.latent_dim, hidden_sizes, action_dim, **options)

    def forward(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Reconstructed actions, and mean and log of the standard deviation of their latents."""
        mean, log_std = self.encoder(join(self.obs_encoder(obs), actions)).chunk(2, dim=-1)
        log_std = log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
        latents = mean + log_std.exp() * torch.randn_like(mean)
        return self.decode(obs, latents), mean, log_std

    def decode_raw(self, obs: Tensor, latents: Tensor) -> Tensor:
        """Raw actions for latents (B, dim) or (samples, B, dim)."""
        return self.decoder(join(self.obs_encoder(obs), latents))

    def decode(self, obs: Tensor, latents: Tensor) -> Tensor:
        """Actions for latents."""
        return self.decode_raw(obs, latents).tanh()

    def draw(self, obs: Tensor, *, count: int | None = None) -> Tensor:
        """Clipped latents for observations: (B, dim), or (count, B, dim)."""
        features = self.obs_encoder(obs)
        shape = features.shape[:-1] if count is None else (count, *features.shape[:-1])
        latents = torch.randn(*shape, self.latent_dim, dtype=features.dtype, device=features.device)
        return latents.clamp(-LATENT_CLIP, LATENT_CLIP)


def behavior_vae(hidden_sizes: Sequence[int], model: Model) -> BehaviorVAE:
    """The model of the behaviour policy that is part of an algorithm's networks."""
    # The model has no value network, whose copy of the encoder is free.
    shape: StateShape = {**model.value_shape, "hidden_sizes": hidden_sizes}
    return BehaviorVAE(**shape, action_dim=model.action_dim)


class MLPBCQModel(Model):
    """A model of the behaviour policy, an actor that perturbs its samples, and twin critics that choose among them."""

    default_sizes = (400, 300)

    def __init__(
        self,
        *,
        vae_hidden_sizes: Sequence[int] = (750, 750),
        phi: float = 0.05,
        num_action_samples: int = 100,
        **shape: Unpack[Shape],
    ) -> None:
        super().__init__(**shape)
        self.actor = PerturbationActor(**self.actor_shape, phi=phi)
        self.critic = QEnsemble(**self.critic_shape)
        self.vae = behavior_vae(vae_hidden_sizes, self)
        latents = torch.randn(num_action_samples, 1, self.vae.latent_dim)
        self.candidates = nn.Buffer(latents.clamp(-LATENT_CLIP, LATENT_CLIP))

    def act(self, obs: Tensor, *, deterministic: bool) -> Tensor:
        """Of many candidate actions, the one that the first critic values most.

        The candidates come from latents that were drawn once, so that an observation always gets the same action. If
        not deterministic, they come from new latents.
        """
        # Not len(obs), which would fix the size of the batch in an exported graph.
        latents = self.candidates.expand(-1, obs.shape[0], -1)
        if not deterministic:
            latents = self.vae.draw(obs, count=len(latents))
        return best_action(self.critic, obs, self.actor(obs, self.vae.decode(obs, latents)))
