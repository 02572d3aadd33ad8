"""Discrete CQL on numbers that can be checked by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from discrete_cases import bandit_batch, build, discrete_batches, minimum
from torch import Tensor

from rl_training.algorithms.base.losses import conservative_gap
from rl_training.algorithms.discrete_cql import discrete_cql_loss


@pytest.mark.parametrize(
    ("values", "action", "expected"),
    [
        # ln(e + e^2) = 2.313262, less the value of the logged action.
        ([1.0, 2.0], 0, 1.313262),
        ([1.0, 2.0], 1, 0.313262),
        # Values that do not differ: the logarithm of the number of actions.
        ([3.0] * 2, 0, 0.693147),
        ([-1.0] * 4, 2, 1.386294),
        ([0.0] * 25, 24, 3.218876),
        ([9.0] * 34, 7, 3.526361),
        # An action that is not possible does not count.
        ([1.0, 2.0, -math.inf], 1, 0.313262),
    ],
)
def test_the_penalty_is_the_soft_maximum_less_the_logged_value(
    values: list[float], action: int, expected: float
) -> None:
    gap = conservative_gap(torch.tensor([values]).double(), torch.tensor([action]))
    assert float(gap) == pytest.approx(expected, abs=1e-6)


FIXED_POINTS = [
    (0.05, (0.0314, 0.7175)),
    (0.1, (0.0564, 0.4926)),
    (0.2, (0.0929, 0.1643)),
    (0.5, (0.1518, -0.3664)),
    (1.0, (0.1962, -0.7655)),
]


def _best_values(weight: float, huber_delta: float | None) -> list[float]:
    batch = bandit_batch()

    def loss(values: Tensor) -> Tensor:
        return discrete_cql_loss(
            q_values=values.expand(10, 2),
            actions=batch["actions"],
            target_q_values=batch["rewards"],
            conservative_weight=weight,
            huber_delta=huber_delta,
        )["critic_loss"]

    return minimum(loss, 2)


@pytest.mark.parametrize(("weight", "expected"), FIXED_POINTS)
def test_values_of_two_actions_of_which_the_worse_is_logged_nine_times_in_ten(
    weight: float, expected: tuple[float, float]
) -> None:
    # Rewards 0 and 1. With a weight of 0.2 the better action still has the higher value, with 0.5 no longer: there the
    # policy clones the data. Half the squares are what the loss has for small errors, so that the bound of the linear
    # part is set beyond all of them. Whole squares need twice the weight.
    assert _best_values(weight, huber_delta=10.0) == pytest.approx(list(expected), abs=1e-4)
    assert _best_values(2 * weight, huber_delta=None) == pytest.approx(list(expected), abs=1e-4)


@pytest.mark.parametrize("options", [{}, {"dueling": True}, {"num_quantiles": 5}, {"double": False}])
def test_without_a_weight_it_is_dqn(options: dict[str, Any]) -> None:
    shared = {"learning_rate": 1e-2, "tau": 0.1, "target_update_interval": 2, "max_grad_norm": None, **options}
    ours, peer = build("discrete_cql", conservative_weight=0.0, **shared), build("dqn", **shared)
    for batch in discrete_batches(6):
        ours.update(batch)
        peer.update(batch)
    for networks, others in ((ours.model, peer.model), (ours.target, peer.target)):
        pairs = zip(networks.critic.parameters(), others.critic.parameters(), strict=True)
        assert all(torch.equal(one, other) for one, other in pairs)
