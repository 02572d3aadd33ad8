"""Discrete CQL on numbers that can be checked by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from choosing import BANDIT, bandit_batch, build, choice_batches, distinct, minimum
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


def test_the_soft_maximum_is_over_possible_actions() -> None:
    masked = torch.tensor([[1.0, 2.0, 50.0]]).masked_fill(torch.tensor([[False, False, True]]), -math.inf)
    assert float(masked.logsumexp(-1)) == pytest.approx(2.313262, abs=1e-6)


def test_the_slope_of_the_penalty_is_that_of_a_cross_entropy_and_sums_to_0_in_each_row() -> None:
    q = torch.tensor([[1.0, 2.0, 0.5], [3.0, -1.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    actions = torch.tensor([0, 2, 1])
    (slope,) = torch.autograd.grad(3 * conservative_gap(q, actions), q)
    torch.testing.assert_close(slope, q.detach().softmax(-1) - torch.eye(3).double()[actions])
    assert slope.sum(-1).tolist() == pytest.approx([0.0] * 3, abs=1e-15)


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


@pytest.mark.parametrize(("weight", "best"), [(0.2, 1), (0.5, 0)])
def test_training_prefers_the_rare_better_action_only_with_a_small_weight(weight: float, best: int) -> None:
    algorithm = build(
        "discrete_cql", BANDIT, hidden_sizes=(), conservative_weight=weight, huber_delta=10.0, learning_rate=0.01
    )
    for _ in range(1000):
        algorithm.update(bandit_batch())
    obs = torch.zeros(1, 1).double()
    assert algorithm.act(obs).tolist() == [best]
    expected = dict(FIXED_POINTS)[weight]
    assert algorithm.model.critic(obs).detach().tolist()[0] == pytest.approx(expected, abs=5e-3)


@pytest.mark.parametrize("options", [{}, {"dueling": True}, {"num_quantiles": 5}, {"double": False}])
def test_without_a_weight_it_is_dqn(options: dict[str, Any]) -> None:
    shared = {"learning_rate": 1e-2, "tau": 0.1, "target_update_interval": 2, "max_grad_norm": None, **options}
    ours, peer = build("discrete_cql", conservative_weight=0.0, **shared), build("dqn", **shared)
    for batch in choice_batches(6):
        ours.update(batch)
        peer.update(batch)
    for networks, others in ((ours.model, peer.model), (ours.target, peer.target)):
        pairs = zip(networks.critic.parameters(), others.critic.parameters(), strict=True)
        assert all(torch.equal(one, other) for one, other in pairs)


def test_the_whole_objective_on_two_rows() -> None:
    # Errors of 0.5 and 3: (0.125 + 2.5) / 2. Gaps: ln(1 + e^8) and ln(1 + e^5).
    metrics = discrete_cql_loss(
        q_values=torch.tensor([[1.0, 9.0], [9.0, 4.0]]),
        actions=torch.tensor([0, 1]),
        target_q_values=torch.tensor([0.5, 1.0]),
        conservative_weight=0.1,
    )
    gap = (math.log1p(math.exp(8)) + math.log1p(math.exp(5))) / 2
    assert float(metrics["td_loss"]) == pytest.approx(1.3125)
    assert float(metrics["cql_penalty"]) == pytest.approx(gap)
    assert float(metrics["critic_loss"]) == pytest.approx(1.3125 + 0.1 * gap)
    assert float(metrics["q_soft_max"]) == pytest.approx(gap + 2.5)


def test_with_quantiles_the_penalty_is_on_their_mean_and_the_error_is_summed_over_them() -> None:
    algorithm = distinct(build("discrete_cql", num_quantiles=4, conservative_weight=0.7))
    batch = choice_batches(1)[0]
    metrics = algorithm.losses(batch)
    with torch.no_grad():
        quantiles, atoms = algorithm.model.critic.quantiles(batch["obs"]), algorithm.target_atoms(batch)
    error = penalty = 0.0
    for row in range(32):
        logged = int(batch["actions"][row])
        means = [float(quantiles[row, choice].mean()) for choice in range(3)]
        penalty += math.log(sum(math.exp(mean) for mean in means)) - means[logged]
        for i in range(4):
            for j in range(4):
                u = float(atoms[row, j] - quantiles[row, logged, i])
                huber = 0.5 * u * u if abs(u) <= 1 else abs(u) - 0.5
                error += abs((i + 0.5) / 4 - (u < 0)) * huber / 4
    assert float(metrics["td_loss"]) == pytest.approx(error / 32)
    assert float(metrics["cql_penalty"]) == pytest.approx(penalty / 32)
    assert float(metrics["critic_loss"]) == pytest.approx(error / 32 + 0.7 * penalty / 32)
