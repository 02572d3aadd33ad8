"""Policies: observations to actions in the environment's units, for collecting, evaluation and prediction."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from rl_training.algorithms import Algorithm
from rl_training.algorithms.base import Hyper
from rl_training.core.batches import Acted, Batch
from rl_training.core.spaces import SpaceSpec
from rl_training.models import Model


class Policy(nn.Module):
    """Maps native observations (B, obs_dim) to native actions (B, action_dim), or to discrete actions (B,).

    It consists of the networks, the statistics that observations are normalised with, and the spaces. It has neither
    target networks nor optimisers. A policy with a memory between steps would take it as a further argument of
    `explore` and give it back as a further field of `Acted`.
    """

    obs_mean: Tensor
    obs_std: Tensor

    def __init__(self, model: Model, *, obs_mean: Tensor, obs_std: Tensor, spaces: SpaceSpec) -> None:
        super().__init__()
        self.model, self.spaces = model, spaces
        self.register_buffer("obs_mean", obs_mean)
        self.register_buffer("obs_std", obs_std)

    @classmethod
    def sharing(cls, algorithm: Algorithm, spaces: SpaceSpec) -> Self:
        """An algorithm's policy as it is, and as it will be: nothing is copied."""
        return cls(algorithm.model, obs_mean=algorithm.obs_mean, obs_std=algorithm.obs_std, spaces=spaces)

    @classmethod
    def of(cls, algorithm: Algorithm, spaces: SpaceSpec) -> Self:
        """A copy of an algorithm's policy on the CPU, without gradients."""
        return copy.deepcopy(cls.sharing(algorithm, spaces)).cpu().requires_grad_(False).eval()

    @classmethod
    def load(
        cls,
        algorithm: type[Algorithm],
        spaces: SpaceSpec,
        hyper: Hyper,
        state: Mapping[str, Tensor],
        *,
        acts_only: bool = False,
    ) -> Self:
        """The policy in the state of an algorithm, whose tensors it takes over; RuntimeError where they do not fit.

        If it `acts_only`, the state has no other networks than those that act.
        """
        networks = model_part(state)
        statistics: dict[str, Tensor] = {}
        shape = spaces.obs_column.shape
        for name in ("obs_mean", "obs_std"):
            value = state.get(name)
            if not isinstance(value, Tensor) or value.shape != shape or not value.is_floating_point():
                raise RuntimeError(f"{name} must be numbers of shape {shape}")
            statistics[name] = value
        check_networks(algorithm, spaces, hyper, networks, acts_only=acts_only)
        model = _filled(algorithm.build_model(spaces, hyper), networks, acts_only=acts_only)
        return cls(model, **statistics, spaces=spaces).requires_grad_(False).eval()

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
        return self.spaces.action.decode(self.model.act(self.inputs(obs), deterministic=deterministic))

    def values(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Values (B,) of actions in the environment's units: the minimum over the critics."""
        return self.model.values(self.inputs(obs), self.spaces.action.encode(actions))

    def log_probs(self, obs: Tensor, actions: Tensor) -> Tensor | None:
        """Log-probabilities (B,) with which `act` draws native actions, where it is not deterministic.

        Those of continuous actions are of densities in [-1, 1]. None where the policy has no density.
        """
        return self.model.log_probs(self.inputs(obs), self.spaces.action.encode(actions))

    @torch.no_grad()
    def explore(self, obs: Tensor, *, noise: float = 0.0) -> Acted:
        """A sample to learn from, perturbed by noise as the action space defines it."""
        drawn, extras = self.model.explore(self.inputs(obs))
        return self._acted(self.spaces.action.perturb(drawn, noise, self.spaces.mask_of(obs)), extras)

    def sample(self, obs: Tensor) -> Acted:
        """Uniform actions, whatever is observed; of discrete actions, only the valid ones."""
        return self._acted(self.spaces.action.sample(len(obs), self.spaces.mask_of(obs)), {})

    def _acted(self, drawn: Tensor, extras: Batch) -> Acted:
        space = self.spaces.action
        return Acted(space.decode(space.clip(drawn)), drawn, extras)

    def set_obs_statistics(self, mean: Tensor, std: Tensor) -> None:
        """Normalise observations with these statistics from here on."""
        self.obs_mean.copy_(mean)
        self.obs_std.copy_(std)

    def inputs(self, obs: Tensor) -> Tensor:
        """Observations as the networks see them."""
        return (obs.to(self.obs_mean.dtype) - self.obs_mean) / self.obs_std


def check_networks(
    algorithm: type[Algorithm],
    spaces: SpaceSpec,
    hyper: Hyper,
    networks: Mapping[str, Tensor],
    *,
    acts_only: bool = False,
) -> None:
    """Compare the networks in a checkpoint with those that its options describe; RuntimeError where they do not fit.

    Nothing is allocated: options in a forged file may speak of networks that fit into no machine. Code of the user's
    own is not asked, since it may not know tensors without memory.
    """
    if hyper.encoder is None and algorithm.__module__.startswith("rl_training."):
        with torch.device("meta"):
            _filled(algorithm.build_model(spaces, hyper), networks, acts_only=acts_only)


def model_part(state: Mapping[str, Any]) -> dict[str, Any]:
    """The networks in the state of an algorithm, by their names in the model."""
    return {name.removeprefix("model."): value for name, value in state.items() if name.startswith("model.")}


def _filled(model: Model, networks: Mapping[str, Tensor], *, acts_only: bool) -> Model:
    """A model with numbers from a checkpoint, which must be of the model's own types."""
    for name in unused_in_acting(model) if acts_only else ():
        delattr(model, name)
    dtypes = {name: value.dtype for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    model.load_state_dict(networks, assign=True)
    for name, dtype in dtypes.items():
        if networks[name].dtype != dtype:
            raise RuntimeError(f"{name} holds {networks[name].dtype}, expected {dtype}")
    return model


def unused_in_acting(model: Model) -> tuple[str, ...]:
    """Names of the networks that acting does not use."""
    return tuple(name for name, _ in model.named_children() if name not in model.acting)
