"""BEAR's formulas on numbers that can be checked by hand, its multiplier and warm-up, and how it chooses an action."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from peers import ACTION_DIM, OBS_DIM, assert_uniform, batches, build, normal, shake
from torch import Tensor, nn

from rl_training.algorithms import bear
from rl_training.algorithms.bear import Kernel, actor_objective, bear_loss, mmd_distance
from rl_training.models import MLPBEARModel

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


@pytest.mark.parametrize("kernel", KERNELS)
def test_distance_is_over_all_pairs_of_a_state_and_of_no_other(kernel: Kernel) -> None:
    behavior, policy = normal(4, ROWS, ACTION_DIM), normal(4, ROWS, ACTION_DIM, seed=1)

    def mean_kernel(left: Tensor, right: Tensor) -> float:
        power = 1 if kernel == "laplacian" else 2
        values = [math.exp(-float(((x - y).abs() ** power).sum()) / (2 * 3.0)) for x in left for y in right]
        return sum(values) / 16

    expected = []
    for row in range(ROWS):
        x, y = behavior[:, row], policy[:, row]
        expected.append(math.sqrt(mean_kernel(x, x) + mean_kernel(y, y) - 2 * mean_kernel(x, y) + 1e-6))
    assert mmd_distance(behavior, policy, kernel=kernel, sigma=3.0).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("kernel", KERNELS)
def test_distance_is_symmetric(kernel: Kernel) -> None:
    left, right = normal(4, ROWS, ACTION_DIM), normal(4, ROWS, ACTION_DIM, seed=1)
    there, back = (mmd_distance(*pair, kernel=kernel, sigma=20.0) for pair in ((left, right), (right, left)))
    torch.testing.assert_close(there, back)


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


def test_the_whole_objective_has_its_four_parts() -> None:
    # Reconstruction 0.125 and divergence 0.5 with weight 0.5; critics' mean squares 5 and 2; actor and multiplier as
    # above.
    metrics = bear_loss(
        reconstructions=torch.tensor([[0.5], [0.0]]),
        actions=torch.zeros(2, 1),
        latent_mean=torch.ones(2, 2),
        latent_log_std=torch.zeros(2, 2),
        q_values=torch.tensor([[1.0, 4.0], [0.0, 3.0]]),
        target_q_values=torch.tensor([0.0, 1.0]),
        policy_q_values=torch.tensor([1.0, 3.0]),
        mmd=torch.tensor([0.2, 0.1]),
        multiplier=torch.tensor(2.0),
    )
    assert float(metrics["vae_loss"]) == pytest.approx(0.375)
    assert float(metrics["critic_loss"]) == pytest.approx(7.0)
    assert float(metrics["actor_loss"]) == pytest.approx(-1.8)
    assert float(metrics["lagrange_loss"]) == pytest.approx(-0.2)


@pytest.mark.parametrize(("mmd", "direction"), [(0.2, 1), (0.01, -1)])
def test_the_multiplier_rises_above_the_threshold_and_falls_below_it(
    mmd: float, direction: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fix_distance(mmd, monkeypatch)
    algorithm = _build()
    algorithm.update(batches(1)[0])
    # Adam's first step is the step size, whatever the gradient.
    assert algorithm.model.lagrange.log_value.item() == pytest.approx(direction * 1e-3, rel=1e-5)


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


def test_the_actor_moves_as_if_there_were_no_critic_during_the_warm_up() -> None:
    moved = []
    for scale in (1.0, -3.0):
        algorithm = _build(mmd_warmup_updates=1)
        with torch.no_grad():
            for parameter in algorithm.model.critic.parameters():
                parameter.mul_(scale)
        torch.manual_seed(0)
        for batch in batches(2):
            algorithm.update(batch)
            moved.append(nn.utils.parameters_to_vector(algorithm.model.actor.parameters()))
    assert torch.equal(moved[0], moved[2])
    assert not torch.equal(moved[1], moved[3])


def test_a_loaded_algorithm_does_not_warm_up_again() -> None:
    algorithm, loaded = _build(mmd_warmup_updates=2), _build(mmd_warmup_updates=2)
    for batch in batches(3):
        algorithm.update(batch)
    loaded.load_state_dict(algorithm.state_dict())
    assert float(loaded.update(batches(1)[0]).metrics["warmup"]) == 0.0


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


def test_the_samples_of_a_state_differ() -> None:
    algorithm = _build()
    obs = normal(1, OBS_DIM)
    for samples in (algorithm.model.actor.sample_raw(obs, count=5), algorithm.model.vae.draw(obs, count=5)):
        assert len(samples.unique(dim=0)) == 5


def test_the_chosen_action_is_the_best_candidate_by_the_first_critic() -> None:
    algorithm = _build()
    shake(algorithm.model.actor, algorithm.model.critic)
    obs, model = normal(ROWS, OBS_DIM), algorithm.model
    chosen, by_second = algorithm.act(obs), []
    with torch.no_grad():
        for row in range(ROWS):
            state = obs[row : row + 1]
            mean, log_std = model.actor(state)
            actions = [(mean + log_std.exp() * noise).tanh() for noise in model.candidates]
            first, second = np.transpose([model.critic(state, action)[:, 0].tolist() for action in actions])
            torch.testing.assert_close(chosen[row], actions[first.argmax()][0])
            by_second.append(second.argmax() != first.argmax())
    # The critics disagree about some states, so the first critic has decided.
    assert any(by_second)


def test_a_sampled_action_comes_from_new_noise() -> None:
    algorithm = _build()
    obs = normal(ROWS, OBS_DIM)
    first, second = (algorithm.act(obs, deterministic=False) for _ in range(2))
    assert not torch.equal(first, second)
    assert not torch.equal(first, algorithm.act(obs))


@pytest.mark.parametrize(("bias", "bound"), [(1e3, 2.0), (-1e3, -5.0)])
def test_log_deviation_of_the_policy_is_bounded(bias: float, bound: float) -> None:
    algorithm = _build()
    with torch.no_grad():
        algorithm.model.actor.mlp.layers[-1].bias.fill_(bias)
    assert algorithm.model.actor(normal(2, OBS_DIM))[1].unique().tolist() == [bound]


def test_networks_have_the_published_shapes_and_start_values() -> None:
    torch.manual_seed(0)
    model: Any = MLPBEARModel(obs_dim=OBS_DIM, action_dim=ACTION_DIM)
    latents, both = 2 * ACTION_DIM, OBS_DIM + ACTION_DIM
    actor = [(layer.weight, layer.bias) for layer in model.actor.mlp.layers]
    assert [weight.shape for weight, _ in actor] == [(256, OBS_DIM), (256, 256), (2 * ACTION_DIM, 256)]
    critic = [(layer.weight, layer.bias) for layer in model.critic.mlp.layers]
    assert [weight.shape for weight, _ in critic] == [(2, both, 256), (2, 256, 256), (2, 256, 1)]
    for layers, fans, bound in ((actor, (OBS_DIM, 256), 1e-3), (critic, (both, 256), 3e-3)):
        for (weight, bias), fan_in in zip(layers[:-1], fans, strict=True):
            assert_uniform(weight, 1 / math.sqrt(fan_in))
            assert bias.unique().tolist() == pytest.approx([0.1])
        for numbers in layers[-1]:
            assert_uniform(numbers, bound)
    for part, sizes in (
        (model.vae.encoder, [both, 750, 750, 2 * latents]),
        (model.vae.decoder, [OBS_DIM + latents, 750, 750, ACTION_DIM]),
    ):
        assert [part.layers[0].in_features, *(layer.out_features for layer in part.layers)] == sizes
        for layer in part.layers:
            for numbers in (layer.weight, layer.bias):
                assert_uniform(numbers, 1 / math.sqrt(layer.in_features))
    assert model.lagrange().item() == 1.0
    assert model.candidates.shape == (100, 1, ACTION_DIM)


def _fix_distance(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def constant(behavior: Tensor, policy: Tensor, **_: object) -> Tensor:
        return torch.full(policy.shape[1:2], value, dtype=policy.dtype)

    monkeypatch.setattr(bear, "mmd_distance", constant)


def _set_values(algorithm: Any, value: float) -> None:
    """Make both critics and their lagged copies say almost this everywhere."""
    with torch.no_grad():
        for critic in (algorithm.model.critic, algorithm.target.critic):
            critic.mlp.layers[-1].bias.fill_(value)
