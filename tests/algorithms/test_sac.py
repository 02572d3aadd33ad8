"""SAC's formulas and order of updates on numbers that can be checked by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from peers import (
    batches,
    build,
    fix_actor,
)
from torch.nn import functional

from rl_training.algorithms.edac import diversity_objective
from rl_training.models import MLPSACModel, MLPSACNModel

Patch = pytest.MonkeyPatch


def _policy(mean: float, std: float, dtype: torch.dtype = torch.float64) -> Any:
    """The actor of a model with one action, that says the same of every observation."""
    actor = MLPSACModel(obs_dim=1, action_dim=1, hidden_sizes=(4,)).to(dtype).actor
    fix_actor(actor, mean, math.log(std))
    return actor


def _drawing(monkeypatch: Patch, noise: float) -> None:
    monkeypatch.setattr(torch, "randn_like", lambda like: torch.full_like(like, noise))


@pytest.mark.parametrize(
    ("raw", "normal", "expected"),
    [
        # log N(raw; mean, deviation) - log(1 - tanh(raw)^2)
        (0.0, (0.0, 1.0), -0.9189385),  # -0.9189385 - 0
        (0.5, (0.0, 1.0), -0.8037095),  # -1.0439385 + 0.2402290
        (1.2, (0.3, 0.7), -0.2014163),  # -1.3887942 + 1.1873779
        (-2.0, (0.5, math.exp(-1)), -20.3597333),  # -23.0097388 + 2.6500055
        (10.0, (0.0, 1.0), -32.3052329),  # -50.9189385 + 18.6137056
    ],
)
def test_a_sample_has_the_log_density_computed_by_hand(
    monkeypatch: Patch, raw: float, normal: tuple[float, float], expected: float
) -> None:
    mean, std = normal
    _drawing(monkeypatch, (raw - mean) / std)
    actions, log_probs = _policy(mean, std).sample(torch.zeros(1, 1, dtype=torch.float64))
    assert [actions.item(), log_probs.item()] == pytest.approx([math.tanh(raw), expected], abs=1e-7)


def test_a_sample_far_out_has_a_finite_log_density_in_float32(monkeypatch: Patch) -> None:
    # In float32 tanh(10) is exactly 1, whose raw value cannot be found again.
    _drawing(monkeypatch, 10.0)
    actions, log_probs = _policy(0.0, 1.0, torch.float32).sample(torch.zeros(1, 1))
    assert actions.item() == 1.0
    assert log_probs.item() == pytest.approx(-32.30523, abs=1e-3)


def test_evaluation_takes_the_tanh_of_the_mean_and_exploration_a_sample(monkeypatch: Patch) -> None:
    algorithm, obs = build("sac"), batches(1)[0]["obs"]
    mean, log_std = algorithm.model.actor(obs)
    torch.testing.assert_close(algorithm.losses(batches(1)[0])["log_std_mean"], log_std.mean().detach())
    torch.testing.assert_close(algorithm.act(obs), mean.tanh().detach())
    _drawing(monkeypatch, 1.0)
    drawn = algorithm.act(obs, deterministic=False)
    torch.testing.assert_close(drawn, (mean + log_std.exp()).tanh().detach())


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


def _agreement(*gradients: tuple[float, ...]) -> float:
    """The agreement of critics whose gradients, one per critic, are the same on three rows."""
    return float(diversity_objective(torch.tensor(gradients)[:, None].expand(-1, 3, -1))["diversity_loss"])


@pytest.mark.parametrize(
    ("gradients", "expected"),
    [
        # Two ordered pairs over N - 1 = 1: twice the cosine.
        (((1.0, 0.0), (0.0, 1.0)), 0.0),
        (((1.0, 0.0), (1.0, 0.0)), 2.0),
        (((1.0, 0.0), (-1.0, 0.0)), -2.0),
        (((1.0, 0.0), (1.0, 1.0)), math.sqrt(2)),
        # Length does not matter, direction does.
        (((100.0, 0.0), (1e-3, 0.0)), 2.0),
        # N equal gradients: N (N - 1) pairs over N - 1.
        (((0.6, 0.8),) * 5, 5.0),
        # Two equal and one opposite: pairs of 1, -1, -1, each counted twice, over 2.
        (((1.0, 0.0), (1.0, 0.0), (-1.0, 0.0)), -1.0),
        # The least there is for three: at 120 degrees the sum is 0, so 0 - 3 over 2.
        (((1.0, 0.0), (-0.5, math.sqrt(0.75)), (-0.5, -math.sqrt(0.75))), -1.5),
    ],
)
def test_agreement_is_the_sum_of_cosines_over_one_less_than_their_number(
    gradients: tuple[tuple[float, ...], ...], expected: float
) -> None:
    assert _agreement(*gradients) == pytest.approx(expected, abs=1e-5)


def test_agreement_is_averaged_over_rows() -> None:
    # Equal on the first row, 2, orthogonal on the second, 0; the mean cosine is half of the agreement for N = 2.
    gradients = torch.tensor([[[1.0, 0.0], [1.0, 0.0]], [[3.0, 0.0], [0.0, 2.0]]])
    metrics = diversity_objective(gradients)
    assert float(metrics["diversity_loss"]) == pytest.approx(1.0)
    assert float(metrics["grad_cosine_mean"]) == pytest.approx(0.5)


def test_a_critic_without_gradient_agrees_with_none() -> None:
    gradients = torch.tensor([[[1.0, 0.0]], [[0.0, 0.0]]], requires_grad=True)
    agreement = diversity_objective(gradients)["diversity_loss"]
    assert float(agreement.detach()) == 0
    (slope,) = torch.autograd.grad(agreement, gradients)
    assert bool(slope.isfinite().all())


def test_without_weight_it_is_sac_n() -> None:
    edac, plain = build("edac", num_critics=4, diversity_weight=0.0), build("sac_n", num_critics=4)
    for algorithm in (edac, plain):
        torch.manual_seed(2)
        for batch in batches(5):
            algorithm.update(batch)
    for ours, theirs in zip(edac.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-14)


def test_the_agreement_gives_nothing_to_the_actor_and_leaves_the_batch_alone() -> None:
    algorithm: Any = build("edac", num_critics=3)
    batch = batches(1)[0]
    actions = batch["actions"].clone()
    loss = algorithm.critic_loss(batch)["critic_loss"]
    actor = list(algorithm.model.actor.parameters())
    assert all(gradient is None for gradient in torch.autograd.grad(loss, actor, allow_unused=True))
    assert torch.equal(batch["actions"], actions)
    assert not batch["actions"].requires_grad
