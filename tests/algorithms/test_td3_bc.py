"""TD3+BC's formulas on numbers that can be checked by hand."""

from __future__ import annotations

import math

import pytest
import torch

from rl_training.algorithms.td3_bc import actor_objective


def _actor(q: list[float], errors: list[float], bc_alpha: float = 2.5) -> dict[str, float]:
    policy_actions = torch.tensor(errors)[:, None]
    metrics = actor_objective(
        policy_q_values=torch.tensor(q),
        policy_actions=policy_actions,
        actions=torch.zeros_like(policy_actions),
        bc_alpha=bc_alpha,
    )
    return {name: float(value) for name, value in metrics.items()}


def test_actor_objective_on_two_rows() -> None:
    # mean |q| = (1 + 3) / 2 = 2, so lambda = 2.5 / 2; mean q = -1; mean squared error = (0.25 + 0) / 2.
    metrics = _actor([1.0, -3.0], [0.5, 0.0])
    assert metrics["bc_lambda"] == pytest.approx(1.25)
    assert metrics["bc_loss"] == pytest.approx(0.125)
    assert metrics["actor_loss"] == pytest.approx(1.25 + 0.125)
    assert metrics["policy_q_abs_mean"] == pytest.approx(2.0)


@pytest.mark.parametrize("scale", [0.01, 7.0, 1e4])
def test_scaling_every_value_leaves_the_actor_loss_unchanged(scale: float) -> None:
    plain = _actor([1.0, -3.0, 2.0], [0.5, 0.0, -0.25])["actor_loss"]
    scaled = _actor([scale, -3 * scale, 2 * scale], [0.5, 0.0, -0.25])["actor_loss"]
    assert scaled == pytest.approx(plain, rel=1e-5)


def test_without_value_the_actor_clones() -> None:
    metrics = _actor([1.0, -3.0], [0.5, 0.0], bc_alpha=0.0)
    assert metrics["actor_loss"] == pytest.approx(metrics["bc_loss"])


def test_a_critic_of_zeros_gives_a_finite_loss() -> None:
    assert math.isfinite(_actor([0.0, 0.0], [0.5, 0.0])["actor_loss"])


def test_the_weight_carries_no_gradient() -> None:
    # d loss / d q_i = -lambda / 2 with lambda = 2.5 / 2 held constant.
    q = torch.tensor([1.0, -3.0], requires_grad=True)
    zeros = torch.zeros(2, 1)
    loss = actor_objective(policy_q_values=q, policy_actions=zeros, actions=zeros, bc_alpha=2.5)["actor_loss"]
    (gradient,) = torch.autograd.grad(loss, q)
    torch.testing.assert_close(gradient, torch.tensor([-0.625, -0.625]))


def test_smoothing_noise_is_clipped_and_actions_stay_in_bounds() -> None:
    from rl_training.algorithms.base.losses import smooth

    actions = torch.zeros(10_000, 1)
    noisy = smooth(actions, 5.0, 0.5)
    assert float(noisy.abs().max()) == pytest.approx(0.5)
    assert float(smooth(actions + 0.9, 0.2, 0.5).max()) == 1.0
