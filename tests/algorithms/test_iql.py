"""IQL's formulas on numbers that can be checked by hand, and the order and options of its updates."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from peers import batches, build, distinct
from torch import Tensor

from rl_training.algorithms.iql import actor_objective, iql_loss, value_objective


def _loss(errors: list[float], **hyper: Any) -> dict[str, float]:
    """The whole objective for values of 2 that are too small by `errors`."""
    values = torch.full((len(errors),), 2.0, dtype=torch.float64)
    metrics = iql_loss(
        values=values,
        target_q_values=values + torch.tensor(errors, dtype=torch.float64),
        log_probs=torch.full_like(values, -0.5),
        # Critic 1 errs by 1 everywhere, critic 2 by 2: squares of 1 and 4, added up.
        q_values=torch.stack([values + 1, values - 2]),
        bellman_targets=values,
        **{"expectile": 0.7, "beta": 3.0, **hyper},
    )
    return {name: float(value) for name, value in metrics.items()}


def _slope(q: Tensor, value: float, expectile: float) -> float:
    """How the value's loss changes with one value for all rows."""
    single = torch.tensor(value, dtype=torch.float64, requires_grad=True)
    loss = value_objective(values=single.expand_as(q), target_q_values=q, expectile=expectile)["value_loss"]
    return float(torch.autograd.grad(loss, single)[0])


def _weights(advantages: list[float], beta: float, max_weight: float = 100.0) -> list[float]:
    """The weight of each row, as the slope of the loss in its log-density: - w / B."""
    log_probs = torch.zeros(len(advantages), dtype=torch.float64, requires_grad=True)
    target = torch.tensor(advantages, dtype=torch.float64) + 2
    metrics = actor_objective(
        values=torch.full_like(target, 2.0),
        target_q_values=target,
        log_probs=log_probs,
        beta=beta,
        max_weight=max_weight,
    )
    (slopes,) = torch.autograd.grad(metrics["actor_loss"], log_probs)
    return [-float(slope) * len(advantages) for slope in slopes]


@pytest.mark.parametrize(
    ("expectile", "expected"),
    [
        # Squares 1, 1 and 4 with weights 0.7, 0.3 and 0.7: 3.8 / 3.
        (0.7, 1.266667),
        # (0.1 + 0.9 + 0.4) / 3: below one half, the errors below count more.
        (0.1, 0.466667),
        # Half of the mean square (1 + 1 + 4) / 3.
        (0.5, 1.0),
    ],
)
def test_the_value_loss_weighs_errors_by_their_sign(expectile: float, expected: float) -> None:
    assert _loss([1.0, -1.0, 2.0], expectile=expectile)["value_loss"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("q", "expectile", "expected"),
    [
        # (1 - e) v = e (1 - v), so v = e.
        ([0.0, 1.0], 0.7, 0.7),
        ([0.0, 1.0], 0.9, 0.9),
        # (1 - e) (v + v - 1) = e (2 - v) for 1 <= v <= 2, so v = (1 + e) / (2 - e).
        ([0.0, 1.0, 2.0], 0.5, 1.0),
        ([0.0, 1.0, 2.0], 0.7, 1.307692),
        ([0.0, 1.0, 2.0], 0.9, 1.727273),
    ],
)
def test_the_best_value_is_the_expectile(q: list[float], expectile: float, expected: float) -> None:
    values = torch.tensor(q, dtype=torch.float64)
    assert _slope(values, expected, expectile) == pytest.approx(0.0, abs=1e-6)
    assert _slope(values, expected - 0.01, expectile) < 0 < _slope(values, expected + 0.01, expectile)


@pytest.mark.parametrize(
    ("advantages", "beta", "max_weight", "expected"),
    [
        # exp(0), exp(3), and exp(6) = 403.4 cut at 100.
        ([0.0, 1.0, 2.0], 3.0, 100.0, [1.0, 20.085537, 100.0]),
        ([0.0, 1.0, 2.0], 3.0, 5.0, [1.0, 5.0, 5.0]),
        # beta is an inverse temperature: exp(-0.5) and exp(0.5).
        ([-1.0, 1.0], 0.5, 100.0, [0.606531, 1.648721]),
        # Without it, all actions count the same.
        ([-5.0, 0.0, 5.0], 0.0, 100.0, [1.0, 1.0, 1.0]),
        # An exponential that overflows is cut like any other.
        ([1e4, 0.0], 3.0, 100.0, [100.0, 1.0]),
    ],
)
def test_weights_of_given_advantages(
    advantages: list[float], beta: float, max_weight: float, expected: list[float]
) -> None:
    assert _weights(advantages, beta, max_weight) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("huber_delta", [None, 0.5])
