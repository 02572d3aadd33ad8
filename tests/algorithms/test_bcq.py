"""BCQ's formulas on numbers that can be checked by hand, its networks, and how it chooses an action."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peers import ACTION_DIM, OBS_DIM, batches, build, normal, shake

from rl_training.algorithms.base.losses import behavior_objective, soft_clipped_max
from rl_training.models import BehaviorVAE, PerturbationActor

ROWS = 8


def _build(**hyper: Any) -> Any:
    return build("bcq", **{"vae_hidden_sizes": (16, 16), "num_action_samples": 10, **hyper})


@pytest.mark.parametrize(
    ("mean", "log_std", "expected"),
    [
        (0.0, 0.0, 0.0),
        # A mean of 1: half of its square, since -0.5 * (1 + 0 - 1 - 1) = 0.5.
        (1.0, 0.0, 0.5),
        # A deviation of e: ln e^2 = 2, so -0.5 * (1 + 2 - 0 - e^2).
        (0.0, 1.0, 2.194528),
    ],
)
def test_divergence_of_the_latents_from_a_standard_normal(mean: float, log_std: float, expected: float) -> None:
    actions = torch.zeros(3, 2)
    metrics = behavior_objective(
        reconstructions=actions,
        actions=actions,
        latent_mean=torch.full((3, 4), mean),
        latent_log_std=torch.full((3, 4), log_std),
        vae_kl_weight=0.5,
    )
    assert float(metrics["vae_kl"]) == pytest.approx(expected, abs=1e-6)
    assert float(metrics["vae_loss"]) == pytest.approx(0.5 * expected, abs=1e-6)


@pytest.mark.parametrize(
    ("min_weight", "expected"),
    [
        # 0.75 * 1 + 0.25 * 3
        (0.75, 1.5),
        # The smaller critic alone: clipped double Q-learning.
        (1.0, 1.0),
        (0.0, 3.0),
    ],
)
def test_two_critics_are_mixed_by_weight(min_weight: float, expected: float) -> None:
    for pair in ([1.0, 3.0], [3.0, 1.0]):
        assert float(soft_clipped_max(torch.tensor([pair])[..., None], min_weight)) == pytest.approx(expected)


def test_critics_are_mixed_for_each_sample_before_the_maximum_over_samples() -> None:
    # Sample 1 has critics 4 and 0: 0.75 * 0 + 0.25 * 4 = 1. Sample 2 has 1 and 2: 0.75 * 1 + 0.25 * 2 = 1.25, the
    # larger. With the maximum first, critics 4 and 2 would give 2.5; the largest minimum 1 and the largest maximum 4
    # would give 1.75.
    q_values = torch.tensor([[[4.0], [0.0]], [[1.0], [2.0]]])
    assert soft_clipped_max(q_values, 0.75).tolist() == pytest.approx([1.25])


@pytest.mark.parametrize("phi", [0.05, 0.5])
def test_a_perturbation_is_at_most_phi_and_stays_in_bounds(phi: float) -> None:
    actor = PerturbationActor(OBS_DIM, ACTION_DIM, hidden_sizes=(16, 16), phi=phi).double()
    with torch.no_grad():
        # Weights this large saturate the tanh: the bound is reached.
        for parameter in actor.parameters():
            parameter.mul_(50)
        actions = 2 * torch.rand(500, ACTION_DIM, dtype=torch.float64) - 1
        actions[0], actions[1] = 1.0, -1.0
        moved = actor(normal(500, OBS_DIM), actions)
    assert float((moved - actions).abs().max()) == pytest.approx(phi)
    assert float(moved.abs().max()) == 1.0


def test_a_perturbation_of_at_most_zero_is_the_identity() -> None:
    actor = PerturbationActor(OBS_DIM, ACTION_DIM, hidden_sizes=(16, 16), phi=0.0).double()
    actions = normal(ROWS, ACTION_DIM).tanh()
    assert torch.equal(actor(normal(ROWS, OBS_DIM), actions), actions)


def test_latents_are_clipped_when_actions_are_drawn_but_not_in_training() -> None:
    vae = BehaviorVAE(OBS_DIM, ACTION_DIM, hidden_sizes=(16, 16)).double()
    drawn = vae.draw(normal(100, OBS_DIM), count=10)
    # 38.3 % of standard normal draws lie within 0.5; the others are moved to the bounds.
    assert (float(drawn.min()), float(drawn.max())) == (-0.5, 0.5)
    assert float((drawn.abs() < 0.5).double().mean()) == pytest.approx(0.383, abs=0.03)

    torch.manual_seed(1)
    reconstructed, mean, log_std = vae(normal(100, OBS_DIM), normal(100, ACTION_DIM).tanh())
    torch.manual_seed(1)
    latents = mean + log_std.exp() * torch.randn_like(mean)
    assert float(latents.detach().abs().max()) > 1
    torch.testing.assert_close(reconstructed, vae.decode(normal(100, OBS_DIM), latents))


@pytest.mark.parametrize(("bias", "bound"), [(1e3, 15.0), (-1e3, -4.0)])
def test_log_deviation_of_the_latents_is_bounded(bias: float, bound: float) -> None:
    vae = BehaviorVAE(OBS_DIM, ACTION_DIM, hidden_sizes=(16, 16))
    last: Any = vae.encoder.layers[-1]
    with torch.no_grad():
        last.bias.fill_(bias)
    assert vae(torch.zeros(2, OBS_DIM), torch.zeros(2, ACTION_DIM))[2].unique().tolist() == [bound]


def test_a_sampled_action_comes_from_new_latents() -> None:
    algorithm = _build()
    obs = normal(ROWS, OBS_DIM)
    first, second = (algorithm.act(obs, deterministic=False) for _ in range(2))
    assert not torch.equal(first, second)
    assert not torch.equal(first, algorithm.act(obs))


def test_one_candidate_without_perturbation_is_a_decoded_latent() -> None:
    algorithm = _build(num_action_samples=1, phi=0.0)
    obs, model = normal(ROWS, OBS_DIM), algorithm.model
    assert model.candidates.shape == (1, 1, 2 * ACTION_DIM)
    with torch.no_grad():
        expected = model.vae.decode(obs, model.candidates[0].expand(ROWS, -1))
    torch.testing.assert_close(algorithm.act(obs), expected)


def test_the_actor_raises_the_first_critic_at_a_perturbed_sample() -> None:
    algorithm = _build(phi=0.3)
    batch, vae = batches(1, ROWS)[0], algorithm.model.vae
    torch.manual_seed(2)
    latents = torch.randn(ROWS, 2 * ACTION_DIM, dtype=torch.float64).clamp(-0.5, 0.5)
    samples = vae.decode(batch["obs"], latents)
    actions = algorithm.model.actor(batch["obs"], samples)
    expected = -algorithm.model.critic(batch["obs"], actions)[0].mean()
    torch.manual_seed(2)
    metrics = algorithm.actor_loss(batch)
    torch.testing.assert_close(metrics["actor_loss"], expected)
    torch.testing.assert_close(metrics["perturbation_abs_mean"], (actions - samples).abs().mean())


def test_the_target_is_the_best_perturbed_sample_of_each_row_by_the_lagged_networks() -> None:
    algorithm = _build(num_target_samples=4, gamma=0.5, phi=0.3, min_q_weight=0.6)
    batch = batches(1, ROWS)[0]
    batch["dones"][::3] = 1.0
    shake(algorithm.model.actor, algorithm.model.critic, by=1.0)
    torch.manual_seed(2)
    latents = torch.randn(4, ROWS, 2 * ACTION_DIM, dtype=torch.float64).clamp(-0.5, 0.5)
    targets, best = [], []
    with torch.no_grad():
        for row in range(ROWS):
            obs, values = batch["next_obs"][row : row + 1], []
            for sample in range(4):
                action = algorithm.model.vae.decode(obs, latents[sample, row : row + 1])
                first, second = algorithm.target.critic(obs, algorithm.target.actor(obs, action))[:, 0].tolist()
                values.append(0.6 * min(first, second) + 0.4 * max(first, second))
            best.append(max(values))
            targets.append(float(batch["rewards"][row] + 0.5 * (1 - batch["dones"][row]) * best[-1]))
    torch.manual_seed(2)
    metrics = algorithm.critic_loss(batch)
    assert float(metrics["target_q_mean"]) == pytest.approx(sum(targets) / ROWS)
    assert float(metrics["next_q_max"]) == pytest.approx(max(best))
    q = algorithm.model.critic(batch["obs"], batch["actions"]).detach()
    expected = (q - torch.tensor(targets, dtype=torch.float64)).square().mean(1).sum()
    torch.testing.assert_close(metrics["critic_loss"].detach(), expected)
