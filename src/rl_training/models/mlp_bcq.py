"""The networks of algorithms that sample from a model of the behaviour: BCQ and BEAR."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rl_training.models.bundle import Model
from rl_training.models.init import small_last
from rl_training.models.layers import MLP, Multiplier, QEnsemble, join
from rl_training.models.policies import PerturbationActor, TanhGaussianActor

LOG_STD_MIN, LOG_STD_MAX = -4.0, 15.0
LATENT_CLIP = 0.5
"""Bound on latents that are drawn to make actions; those that are encoded in training are not clipped."""


class BehaviorVAE(nn.Module):
    """A variational autoencoder of actions given observations; `raw` actions are those before the tanh."""

    def __init__(self, obs_dim: int, action_dim: int, *, hidden_sizes: Sequence[int]) -> None:
        super().__init__()
        self.latent_dim = 2 * action_dim
        self.encoder = MLP(obs_dim + action_dim, hidden_sizes, 2 * self.latent_dim)
        self.decoder = MLP(obs_dim + self.latent_dim, hidden_sizes, action_dim)

    def forward(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Reconstructed actions, and mean and log-deviation of the latents they were made from."""
        mean, log_std = self.encoder(join(obs, actions)).chunk(2, dim=-1)
        log_std = log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
        latents = mean + log_std.exp() * torch.randn_like(mean)
        return self.decode(obs, latents), mean, log_std

    def decode_raw(self, obs: Tensor, latents: Tensor) -> Tensor:
        """Raw actions for latents (B, dim) or (samples, B, dim)."""
        raw: Tensor = self.decoder(join(obs, latents))
        return raw

    def decode(self, obs: Tensor, latents: Tensor) -> Tensor:
        """Actions for latents."""
        return self.decode_raw(obs, latents).tanh()

    def draw(self, obs: Tensor, *, count: int | None = None) -> Tensor:
        """Clipped latents for observations: (B, dim), or (count, B, dim)."""
        shape = obs.shape[:-1] if count is None else (count, *obs.shape[:-1])
        latents = torch.randn(*shape, self.latent_dim, dtype=obs.dtype, device=obs.device)
        return latents.clamp(-LATENT_CLIP, LATENT_CLIP)


class MLPBCQModel(Model):
    """A model of the behaviour, an actor that perturbs its samples, and twin critics that choose among them."""

    candidates: Tensor

    def __init__(
        self,
        *,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int] = (400, 300),
        actor_hidden_sizes: Sequence[int] | None = None,
        critic_hidden_sizes: Sequence[int] | None = None,
        vae_hidden_sizes: Sequence[int] = (750, 750),
        phi: float = 0.05,
        num_action_samples: int = 100,
    ) -> None:
        super().__init__(obs_dim=obs_dim, action_dim=action_dim)
        self.actor = PerturbationActor(obs_dim, action_dim, hidden_sizes=actor_hidden_sizes or hidden_sizes, phi=phi)
        self.critic = QEnsemble(obs_dim, action_dim, hidden_sizes=critic_hidden_sizes or hidden_sizes)
        self.vae = BehaviorVAE(obs_dim, action_dim, hidden_sizes=vae_hidden_sizes)
        latents = torch.randn(num_action_samples, 1, self.vae.latent_dim).clamp(-LATENT_CLIP, LATENT_CLIP)
        self.register_buffer("candidates", latents)

    def act(self, obs: Tensor, *, deterministic: bool) -> Tensor:
        """The best of many candidate actions by the first critic.

        The candidates come from latents that were drawn once, so that an observation always gets the same action; from
        new ones if not deterministic.
        """
        latents = self.candidates.expand(-1, len(obs), -1)
        if not deterministic:
            latents = self.vae.draw(obs, count=len(latents))
        return best_action(self.critic, obs, self.actor(obs, self.vae.decode(obs, latents)))


class MLPBEARModel(Model):
    """A model of the behaviour, a tanh-Gaussian actor held to its support by a multiplier, and twin critics."""

    candidates: Tensor

    def __init__(
        self,
        *,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int] = (256, 256),
        actor_hidden_sizes: Sequence[int] | None = None,
        critic_hidden_sizes: Sequence[int] | None = None,
        vae_hidden_sizes: Sequence[int] = (750, 750),
        num_action_samples: int = 100,
    ) -> None:
        super().__init__(obs_dim=obs_dim, action_dim=action_dim)
        self.actor = TanhGaussianActor(
            obs_dim, action_dim, hidden_sizes=actor_hidden_sizes or hidden_sizes, init=small_last(1e-3)
        )
        self.critic = QEnsemble(
            obs_dim, action_dim, hidden_sizes=critic_hidden_sizes or hidden_sizes, init=small_last(3e-3)
        )
        self.vae = BehaviorVAE(obs_dim, action_dim, hidden_sizes=vae_hidden_sizes)
        self.lagrange = Multiplier(bounds=(-5.0, 10.0))
        self.register_buffer("candidates", torch.randn(num_action_samples, 1, action_dim))

    def act(self, obs: Tensor, *, deterministic: bool) -> Tensor:
        """The best of many of the policy's actions by the first critic.

        The candidates come from noise that was drawn once, so that an observation always gets the same action; from new
        noise if not deterministic.
        """
        mean, log_std = self.actor(obs)
        noise = self.candidates
        if not deterministic:
            noise = torch.randn(len(noise), *mean.shape, dtype=mean.dtype, device=mean.device)
        return best_action(self.critic, obs, (mean + log_std.exp() * noise).tanh())


def best_action(critic: QEnsemble, obs: Tensor, actions: Tensor) -> Tensor:
    """Of several actions per state, (samples, B, dim), the one that the first critic values most."""
    values: Tensor = critic(obs, actions, count=1).squeeze(-2)
    index = values.argmax(0)[None, :, None].expand(1, *actions.shape[1:])
    return actions.gather(0, index).squeeze(0)
