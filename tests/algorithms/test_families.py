"""Families of algorithms: actors and critics, imitation weighted by advantages, and the best of candidate actions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from peers import OBS_DIM, SPACES, batches, build, distinct, fix_critics, normal, reached, row
from torch import Tensor, nn

from rl_training.acting import Policy
from rl_training.algorithms import awac, crr, iql
from rl_training.config import TrainConfig
from rl_training.models import gaussian_log_prob
from rl_training.runtime import load_policy, train

MakeConfig = Callable[..., TrainConfig]
UNIFORM = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 10_000 - 1
"""Actions that fill [-1, 1] evenly."""


def _objective(name: str, q: Tensor, baseline: Tensor, log_probs: Tensor, beta: float, **hyper: Any) -> Tensor:
    """The actor's loss for values of logged actions over a baseline; `beta` divides the advantage."""
    if name == "iql":
        metrics = iql.actor_objective(
            values=baseline, target_q_values=q, log_probs=log_probs, **{"beta": 1 / beta, "max_weight": 100.0, **hyper}
        )
    elif name == "awac":
        options: dict[str, Any] = {"weights": "exp", "max_weight": 100.0, "awac_lambda": beta, **hyper}
        metrics = awac.actor_objective(data_q_values=q, policy_q_values=baseline, log_probs=log_probs, **options)
    else:
        options = {"weights": "exp", "advantage": "mean", "max_weight": 20.0, "beta": beta, **hyper}
        metrics = crr.actor_objective(data_q_values=q, policy_q_values=baseline[None], log_probs=log_probs, **options)
    return metrics["actor_loss"]


KINDS: list[tuple[str, dict[str, Any]]] = [("awac", {}), ("awac", {"weights": "softmax"}), ("crr", {}), ("iql", {})]


@pytest.mark.parametrize(
    ("beta", "expected"), [(1.0, 0.244434), (1 / 3, 0.413729), (0.1, 0.492584), (1 / 30, 0.499972)]
)
@pytest.mark.parametrize(("name", "hyper"), KINDS)
def test_the_best_mean_for_a_quadratic_reward_is_the_weighted_mean(
    name: str, hyper: dict[str, Any], beta: float, expected: float
) -> None:
    # Actions uniform on [-1, 1] worth -(a - 0.5)^2: the mean of a density proportional to exp(-(a - 0.5)^2 / beta), a
    # normal around 0.5 of variance beta / 2 cut at -1 and 1. For beta = 1 its bounds are low = -1.5 sqrt(2) and
    # high = 0.5 sqrt(2), and 0.5 + sqrt(0.5) (phi(low) - phi(high)) / (Phi(high) - Phi(low)) = 0.244434.
    mean = torch.tensor(expected, dtype=torch.float64, requires_grad=True)
    log_probs = -0.5 * (UNIFORM - mean).square()
    loss = _objective(name, -(UNIFORM - 0.5).square(), torch.zeros_like(UNIFORM), log_probs, beta, **hyper)
    (slope,) = torch.autograd.grad(loss, mean)
    assert float(slope) == pytest.approx(0.0, abs=2e-6)


@pytest.mark.parametrize(("name", "hyper"), [*KINDS, ("crr", {"weights": "binary"}), ("crr", {"weights": "constant"})])
def test_weights_carry_no_gradient(name: str, hyper: dict[str, Any]) -> None:
    q, baseline, log_probs = (torch.ones(3, requires_grad=True) for _ in range(3))
    loss = _objective(name, q, baseline, log_probs, 1.0, **hyper)
    assert not any(torch.is_tensor(slope) for slope in torch.autograd.grad(loss, [q, baseline], allow_unused=True))


@pytest.mark.parametrize(
    ("name", "hyper", "is_constant"),
    [("awac", {}, True), ("crr", {"weights": "constant"}, False), ("iql", {"beta": 0.0}, False)],
)
def test_without_a_preference_the_actor_clones(name: str, hyper: dict[str, Any], is_constant: bool) -> None:
    algorithm = distinct(build(name, **hyper))
    if is_constant:
        nn.init.zeros_(algorithm.model.critic.mlp.layers[-1].weight)
    batch = batches(1)[0]
    mean, log_std = algorithm.model.actor(batch["obs"])
    nll = -gaussian_log_prob(batch["actions"], mean, log_std).mean()
    torch.testing.assert_close(algorithm.actor_loss(batch)["actor_loss"], nll)


CHILDREN = {"awac": ("critic", "actor"), "crr": ("critic", "actor"), "iql": ("value", "actor", "critic")}
CHILDREN |= {"xql": ("value", "actor", "critic")}


@pytest.mark.parametrize("name", CHILDREN)
def test_a_loss_reaches_its_own_network_alone(name: str) -> None:
    algorithm, batch = build(name), batches(1)[0]
    for child in CHILDREN[name]:
        loss = getattr(algorithm, "joint_loss" if name == "crr" else f"{child}_loss")(batch)[f"{child}_loss"]
        assert reached(loss, algorithm.model) == {child}