def test_the_critic_target_is_the_value_of_the_next_state_unless_the_task_ended(huber_delta: float | None) -> None:
    algorithm = distinct(build("iql", gamma=0.5, huber_delta=huber_delta))
    batch = batches(1, size=6)[0]
    batch["dones"] = torch.tensor([0.0, 1.0] * 3, dtype=torch.float64)
    metrics = algorithm.losses(batch)
    with torch.no_grad():
        target = batch["rewards"] + torch.tensor([0.5, 0.0] * 3) * algorithm.model.value(batch["next_obs"])
        errors = (algorithm.model.critic(batch["obs"], batch["actions"]) - target).abs()
    torch.testing.assert_close(metrics["target_q_mean"], target.mean())
    # Half of the square up to delta, and the tangent from there on: delta (x - delta / 2).
    losses = errors**2 if huber_delta is None else torch.where(errors < 0.5, errors**2 / 2, 0.5 * (errors - 0.25))
    torch.testing.assert_close(metrics["critic_loss"], losses[0].mean() + losses[1].mean())


def test_a_deterministic_policy_is_regressed_on_the_actions() -> None:
    algorithm = distinct(build("iql", policy="deterministic"))
    batch = batches(1)[0]
    metrics = algorithm.losses(batch)
    with torch.no_grad():
        advantages = torch.minimum(*algorithm.target.critic(batch["obs"], batch["actions"])) - algorithm.model.value(
            batch["obs"]
        )
        # The sum over dimensions, not their mean.
        distances = (algorithm.model.actor.mlp(batch["obs"]).tanh() - batch["actions"]).square().sum(-1)
        expected = ((3 * advantages).exp().clamp_max(100.0) * distances).mean()
    torch.testing.assert_close(metrics["actor_loss"], expected)
    assert "log_std_mean" not in metrics
    assert torch.equal(algorithm.act(batch["obs"]), algorithm.act(batch["obs"], deterministic=False))


def test_the_mean_is_squashed_and_the_density_is_not_corrected_for_it() -> None:
    algorithm: Any = build("iql")
    with torch.no_grad():
        algorithm.model.actor.mlp.layers[-1].weight.zero_()
        algorithm.model.actor.mlp.layers[-1].bias.fill_(math.atanh(0.25))
    batch = batches(1)[0]
    batch["actions"] = torch.full_like(batch["actions"], 0.75)
    # Three dimensions of deviation 1 and error 0.5: 0.125 + 0.5 ln(2 pi) = 1.043939 each.
    assert float(algorithm.losses(batch)["log_prob_data"]) == pytest.approx(-3 * 1.0439385, abs=1e-6)
    assert algorithm.act(batch["obs"])[0].tolist() == pytest.approx([0.25] * 3)


@pytest.mark.parametrize("policy", ["stochastic", "deterministic"])
def test_dropout_acts_on_the_actors_training_and_nowhere_else(policy: str) -> None:
    batch = batches(1)[0]
    metrics = []
    for seed in (1, 2):
        algorithm = build("iql", policy=policy, actor_dropout=0.5)
        # Dropout has no parameters, so without it the same networks act the same, and do so every time.
        plain = build("iql", policy=policy).act(batch["obs"])
        assert torch.equal(algorithm.act(batch["obs"]), plain)
        torch.manual_seed(seed)
        metrics.append(algorithm.update(batch).metrics)
    first, second = metrics
    assert abs(float(first["actor_loss"] - second["actor_loss"])) > 1e-3
    for name in ("value_loss", "critic_loss", "advantage_mean", "target_q_mean"):
        assert torch.equal(first[name], second[name])


def test_dropout_follows_every_hidden_activation_and_keeps_their_mean() -> None:
    algorithm: Any = build("iql", actor_dropout=0.25, actor_hidden_sizes=(1000, 1000))
    seen: list[Tensor] = []
    for layer in algorithm.model.actor.mlp.layers[1:]:
        layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    torch.manual_seed(1)
    obs = torch.ones(1, 5, dtype=torch.float64)
    with torch.no_grad():
        algorithm.model.actor(obs, training=True)
        first = algorithm.model.actor.mlp.layers[0](obs).relu()
    # Units that are kept are divided by the share that is kept, so that their mean stays what it was.
    kept = seen[0] != 0
    torch.testing.assert_close(seen[0][kept], first[kept] / 0.75)
    for inputs, active in ((seen[0], first != 0), (seen[1], algorithm.model.actor.mlp.layers[1](seen[0]) > 0)):
        share = float((inputs[active] != 0).double().mean())
        # About 500 units are active: a deviation of sqrt(0.25 * 0.75 / 500) = 0.02.
        assert share == pytest.approx(0.75, abs=0.08)
