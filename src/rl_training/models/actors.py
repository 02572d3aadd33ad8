"""Actors: from observations to actions in [-1, 1]."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import Unpack

from rl_training.models.encoders import DropoutOptions, Network, NetworkOptions
from rl_training.models.mlp import join

LOG_STD_RANGE = (-5.0, 2.0)
"""Without a bound, likelihood on near-deterministic data drives the standard deviation to zero and the loss to minus
infinity."""

Spread = Literal["state", "clipped", "sigmoid", "fixed"]
"""The origin of the logarithm of a Gaussian's standard deviation.

state: the network computes it from the observation, and it is clipped. clipped: a learned vector, clipped. sigmoid: a
learned vector, brought into its bounds by a sigmoid. fixed: a vector that is not learned.
"""


class DeterministicActor(Network):
    """actions = tanh(mlp(obs)); dropout acts after each activation."""

    def __init__(self, obs_dim: int, action_dim: int, **options: Unpack[DropoutOptions]) -> None:
        super().__init__(obs_dim, action_dim, **options)

    def forward(self, obs: Tensor, *, training: bool = False) -> Tensor:
        """Actions (B, dim)."""
        return self.mlp(self.encoder(obs), training=training).tanh()

    def act(self, obs: Tensor, *, deterministic: bool) -> Tensor:
        """The action to take; a deterministic actor has only one."""
        actions: Tensor = self(obs)
        return actions


class PerturbationActor(Network):
    """Moves given actions by at most `phi` and keeps them in [-1, 1]. It has no dropout."""

    def __init__(self, obs_dim: int, action_dim: int, *, phi: float, **options: Unpack[NetworkOptions]) -> None:
        super().__init__(obs_dim, action_dim, beside=action_dim, **options)
        self.phi = phi

    def forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        """The moved actions, in the shape of the given ones: (B, dim), or (samples, B, dim)."""
        moves = self.phi * self.mlp(join(self.encoder(obs), actions)).tanh()
        return (actions + moves).clamp(-1, 1)


class GaussianActor(Network):
    """actions ~ N(mean(obs), std^2), clipped to [-1, 1].

    The mean goes through tanh unless `squash_mean` is off; samples do not. `spread` says where the logarithm of the
    standard deviation comes from. Dropout acts after each activation.
    """

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        *,
        spread: Spread = "state",
        log_std: float = 0.0,
        log_std_range: tuple[float, float] = LOG_STD_RANGE,
        squash_mean: bool = True,
        **options: Unpack[DropoutOptions],
    ) -> None:
        super().__init__(obs_dim, 2 * action_dim if spread == "state" else action_dim, **options)
        self.spread, self.log_std_range, self.squash_mean = spread, log_std_range, squash_mean
        if spread != "state":
            value = torch.full((action_dim,), log_std)
            self.log_std = nn.Buffer(value) if spread == "fixed" else nn.Parameter(value)

    def forward(self, obs: Tensor, *, training: bool = False) -> tuple[Tensor, Tensor]:
        """Mean (B, dim), and log of the standard deviation, (B, dim) or (dim,)."""
        outputs, (low, high) = self.mlp(self.encoder(obs), training=training), self.log_std_range
        mean, log_std = outputs.chunk(2, dim=-1) if self.spread == "state" else (outputs, self.log_std)
        if self.squash_mean:
            mean = mean.tanh()
        if self.spread == "sigmoid":
            return mean, low + (high - low) * log_std.sigmoid()
        return mean, log_std if self.spread == "fixed" else log_std.clamp(low, high)

    def sample(self, obs: Tensor, *, count: int | None = None) -> tuple[Tensor, Tensor]:
        """Clipped samples (B, dim) or (count, B, dim), and the log-densities that they had before they were clipped."""
        mean, log_std = self(obs)
        noise = _noise(mean, count)
        return (mean + log_std.exp() * noise).clamp(-1, 1), _standard_log_prob(noise, log_std)

    def log_prob(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Log-density (B,) of actions before they are clipped; that on a bound stands for all beyond it."""
        return gaussian_log_prob(actions, *self(obs))

    def act(self, obs: Tensor, *, deterministic: bool) -> Tensor:
        """The mean, or a sample."""
        actions: Tensor = self(obs)[0].clamp(-1, 1) if deterministic else self.sample(obs)[0]
        return actions


