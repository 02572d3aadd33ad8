"""DQN, by values and by quantiles, on numbers that can be checked by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from discrete_cases import NUM_ACTIONS, SPACES, build, discrete_batches, minimum
from peers import OBS_DIM
from torch import Tensor

from rl_training.acting import Policy
from rl_training.algorithms import ALGORITHMS
from rl_training.algorithms.base.losses import quantile_huber_loss
from rl_training.algorithms.dqn import dqn_loss, quantile_dqn_loss
from rl_training.core.spaces import DiscreteActions, SpaceSpec
from rl_training.models import DiscreteCritic
from rl_training.models.discrete import duel


def test_a_duel_adds_centred_advantages_to_the_value() -> None:
    assert duel(torch.tensor([[1.0]]), torch.tensor([[1.0, 2.0, 3.0]])).tolist() == [[0.0, 1.0, 2.0]]


def test_the_advantages_of_a_dueling_critic_are_centred_in_each_state() -> None:
    torch.manual_seed(0)
    critic, obs = DiscreteCritic(4, 3, hidden_sizes=(8,), dueling=True), torch.randn(6, 4)
    outputs = critic.mlp(obs)
    assert outputs.shape == (6, 4)
    torch.testing.assert_close(critic(obs).mean(-1), outputs[:, 0])


def test_the_critic_chooses_and_the_target_network_values() -> None:
    batch = {name: torch.zeros(1) for name in ("obs", "rewards", "next_obs", "dones")}
    for double, expected in ((True, 2.97), (False, 4.95)):
        algorithm: Any = build("dqn", double=double)
        for networks, values in ((algorithm.model, [1.0, 2.0]), (algorithm.target, [5.0, 3.0])):
            networks.critic = _Fixed(torch.tensor([values]))
        assert float(algorithm.target_atoms(batch)) == pytest.approx(expected)


class _Fixed(torch.nn.Module):
    """A critic with the same values everywhere."""

    def __init__(self, values: torch.Tensor) -> None:
        super().__init__()
        self.values = values

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.values

    def quantiles(self, obs: torch.Tensor) -> torch.Tensor:
        return self.values[..., None]


def test_the_loss_is_quadratic_within_delta_and_linear_beyond() -> None:
    q = torch.tensor([[1.0, 9.0], [9.0, 4.0]])
    numbers: dict[str, Any] = {
        "q_values": q,
        "actions": torch.tensor([0, 1]),
        "target_q_values": torch.tensor([0.5, 1.0]),
    }
    # Errors of 0.5 and 3: 0.125 and 2.5 with delta 1, 0.25 and 9 squared.
    assert float(dqn_loss(**numbers)["critic_loss"]) == pytest.approx((0.125 + 2.5) / 2)
    metrics = dqn_loss(**numbers, huber_delta=None)
    assert float(metrics["critic_loss"]) == pytest.approx((0.25 + 9) / 2)
    found = {name: float(value) for name, value in metrics.items() if name != "critic_loss"}
    assert found == pytest.approx(
        {
            "td_error_abs": 1.75,
            "q_mean": 2.5,
            "q_greedy_mean": 9.0,
            "q_gap": 6.5,
            "agreement": 0.0,
            "target_q_mean": 0.75,
        }
    )


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dqn", {"tau": 1.0, "target_update_interval": 1}),
        ("dqn", {"tau": 1.0, "target_update_interval": 1, "num_quantiles": 3, "huber_delta": None}),
        ("discrete_bcq", {"tau": 1.0}),
        ("discrete_iql", {"tau": 1.0}),
        ("discrete_crr", {"tau": 1.0}),
    ],
)
def test_a_table_learns_the_values_of_a_chain_and_nothing_about_an_action_that_was_not_logged(
    name: str, options: dict[str, Any]
) -> None:
    # One state gives 1 and leads to another, which gives 2 and ends: 1 + 0.9 * 2 = 2.8, and 2. Observations have a
    # place for each state, and networks are linear, so that they are tables.
    spaces, cls = SpaceSpec.vector(2, DiscreteActions(2)), ALGORITHMS[name]
    torch.manual_seed(0)
    options = {"hidden_sizes": (), "gamma": 0.9, "learning_rate": 0.03, **options}
    algorithm: Any = cls.build(spaces, cls.hyper_class(**options)).double()
    obs = torch.eye(2).double()
    batch = {
        "obs": obs,
        "actions": torch.zeros(2, dtype=torch.int64),
        "rewards": torch.tensor([1.0, 2.0]).double(),
        "next_obs": obs.flip(0),
        "dones": torch.tensor([0.0, 1.0]).double(),
    }
    other = torch.ones(2, dtype=torch.int64)
    before = algorithm.model.values(obs, other).detach()
    for _ in range(700):
        algorithm.update(batch)
    assert algorithm.model.values(obs, batch["actions"]).tolist() == pytest.approx([2.8, 2.0], abs=2e-3)
    assert torch.equal(algorithm.model.values(obs, other), before)
    assert algorithm.act(obs).tolist() == [0, 0]


def test_the_policy_is_greedy_and_exploration_is_uniform() -> None:
    algorithm, obs = build("dqn"), torch.randn(500, OBS_DIM).double()
    greedy = algorithm.act(obs)
    assert torch.equal(greedy, algorithm.model.critic(obs).argmax(-1))
    policy = Policy.sharing(algorithm, SPACES)
    assert torch.equal(policy.explore(obs).actions, greedy)
    changed = (policy.explore(obs, noise=0.3).actions != greedy).double().mean()
    assert float(changed) == pytest.approx(0.2, abs=0.06)


ONE_IN_TEN_FAILS = torch.tensor([1.0] * 9 + [0.0]).double()[:, None]


@pytest.mark.parametrize(
    ("quantiles", "atoms", "expected"),
    [
        # Level 1/4 is below the atoms by 1 and 2, which count 0.5 and 1.5: a quarter of their mean, 0.25.
        # Level 3/4 is below them by 0 and 1: three quarters of 0.25, 0.1875.
        ([0.0, 1.0], [1.0, 2.0], 0.4375),
        # In the wrong order, level 1/4 is above both atoms by 1, level 3/4 below both by 1: 3/4 of 0.5 each. Sorted
        # quantiles would have cost a quarter of 0.5 each.
        ([2.0, 0.0], [1.0, 1.0], 0.75),
        ([0.0, 2.0], [1.0, 1.0], 0.25),
    ],
)
def test_the_loss_is_a_sum_over_quantiles_of_a_mean_over_atoms(
    quantiles: list[float], atoms: list[float], expected: float
) -> None:
    mean = quantile_huber_loss(quantiles=torch.tensor([quantiles]), target_atoms=torch.tensor([atoms]))
    assert float(mean) == pytest.approx(expected / 2)
    # The quantiles of the other action do not count.
    of_choices = torch.tensor([[[7.0, -7.0], quantiles]])
    metrics = quantile_dqn_loss(quantiles=of_choices, actions=torch.tensor([1]), target_atoms=torch.tensor([atoms]))
    assert float(metrics["critic_loss"]) == pytest.approx(expected)


def test_several_rows_count_by_their_mean() -> None:
    metrics = quantile_dqn_loss(
        quantiles=torch.tensor([[[0.0, 1.0]], [[2.0, 0.0]]]),
        actions=torch.tensor([0, 0]),
        target_atoms=torch.tensor([[1.0, 2.0], [1.0, 1.0]]),
    )
    assert float(metrics["critic_loss"]) == pytest.approx((0.4375 + 0.75) / 2)
    # Values 0.5 and 1, of targets 1.5 and 1.
    found = {name: float(metrics[name]) for name in ("q_mean", "target_q_mean", "td_error_abs", "agreement")}
    assert found == pytest.approx({"q_mean": 0.75, "target_q_mean": 1.25, "td_error_abs": 0.5, "agreement": 1.0})
    # Spreads 1 and -2; one of two pairs of neighbours is in the wrong order.
    assert float(metrics["quantile_spread"]) == pytest.approx(-0.5)
    assert float(metrics["crossing_rate"]) == pytest.approx(0.5)


@pytest.mark.parametrize("delta", [None, 1e6])
def test_one_quantile_without_a_linear_part_counts_by_a_quarter_of_the_square(delta: float | None) -> None:
    # Its level is 1/2, and an error counts by half its square.
    quantiles, atoms = torch.tensor([[[1.0]], [[4.0]]]), torch.tensor([[0.5], [1.0]])
    actions = torch.zeros(2, dtype=torch.int64)
    metrics = quantile_dqn_loss(quantiles=quantiles, actions=actions, target_atoms=atoms, huber_delta=delta)
    assert float(metrics["critic_loss"]) == pytest.approx((0.25 + 9) / 2 / 4)
    assert "crossing_rate" not in metrics
    # A value instead of a quantile counts by the whole square: nothing is halved there.
    squares = dqn_loss(q_values=quantiles[..., 0], actions=actions, target_q_values=atoms[:, 0], huber_delta=None)
    assert float(squares["critic_loss"]) == pytest.approx((0.25 + 9) / 2)


@pytest.mark.parametrize(
    ("count", "delta", "expected", "tolerance"),
    [
        # Within delta, level t has the expectile 0.9 t / (0.9 t + 0.1 (1 - t)): 0.75 and 0.964286 for 1/4 and 3/4.
        (2, 1.0, 0.857143, 1e-6),
        (10, 1.0, 0.819390, 1e-6),
        (1000, 1.0, 0.8160, 1e-4),
        # Without a linear part it is the same: all errors are within 1.
        (10, None, 0.819390, 1e-6),
        # With errors that count almost linearly, 0.9 is met.
        (10, 0.01, 0.9, 0.01),
    ],
)
def test_the_mean_quantile_of_a_return_that_is_1_nine_times_in_ten(
    count: int, delta: float | None, expected: float, tolerance: float
) -> None:
    def loss(quantiles: Tensor) -> Tensor:
        return count * quantile_huber_loss(
            quantiles=quantiles.expand(10, count), target_atoms=ONE_IN_TEN_FAILS, delta=delta
        )

    assert sum(minimum(loss, count)) / count == pytest.approx(expected, abs=tolerance)


def test_the_value_of_an_action_is_the_mean_of_its_quantiles() -> None:
    algorithm, obs = build("dqn", num_quantiles=4), discrete_batches(1)[0]["obs"]
    quantiles = algorithm.model.critic.quantiles(obs)
    assert quantiles.shape == (32, NUM_ACTIONS, 4)
    outputs = algorithm.model.critic.mlp(obs)
    # The quantiles of an action are neighbours among the outputs.
    torch.testing.assert_close(quantiles.flatten(1), outputs, rtol=0, atol=0)
    torch.testing.assert_close(algorithm.model.critic(obs), quantiles.mean(-1), rtol=0, atol=0)
    assert torch.equal(algorithm.act(obs), quantiles.mean(-1).argmax(-1))


def test_advantages_are_centred_for_each_quantile() -> None:
    algorithm, obs = build("dqn", num_quantiles=4, dueling=True), discrete_batches(1)[0]["obs"]
    outputs = algorithm.model.critic.mlp(obs)
    assert outputs.shape == (32, (1 + NUM_ACTIONS) * 4)
    torch.testing.assert_close(algorithm.model.critic.quantiles(obs).mean(1), outputs[:, :4])


def test_without_quantiles_nothing_but_the_value_is_learned() -> None:
    algorithm, batch = build("dqn"), discrete_batches(1)[0]
    assert algorithm.model.critic.quantiles(batch["obs"]).shape == (32, NUM_ACTIONS, 1)
    assert "quantile_spread" not in algorithm.losses(batch)
    assert "quantile_spread" in build("dqn", num_quantiles=1).losses(batch)
