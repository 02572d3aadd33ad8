"""Our networks and d3rlpy's with the same weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rl_training.algorithms import ALGORITHMS, Algorithm
from rl_training.types import Batch, SpaceSpec

OBS_DIM, ACTION_DIM = 5, 3
SPACES = SpaceSpec(OBS_DIM, ACTION_DIM, (-1.0,) * ACTION_DIM, (1.0,) * ACTION_DIM)


def build(name: str, **hyper: Any) -> Algorithm:
    """One of our algorithms in float64 with small networks."""
    cls = ALGORITHMS[name]
    torch.manual_seed(0)
    return cls.build(SPACES, cls.hyper_class(**{"hidden_sizes": (16, 16), **hyper})).double()


def batches(count: int, size: int = 32) -> list[Batch]:
    """Random transitions in float64, some of them terminal."""
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return [
        {
            "obs": normal(size, OBS_DIM),
            "actions": normal(size, ACTION_DIM).tanh(),
            "rewards": normal(size),
            "next_obs": normal(size, OBS_DIM),
            "dones": (normal(size) > 1).double(),
        }
        for _ in range(count)
    ]


def peer_batch(batch: Batch) -> Any:
    """The same transitions as d3rlpy holds them: one column per number."""
    from d3rlpy.torch_utility import TorchMiniBatch

    columns = {name: value[:, None] if value.ndim == 1 else value for name, value in batch.items()}
    return TorchMiniBatch(
        observations=columns["obs"],
        actions=columns["actions"],
        rewards=columns["rewards"],
        next_observations=columns["next_obs"],
        next_actions=torch.zeros_like(columns["actions"]),
        returns_to_go=torch.zeros_like(columns["rewards"]),
        terminals=columns["dones"],
        intervals=torch.ones_like(columns["rewards"]),
        device="cpu",
    )


def actor_layers(actor: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """Weight and bias of our actor's layers."""
    return [(layer.weight, layer.bias) for layer in actor.modules() if isinstance(layer, nn.Linear)]


def critic_layers(critic: Any, member: int) -> list[tuple[Tensor, Tensor]]:
    """Weight, as nn.Linear has it, and bias of one member of our critic."""
    return [(layer.weight[member].T, layer.bias[member]) for layer in critic.mlp.layers]


def peer_layers(module: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """Weight and bias of a d3rlpy network, its layers in order."""
    return [(layer.weight, layer.bias) for layer in module.modules() if isinstance(layer, nn.Linear)]


def copy_layers(targets: list[tuple[Tensor, Tensor]], sources: list[tuple[Tensor, Tensor]]) -> None:
    """Give d3rlpy's layers our values."""
    with torch.no_grad():
        for (weight, bias), (source_weight, source_bias) in zip(targets, sources, strict=True):
            weight.copy_(source_weight)
            bias.copy_(source_bias)


def assert_layers_equal(ours: list[tuple[Tensor, Tensor]], theirs: list[tuple[Tensor, Tensor]], rtol: float) -> None:
    """Every weight and bias within a relative tolerance."""
    for (weight, bias), (peer_weight, peer_bias) in zip(ours, theirs, strict=True):
        torch.testing.assert_close(weight, peer_weight, rtol=rtol, atol=1e-14)
        torch.testing.assert_close(bias, peer_bias, rtol=rtol, atol=1e-14)