class TanhGaussianActor(Network):
    """actions = tanh(raw), raw ~ N(mean(obs), std(obs)^2).

    With `affine_std`, the logarithm of the standard deviation is the network's output times a learned factor, which
    starts at 1, plus a learned offset, which starts at -1. There is no dropout, unless the `network` has it.
    """

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        *,
        log_std_range: tuple[float, float] = LOG_STD_RANGE,
        affine_std: bool = False,
        **options: Unpack[NetworkOptions],
    ) -> None:
        super().__init__(obs_dim, 2 * action_dim, **options)
        self.log_std_range = log_std_range
        self.std_affinity = nn.Parameter(torch.tensor([1.0, -1.0])) if affine_std else None

    def forward(self, obs: Tensor, *, training: bool = False) -> tuple[Tensor, Tensor]:
        """Mean and log of the standard deviation of the raw value, each (B, dim)."""
        mean, log_std = self.mlp(self.encoder(obs), training=training).chunk(2, dim=-1)
        if self.std_affinity is not None:
            factor, offset = self.std_affinity.unbind()
            log_std = factor * log_std + offset
        return mean, log_std.clamp(*self.log_std_range)

    def sample(self, obs: Tensor, *, count: int | None = None, training: bool = False) -> tuple[Tensor, Tensor]:
        """Actions (B, dim) or (count, B, dim), differentiable, and their log-densities."""
        return self.draw(*self(obs, training=training), count=count)

    @staticmethod
    def draw(mean: Tensor, log_std: Tensor, *, count: int | None = None) -> tuple[Tensor, Tensor]:
        """As `sample`, but from a given mean and log of the standard deviation."""
        noise = _noise(mean, count)
        raw = mean + log_std.exp() * noise
        return raw.tanh(), _standard_log_prob(noise, log_std) - log_tanh_slope(raw).sum(-1)

    def sample_raw(self, obs: Tensor, *, count: int | None = None, noise: Tensor | None = None) -> Tensor:
        """Raw values (B, dim) or (count, B, dim), differentiable, from new noise unless `noise` is given."""
        mean, log_std = self(obs)
        raw: Tensor = mean + log_std.exp() * (_noise(mean, count) if noise is None else noise)
        return raw

    def log_prob(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Log-density (B,) of actions. It is infinite on the bounds: actions there are moved just inside."""
        raw = actions.clamp(-1 + 1e-5, 1 - 1e-5).atanh()
        return gaussian_log_prob(raw, *self(obs)) - log_tanh_slope(raw).sum(-1)

    def act(self, obs: Tensor, *, deterministic: bool) -> Tensor:
        """The tanh of the mean, or a sample."""
        raw: Tensor = self(obs)[0] if deterministic else self.sample_raw(obs)
        return raw.tanh()


def gaussian_log_prob(actions: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Log-density of a diagonal Gaussian, summed over the last axis."""
    return _standard_log_prob((actions - mean) * (-log_std).exp(), log_std)


def _standard_log_prob(errors: Tensor, log_std: Tensor) -> Tensor:
    return (-0.5 * errors.square() - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)


def log_tanh_slope(raw: Tensor) -> Tensor:
    """log(1 - tanh(raw)^2), in a form that neither overflows nor rounds to the log of zero."""
    return 2 * (math.log(2) - raw - functional.softplus(-2 * raw))


def _noise(like: Tensor, count: int | None) -> Tensor:
    """Standard normal noise in the shape of a tensor, or `count` times; from the global generator."""
    return torch.randn_like(like if count is None else like.expand(count, *like.shape))
