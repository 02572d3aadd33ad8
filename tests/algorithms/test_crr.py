"""CRR's formulas on numbers that can be checked by hand, and the order and options of its updates."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from peers import batches, build, distinct, reached
from torch import nn

from rl_training.algorithms.crr import actor_objective, crr_loss
from rl_training.models.actors import gaussian_log_prob


def _weights(data: list[float], samples: list[list[float]], **hyper: Any) -> list[float]:
    """The weight of each row, as the slope of the loss in its log-density: - w / B."""
    log_probs = torch.zeros(len(data), dtype=torch.float64, requires_grad=True)
    metrics = actor_objective(
        data_q_values=torch.tensor(data, dtype=torch.float64),
        policy_q_values=torch.tensor(samples, dtype=torch.float64),
        log_probs=log_probs,
        **{"weights": "exp", "advantage": "mean", "beta": 1.0, "max_weight": 20.0, **hyper},
    )
    (slopes,) = torch.autograd.grad(metrics["actor_loss"], log_probs)
    return [-float(slope) * len(data) for slope in slopes]


@pytest.mark.parametrize(
    ("hyper", "expected"),
    [
        # The logged action is worth 2, the policy's 1 and 3: the same as their mean, a tie, which counts as no better.
        ({"weights": "exp"}, 1.0),
        ({"weights": "binary"}, 0.0),
        # Less than their maximum by 1: exp(-1).
        ({"weights": "exp", "advantage": "max"}, 0.367879),
        ({"weights": "binary", "advantage": "max"}, 0.0),
        # beta is a temperature: exp(-1 / 0.5).
        ({"weights": "exp", "advantage": "max", "beta": 0.5}, 0.135335),
        ({"weights": "constant"}, 1.0),
        ({"weights": "constant", "advantage": "max"}, 1.0),
    ],
)
def test_the_weight_of_an_action_worth_2_beside_samples_worth_1_and_3(hyper: dict[str, Any], expected: float) -> None:
    assert _weights([2.0], [[1.0], [3.0]], **hyper) == pytest.approx([expected], abs=1e-6)


@pytest.mark.parametrize(
    ("hyper", "expected"),
    [
        # Advantages 5, 1e-9, -1 and 1e4; exp(5) = 148.4 is cut at 20, and so is what overflows.
        ({"weights": "exp"}, [20.0, 1.0, 0.367879, 20.0]),
        ({"weights": "exp", "max_weight": 200.0}, [148.413159, 1.0, 0.367879, 200.0]),
        # exp(5 / 2) = 12.182494.
        ({"weights": "exp", "beta": 2.0}, [12.182494, 1.0, 0.606531, 20.0]),
        ({"weights": "binary"}, [1.0, 1.0, 0.0, 1.0]),
        # The filter has no bound to be cut at.
        ({"weights": "binary", "max_weight": 0.5}, [1.0, 1.0, 0.0, 1.0]),
        ({"weights": "constant"}, [1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_weights_of_given_advantages(hyper: dict[str, Any], expected: list[float]) -> None:
    assert _weights([5.0, 1e-9, -1.0, 1e4], [[0.0] * 4], **hyper) == pytest.approx(expected, abs=1e-6)


def test_each_row_is_compared_with_its_own_samples() -> None:
    # Means 1 and 4 of three samples each, advantages 1 and -1.
    samples = [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    assert _weights([2.0, 3.0], samples) == pytest.approx([math.e, 1 / math.e])
    assert _weights([2.0, 3.0], samples, advantage="max") == pytest.approx([1.0, math.exp(-2)])


def test_the_whole_objective_on_two_rows() -> None:
    log2 = math.log(2)
    metrics = crr_loss(
        # Critic 1 errs by 1 and 3 (mean square 5), critic 2 by 0 and 2 (mean square 2).
        q_values=torch.tensor([[1.0, 4.0], [0.0, 3.0]]),
        target_q_values=torch.tensor([0.0, 1.0]),
        data_q_values=torch.tensor([log2, -log2]),
        policy_q_values=torch.tensor([[1.0, -1.0], [-1.0, 1.0]]),
        log_probs=torch.tensor([-1.0, -3.0]),
    )
    assert float(metrics["critic_loss"]) == pytest.approx(7.0)
    assert float(metrics["target_q_mean"]) == pytest.approx(0.5)
    # Weights 2 and 1 / 2: (2 * 1 + 0.5 * 3) / 2.
    assert float(metrics["actor_loss"]) == pytest.approx(1.75)
    assert float(metrics["weight_mean"]) == pytest.approx(1.25)
    assert float(metrics["weight_max"]) == pytest.approx(2.0)
    assert float(metrics["filter_rate"]) == pytest.approx(0.5)
    assert float(metrics["advantage_mean"]) == pytest.approx(0.0)
    assert float(metrics["advantage_max"]) == pytest.approx(log2)
    assert float(metrics["log_prob_data"]) == pytest.approx(-2.0)


@pytest.mark.parametrize(("weights", "expected"), [("exp", 1.0), ("binary", 0.0)])
def test_a_critic_that_is_constant_prefers_no_action(weights: str, expected: float) -> None:
    algorithm: Any = build("crr", weights=weights)
    with torch.no_grad():
        algorithm.model.critic.mlp.layers[-1].weight.zero_()
    metrics = algorithm.losses(batches(1)[0])
    assert float(metrics["weight_mean"]) == pytest.approx(expected)
    assert float(metrics["actor_loss"]) == pytest.approx(-expected * float(metrics["log_prob_data"]))
    assert float(metrics["filter_rate"]) == 0


@pytest.mark.parametrize("num_critics", [1, 3])
def test_the_critic_target_is_the_smallest_lagged_critic_at_a_clipped_sample_of_the_lagged_policy(
    num_critics: int,
) -> None:
    algorithm = distinct(build("crr", gamma=0.5, num_critics=num_critics))
    batch = batches(1, size=6)[0]
    batch["dones"] = torch.tensor([0.0, 1.0] * 3, dtype=torch.float64)
    torch.manual_seed(5)
    metrics = algorithm.losses(batch)
    torch.manual_seed(5)
    with torch.no_grad():
        mean, log_std = algorithm.target.actor(batch["next_obs"])
        sample = mean + log_std.exp() * torch.randn(6, 3, dtype=torch.float64)
        assert float(sample.abs().max()) > 1
        next_q = algorithm.target.critic(batch["next_obs"], sample.clamp(-1, 1))
        target = batch["rewards"] + torch.tensor([0.5, 0.0] * 3) * next_q.min(0).values
        q = algorithm.model.critic(batch["obs"], batch["actions"])
    assert len(q) == num_critics
    torch.testing.assert_close(metrics["target_q_mean"], target.mean())
    torch.testing.assert_close(metrics["critic_loss"], sum((member - target).square().mean() for member in q))


@pytest.mark.parametrize(("samples", "advantage"), [(4, "mean"), (4, "max"), (1, "mean")])
def test_the_advantage_asks_the_smaller_current_critic_at_samples_of_the_current_policy(
    samples: int, advantage: str
) -> None:
    algorithm = distinct(build("crr", num_action_samples=samples, advantage=advantage))
    batch = batches(1, size=8)[0]
    torch.manual_seed(5)
    metrics = algorithm.actor_loss(batch)
    torch.manual_seed(5)
    with torch.no_grad():
        mean, log_std = algorithm.model.actor(batch["obs"])
        values = []
        for noise in torch.randn(samples, 8, 3, dtype=torch.float64):
            actions = (mean + log_std.exp() * noise).clamp(-1, 1)
            values.append(torch.minimum(*algorithm.model.critic(batch["obs"], actions)))
        baseline = sum(values) / samples if advantage == "mean" else torch.stack(values).max(0).values
        advantages = torch.minimum(*algorithm.model.critic(batch["obs"], batch["actions"])) - baseline
        weights = advantages.exp().clamp_max(20.0)
        expected = -(weights * gaussian_log_prob(batch["actions"], mean, log_std)).mean()
    torch.testing.assert_close(metrics["advantage_mean"], advantages.mean())
    torch.testing.assert_close(metrics["actor_loss"].detach(), expected)


def test_both_gradients_are_taken_before_either_network_moves() -> None:
    algorithm: Any = build("crr", learning_rate=0.01)
    before, batch = copy.deepcopy(algorithm), batches(1)[0]
    torch.manual_seed(1)
    reported = algorithm.update(batch).metrics
    torch.manual_seed(1)
    at_start = before.losses(batch)
    for name in ("critic_loss", "actor_loss", "advantage_mean"):
        torch.testing.assert_close(reported[name], at_start[name])
    # With the critics' step taken first, the advantage would have been another.
    before.model.critic.load_state_dict(algorithm.model.critic.state_dict())
    torch.manual_seed(1)
    assert abs(float(before.losses(batch)["advantage_mean"] - reported["advantage_mean"])) > 1e-4


def test_the_joint_step_moves_each_network_by_its_own_loss_alone() -> None:
    joint: Any = build("crr")
    batch = batches(1)[0]
    torch.manual_seed(1)
    expected = {}
    losses = joint.joint_loss(batch)
    for child in ("critic", "actor"):
        other = "actor" if child == "critic" else "critic"
        loss = losses[f"{child}_loss"]
        assert other not in reached(loss, joint.model)
        expected[child] = torch.autograd.grad(loss, list(getattr(joint.model, child).parameters()))
    torch.manual_seed(1)
    joint.update(batch)
    for child, gradients in expected.items():
        # The first moment after one step of Adam is a tenth of the gradient.
        moments = joint.optimizers[child].exp_avg.parameters()
        for moment, gradient in zip(moments, gradients, strict=True):
            torch.testing.assert_close(moment, 0.1 * gradient)


def test_tau_1_copies_both_networks_every_so_many_updates() -> None:
    algorithm: Any = build("crr", tau=1.0, target_update_interval=3)
    copies = copy.deepcopy(algorithm.target)
    for number, batch in enumerate(batches(7), start=1):
        algorithm.update(batch)
        for child in ("critic", "actor"):
            target, online = getattr(algorithm.target, child), getattr(algorithm.model, child)
            assert _same(target, online) == (number % 3 == 0)
            if number % 3:
                assert _same(target, getattr(copies, child))
        copies = copy.deepcopy(algorithm.target)


def test_the_log_deviation_depends_on_the_observation_and_is_bounded() -> None:
    algorithm: Any = build("crr")
    obs = torch.randn(4, 5, dtype=torch.float64)
    with torch.no_grad():
        log_std = algorithm.model.actor(obs)[1]
        assert log_std.shape == (4, 3)
        assert float(log_std.std(0).min()) > 0
        for bias, bound in ((1e3, 2.0), (-1e3, -5.0)):
            algorithm.model.actor.mlp.layers[-1].bias[3:] = bias
            mean, log_std = algorithm.model.actor(obs)
            assert log_std.flatten().tolist() == [bound] * 12
            assert float(mean.abs().max()) < 1


def test_layer_normalisation_stands_before_the_critics_activations_where_it_is_asked_for() -> None:
    algorithm: Any = build("crr", critic_layer_norm=True)
    obs, actions = torch.randn(4, 5, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    mlp = algorithm.model.critic.mlp
    values = algorithm.model.critic(obs, actions)
    for member in (0, 1):
        rows = torch.cat([obs, actions], dim=-1)
        for layer in mlp.layers[:-1]:
            rows = rows @ layer.weight[member] + layer.bias[member]
            rows = nn.functional.layer_norm(rows, rows.shape[-1:]).relu()
        expected = rows @ mlp.layers[-1].weight[member] + mlp.layers[-1].bias[member]
        torch.testing.assert_close(values[member], expected.squeeze(-1))
    assert not list(build("crr").model.critic.mlp.norms)


def _same(first: nn.Module, second: nn.Module) -> bool:
    pairs: Any = zip(first.parameters(), second.parameters(), strict=True)
    return all(torch.equal(one, other) for one, other in pairs)
