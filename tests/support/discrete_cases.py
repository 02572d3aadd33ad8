"""Algorithms for discrete actions, batches for them, and networks that say the same of every state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from peers import OBS_DIM, batches
from torch import Tensor

from rl_training.algorithms import ALGORITHMS
from rl_training.core.batches import Batch
from rl_training.core.spaces import Column, DiscreteActions, SpaceSpec

NUM_ACTIONS = 3
SPACES = SpaceSpec.vector(OBS_DIM, DiscreteActions(NUM_ACTIONS))
MASKED = SpaceSpec(
    {"valid_actions": Column((NUM_ACTIONS,)), "obs": Column((OBS_DIM,))},
    DiscreteActions(NUM_ACTIONS),
)
BANDIT = SpaceSpec.vector(1, DiscreteActions(2))
"""One state and two actions; with linear networks, this is a table."""


def build(name: str, spaces: SpaceSpec = SPACES, **hyper: Any) -> Any:
    """One of our algorithms for discrete actions in float64, with small networks."""
    cls = ALGORITHMS[name]
    torch.manual_seed(0)
    return cls.build(spaces, cls.hyper_class(**{"hidden_sizes": (16, 16), **hyper})).double()


def distinct(algorithm: Any) -> Any:
    """The same with target networks that differ from those they follow, so that a mistaken one shows."""
    with torch.no_grad():
        for parameter in algorithm.target.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return algorithm


def discrete_batches(count: int, size: int = 32) -> list[Batch]:
    """Random transitions in float64, some of them terminal, with discrete actions."""
    generator = torch.Generator().manual_seed(2)
    return [
        batch | {"actions": torch.randint(NUM_ACTIONS, (size,), generator=generator)} for batch in batches(count, size)
    ]


def masked_batches(count: int, size: int = 32) -> list[Batch]:
    """The same behind masks of one to three valid actions, of which the logged one always is one."""
    generator, found = torch.Generator().manual_seed(3), []
    for batch in discrete_batches(count, size):
        masks = torch.randint(2, (2, size, NUM_ACTIONS), generator=generator).double()
        masks[0].scatter_(1, batch["actions"][:, None], 1.0)
        masks[1, masks[1].sum(-1) == 0, 0] = 1.0
        found.append(batch | {name: torch.cat([mask, batch[name]], -1) for name, mask in _named(masks)})
    return found


def _named(masks: Tensor) -> list[tuple[str, Tensor]]:
    return [("obs", masks[0]), ("next_obs", masks[1])]


def bandit_batch() -> Batch:
    """Nine times the first action without a reward, once the second with a reward of 1; everything ends at once."""
    actions = torch.tensor([0] * 9 + [1])
    zeros = torch.zeros(10, 1).double()
    return {
        "obs": zeros,
        "actions": actions,
        "rewards": actions.double(),
        "next_obs": zeros,
        "dones": torch.ones(10).double(),
    }


def fix_outputs(network: Any, *members: Sequence[float]) -> None:
    """Let a network, or each member of an ensemble, put out the same for every state."""
    last = network.mlp.layers[-1]
    outputs = torch.tensor(members)
    with torch.no_grad():
        last.weight.zero_()
        last.bias.copy_(outputs if last.bias.ndim > 1 else outputs[0])


def transition(*, reward: float, action: int = 0, done: float = 0.0) -> Batch:
    """A batch of one transition."""
    numbers = {"rewards": torch.tensor([reward]).double(), "dones": torch.tensor([done]).double()}
    return discrete_batches(1, size=1)[0] | numbers | {"actions": torch.tensor([action])}


def slopes(loss: Tensor, network: Any) -> list[Tensor]:
    """The gradient of a loss in all parameters of a network, which need not occur in it."""
    parameters = list(network.parameters())
    found = torch.autograd.grad(loss, parameters, allow_unused=True, retain_graph=True)
    return [
        torch.zeros_like(parameter) if slope is None else slope
        for parameter, slope in zip(parameters, found, strict=True)
    ]


def minimum(loss: Any, size: int) -> list[float]:
    """Where a convex function of so many numbers is smallest."""
    numbers = torch.zeros(size, dtype=torch.float64, requires_grad=True)
    optimizer: Any = torch.optim.LBFGS(
        [numbers], max_iter=500, tolerance_grad=1e-12, tolerance_change=0.0, line_search_fn="strong_wolfe"
    )

    def closure() -> float:
        optimizer.zero_grad()
        value = loss(numbers)
        value.backward()
        return float(value.detach())

    optimizer.step(closure)
    return numbers.tolist()
