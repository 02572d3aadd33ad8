"""TD3's formulas and order of updates on numbers that can be checked by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peers import assert_first_moments, batches, build, fix_actor, fix_critics, row, snapshot, unmoved
from torch import Tensor, nn

from rl_training.algorithms.td3 import td3_loss


def test_the_whole_objective_on_two_rows() -> None:
    # Critic 1 errs by 1 and 3 (mean square 5), critic 2 by 0 and 2 (mean square 2): the sum is 7, not the mean.
    metrics = td3_loss(
        q_values=torch.tensor([[1.0, 4.0], [0.0, 3.0]]),
        target_q_values=torch.tensor([0.0, 1.0]),
        policy_q_values=torch.tensor([1.0, -3.0]),
    )
    assert float(metrics["critic_loss"]) == pytest.approx(7.0)
    assert float(metrics["actor_loss"]) == pytest.approx(1.0)
    assert float(metrics["q_mean"]) == pytest.approx(2.0)
    assert float(metrics["target_q_mean"]) == pytest.approx(0.5)


@pytest.mark.parametrize("values", [(10.0, 8.0), (8.0, 10.0), (10.0, 8.0, 9.0)])
@pytest.mark.parametrize(
    ("terminated", "truncated", "expected"), [(0, 0, 8.92), (0, 1, 8.92), (1, 0, 1.0), (1, 1, 1.0)]
)
def test_the_target_has_the_smallest_critic_and_stops_at_termination_alone(
    values: tuple[float, ...], terminated: int, truncated: int, expected: float
) -> None:
    # 1 + 0.99 * 8 = 8.92.
    algorithm = build("td3", num_critics=len(values))
    fix_critics(algorithm.target.critic, *values)
    metrics = algorithm.losses(row(reward=1.0, dones=terminated, truncations=truncated))
    assert float(metrics["target_q_mean"]) == pytest.approx(expected, rel=1e-6)


def test_a_sum_over_several_steps_has_the_discount_of_its_own_length() -> None:
    # Rewards 1, 2 and 3: 5.9203, and 0.99^3 = 0.970299 for what follows; 5.9203 + 0.970299 * 8 = 13.682692.
    algorithm = build("td3", gamma=0.5)
    fix_critics(algorithm.target.critic, 10.0, 8.0)
    metrics = algorithm.losses(row(reward=5.9203, discounts=0.970299))
    assert float(metrics["target_q_mean"]) == pytest.approx(13.682692, rel=1e-6)


class Recorder(nn.Module):
    """Critics that value every action at 0 and remember those they were asked about."""

    def forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        self.asked = actions
        return torch.zeros(2, len(obs), dtype=obs.dtype)


def test_smoothing_is_clipped_kept_in_bounds_and_around_the_lagged_actors_action() -> None:
    # A noise of deviation 10 is nearly always clipped: from tanh(1.472219) = 0.9 to 0.4 below and to the bound above.
    algorithm = build("td3", policy_noise=10.0, noise_clip=0.5)
    fix_actor(algorithm.target.actor, *[1.472219] * 3)
    algorithm.target.critic = Recorder()
    torch.manual_seed(0)
    algorithm.losses(batches(1, size=2000)[0])
    asked = algorithm.target.critic.asked
    # One perturbation for all critics.
    assert asked.shape == (2000, 3)
    assert [float(asked.min()), float(asked.max())] == pytest.approx([0.4, 1.0], abs=1e-6)
    # P(|noise| < 0.5) = P(|z| < 0.05) = 0.04: what remains inside, half of it below 0.9.
    assert float((asked == asked.min()).double().mean()) == pytest.approx(0.48, abs=0.03)


def test_smoothing_that_is_not_clipped_has_the_deviation_asked_for() -> None:
    algorithm = build("td3", policy_noise=0.2, noise_clip=0.9)
    fix_actor(algorithm.target.actor, 0.0, 0.0, 0.0)
    algorithm.target.critic = Recorder()
    torch.manual_seed(0)
    algorithm.losses(batches(1, size=4000)[0])
    asked = algorithm.target.critic.asked
    # 12000 draws know their deviation to 0.2 / sqrt(24000) = 0.0013, their mean to 0.0018.
    assert float(asked.std()) == pytest.approx(0.2, abs=0.006)
    assert float(asked.mean()) == pytest.approx(0.0, abs=0.008)


def test_the_target_comes_from_the_lagged_networks_alone() -> None:
    algorithm, batch = build("td3", policy_noise=0.0), batches(1)[0]
    before = algorithm.losses(batch)["target_q_mean"]
    for parameter in algorithm.model.parameters():
        parameter.data.mul_(2)
    assert torch.equal(algorithm.losses(batch)["target_q_mean"], before)


def test_the_actor_follows_the_first_critic_only() -> None:
    algorithm: Any = build("td3")
    batch = batches(1)[0]
    weights = [layer.weight for layer in algorithm.model.critic.mlp.layers]
    gradients = torch.autograd.grad(algorithm.actor_loss(batch)["actor_loss"], weights)
    for gradient in gradients:
        assert bool(gradient[0].any())
        assert not bool(gradient[1].any())
    with torch.no_grad():
        expected = -algorithm.model.critic(batch["obs"], algorithm.model.actor(batch["obs"]))[0].mean()
    torch.testing.assert_close(algorithm.losses(batch)["actor_loss"], expected)


@pytest.mark.parametrize("delay", [1, 2, 3])
def test_the_actor_and_all_lagged_copies_move_on_every_nth_update_only(delay: int) -> None:
    algorithm = build("td3", policy_delay=delay)
    for number, batch in enumerate(batches(6), start=1):
        parts = (algorithm.model.critic, algorithm.model.actor, algorithm.target.actor, algorithm.target.critic)
        before = [snapshot(part) for part in parts]
        metrics = algorithm.update(batch).metrics
        moved = [not unmoved(old, part) for old, part in zip(before, parts, strict=True)]
        due = number % delay == 0
        assert moved == [True, due, due, due]
        assert ("actor_loss" in metrics) is due


def test_the_actor_follows_the_critic_that_has_just_moved() -> None:
    # With large steps the order makes a difference.
    algorithm, batch = build("td3", policy_delay=1, learning_rate=0.05), batches(1)[0]
    copy: Any = build("td3", learning_rate=0.05)
    torch.manual_seed(7)
    algorithm.update(batch)
    torch.manual_seed(7)
    assert_first_moments(algorithm, "critic", copy.critic_loss(batch)["critic_loss"], copy)
    copy.model.critic.load_state_dict(algorithm.model.critic.state_dict())
    assert_first_moments(algorithm, "actor", copy.actor_loss(batch)["actor_loss"], copy)


def test_critics_start_apart_and_lagged_copies_as_exact_ones() -> None:
    algorithm = build("td3")
    first = algorithm.model.critic.mlp.layers[0].weight
    assert not torch.equal(first[0], first[1])
    for child in ("actor", "critic"):
        assert unmoved(snapshot(getattr(algorithm.model, child)), algorithm.target.get_submodule(child))
    assert not any(parameter.requires_grad for parameter in algorithm.target.parameters())
