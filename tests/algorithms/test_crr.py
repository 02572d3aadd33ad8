"""CRR's formulas on numbers that can be checked by hand, and the order and options of its updates."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from peers import batches, build, distinct
from torch import nn

from rl_training.algorithms.crr import actor_objective
from rl_training.models import gaussian_log_prob


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
