"""Our networks and d3rlpy's with the same weights."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rl_training.algorithms import ALGORITHMS, Algorithm
from rl_training.core.batches import Batch
from rl_training.core.spaces import BoxActions, SpaceSpec

OBS_DIM, ACTION_DIM = 5, 3
SPACES = SpaceSpec.vector(OBS_DIM, BoxActions((-1.0,) * ACTION_DIM, (1.0,) * ACTION_DIM))


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


def heads_apart(actor: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """Our actor's layers, its last one split into mean and log-deviation."""
    *hidden, (weight, bias) = actor_layers(actor)
    return [*hidden, *zip(weight.chunk(2), bias.chunk(2), strict=True)]


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


def fix_critics(critic: Any, *values: float) -> None:
    """Let each member of our critic say the same of every state and action."""
    last = critic.mlp.layers[-1]
    with torch.no_grad():
        last.weight.zero_()
        last.bias.copy_(torch.tensor(values)[:, None])


def fix_actor(actor: Any, *outputs: float) -> None:
    """Let our actor's network put out the same for every state."""
    last = actor.mlp.layers[-1]
    with torch.no_grad():
        last.weight.zero_()
        last.bias.copy_(torch.tensor(outputs))


def row(*, reward: float, **fields: float) -> Batch:
    """A batch of one transition with this reward; termination and what else a batch may have are given by name."""
    numbers = {"rewards": reward, "dones": 0.0, **fields}
    return batches(1, size=1)[0] | {name: torch.tensor([value]).double() for name, value in numbers.items()}


def snapshot(module: nn.Module) -> list[Tensor]:
    """Copies of all parameters."""
    return [parameter.detach().clone() for parameter in module.parameters()]


def unmoved(before: list[Tensor], module: nn.Module) -> bool:
    """Whether all parameters are bit for bit what they were."""
    return all(torch.equal(old, new) for old, new in zip(before, module.parameters(), strict=True))


def assert_first_moments(algorithm: Algorithm, child: str, loss: Tensor, at: Algorithm) -> None:
    """After one step of Adam, its average is 0.1 times the gradient: here that of a loss of another algorithm."""
    gradients = torch.autograd.grad(loss, list(getattr(at.model, child).parameters()), retain_graph=True)
    averages = algorithm.optimizers[child].exp_avg.parameters()
    for average, gradient in zip(averages, gradients, strict=True):
        torch.testing.assert_close(average.detach(), 0.1 * gradient, rtol=1e-8, atol=1e-14)


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers in float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def distinct(algorithm: Any) -> Any:
    """The algorithm with target networks that differ from the current ones, so that it shows which were asked."""
    with torch.no_grad():
        for parameter in algorithm.target.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
    return algorithm


def shake(*modules: nn.Module, by: float = 0.3) -> None:
    """Move networks away from their lagged copies, and from the almost constant functions that they start as."""
    with torch.no_grad():
        for module in modules:
            for parameter in module.parameters():
                parameter.add_(by * torch.randn_like(parameter))


def reached(loss: Tensor, model: nn.Module) -> set[str]:
    """The children of a model into which a loss has a gradient."""

    def is_reached(child: nn.Module) -> bool:
        slopes = torch.autograd.grad(loss, list(child.parameters()), allow_unused=True, retain_graph=True)
        return any(slope is not None for slope in slopes)

    return {
        name for name, child in model.named_children() if any(True for _ in child.parameters()) and is_reached(child)
    }


def assert_uniform(values: Tensor, bound: float) -> None:
    """Drawn uniformly within a bound."""
    numbers = values.detach().flatten()
    assert float(numbers.abs().max()) <= bound
    assert float(numbers.min()) < float(numbers.max())
    if len(numbers) > 200:
        # The standard deviation of a uniform distribution over [-b, b] is b / sqrt(3).
        assert float(numbers.std()) == pytest.approx(bound / math.sqrt(3), rel=0.1)
