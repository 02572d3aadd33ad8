"""BEAR's formulas on numbers that can be checked by hand, its multiplier and warm-up, and how it chooses an action."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from peers import OBS_DIM, batches, build, normal, shake
from torch import Tensor, nn

from rl_training.algorithms import bear
from rl_training.algorithms.bear import Kernel, actor_objective, mmd_distance

ROWS = 8
KERNELS: list[Kernel] = ["laplacian", "gaussian"]


def _build(**hyper: Any) -> Any:
    small = {"vae_hidden_sizes": (16, 16), "num_action_samples": 10, "mmd_warmup_updates": 0}
    return build("bear", **{**small, **hyper})


@pytest.mark.parametrize(
    ("kernel", "behavior", "policy", "expected"),
    [
        # sqrt(1 + 1 - 2 + 1e-6): never 0.
        ("laplacian", [0.3], [0.3], 0.001),
        ("gaussian", [0.3], [0.3], 0.001),
        # sqrt(2 - 2 exp(-1 / 40) + 1e-6): a gap of 1 is its own square.
        ("laplacian", [0.0], [1.0], 0.222219),
        ("gaussian", [0.0], [1.0], 0.222219),
        # sqrt(2 - 2 exp(-2 / 40) + 1e-6) and sqrt(2 - 2 exp(-4 / 40) + 1e-6)
        ("laplacian", [0.0], [2.0], 0.312317),
        ("gaussian", [0.0], [2.0], 0.436264),
        # Two dimensions: 1 + 1 by absolute value and by square.
        ("laplacian", [0.0, 0.0], [1.0, 1.0], 0.312317),
        ("gaussian", [0.0, 0.0], [1.0, 1.0], 0.312317),
        ("laplacian", [0.0, 0.0], [2.0, 0.0], 0.312317),
        ("gaussian", [0.0, 0.0], [2.0, 0.0], 0.436264),
    ],
)
def test_distance_of_two_points(kernel: Kernel, behavior: list[float], policy: list[float], expected: float) -> None:
    left, right = (torch.tensor(point, dtype=torch.float64)[None, None] for point in (behavior, policy))
    assert float(mmd_distance(left, right, kernel=kernel, sigma=20.0)) == pytest.approx(expected, abs=1e-6)


def _objective(value_weight: float = 1.0, *, log_multiplier: Tensor | None = None) -> dict[str, Tensor]:
    log_multiplier = torch.tensor(math.log(2.0)) if log_multiplier is None else log_multiplier
    return actor_objective(
        policy_q_values=torch.tensor([1.0, 3.0]),
        mmd=torch.tensor([0.2, 0.1], requires_grad=True),
        multiplier=log_multiplier.exp(),
        mmd_threshold=0.05,
        value_weight=value_weight,
    )


def test_actor_and_multiplier_objectives_on_two_rows() -> None:
    # Excess 0.15 and 0.05, twice that is 0.3 and 0.1: mean of 0.3 - 1 and 0.1 - 3. The multiplier's is minus the mean
    # of 0.3 and 0.1.
    metrics = _objective()
    assert metrics["actor_loss"].item() == pytest.approx(-1.8)
    assert metrics["lagrange_loss"].item() == pytest.approx(-0.2)
    assert metrics["mmd"].item() == pytest.approx(0.15)
    assert metrics["mmd_multiplier"].item() == pytest.approx(2.0)


def test_without_value_the_actor_only_minimises_the_distance() -> None:
    assert _objective(0.0)["actor_loss"].item() == pytest.approx(0.2)


def test_the_multiplier_climbs_by_itself_times_the_mean_excess() -> None:
    # d (-exp(x) * 0.1) / dx = -2 * 0.1 at exp(x) = 2.
    log_multiplier = torch.tensor(math.log(2.0), requires_grad=True)
    loss = _objective(log_multiplier=log_multiplier)["lagrange_loss"]
    (gradient,) = torch.autograd.grad(loss, log_multiplier)
    assert float(gradient) == pytest.approx(-0.2)


def test_the_actor_sees_a_constant_multiplier_and_the_multiplier_a_constant_distance() -> None:
    log_multiplier = torch.tensor(0.0, requires_grad=True)
    mmd = torch.tensor([0.2, 0.1], requires_grad=True)
    metrics = actor_objective(
        policy_q_values=torch.zeros(2), mmd=mmd, multiplier=log_multiplier.exp(), mmd_threshold=0.05
    )
    (of_actor,) = torch.autograd.grad(metrics["actor_loss"], log_multiplier, allow_unused=True, retain_graph=True)
    (of_multiplier,) = torch.autograd.grad(metrics["lagrange_loss"], mmd, allow_unused=True)
    assert of_actor is None
    assert of_multiplier is None


@pytest.mark.parametrize(("mmd", "bound"), [(0.2, 10.0), (0.01, -5.0)])
def test_the_logarithm_of_the_multiplier_stops_at_its_bound(
    mmd: float, bound: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fix_distance(mmd, monkeypatch)
    algorithm = _build(lagrange_learning_rate=4.0)
    values = []
    for batch in batches(6):
        algorithm.update(batch)
        values.append(algorithm.model.lagrange.log_value.item())
    assert abs(values[0]) == pytest.approx(4.0)
    assert values[-1] == bound
    assert all(-5.0 <= value <= 10.0 for value in values)


@pytest.mark.parametrize("warmup", [0, 2])
def test_the_value_enters_the_actor_loss_right_after_the_warm_up(warmup: int) -> None:
    algorithm = _build(mmd_warmup_updates=warmup)
    _set_values(algorithm, 100.0)
    for number, batch in enumerate(batches(4), start=1):
        metrics = algorithm.update(batch).metrics
        value = metrics["mmd_multiplier"] * (metrics["mmd"] - 0.05) - metrics["actor_loss"]
        assert float(metrics["warmup"]) == (number <= warmup)
        assert float(value) == pytest.approx(0.0 if number <= warmup else 100.0, rel=0.05, abs=1e-12)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("policy_value", ["first", "mean"])
def test_the_actor_loss_takes_distances_before_the_tanh_and_values_after_it(kernel: Kernel, policy_value: str) -> None:
    algorithm = _build(mmd_kernel=kernel, mmd_sigma=2.0, num_mmd_samples=3, policy_value=policy_value)
    algorithm.update(batches(1)[0])
    shake(algorithm.model.actor, algorithm.model.critic, algorithm.model.lagrange)
    obs, vae = batches(1, ROWS)[0]["obs"], algorithm.model.vae
    torch.manual_seed(2)
    behavior = vae.decode_raw(obs, vae.draw(obs, count=3))
    policy = algorithm.model.actor.sample_raw(obs, count=3)
    distance = mmd_distance(behavior, policy, kernel=kernel, sigma=2.0)
    values = torch.stack([algorithm.model.critic(obs, sample.tanh()) for sample in policy])
    # The smaller critic is chosen after the mean over samples.
    value = torch.minimum(*(values[0] if policy_value == "first" else values.mean(0)))
    torch.manual_seed(2)
    metrics = algorithm.actor_loss({"obs": obs})
    torch.testing.assert_close(metrics["mmd"], distance.mean())
    expected = (algorithm.model.lagrange() * (distance - 0.05) - value).mean()
    torch.testing.assert_close(metrics["actor_loss"], expected)
    torch.testing.assert_close(metrics["action_divergence_raw"], (behavior - policy).mean(0).square().mean())


@pytest.mark.parametrize("target_policy", ["current", "lagged"])
def test_the_target_is_the_best_of_the_policys_samples_in_each_row(target_policy: str) -> None:
    algorithm = _build(target_policy=target_policy, num_target_samples=4, gamma=0.5, min_q_weight=0.6)
    batch = batches(1, ROWS)[0]
    batch["dones"][::3] = 1.0
    shake(algorithm.model.actor, algorithm.model.critic)
    actor = algorithm.model.actor if target_policy == "current" else algorithm.target.actor
    torch.manual_seed(2)
    targets = []
    with torch.no_grad():
        samples = actor.sample_raw(batch["next_obs"], count=4).tanh()
        for row in range(ROWS):
            obs, values = batch["next_obs"][row : row + 1], []
            for sample in range(4):
                first, second = algorithm.target.critic(obs, samples[sample, row : row + 1])[:, 0].tolist()
                values.append(0.6 * min(first, second) + 0.4 * max(first, second))
            targets.append(float(batch["rewards"][row] + 0.5 * (1 - batch["dones"][row]) * max(values)))
        q = algorithm.model.critic(batch["obs"], batch["actions"])
    torch.manual_seed(2)
    metrics = algorithm.critic_loss(batch)
    assert float(metrics["target_q_mean"]) == pytest.approx(sum(targets) / ROWS)
    expected = (q - torch.tensor(targets, dtype=torch.float64)).square().mean(1).sum()
    torch.testing.assert_close(metrics["critic_loss"].detach(), expected)


def test_a_lagged_actor_is_kept_and_moved_only_where_the_target_asks_for_it() -> None:
    assert not hasattr(_build().target, "actor")
    algorithm = _build(target_policy="lagged", tau=0.25)
    start = nn.utils.parameters_to_vector(algorithm.target.actor.parameters())
    algorithm.update(batches(1)[0])
    online, lagged = (
        nn.utils.parameters_to_vector(part.actor.parameters()) for part in (algorithm.model, algorithm.target)
    )
    torch.testing.assert_close(lagged, 0.25 * online + 0.75 * start)


def test_a_sampled_action_comes_from_new_noise() -> None:
    algorithm = _build()
    obs = normal(ROWS, OBS_DIM)
    first, second = (algorithm.act(obs, deterministic=False) for _ in range(2))
    assert not torch.equal(first, second)
    assert not torch.equal(first, algorithm.act(obs))


def _fix_distance(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def constant(behavior: Tensor, policy: Tensor, **_: object) -> Tensor:
        return torch.full(policy.shape[1:2], value, dtype=policy.dtype)

    monkeypatch.setattr(bear, "mmd_distance", constant)


def _set_values(algorithm: Any, value: float) -> None:
    """Make both critics and their lagged copies say almost this everywhere."""
    with torch.no_grad():
        for critic in (algorithm.model.critic, algorithm.target.critic):
            critic.mlp.layers[-1].bias.fill_(value)
