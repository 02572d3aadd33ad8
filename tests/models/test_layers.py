"""Ensembles beside loops of separate networks, and how they are initialised."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rl_training.models import EnsembleMLP, QEnsemble
from rl_training.models.critics import Critic, QuantileEnsemble
from rl_training.models.mlp import EnsembleLinear


def _layers(ensemble: EnsembleMLP) -> list[EnsembleLinear]:
    return [layer for layer in ensemble.layers if isinstance(layer, EnsembleLinear)]


def _alone(ensemble: EnsembleMLP, member: int, inputs: Tensor) -> Tensor:
    for number, layer in enumerate(_layers(ensemble)):
        inputs = inputs @ layer.weight[member] + layer.bias[member]
        inputs = inputs.relu() if number < len(ensemble.layers) - 1 else inputs
    return inputs


@pytest.mark.parametrize("size", [1, 2, 5])
def test_an_ensemble_equals_a_loop_over_its_members(size: int) -> None:
    torch.manual_seed(0)
    ensemble = EnsembleMLP(size, 6, (7, 5), 2).double()
    inputs = torch.randn(9, 6, dtype=torch.float64)
    expected = torch.stack([_alone(ensemble, member, inputs) for member in range(size)])
    torch.testing.assert_close(ensemble(inputs), expected)


@pytest.mark.parametrize(
    "critic",
    [QEnsemble(4, 2, hidden_sizes=(8,), size=3), QuantileEnsemble(4, 2, hidden_sizes=(8,), size=3, num_quantiles=5)],
)
def test_several_actions_per_state_are_one_more_leading_axis(critic: Critic) -> None:
    torch.manual_seed(0)
    critic = critic.double()
    obs, actions = torch.randn(5, 4, dtype=torch.float64), torch.randn(6, 5, 2, dtype=torch.float64)
    values = critic(obs, actions)
    assert values.shape == (6, 3, 5)
    for sample in range(6):
        torch.testing.assert_close(values[sample], critic(obs, actions[sample]))


def test_every_member_starts_within_one_over_the_root_of_its_fan_in() -> None:
    torch.manual_seed(0)
    ensemble = EnsembleMLP(4, 100, (50,), 1)
    for layer, fan_in in zip(_layers(ensemble), (100, 50), strict=True):
        bound = 1 / math.sqrt(fan_in)
        for values in (*layer.weight, *layer.bias):
            assert float(values.detach().abs().max()) <= bound
        # Uniform within the bound has a standard deviation of bound / sqrt(3).
        assert float(layer.weight.detach().std()) == pytest.approx(bound / math.sqrt(3), rel=0.1)
    first, second = _layers(ensemble)[0].weight[:2].detach()
    assert not torch.equal(first, second)
