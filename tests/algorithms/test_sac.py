"""SAC's formulas and order of updates on numbers that can be checked by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from peers import (
    ACTION_DIM,
    assert_first_moments,
    batches,
    build,
    critic_layers,
    fix_actor,
    fix_critics,
    row,
    snapshot,
    unmoved,
)
from torch import Tensor
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from rl_training.algorithms.base.losses import temperature_objective
from rl_training.algorithms.sac import sac_loss
from rl_training.models import MLPSACModel

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


def test_log_densities_of_samples_agree_with_torch(monkeypatch: Patch) -> None:
    torch.manual_seed(0)
    model: Any = MLPSACModel(obs_dim=4, action_dim=3, hidden_sizes=(8,)).double()
    obs, raw = torch.randn(200, 4).double(), 10 * torch.rand(200, 3).double() - 5
    mean, log_std = model.actor(obs)
    monkeypatch.setattr(torch, "randn_like", lambda like: (raw - mean) / log_std.exp())
    actions, log_probs = model.actor.sample(obs)
    # Remembers what it squashed, as log-densities at |u| = 5 have to be exact.
    squash: Any = TanhTransform(cache_size=1)
    peer: Any = TransformedDistribution(Normal(mean, log_std.exp()), squash)
    squashed = squash(raw)
    torch.testing.assert_close(actions, squashed)
    torch.testing.assert_close(log_probs, peer.log_prob(squashed).sum(-1), rtol=0, atol=1e-8)


def test_the_whole_objective_on_two_rows() -> None:
    # Critics: errors (1, 3) and (0, 2) against (0, 1), mean squares 5 + 2, of which half: 3.5.
    # Actor: temperature e^0.5 times the mean of (-1, 3), 1, minus the mean of the smaller critics (1, -2), -0.5.
    # Temperature: minus its logarithm times the mean of (-1, 3) - 3, which is -2: 1.
    metrics = sac_loss(
        q_values=torch.tensor([[1.0, 4.0], [0.0, 3.0]]),
        target_q_values=torch.tensor([0.0, 1.0]),
        policy_q_values=torch.tensor([[1.0, 4.0], [2.0, -2.0]]),
        policy_log_probs=torch.tensor([-1.0, 3.0]),
        log_temperature=torch.tensor(0.5),
        target_entropy=-3.0,
    )
    assert float(metrics["critic_loss"]) == pytest.approx(3.5)
    assert float(metrics["actor_loss"]) == pytest.approx(math.exp(0.5) + 0.5)
    assert float(metrics["temperature_loss"]) == pytest.approx(1.0)
    assert float(metrics["temperature"]) == pytest.approx(math.exp(0.5))
    assert float(metrics["entropy"]) == pytest.approx(-1.0)
    assert float(metrics["q_mean"]) == pytest.approx(2.0)
    assert float(metrics["target_q_mean"]) == pytest.approx(0.5)


def test_each_part_of_the_objective_has_its_own_gradient() -> None:
    # Actor: temperature e^0.5 over 2 rows for each log-density, and -1 / 2 for the smaller critic of each row.
    q = torch.tensor([[1.0, 4.0], [2.0, -2.0]], requires_grad=True)
    log_probs, log_temperature = torch.tensor([-1.0, 3.0], requires_grad=True), torch.tensor(0.5, requires_grad=True)
    metrics = sac_loss(
        q_values=torch.zeros(2, 2),
        target_q_values=torch.zeros(2),
        policy_q_values=q,
        policy_log_probs=log_probs,
        log_temperature=log_temperature,
        target_entropy=-3.0,
    )
    inputs = [q, log_probs, log_temperature]
    on_q, on_log_probs, on_temperature = torch.autograd.grad(
        metrics["actor_loss"], inputs, allow_unused=True, retain_graph=True
    )
    assert on_q.tolist() == [[-0.5, 0.0], [0.0, -0.5]]
    assert on_log_probs.tolist() == pytest.approx([math.exp(0.5) / 2] * 2)
    assert on_temperature is None
    gradients = torch.autograd.grad(metrics["temperature_loss"], inputs, allow_unused=True)
    assert gradients[:2] == (None, None)
    # -(mean log-density + target entropy) = -(1 - 3).
    assert float(gradients[2]) == pytest.approx(2.0)


@pytest.mark.parametrize(("log_prob", "gradient"), [(-1.0, 4.0), (5.0, -2.0)])
def test_the_temperature_falls_where_the_entropy_is_above_its_target(log_prob: float, gradient: float) -> None:
    # -(log-density + target entropy): -(-1 - 3) = 4 where the entropy is 1, -(5 - 3) = -2 where it is -5. A step goes
    # against the gradient.
    log_temperature = torch.tensor(0.0, requires_grad=True)
    log_probs = torch.tensor([log_prob - 1, log_prob + 1])
    metrics = temperature_objective(log_temperature=log_temperature, policy_log_probs=log_probs, target_entropy=-3.0)
    (found,) = torch.autograd.grad(metrics["temperature_loss"], log_temperature)
    assert float(found) == pytest.approx(gradient)


@pytest.mark.parametrize(("target_entropy", "step"), [(None, -3e-4), (2.7, -3e-4), (2.8, 3e-4)])
def test_an_update_moves_the_temperature_towards_the_target_entropy(
    monkeypatch: Patch, target_entropy: float | None, step: float
) -> None:
    # Three standard normals sampled in their middle: log-density 3 * -0.918939 = -2.756816, where the tanh has slope 1.
    # That entropy is above minus the dimension and above 2.7, but below 2.8. Adam's first step is its step size.
    algorithm = build("sac", target_entropy=target_entropy)
    fix_actor(algorithm.model.actor, *[0.0] * 6)
    _drawing(monkeypatch, 0.0)
    metrics = algorithm.update(batches(1)[0]).metrics
    assert float(metrics["entropy"]) == pytest.approx(2.756816, abs=1e-6)
    assert float(algorithm.model.temperature.log_value.detach()) == pytest.approx(step, rel=1e-6)


@pytest.mark.parametrize(
    ("terminated", "truncated", "expected"), [(0, 0, 9.465850), (0, 1, 9.465850), (1, 0, 1.0), (1, 1, 1.0)]
)
def test_the_target_has_the_smaller_critic_and_the_entropy_and_stops_at_termination_alone(
    monkeypatch: Patch, terminated: int, truncated: int, expected: float
) -> None:
    # Log-density -2.756816 as above: 1 + 0.99 * (8 + 0.2 * 2.756816) = 9.465850; the entropy ends with the task too.
    algorithm: Any = build("sac", alpha=0.2)
    fix_actor(algorithm.model.actor, *[0.0] * 6)
    fix_critics(algorithm.target.critic, 10.0, 8.0)
    _drawing(monkeypatch, 0.0)
    batch = row(reward=1.0, dones=terminated, truncations=truncated)
    assert algorithm.targets(batch).tolist() == pytest.approx([expected], abs=1e-6)
    assert float(algorithm.losses(batch)["target_q_mean"]) == pytest.approx(expected, abs=1e-6)


def test_a_sum_over_several_steps_has_the_discount_of_its_own_length(monkeypatch: Patch) -> None:
    # Rewards 1, 2 and 3: 5.9203, and 0.99^3 = 0.970299 for what follows, its entropy included:
    # 5.9203 + 0.970299 * (8 + 0.2 * 2.756816) = 14.217680.
    algorithm: Any = build("sac", alpha=0.2, gamma=0.5)
    fix_actor(algorithm.model.actor, *[0.0] * 6)
    fix_critics(algorithm.target.critic, 10.0, 8.0)
    _drawing(monkeypatch, 0.0)
    targets = algorithm.targets(row(reward=5.9203, discounts=0.970299))
    assert targets.tolist() == pytest.approx([14.217680], abs=1e-6)


@pytest.mark.parametrize("values", [(10.0, 8.0), (8.0, 10.0)])
def test_the_actor_is_judged_by_the_smaller_critic(monkeypatch: Patch, values: tuple[float, float]) -> None:
    # 0.2 * -2.756816 - 8 = -8.551363.
    algorithm = build("sac", alpha=0.2)
    fix_actor(algorithm.model.actor, *[0.0] * 6)
    fix_critics(algorithm.model.critic, *values)
    _drawing(monkeypatch, 0.0)
    assert float(algorithm.losses(batches(1)[0])["actor_loss"]) == pytest.approx(-8.551363, abs=1e-6)


def test_losses_are_those_of_samples_at_both_states(monkeypatch: Patch) -> None:
    algorithm: Any = build("sac", gamma=0.5, alpha=0.3)
    # Noise of 1: the sample is one deviation from the mean, and its density that of N(1; 0, 1) over the slope.
    _drawing(monkeypatch, 1.0)
    batch = batches(1)[0]
    metrics = algorithm.losses(batch)

    def sample(obs: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = algorithm.model.actor(obs)
        raw = mean + log_std.exp()
        slope = 1 - raw.tanh().square()
        return raw.tanh(), (-0.5 - 0.5 * math.log(2 * math.pi) - log_std - slope.log()).sum(-1)

    with torch.no_grad():
        next_actions, next_log_probs = sample(batch["next_obs"])
        next_q = torch.minimum(*algorithm.target.critic(batch["next_obs"], next_actions))
        targets = batch["rewards"] + 0.5 * (1 - batch["dones"]) * (next_q - 0.3 * next_log_probs)
        first, second = algorithm.model.critic(batch["obs"], batch["actions"])
        actions, log_probs = sample(batch["obs"])
        policy_q = torch.minimum(*algorithm.model.critic(batch["obs"], actions))
    errors = (first - targets).square().mean() + (second - targets).square().mean()
    torch.testing.assert_close(metrics["critic_loss"], 0.5 * errors)
    torch.testing.assert_close(metrics["actor_loss"], (0.3 * log_probs - policy_q).mean())
    torch.testing.assert_close(metrics["entropy"], -log_probs.mean())
    torch.testing.assert_close(metrics["log_std_mean"], algorithm.model.actor(batch["obs"])[1].mean().detach())


def test_without_temperature_and_deviation_the_critics_learn_what_td3s_learn() -> None:
    # Half of TD3's loss without smoothing. The smallest deviation is e^-20 = 2e-9.
    sac, td3 = build("sac", alpha=0.0), build("td3", policy_noise=0.0)
    last = sac.model.actor.mlp.layers[-1]
    with torch.no_grad():
        last.weight[ACTION_DIM:].zero_()
        last.bias[ACTION_DIM:].fill_(-50.0)
        for mine, other in zip(td3.target.actor.mlp.layers, sac.model.actor.mlp.layers, strict=True):
            mine.weight.copy_(other.weight[: len(mine.weight)])
            mine.bias.copy_(other.bias[: len(mine.bias)])
    for part in ("model", "target"):
        getattr(td3, part).critic.load_state_dict(getattr(sac, part).critic.state_dict())
    batch = batches(1)[0]
    ours, theirs = sac.losses(batch), td3.losses(batch)
    torch.testing.assert_close(ours["target_q_mean"], theirs["target_q_mean"], rtol=1e-7, atol=0)
    torch.testing.assert_close(ours["critic_loss"], 0.5 * theirs["critic_loss"], rtol=1e-7, atol=0)


def test_critics_move_first_then_actor_and_temperature_by_one_sample_at_one_point() -> None:
    # With large steps the order makes a difference. The sample at s is drawn after that at s'.
    algorithm, batch = build("sac", learning_rate=0.05), batches(1)[0]
    copy: Any = build("sac", learning_rate=0.05)
    assert [step.children for step in algorithm.steps] == [("critic",), ("actor", "temperature")]
    torch.manual_seed(7)
    algorithm.update(batch)
    torch.manual_seed(7)
    assert_first_moments(algorithm, "critic", copy.critic_loss(batch)["critic_loss"], copy)
    copy.model.critic.load_state_dict(algorithm.model.critic.state_dict())
    metrics = copy.actor_loss(batch)
    for child in ("actor", "temperature"):
        assert_first_moments(algorithm, child, metrics[f"{child}_loss"], copy)


def test_each_loss_trains_only_what_it_is_for() -> None:
    algorithm: Any = build("sac")
    batch = batches(1)[0]
    actor, critic = list(algorithm.model.actor.parameters()), list(algorithm.model.critic.parameters())
    temperature = [algorithm.model.temperature.log_value]
    critic_loss, metrics = algorithm.critic_loss(batch)["critic_loss"], algorithm.actor_loss(batch)
    for loss, others in (
        (critic_loss, [*actor, *temperature]),
        (metrics["actor_loss"], temperature),
        (metrics["temperature_loss"], [*actor, *critic]),
    ):
        gradients = torch.autograd.grad(loss, others, allow_unused=True, retain_graph=True)
        assert all(gradient is None for gradient in gradients)


def test_the_lagged_critics_follow_on_every_update_and_there_is_no_lagged_actor() -> None:
    algorithm = build("sac", tau=0.1)
    assert [name for name, _ in algorithm.target.named_children()] == ["critic"]
    assert unmoved(snapshot(algorithm.model.critic), algorithm.target.critic)
    for batch in batches(3):
        before = snapshot(algorithm.target.critic)
        algorithm.update(batch)
        pairs = zip(before, algorithm.target.critic.parameters(), algorithm.model.critic.parameters(), strict=True)
        for was, now, source in pairs:
            torch.testing.assert_close(now, (0.9 * was + 0.1 * source).detach())


def test_networks_start_as_torch_starts_them_and_the_temperature_at_one() -> None:
    # Everything is uniform within 1 / sqrt(fan in); mean and log-deviation of 3 actions are 6 outputs.
    torch.manual_seed(0)
    model: Any = MLPSACModel(obs_dim=5, action_dim=3).requires_grad_(False)
    actor = [(layer.weight, layer.bias) for layer in model.actor.mlp.layers]
    networks = ((actor, 5, 6), *((critic_layers(model.critic, member), 8, 1) for member in range(2)))
    for layers, inputs, outputs in networks:
        assert [tuple(weight.shape) for weight, _ in layers] == [(256, inputs), (256, 256), (outputs, 256)]
        for weight, bias in layers:
            bound = 1 / math.sqrt(weight.shape[1])
            assert 0.9 * bound < float(weight.abs().max()) <= bound
            assert 0 < float(bias.abs().max()) <= bound
    assert not torch.equal(model.critic.mlp.layers[0].weight[0], model.critic.mlp.layers[0].weight[1])
    assert float(model.temperature()) == 1.0


@pytest.mark.parametrize(("output", "expected"), [(-50.0, -20.0), (-19.0, -19.0), (1.5, 1.5), (50.0, 2.0)])
def test_the_log_deviation_is_clipped_where_the_authors_clip_it(output: float, expected: float) -> None:
    actor: Any = MLPSACModel(obs_dim=1, action_dim=1, hidden_sizes=(4,)).actor
    fix_actor(actor, 0.0, output)
    assert float(actor(torch.zeros(1, 1))[1].detach()) == pytest.approx(expected)


def test_step_sizes_are_shared_unless_a_child_has_its_own() -> None:
    own = build("sac", critic_learning_rate=1e-3, temperature_learning_rate=2e-3).optimizers
    assert {child: own[child].learning_rate for child in own} == {"critic": 1e-3, "actor": 3e-4, "temperature": 2e-3}


def test_evaluation_takes_the_tanh_of_the_mean_and_exploration_a_sample(monkeypatch: Patch) -> None:
    algorithm, obs = build("sac"), batches(1)[0]["obs"]
    mean, log_std = algorithm.model.actor(obs)
    torch.testing.assert_close(algorithm.act(obs), mean.tanh().detach())
    _drawing(monkeypatch, 1.0)
    drawn = algorithm.act(obs, deterministic=False)
    torch.testing.assert_close(drawn, (mean + log_std.exp()).tanh().detach())
