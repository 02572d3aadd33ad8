"""DDPG's formulas and order of updates on numbers that can be checked by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from peers import (
    assert_first_moments,
    batches,
    build,
    critic_layers,
    fix_critics,
    row,
    snapshot,
    unmoved,
)
from torch import Tensor

from rl_training.algorithms.base.optimizers import polyak
from rl_training.algorithms.ddpg import ddpg_loss
from rl_training.models import MLPDDPGModel


def test_the_whole_objective_on_two_rows() -> None:
    # The critic errs by 1 and 3: mean square 5. The actor minimises minus the mean of 1 and -3.
    metrics = ddpg_loss(
        q_values=torch.tensor([[1.0, 4.0]]),
        target_q_values=torch.tensor([0.0, 1.0]),
        policy_q_values=torch.tensor([1.0, -3.0]),
    )
    assert float(metrics["critic_loss"]) == pytest.approx(5.0)
    assert float(metrics["actor_loss"]) == pytest.approx(1.0)
    assert float(metrics["q_mean"]) == pytest.approx(2.5)
    assert float(metrics["q_std"]) == pytest.approx(1.5)
    assert float(metrics["target_q_mean"]) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("terminated", "truncated", "expected"), [(0, 0, 8.92), (0, 1, 8.92), (1, 0, 1.0), (1, 1, 1.0)]
)
def test_the_target_stops_at_termination_and_at_nothing_else(terminated: int, truncated: int, expected: float) -> None:
    # 1 + 0.99 * 8 = 8.92.
    algorithm = build("ddpg")
    fix_critics(algorithm.target.critic, 8.0)
    metrics = algorithm.losses(row(reward=1.0, dones=terminated, truncations=truncated))
    assert float(metrics["target_q_mean"]) == pytest.approx(expected, rel=1e-6)


def test_a_sum_over_several_steps_has_the_discount_of_its_own_length() -> None:
    # 1 + 0.99 * 2 + 0.9801 * 3 = 5.9203 after three steps; what follows is worth 0.99^3 = 0.970299 of it, whatever
    # gamma is: 5.9203 + 0.970299 * 8 = 13.682692.
    algorithm = build("ddpg", gamma=0.5)
    fix_critics(algorithm.target.critic, 8.0)
    metrics = algorithm.losses(row(reward=5.9203, discounts=0.970299))
    assert float(metrics["target_q_mean"]) == pytest.approx(13.682692, rel=1e-6)


def test_the_target_comes_from_the_lagged_networks_alone() -> None:
    algorithm, batch = build("ddpg"), batches(1)[0]
    before = algorithm.losses(batch)["target_q_mean"]
    for parameter in algorithm.model.parameters():
        parameter.data.mul_(2)
    assert torch.equal(algorithm.losses(batch)["target_q_mean"], before)


def test_losses_are_those_of_the_critic_at_the_logged_and_at_the_policys_own_action() -> None:
    algorithm, batch = build("ddpg", gamma=0.5), batches(1)[0]
    metrics = algorithm.losses(batch)
    with torch.no_grad():
        (next_q,) = algorithm.target.critic(batch["next_obs"], algorithm.target.actor(batch["next_obs"]))
        targets = batch["rewards"] + 0.5 * (1 - batch["dones"]) * next_q
        (q,) = algorithm.model.critic(batch["obs"], batch["actions"])
        (policy_q,) = algorithm.model.critic(batch["obs"], algorithm.model.actor(batch["obs"]))
    torch.testing.assert_close(metrics["critic_loss"], (q - targets).square().mean())
    torch.testing.assert_close(metrics["actor_loss"], -policy_q.mean())


@pytest.mark.parametrize(("trained", "other"), [("actor", "critic"), ("critic", "actor")])
def test_a_step_leaves_the_other_network_as_it_is_bit_for_bit(trained: str, other: str) -> None:
    algorithm = build("ddpg")
    algorithm.steps = tuple(step for step in algorithm.steps if step.name == trained)
    moving, resting = (snapshot(getattr(algorithm.model, child)) for child in (trained, other))
    algorithm.update(batches(1)[0])
    assert not unmoved(moving, getattr(algorithm.model, trained))
    assert unmoved(resting, getattr(algorithm.model, other))


def test_the_actor_follows_the_critic_that_has_just_moved() -> None:
    # With large steps the order makes a difference.
    algorithm, batch = build("ddpg", learning_rate=0.05), batches(1)[0]
    copy: Any = build("ddpg", learning_rate=0.05)
    assert [step.name for step in algorithm.steps] == ["critic", "actor"]
    algorithm.update(batch)
    assert_first_moments(algorithm, "critic", copy.critic_loss(batch)["critic_loss"], copy)
    copy.model.critic.load_state_dict(algorithm.model.critic.state_dict())
    assert_first_moments(algorithm, "actor", copy.actor_loss(batch)["actor_loss"], copy)


@pytest.mark.parametrize(("updates", "expected"), [(100, 0.394230), (1000, 0.993346)])
def test_targets_come_as_near_as_computed(updates: int, expected: float) -> None:
    # From 0 to a constant 1: 1 - 0.995^100 and 1 - 0.995^1000.
    target, source = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    for _ in range(updates):
        polyak([target], [source], 0.005)
    assert float(target) == pytest.approx(expected, abs=1e-6)


def test_ten_updates_equal_those_of_td3_without_what_td3_added() -> None:
    ddpg, td3 = build("ddpg"), build("td3", num_critics=1, policy_delay=1, policy_noise=0.0)
    start = snapshot(ddpg.model)
    for batch in batches(10):
        ddpg.update(batch)
        td3.update(batch)
    assert not unmoved(start, ddpg.model)
    assert unmoved(snapshot(ddpg.model), td3.model)
    assert unmoved(snapshot(ddpg.target), td3.target)


def test_weight_decay_pulls_the_critic_alone() -> None:
    # The decay adds 0.01 times a parameter to its gradient, a tenth of which is Adam's average after one step.
    plain, decayed = build("ddpg"), build("ddpg", critic_weight_decay=0.01)
    start, batch = snapshot(plain.model.critic), batches(1)[0]
    for algorithm in (plain, decayed):
        algorithm.steps = algorithm.steps[:1]
        algorithm.update(batch)
    averages = (list(algorithm.optimizers["critic"].exp_avg.parameters()) for algorithm in (plain, decayed))
    for was, without, with_decay in zip(start, *averages, strict=True):
        torch.testing.assert_close(with_decay.detach(), without.detach() + 0.1 * 0.01 * was)
    assert decayed.optimizers["actor"].weight_decay == 0.0


def test_networks_start_as_torch_starts_them_with_the_action_in_the_first_layer() -> None:
    # Everything is uniform within 1 / sqrt(fan in), which is 5 for the actor's first layer and 5 + 3 for the critic's.
    torch.manual_seed(0)
    model = MLPDDPGModel(obs_dim=5, action_dim=3).requires_grad_(False)
    actor: list[tuple[Tensor, Tensor]] = [(layer.weight, layer.bias) for layer in model.actor.mlp.layers]
    for layers, inputs, outputs in ((actor, 5, 3), (critic_layers(model.critic, 0), 8, 1)):
        shapes = [tuple(weight.shape) for weight, _ in layers]
        assert shapes == [(256, inputs), (256, 256), (outputs, 256)]
        for weight, bias in layers:
            bound = 1 / math.sqrt(weight.shape[1])
            assert 0.9 * bound < float(weight.abs().max()) <= bound
            assert 0 < float(bias.abs().max()) <= bound


def test_the_papers_step_sizes_can_be_had() -> None:
    optimizers = build("ddpg", actor_learning_rate=1e-4, critic_learning_rate=1e-3).optimizers
    assert {child: optimizers[child].learning_rate for child in optimizers} == {"critic": 1e-3, "actor": 1e-4}


def test_the_policy_is_the_tanh_of_its_network_and_has_no_noise_of_its_own() -> None:
    algorithm, obs = build("ddpg"), batches(1)[0]["obs"]
    expected = algorithm.model.actor.mlp(obs).tanh().detach()
    for deterministic in (True, False):
        torch.testing.assert_close(algorithm.act(obs, deterministic=deterministic), expected)