@pytest.mark.parametrize(
    ("name", "spread", "parameter", "expected"),
    [
        *[(name, "clipped", 0.0, 0.0) for name in ("awac", "iql")],
        ("awac", "clipped", 3.0, 2.0),
        ("awac", "clipped", -30.0, -20.0),
        ("iql", "clipped", 3.0, 2.0),
        ("iql", "clipped", -30.0, -5.0),
        # -6 + 6 sigmoid(p): half of the range at 0, and never out of it.
        ("awac", "sigmoid", 0.0, -3.0),
        ("awac", "sigmoid", math.log(3), -1.5),
        ("awac", "sigmoid", 100.0, 0.0),
        ("awac", "sigmoid", -100.0, -6.0),
        # -5 + 7 sigmoid(p).
        ("iql", "sigmoid", 0.0, -1.5),
        ("iql", "sigmoid", math.log(3), 0.25),
        ("iql", "sigmoid", 100.0, 2.0),
        ("iql", "sigmoid", -100.0, -5.0),
    ],
)
def test_the_learned_log_deviation(name: str, spread: str, parameter: float, expected: float) -> None:
    algorithm: Any = build(name, spread=spread)
    assert torch.equal(algorithm.model.actor.log_std.detach(), torch.zeros(3, dtype=torch.float64))
    nn.init.constant_(algorithm.model.actor.log_std, parameter)
    log_std = algorithm.model.actor(normal(4, OBS_DIM))[1]
    assert log_std.tolist() == pytest.approx([expected] * 3)


def test_a_deterministic_policy_is_the_tanh_of_its_network_and_has_no_noise_of_its_own() -> None:
    algorithm, obs = build("ddpg"), batches(1)[0]["obs"]
    expected = algorithm.model.actor.mlp(obs).tanh().detach()
    for deterministic in (True, False):
        torch.testing.assert_close(algorithm.act(obs, deterministic=deterministic), expected)


@pytest.mark.parametrize("name", ["awac", "crr"])
def test_actions_are_the_squashed_mean_or_samples_within_the_bounds(name: str) -> None:
    algorithm: Any = build(name)
    obs = normal(200, OBS_DIM)
    torch.testing.assert_close(algorithm.act(obs), algorithm.model.actor.mlp(obs)[:, :3].tanh().detach())
    samples = algorithm.act(obs, deterministic=False)
    # At deviations around 1, about a third of the samples would lie outside.
    assert float(samples.abs().max()) == 1.0
    assert not torch.equal(samples, algorithm.act(obs, deterministic=False))


@pytest.mark.parametrize(
    ("made", "values", "bonus"),
    [
        (("ddpg", {}), (8.0,), 0.0),
        (("td3", {}), (10.0, 8.0), 0.0),
        (("td3", {"num_critics": 3}), (8.0, 10.0, 9.0), 0.0),
        # Three standard normals sampled in their middle, where the tanh has slope 1: log-density 3 * -0.918939.
        (("sac", {"alpha": 0.2}), (10.0, 8.0), 0.2 * 2.756816),
    ],
)
@pytest.mark.parametrize(
    ("fields", "gamma"),
    [
        ({}, 0.99),
        ({"truncations": 1.0}, 0.99),
        ({"dones": 1.0}, 0.0),
        ({"dones": 1.0, "truncations": 1.0}, 0.0),
        # A sum over three steps has the discount of its own length.
        ({"discounts": 0.970299}, 0.970299),
    ],
)
def test_a_target_has_the_smallest_lagged_critic_and_stops_at_termination_alone(
    made: tuple[str, dict[str, Any]],
    values: tuple[float, ...],
    bonus: float,
    fields: dict[str, float],
    gamma: float,
) -> None:
    algorithm: Any = build(made[0], **made[1])
    nn.init.zeros_(algorithm.model.actor.mlp.layers[-1].weight)
    nn.init.zeros_(algorithm.model.actor.mlp.layers[-1].bias)
    fix_critics(algorithm.target.critic, *values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "randn_like", torch.zeros_like)
        target = algorithm.losses(row(reward=1.0, **fields))["target_q_mean"]
    assert float(target) == pytest.approx(1 + gamma * (8 + bonus), rel=1e-6)


def _candidates(name: str, **hyper: Any) -> Any:
    return build(name, **{"vae_hidden_sizes": (16, 16), "num_action_samples": 10, **hyper})


@pytest.mark.parametrize("name", ["bcq", "bear"])
def test_the_divergence_counts_by_its_weight_in_the_loss_of_the_behaviour(name: str) -> None:
    metrics = _candidates(name, vae_kl_weight=2.0).vae_loss(batches(1)[0])
    assert metrics["vae_kl"].item() > 0
    torch.testing.assert_close(metrics["vae_loss"], metrics["vae_reconstruction"] + 2 * metrics["vae_kl"])


@pytest.mark.parametrize(("name", "losses"), [("bcq", ["actor_loss"]), ("bear", ["actor_loss", "lagrange_loss"])])
def test_the_actor_loss_does_not_reach_the_model_of_the_behaviour(name: str, losses: list[str]) -> None:
    algorithm = _candidates(name)
    metrics = algorithm.actor_loss(batches(1)[0])
    assert not any("vae" in reached(metrics[loss], algorithm.model) for loss in losses)


@pytest.mark.parametrize("name", ["bcq", "bear"])
def test_an_observation_gets_the_same_action_again_alone_and_in_a_batch(name: str) -> None:
    algorithm = _candidates(name)
    obs = normal(8, OBS_DIM)
    actions = algorithm.act(obs)
    assert torch.equal(algorithm.act(obs), actions)
    alone = torch.cat([algorithm.act(row[None]) for row in obs])
    torch.testing.assert_close(alone, actions)
    torch.testing.assert_close(Policy.of(algorithm, SPACES)(obs), actions)


@pytest.mark.parametrize("name", ["bcq", "bear"])
def test_predictions_of_a_trained_run_agree_alone_and_in_a_batch(name: str, tiny_config: MakeConfig) -> None:
    config = tiny_config(name, "algo_kwargs.vae_hidden_sizes=[8, 8]", "algo_kwargs.num_action_samples=10")
    path = train(config).checkpoint_path
    obs = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    actions = load_policy(path).predict(obs)
    # Loaded a second time, as another process would.
    again = load_policy(path)
    assert again.predict(obs).tolist() == actions.tolist()
    assert np.stack([again.predict(row) for row in obs]) == pytest.approx(actions, abs=1e-5)
