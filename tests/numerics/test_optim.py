"""The optimiser and the targets beside torch's own."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from rl_training.algorithms.optim import Adam, gradient_norm, polyak


@pytest.mark.parametrize("beta1", [0.9, 0.5])
@pytest.mark.parametrize("max_grad_norm", [None, 0.5])
def test_twenty_steps_equal_torchs_adam(max_grad_norm: float | None, beta1: float) -> None:
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    theirs = copy.deepcopy(ours)
    optimizer = Adam(ours, learning_rate=1e-2, max_grad_norm=max_grad_norm, beta1=beta1)
    reference = torch.optim.Adam(theirs.parameters(), lr=1e-2, betas=(beta1, 0.999))
    for _ in range(20):
        inputs = torch.randn(16, 4, dtype=torch.float64)
        gradients = list(torch.autograd.grad(ours(inputs).square().sum(), list(ours.parameters())))
        optimizer.step(gradients, gradient_norm(gradients))
        reference.zero_grad()
        theirs(inputs).square().sum().backward()
        if max_grad_norm is not None:
            nn.utils.clip_grad_norm_(theirs.parameters(), max_grad_norm)
        reference.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-12)


def test_the_norm_is_over_all_gradients_together() -> None:
    assert float(gradient_norm([torch.tensor([3.0]), torch.tensor([[0.0, 4.0]])])) == pytest.approx(5.0)


def test_targets_move_a_share_of_the_way() -> None:
    source, target = nn.Linear(1, 1), nn.Linear(1, 1)
    with torch.no_grad():
        source.weight.fill_(1.0)
        target.weight.fill_(0.0)
    polyak([target.weight], [source.weight], 0.25)
    assert target.weight.item() == pytest.approx(0.25)
    polyak([target.weight], [source.weight], 0.25)
    assert target.weight.item() == pytest.approx(0.4375)


def test_the_norm_of_a_single_number_compiles_to_machine_code() -> None:
    gradients = [torch.tensor(3.0), torch.full((2, 2), 2.0)]
    compiled: Any = torch.compile(gradient_norm, fullgraph=True, dynamic=False, options={"cpp_wrapper": True})
    # sqrt(3^2 + 4 * 2^2) = 5; a temperature's gradient is a single number.
    assert float(compiled(gradients)) == pytest.approx(5.0)
    assert float(compiled(gradients[:1])) == pytest.approx(3.0)
