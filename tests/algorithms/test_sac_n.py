"""SAC-N's formulas and order of updates on numbers that can be checked by hand."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from peers import ACTION_DIM, batches, build
from torch import Tensor
from torch.nn import functional

from rl_training.algorithms.base.losses import critic_objective
from rl_training.algorithms.sac_n import actor_objective, sac_n_loss
from rl_training.models import MLPSACNModel

Patch = pytest.MonkeyPatch


def test_the_whole_objective_on_two_rows() -> None:
    # Temperature e^0.5. Loss of log(alpha): -0.5 * mean((-1, 3) - 3) = -0.5 * -2 = 1.
    # Actor: mean((-1, 3)) = 1 times the temperature, minus the mean of the smallest critics (1, -2) = -0.5.
    # Critics: errors (1, 3), (0, 2), (1, 1) against (0, 1), mean squares 5 + 2 + 1 = 8, added up and not averaged.
    metrics = sac_n_loss(
        log_temperature=torch.tensor(0.5),
        policy_log_probs=torch.tensor([-1.0, 3.0]),
        policy_q_values=torch.tensor([[1.0, 4.0], [2.0, -2.0], [3.0, 0.0]]),
        q_values=torch.tensor([[1.0, 4.0], [0.0, 3.0], [1.0, 2.0]]),
        target_q_values=torch.tensor([0.0, 1.0]),
        target_entropy=-3.0,
    )
    assert float(metrics["temperature_loss"]) == pytest.approx(1.0)
    assert float(metrics["temperature"]) == pytest.approx(math.exp(0.5))
    assert float(metrics["entropy"]) == pytest.approx(-1.0)
    assert float(metrics["actor_loss"]) == pytest.approx(math.exp(0.5) + 0.5)
    assert float(metrics["critic_loss"]) == pytest.approx(8.0)
    # Deviations of (1, 2, 3) and (4, -2, 0) around their means: sqrt(2 / 3) and sqrt(56 / 9).
    assert float(metrics["q_policy_std"]) == pytest.approx((math.sqrt(2 / 3) + math.sqrt(56 / 9)) / 2)


def test_the_actor_learns_from_the_smallest_critic_alone() -> None:
    q = torch.tensor([[1.0, 4.0], [2.0, -2.0], [3.0, 0.0]], requires_grad=True)
    log_probs = torch.tensor([-1.0, 3.0], requires_grad=True)
    log_temperature = torch.tensor(math.log(0.7), requires_grad=True)
    loss = actor_objective(policy_q_values=q, policy_log_probs=log_probs, log_temperature=log_temperature)["actor_loss"]
    on_q, on_log_probs, on_temperature = torch.autograd.grad(loss, [q, log_probs, log_temperature], allow_unused=True)
    assert on_q.tolist() == [[-0.5, 0.0], [0.0, -0.5], [0.0, 0.0]]
    assert on_log_probs.tolist() == pytest.approx([0.35, 0.35])
    assert on_temperature is None


def test_a_critic_learns_the_same_however_many_there_are() -> None:
    # A sum over critics: with a mean, each of N critics would learn N times slower.
    target = torch.zeros(4)
    for count in (1, 10):
        q = torch.full((count, 4), 3.0, requires_grad=True)
        loss = critic_objective(q_values=q, target_q_values=target)["critic_loss"]
        assert float(loss.detach()) == pytest.approx(9.0 * count)
        (gradient,) = torch.autograd.grad(loss, q)
        torch.testing.assert_close(gradient, torch.full_like(q, 2 * 3 / 4))


def test_the_target_has_the_smallest_critic_and_the_entropy_and_stops_at_termination(monkeypatch: Patch) -> None:
    algorithm: Any = build("sac_n", num_critics=5, alpha=0.3, gamma=0.5)
    # Noise of 1: the sample is one deviation from the mean, and its density that of N(1; 0, 1) over the slope.
    monkeypatch.setattr(torch, "randn_like", torch.ones_like)
    batch = batches(1, size=4)[0]
    batch["dones"] = torch.tensor([0.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    with torch.no_grad():
        mean, log_std = algorithm.model.actor(batch["next_obs"])
        raw = mean + log_std.exp()
        log_prob = (-0.5 - 0.5 * math.log(2 * math.pi) - log_std - (1 - raw.tanh().square()).log()).sum(-1)
        q = algorithm.target.critic(batch["next_obs"], raw.tanh())
        smallest = torch.stack([min(column) for column in q.T.unbind()])
        expected = batch["rewards"] + torch.tensor([0.5, 0.0, 0.5, 0.0]) * (smallest - 0.3 * log_prob)
    torch.testing.assert_close(algorithm.targets(batch), expected)
    torch.testing.assert_close(algorithm.losses(batch)["target_q_mean"], expected.mean())


def test_one_critic_makes_it_sac_with_one_critic(monkeypatch: Patch) -> None:
    algorithm: Any = build("sac_n", num_critics=1, alpha=0.3)
    batch = batches(1)[0]
    monkeypatch.setattr(torch, "randn_like", torch.zeros_like)
    metrics = algorithm.losses(batch)
    with torch.no_grad():
        mean, log_std = algorithm.model.actor(batch["obs"])
        log_prob = (-0.5 * math.log(2 * math.pi) - log_std - (1 - mean.tanh().square()).log()).sum(-1)
        (q,) = algorithm.model.critic(batch["obs"], mean.tanh())
        (logged,) = algorithm.model.critic(batch["obs"], batch["actions"])
    torch.testing.assert_close(metrics["actor_loss"], (0.3 * log_prob - q).mean())
    torch.testing.assert_close(metrics["critic_loss"], (logged - algorithm.targets(batch)).square().mean())
    assert float(metrics["q_policy_std"]) == 0


def test_more_critics_are_never_more_optimistic() -> None:
    algorithm, batch = build("sac_n", num_critics=8), batches(1)[0]
    with torch.no_grad():
        lows = [algorithm.model.critic(batch["obs"], batch["actions"], first=count).amin(0) for count in range(1, 9)]
    for fewer, more in pairwise(lows):
        assert bool((more <= fewer).all())
    assert bool((lows[-1] < lows[0]).any())


@pytest.mark.parametrize("each", [False, True])
def test_many_critics_at_once_equal_a_loop_over_them(each: bool) -> None:
    torch.manual_seed(0)
    model: Any = MLPSACNModel(obs_dim=5, action_dim=3, hidden_sizes=(256, 256, 256), num_critics=4)
    obs, actions = torch.randn(64, 5), torch.randn(4, 64, 3).tanh()
    many = model.critic.forward_each(obs, actions) if each else model.critic(obs, actions[0])
    for member in range(4):
        rows = torch.cat([obs, actions[member if each else 0]], dim=-1)
        *hidden, last = model.critic.mlp.layers
        for layer in hidden:
            rows = functional.linear(rows, layer.weight[member].T, layer.bias[member]).relu()
        alone = functional.linear(rows, last.weight[member].T, last.bias[member]).squeeze(-1)
        torch.testing.assert_close(many[member], alone, rtol=0, atol=1e-6)


def test_steps_come_in_order_each_with_what_the_one_before_left() -> None:
    # After one step of Adam its first moment is 0.1 times the gradient. The gradients here are taken from a copy to
    # which the steps before have been applied by hand; with large steps the order makes a difference.
    algorithm, copy = (build("sac_n", num_critics=3, learning_rate=0.05) for _ in range(2))
    batch = batches(1)[0]
    assert [step.name for step in algorithm.steps] == ["temperature", "actor", "critic"]
    torch.manual_seed(7)
    algorithm.update(batch)
    torch.manual_seed(7)
    for child in ("temperature", "actor", "critic"):
        loss = getattr(copy, f"{child}_loss")(batch)[f"{child}_loss"]
        trained = getattr(copy.model, child)
        gradients = list(torch.autograd.grad(loss, list(trained.parameters())))
        for moment, gradient in zip(algorithm.optimizers[child].exp_avg.parameters(), gradients, strict=True):
            torch.testing.assert_close(moment.detach(), 0.1 * gradient, rtol=1e-8, atol=1e-14)
        trained.load_state_dict(getattr(algorithm.model, child).state_dict())


def test_each_loss_trains_only_what_it_is_for() -> None:
    algorithm, batch = build("sac_n", num_critics=3), batches(1)[0]
    actor, critic = list(algorithm.model.actor.parameters()), list(algorithm.model.critic.parameters())
    log_temperature = algorithm.model.temperature.log_value
    for child, others in (("temperature", [*actor, *critic]), ("actor", [log_temperature]), ("critic", actor)):
        loss = getattr(algorithm, f"{child}_loss")(batch)[f"{child}_loss"]
        assert all(gradient is None for gradient in torch.autograd.grad(loss, others, allow_unused=True))


@pytest.mark.parametrize(("target_entropy", "step"), [(None, -3e-4), (50.0, 3e-4), (-50.0, -3e-4)])
def test_the_temperature_rises_while_the_entropy_is_below_its_target(
    monkeypatch: Patch, target_entropy: float | None, step: float
) -> None:
    # A new actor has mean and log-deviation near 0; at noise 0 a sample has log-density -3 * 0.918939 = -2.756816 and
    # so the entropy 2.76: more than minus the dimension, -3, and than -50, less than 50. Adam's first step is its
    # step size.
    algorithm = build("sac_n", target_entropy=target_entropy)
    monkeypatch.setattr(torch, "randn_like", torch.zeros_like)
    metrics = algorithm.update(batches(1)[0]).metrics
    assert float(metrics["entropy"]) == pytest.approx(2.7568, abs=0.02)
    assert float(algorithm.model.temperature.log_value.detach()) == pytest.approx(step, rel=1e-6)


def test_actor_and_critics_start_with_hidden_biases_of_a_tenth_and_a_small_last_layer() -> None:
    torch.manual_seed(0)
    model: Any = MLPSACNModel(obs_dim=5, action_dim=3, hidden_sizes=(64, 64), num_critics=4)
    model.requires_grad_(False)
    # (fan out, fan in) for each member of the ensemble and for the actor, which is one.
    critics = [
        [(layer.weight[member].T, layer.bias[member]) for layer in model.critic.mlp.layers] for member in range(4)
    ]
    actor = [(layer.weight, layer.bias) for layer in model.actor.mlp.layers]
    for layers, last_bound, inputs in (*((critic, 3e-3, 8) for critic in critics), (actor, 1e-3, 5)):
        *hidden, (last_weight, last_bias) = layers
        for (weight, bias), fan_in in zip(hidden, (inputs, 64), strict=True):
            bound = 1 / math.sqrt(fan_in)
            assert 0.9 * bound < float(weight.abs().max()) <= bound
            assert torch.equal(bias, torch.full_like(bias, 0.1))
        assert 0.8 * last_bound < float(last_weight.abs().max()) <= last_bound
        assert 0 < float(last_bias.abs().max()) <= last_bound
    assert not any(torch.equal(critics[0][0][0], other[0][0]) for other in critics[1:])
    assert model.actor.std_affinity is None
    assert model.actor.log_std_range == (-5.0, 2.0)
    assert float(model.temperature()) == 1.0


def test_step_sizes_are_shared_unless_a_child_has_its_own() -> None:
    shared = {child: optimizer.learning_rate for child, optimizer in build("sac_n").optimizers.items()}
    assert shared == {"temperature": 3e-4, "actor": 3e-4, "critic": 3e-4}
    own = build("sac_n", actor_learning_rate=3e-5, temperature_learning_rate=1e-3).optimizers
    assert {child: own[child].learning_rate for child in own} == {"temperature": 1e-3, "actor": 3e-5, "critic": 3e-4}


def test_the_policys_own_actions_are_those_of_its_distribution() -> None:
    algorithm, obs = build("sac_n"), batches(1)[0]["obs"]
    mean: Tensor = algorithm.model.actor(obs)[0]
    torch.testing.assert_close(algorithm.act(obs), mean.tanh().detach())
    drawn = algorithm.act(obs, deterministic=False)
    assert drawn.shape == (32, ACTION_DIM)
    assert float(drawn.abs().max()) < 1
    assert not torch.allclose(drawn, algorithm.act(obs))
