"""A generative model of the behaviour: which actions were taken in a state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rl_training.models.encoders import encoder_for
from rl_training.models.mlp import MLP, join

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
