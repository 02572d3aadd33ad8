"""AWAC's formulas on numbers that can be checked by hand, and the order and options of its updates."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from peers import batches, build, distinct

from rl_training.algorithms.awac import actor_objective
from rl_training.models import gaussian_log_prob

LN2 = math.log(2)


def _weights(advantages: list[float], awac_lambda: float = 1.0, **hyper: Any) -> list[float]:
    """The weight of each row, as the slope of the loss in its log-density: - w / B."""
    log_probs = torch.zeros(len(advantages), dtype=torch.float64, requires_grad=True)
    data_q_values = torch.tensor(advantages, dtype=torch.float64)
    metrics = actor_objective(
        data_q_values=data_q_values,
        policy_q_values=torch.zeros_like(data_q_values),
        log_probs=log_probs,
        awac_lambda=awac_lambda,
        **{"weights": "exp", "max_weight": 100.0, **hyper},
    )
    (slopes,) = torch.autograd.grad(metrics["actor_loss"], log_probs)
    return [-float(slope) * len(advantages) for slope in slopes]


@pytest.mark.parametrize(
    ("advantages", "awac_lambda", "hyper", "expected"),
    [
        # exp(0) = 1 and exp(ln 2) = 2.
        ([0.0, LN2], 1.0, {}, [1.0, 2.0]),
        # The same divided by their sum 3, times the 2 rows.
        ([0.0, LN2], 1.0, {"weights": "softmax"}, [2 / 3, 4 / 3]),
        # A third of lambda is three times the advantage: 2^3.
        ([0.0, LN2], 1 / 3, {}, [1.0, 8.0]),
        # 1 / 9 and 8 / 9 of 2 rows.
        ([0.0, LN2], 1 / 3, {"weights": "softmax"}, [2 / 9, 16 / 9]),
        # exp(5) = 148.4 is cut at 100, exp(-5) = 0.0067379 is not raised.
        ([5.0, -5.0], 1.0, {}, [100.0, 0.006737947]),
        ([5.0, LN2], 1.0, {"max_weight": 3.0}, [3.0, 2.0]),
        # A softmax is not cut: exp(5) / (exp(5) + 1) = 0.993307, times 2.
        ([5.0, 0.0], 1.0, {"weights": "softmax", "max_weight": 1.5}, [1.986614, 0.013386]),
        # Where the exponential overflows, the cut still holds; a softmax does not overflow at all.
        ([1e4, 0.0], 1.0, {}, [100.0, 1.0]),
        ([1e4, 0.0], 1.0, {"weights": "softmax"}, [2.0, 0.0]),
    ],
)
def test_weights_of_given_advantages(
    advantages: list[float], awac_lambda: float, hyper: dict[str, Any], expected: list[float]
) -> None:
    assert _weights(advantages, awac_lambda, **hyper) == pytest.approx(expected, abs=1e-6)


def test_the_critic_target_is_the_smaller_lagged_critic_at_a_clipped_sample_of_the_current_policy() -> None:
    algorithm = distinct(build("awac", gamma=0.5))
    batch = batches(1, size=6)[0]
    batch["dones"] = torch.tensor([0.0, 1.0] * 3, dtype=torch.float64)
    torch.manual_seed(5)
    metrics = algorithm.losses(batch)
    torch.manual_seed(5)
    with torch.no_grad():
        mean, log_std = algorithm.model.actor(batch["next_obs"])
        sample = mean + log_std.exp() * torch.randn(6, 3, dtype=torch.float64)
        assert float(sample.abs().max()) > 1
        next_q = algorithm.target.critic(batch["next_obs"], sample.clamp(-1, 1))
        target = batch["rewards"] + torch.tensor([0.5, 0.0] * 3) * torch.minimum(*next_q)
        q = algorithm.model.critic(batch["obs"], batch["actions"])
    torch.testing.assert_close(metrics["target_q_mean"], target.mean())
    expected = (q[0] - target).square().mean() + (q[1] - target).square().mean()
    torch.testing.assert_close(metrics["critic_loss"], expected)


@pytest.mark.parametrize("samples", [1, 5])
def test_the_advantage_compares_the_smaller_current_critics_at_the_data_and_at_samples(samples: int) -> None:
    algorithm = distinct(build("awac", num_action_samples=samples))
    batch = algorithm.prepare(batches(1, size=8)[0])
    torch.manual_seed(5)
    metrics = algorithm.actor_loss(batch)
    torch.manual_seed(5)
    with torch.no_grad():
        mean, log_std = algorithm.model.actor(batch["obs"])
        noise = torch.randn(samples, 8, 3, dtype=torch.float64)
        baselines = [
            torch.minimum(*algorithm.model.critic(batch["obs"], (mean + log_std.exp() * row).clamp(-1, 1)))
            for row in noise
        ]
        advantages = torch.minimum(*algorithm.model.critic(batch["obs"], batch["actions"])) - sum(baselines) / samples
        weights = (3 * advantages).exp().clamp_max(100.0)
        expected = -(weights * gaussian_log_prob(batch["actions"], mean, log_std)).mean()
    torch.testing.assert_close(metrics["advantage_mean"], advantages.mean())
    torch.testing.assert_close(metrics["actor_loss"].detach(), expected)


def test_a_mean_baseline_is_the_value_of_the_policys_mean_and_draws_nothing() -> None:
    # A mean that is not squashed may lie outside of the bounds, where no critic should be asked.
    algorithm = distinct(build("awac", baseline="mean", squash_mean=False))
    with torch.no_grad():
        algorithm.model.actor.mlp.layers[-1].bias.fill_(1.5)
    batch = batches(1, size=8)[0]
    torch.manual_seed(5)
    first = algorithm.actor_loss(batch)["advantage_mean"]
    second = algorithm.actor_loss(batch)["advantage_mean"]
    with torch.no_grad():
        mean = algorithm.model.actor(batch["obs"])[0]
        assert float(mean.max()) > 1
        baseline = torch.minimum(*algorithm.model.critic(batch["obs"], mean.clamp(-1, 1)))
        advantages = torch.minimum(*algorithm.model.critic(batch["obs"], batch["actions"])) - baseline
    torch.testing.assert_close(first, advantages.mean())
    assert torch.equal(first, second)


@pytest.mark.parametrize(("squash_mean", "expected"), [(True, math.tanh(0.5)), (False, 0.5)])
def test_only_a_squashed_mean_goes_through_tanh(squash_mean: bool, expected: float) -> None:
    algorithm: Any = build("awac", squash_mean=squash_mean)
    with torch.no_grad():
        algorithm.model.actor.mlp.layers[-1].weight.zero_()
        algorithm.model.actor.mlp.layers[-1].bias.fill_(0.5)
    obs = torch.randn(4, 5, dtype=torch.float64)
    assert algorithm.act(obs).flatten().tolist() == pytest.approx([expected] * 12)
