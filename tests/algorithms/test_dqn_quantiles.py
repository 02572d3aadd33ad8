"""DQN with quantiles on numbers that can be checked by hand."""

from __future__ import annotations

import pytest
import torch
from choosing import BANDIT, CHOICES, build, choice_batches, fix_choices, minimum, transition
from torch import Tensor

from rl_training.algorithms.base.losses import quantile_huber_loss
from rl_training.algorithms.dqn import dqn_loss, quantile_dqn_loss

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


@pytest.mark.parametrize(("delta", "expected"), [(1.0, 0.819390), (0.01, 0.9)])
def test_training_ends_at_the_same_mean(delta: float, expected: float) -> None:
    algorithm = build("dqn", BANDIT, hidden_sizes=(), num_quantiles=10, huber_delta=delta, learning_rate=0.01)
    zeros = torch.zeros(10, 1).double()
    batch = {
        "obs": zeros,
        "next_obs": zeros,
        "actions": torch.ones(10, dtype=torch.int64),
        "rewards": ONE_IN_TEN_FAILS[:, 0],
        "dones": torch.ones(10).double(),
    }
    for _ in range(1200):
        algorithm.update(batch)
    assert float(algorithm.model.critic(zeros[:1]).detach()[0, 1]) == pytest.approx(expected, abs=0.005)


@pytest.mark.parametrize(
    ("double", "done", "expected"),
    [
        # By the critic the second action is best: 1 + 0.5 * 2 and 1 + 0.5 * 7. By the target network it is the first,
        # whose quantiles are 0 and 10.
        (True, 0.0, [2.0, 4.5]),
        (False, 0.0, [1.0, 6.0]),
        (True, 1.0, [1.0, 1.0]),
    ],
)
def test_every_atom_of_the_best_action_gets_the_reward(double: bool, done: float, expected: list[float]) -> None:
    algorithm = build("dqn", num_quantiles=2, double=double, gamma=0.5)
    fix_choices(algorithm.model.critic, [1.0, 1.0, 4.0, 0.0, 0.0, 0.0])
    fix_choices(algorithm.target.critic, [0.0, 10.0, 2.0, 7.0, 1.0, 1.0])
    targets = algorithm.target_atoms(transition(reward=1.0, done=done))
    assert targets.tolist() == [pytest.approx(expected)]


def test_the_value_of_an_action_is_the_mean_of_its_quantiles() -> None:
    algorithm, obs = build("dqn", num_quantiles=4), choice_batches(1)[0]["obs"]
    quantiles = algorithm.model.critic.quantiles(obs)
    assert quantiles.shape == (32, CHOICES, 4)
    outputs = algorithm.model.critic.mlp(obs)
    # The quantiles of an action are neighbours among the outputs.
    torch.testing.assert_close(quantiles.flatten(1), outputs, rtol=0, atol=0)
    torch.testing.assert_close(algorithm.model.critic(obs), quantiles.mean(-1), rtol=0, atol=0)
    assert torch.equal(algorithm.act(obs), quantiles.mean(-1).argmax(-1))


def test_advantages_are_centred_for_each_quantile() -> None:
    algorithm, obs = build("dqn", num_quantiles=4, dueling=True), choice_batches(1)[0]["obs"]
    outputs = algorithm.model.critic.mlp(obs)
    assert outputs.shape == (32, (1 + CHOICES) * 4)
    torch.testing.assert_close(algorithm.model.critic.quantiles(obs).mean(1), outputs[:, :4])


def test_without_quantiles_nothing_but_the_value_is_learned() -> None:
    algorithm, batch = build("dqn"), choice_batches(1)[0]
    assert algorithm.model.critic.quantiles(batch["obs"]).shape == (32, CHOICES, 1)
    assert "quantile_spread" not in algorithm.losses(batch)
    assert "quantile_spread" in build("dqn", num_quantiles=1).losses(batch)
