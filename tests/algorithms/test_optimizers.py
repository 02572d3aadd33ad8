"""The optimiser and the targets beside torch's own."""

from __future__ import annotations

import copy
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from rl_training.algorithms.base.optimizers import Adam, clip, gradient_norm, polyak


@pytest.mark.parametrize("beta1", [0.9, 0.5])
@pytest.mark.parametrize("max_grad_norm", [None, 0.5])
def test_twenty_steps_equal_torchs_adam(max_grad_norm: float | None, beta1: float) -> None:
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    theirs = copy.deepcopy(ours)
    optimizer = Adam(ours, learning_rate=1e-2, beta1=beta1)
    reference = torch.optim.Adam(theirs.parameters(), lr=1e-2, betas=(beta1, 0.999))
    for _ in range(20):
        inputs = torch.randn(16, 4, dtype=torch.float64)
        gradients = list(torch.autograd.grad(ours(inputs).square().sum(), list(ours.parameters())))
        Adam.step([optimizer], [clip(gradients, gradient_norm(gradients), max_grad_norm)])
        reference.zero_grad()
        theirs(inputs).square().sum().backward()
        if max_grad_norm is not None:
            nn.utils.clip_grad_norm_(theirs.parameters(), max_grad_norm)
        reference.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("rates", "calls"), [((0.1, 0.1, 0.1), 1), ((0.1, 0.1, 0.2), 2), ((0.1, 0.2, 0.1), 3)])
def test_modules_with_the_same_learning_rate_move_in_one_call(
    monkeypatch: pytest.MonkeyPatch, rates: tuple[float, ...], calls: int
) -> None:
    kernel = Mock(wraps=torch._fused_adam_)
    monkeypatch.setattr(Adam, "_kernel", kernel)
    modules = [nn.Linear(size, 1).double() for size in (2, 3, 4)]
    apart = copy.deepcopy(modules)
    optimizers = [Adam(module, learning_rate=rate) for module, rate in zip(modules, rates, strict=True)]
    references = [
        torch.optim.Adam(module.parameters(), lr=rate, foreach=False) for module, rate in zip(apart, rates, strict=True)
    ]
    for number in (1.0, -3.0):
        Adam.step(optimizers, [[torch.full_like(each, number) for each in module.parameters()] for module in modules])
        for module, reference in zip(apart, references, strict=True):
            for parameter in module.parameters():
                parameter.grad = torch.full_like(parameter, number)
            reference.step()

    assert kernel.call_count == 2 * calls
    for module, other in zip(modules, apart, strict=True):
        torch.testing.assert_close(module.state_dict(), other.state_dict(), rtol=1e-10, atol=1e-12)


def test_modules_with_other_constants_move_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Mock(wraps=torch._fused_adam_)
    monkeypatch.setattr(Adam, "_kernel", kernel)
    optimizers = [Adam(nn.Linear(2, 1), learning_rate=0.1, beta1=beta1) for beta1 in (0.9, 0.5)]
    Adam.step(optimizers, [[torch.ones(1, 2), torch.ones(1)]] * 2)

    assert [call.kwargs["beta1"] for call in kernel.call_args_list] == [0.9, 0.5]


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


def test_clipping_a_single_number_compiles_to_machine_code() -> None:
    def clipped(gradients: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        norm = gradient_norm(gradients)
        return norm, clip(gradients, norm, 4.0)

    compiled: Any = torch.compile(clipped, fullgraph=True, dynamic=False, options={"cpp_wrapper": True})
    both = [torch.tensor(3.0), torch.full((2, 2), 2.0)]
    # sqrt(3^2 + 4 * 2^2) = 5; a temperature's gradient is a single number.
    norm, (number, matrix) = compiled(both)
    assert (float(norm), float(number)) == pytest.approx((5.0, 3.0 * 4 / 5))
    torch.testing.assert_close(matrix, both[1] * 4 / 5)
    norm, (number,) = compiled(both[:1])
    assert (float(norm), float(number)) == pytest.approx((3.0, 3.0))
