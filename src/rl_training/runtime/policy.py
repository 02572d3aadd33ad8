"""A trained policy by itself."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn
from typing_extensions import Self

from rl_training.algorithms import Algorithm
from rl_training.models import Model
from rl_training.spaces import SpaceSpec


class Policy(nn.Module):
    """From native observations (B, obs_dim) to native actions, (B, action_dim) or choices (B,)."""

    obs_mean: Tensor
    obs_std: Tensor

    def __init__(self, model: Model, *, obs_mean: Tensor, obs_std: Tensor, spaces: SpaceSpec) -> None:
        super().__init__()
        self.model, self.spaces = model, spaces
        self.register_buffer("obs_mean", obs_mean)
        self.register_buffer("obs_std", obs_std)

    @classmethod
    def of(cls, algorithm: Algorithm, spaces: SpaceSpec) -> Self:
        """A copy of an algorithm's policy on the CPU, without gradients."""
        model = copy.deepcopy(algorithm.model).cpu().requires_grad_(False)
        mean, std = algorithm.obs_mean.cpu().clone(), algorithm.obs_std.cpu().clone()
        return cls(model, obs_mean=mean, obs_std=std, spaces=spaces).eval()

    def get_extra_state(self) -> dict[str, Any]:
        """The spaces, which are no tensors; part of the state dict."""
        return self.spaces.to_plain()

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_extra_state` returned."""
        self.spaces = SpaceSpec.from_plain(state)

    def forward(self, obs: Tensor) -> Tensor:
        """The deterministic action."""
        return self.act(obs, deterministic=True)

    def act(self, obs: Tensor, *, deterministic: bool = True) -> Tensor:
        """The action, or a sample of it where the policy is stochastic."""
        obs = obs.to(self.obs_mean.dtype)
        actions = self.model.act((obs - self.obs_mean) / self.obs_std, deterministic=deterministic)
        return self.spaces.action.decode(actions)
