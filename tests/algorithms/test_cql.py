"""CQL's formulas, options and order of updates on numbers that can be checked by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from peers import ACTION_DIM, batches, build
from torch import Tensor

from rl_training.algorithms.cql import LagrangeForm, conservative_gaps, lagrange_objective
from rl_training.core.batches import Batch

Patch = pytest.MonkeyPatch


def _uniform_gaps(dim: int, samples: int, *, constant: float = 0.0, temperature: float = 1.0) -> Tensor:
    """D of two constant critics under a policy that is uniform over the box, on four rows."""
    return conservative_gaps(
        q_values=torch.full((2, 4), constant),
        sampled_q_values=torch.full((3 * samples, 2, 4), constant),
        log_densities=torch.full((3 * samples, 4), -dim * math.log(2)),
        temperature=temperature,
    )


@pytest.mark.parametrize(
    ("dim", "samples", "temperature", "expected"),
    [
        # logsumexp over 3 N equal values c + d ln 2, minus c: d ln 2 + T ln(3 N), with ln 30 = 3.401197.
        (1, 10, 1.0, 4.094345),
        (2, 10, 1.0, 4.787492),
        (3, 10, 1.0, 5.480639),
        (6, 10, 1.0, 7.560080),
        (2, 1, 1.0, 2 * math.log(2) + math.log(3)),
        (2, 10, 2.0, 2 * math.log(2) + 2 * math.log(30)),
    ],
)
@pytest.mark.parametrize("constant", [-100.0, 0.0, 7.0])
def test_a_constant_critic_under_a_uniform_policy_gives_the_gap_of_counting(
    dim: int, samples: int, temperature: float, expected: float, constant: float
) -> None:
    gaps = _uniform_gaps(dim, samples, constant=constant, temperature=temperature)
    assert gaps.tolist() == pytest.approx([expected, expected], abs=2e-5)


@pytest.mark.parametrize("constant", [-100.0, 0.0, 7.0])
def test_without_importance_sampling_the_logged_action_is_counted_too(constant: float) -> None:
    # 3 N + 1 = 31 equal values: ln 31 = 3.433987.
    gaps = conservative_gaps(
        q_values=torch.full((2, 4), constant),
        sampled_q_values=torch.full((30, 2, 4), constant),
        log_densities=None,
        temperature=1.0,
    )
    assert gaps.tolist() == pytest.approx([3.433987, 3.433987], abs=2e-5)


@pytest.mark.parametrize(("importance_sampled", "expected"), [(True, 5.480639), (False, 3.433987)])
def test_the_algorithm_has_the_same_gaps(monkeypatch: Patch, importance_sampled: bool, expected: float) -> None:
    algorithm = build("cql", importance_sampled=importance_sampled)
    _make_constant(algorithm.model.critic, 7.0)
    _fake_policy(monkeypatch, algorithm, lambda obs: torch.full_like(obs[..., 0], -ACTION_DIM * math.log(2)))
    metrics = algorithm.losses(batches(1)[0])
    assert [float(metrics[f"cql_penalty_{number}"]) for number in (1, 2)] == pytest.approx([expected] * 2, abs=1e-6)


def test_a_row_of_the_penalty_pulls_the_logged_value_up_by_one_and_the_sampled_ones_down_by_one() -> None:
    # B * D = sum over rows of (logsumexp - q): its slope is -1 in each q, and a softmax, which adds up to 1, in the
    # sampled values; so the whole gradient of a row adds up to 0, and a constant added to every value is free.
    q, sampled, log_densities = _random_values()
    gaps = conservative_gaps(q_values=q, sampled_q_values=sampled, log_densities=log_densities, temperature=1.0)
    on_q, on_sampled = torch.autograd.grad(q.shape[-1] * gaps.sum(), [q, sampled])
    torch.testing.assert_close(on_q, torch.full_like(q, -1.0))
    torch.testing.assert_close(on_sampled.sum(0), torch.ones_like(q))
    softmax = (sampled - log_densities[:, None]).softmax(0)
    torch.testing.assert_close(on_sampled, softmax)


def test_without_importance_sampling_the_gradient_of_a_row_adds_up_to_zero_as_well() -> None:
    # The logged value is one of the 3 N + 1 in the softmax, so its own slope is above -1.
    q, sampled, _ = _random_values()
    gaps = conservative_gaps(q_values=q, sampled_q_values=sampled, log_densities=None, temperature=1.0)
    on_q, on_sampled = torch.autograd.grad(q.shape[-1] * gaps.sum(), [q, sampled])
    torch.testing.assert_close(on_q + on_sampled.sum(0), torch.zeros_like(q))
    assert bool((on_q > -1).all())


def test_log_densities_carry_no_gradient() -> None:
    q, sampled, log_densities = _random_values()
    log_densities.requires_grad_()
    gaps = conservative_gaps(q_values=q, sampled_q_values=sampled, log_densities=log_densities, temperature=1.0)
    (gradient,) = torch.autograd.grad(gaps.sum(), log_densities, allow_unused=True)
    assert gradient is None


@pytest.mark.parametrize(
    ("clip_min", "clip_max", "expected"),
    [
        (None, None, 1.0),  # (-3 + 5) / 2, and a negative row stays negative
        (-1.0, None, 2.0),  # (-1 + 5) / 2
        (None, 1.0, -1.0),  # (-3 + 1) / 2
        (-1.0, 1.0, 0.0),
    ],
)
def test_the_penalty_is_clipped_row_by_row(clip_min: float | None, clip_max: float | None, expected: float) -> None:
    # One sample of log-density 0, so the rows differ by sampled - q = -3 and 5.
    gaps = conservative_gaps(
        q_values=torch.tensor([[3.0, 0.0]]),
        sampled_q_values=torch.tensor([[[0.0, 5.0]]]),
        log_densities=torch.zeros(1, 2),
        temperature=1.0,
        clip_min=clip_min,
        clip_max=clip_max,
    )
    assert gaps.tolist() == pytest.approx([expected])


def test_the_algorithm_passes_its_clips_on(monkeypatch: Patch) -> None:
    # Unclipped, a constant critic under a uniform policy has a gap of 5.480639 in every row.
    algorithm = build("cql", penalty_clip_max=2.0)
    _make_constant(algorithm.model.critic, 0.0)
    _fake_policy(monkeypatch, algorithm, lambda obs: torch.full_like(obs[..., 0], -ACTION_DIM * math.log(2)))
    assert float(algorithm.losses(batches(1)[0])["cql_penalty_1"]) == pytest.approx(2.0)
    above = build("cql", penalty_clip_min=1e3)
    assert float(above.losses(batches(1)[0])["cql_penalty_1"]) == pytest.approx(1e3)


def test_actions_of_the_next_state_are_valued_at_this_state_with_densities_of_the_next(monkeypatch: Patch) -> None:
    # A policy whose action is 0.1 * obs[:3] and whose log-density is obs[3], and critics that are linear: then D
    # follows from s and s' alone once the uniform samples are at 0.
    algorithm = build("cql", num_action_samples=4)
    batch = batches(1)[0]
    monkeypatch.setattr(algorithm.model.critic, "forward", _linear_critics)
    _fake_policy(monkeypatch, algorithm, lambda obs: obs[..., 3], lambda obs: 0.1 * obs[..., :3])
    monkeypatch.setattr(torch, "rand_like", lambda like: torch.full_like(like, 0.5))
    obs, next_obs = batch["obs"], batch["next_obs"]
    here = obs[:, 4]
    uniform = here + 3 * math.log(2)
    current = here + 0.2 * obs[:, :3].sum(-1) - obs[:, 3]
    following = here + 0.2 * next_obs[:, :3].sum(-1) - next_obs[:, 3]
    logged = here + 2 * batch["actions"].sum(-1)
    expected = (torch.stack([uniform, current, following] * 4).logsumexp(0) - logged).mean()
    metrics = algorithm.losses(batch)
    for number in (1, 2):
        torch.testing.assert_close(metrics[f"cql_penalty_{number}"], expected)
    # The mean of the critics' values is x + 0.5.
    torch.testing.assert_close(metrics["q_next_pi"], (here + 0.2 * next_obs[:, :3].sum(-1)).mean() + 0.5)
    torch.testing.assert_close(metrics["q_pi"], (here + 0.2 * obs[:, :3].sum(-1)).mean() + 0.5)
    torch.testing.assert_close(metrics["q_rand"], here.mean() + 0.5)


def test_uniform_actions_fill_the_box() -> None:
    algorithm: Any = build("cql", num_action_samples=50)
    torch.manual_seed(0)
    seen: list[Tensor] = []
    algorithm.model.critic.register_forward_pre_hook(lambda module, args: seen.append(args[1]))
    algorithm.critic_loss(batches(1)[0])
    uniform = seen[0][1:51]
    assert seen[0].shape == (151, 32, ACTION_DIM)
    # 4800 draws, uniform over [-1, 1]: deviation 1 / sqrt(3), extremes close to the bounds.
    assert float(uniform.std()) == pytest.approx(1 / math.sqrt(3), abs=0.02)
    assert [float(uniform.min()), float(uniform.max())] == pytest.approx([-1.0, 1.0], abs=0.01)


@pytest.mark.parametrize(
    ("max_backup", "expected"),
    [
        ("max_of_min", 2.0),  # the smaller critic gives (1, 2), the better action 2
        ("min_of_max", 4.0),  # the best by each critic is (5, 4), the smaller of them 4
    ],
)
def test_the_order_of_maximum_and_minimum_in_the_target(monkeypatch: Patch, max_backup: str, expected: float) -> None:
    algorithm = build("cql", num_action_samples=2, max_backup=max_backup, gamma=0.5)
    _fake_target(monkeypatch, algorithm, [[1.0, 5.0], [4.0, 2.0]])
    assert _target_of(algorithm, rewards=10.0) == pytest.approx(10.0 + 0.5 * expected)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 1.0),
        ({"backup_entropy": True}, 1.0 + 0.2 * 3.0),
        ({"max_backup": "max_of_min", "backup_entropy": False}, 2.0),
        # The second of the two samples is the better one, and its log-density is -3 - 1, not -3.
        ({"max_backup": "max_of_min", "backup_entropy": True}, 2.0 + 0.2 * 4.0),
    ],
)
def test_entropy_is_in_the_target_only_if_asked_for_and_is_that_of_the_chosen_action(
    monkeypatch: Patch, options: dict[str, Any], expected: float
) -> None:
    algorithm = build("cql", num_action_samples=2, alpha=0.2, gamma=1.0, **options)
    _fake_target(monkeypatch, algorithm, [[1.0, 5.0], [4.0, 2.0]])

    def sample(obs: Tensor, *, count: int | None = None) -> tuple[Tensor, Tensor]:
        actions = obs[:, :ACTION_DIM] if count is None else obs[:, :ACTION_DIM].expand(count, -1, -1)
        numbers = torch.zeros(1) if count is None else torch.arange(count)[:, None]
        return actions, (-3.0 - numbers).expand(actions.shape[:-1]).double()

    monkeypatch.setattr(algorithm.model.actor, "sample", sample)
    assert _target_of(algorithm, rewards=0.0) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("form", "penalty", "loss"),
    [
        # w D - gap = 5 * 2 - 10 = 0.
        ("weight_inside", 0.0, 0.0),
        # w (D - gap) = 5 * (2 - 10) = -40, for each of the two critics; the multiplier's loss is minus their mean.
        ("weight_outside", -80.0, 40.0),
    ],
)
def test_a_gap_means_what_its_form_says(form: LagrangeForm, penalty: float, loss: float) -> None:
    value, metrics = lagrange_objective(
        gaps=torch.tensor([2.0, 2.0]),
        multiplier=torch.tensor(1.0),
        conservative_weight=5.0,
        conservative_gap=10.0,
        form=form,
    )
    assert float(value) == pytest.approx(penalty)
    assert float(metrics["lagrange_loss"]) == pytest.approx(loss)


def test_the_multiplier_weighs_both_halves_and_stops_at_a_million() -> None:
    # The critics' half: slope multiplier * weight in each gap. The multiplier's: minus the mean excess, here
    # -(5 * (2 - 1) + 5 * (4 - 1)) / 2 = -10; clipped at a million, it has no slope any more.
    gaps = torch.tensor([2.0, 4.0], requires_grad=True)
    for value, on_gaps, on_multiplier in ((3.0, 15.0, -10.0), (2e6, 5e6, 0.0)):
        multiplier = torch.tensor(value, requires_grad=True)
        penalty, metrics = lagrange_objective(
            gaps=gaps, multiplier=multiplier, conservative_weight=5.0, conservative_gap=1.0, form="weight_outside"
        )
        assert torch.autograd.grad(penalty, gaps)[0].tolist() == pytest.approx([on_gaps, on_gaps])
        assert torch.autograd.grad(metrics["lagrange_loss"], multiplier)[0].item() == pytest.approx(on_multiplier)
        assert float(metrics["lagrange"]) == pytest.approx(min(value, 1e6))


def test_without_a_gap_there_is_no_multiplier_to_train() -> None:
    algorithm = build("cql")
    assert _children(algorithm) == ("temperature", "actor", "critic")
    assert _children(build("cql", conservative_gap=5.0)) == ("temperature", "actor", "critic", "lagrange")
    metrics = algorithm.update(batches(1)[0]).metrics
    assert "lagrange" not in metrics
    assert float(metrics["critic_loss"]) == pytest.approx(
        float(metrics["td_loss"] + 10 * (metrics["cql_penalty_1"] + metrics["cql_penalty_2"]))
    )


def test_calibration_needs_the_returns() -> None:
    assert "returns_to_go" not in build("cql").needs
    assert build("cql", calibrated=True).needs == ("obs", "actions", "rewards", "next_obs", "dones", "returns_to_go")


@pytest.mark.parametrize(
    ("target_entropy", "log_prob", "step"),
    [
        # Without a target it is -3. Log-density 4: the entropy -4 is below, so the temperature rises.
        (None, 4.0, 3e-5),
        (None, 2.0, -3e-5),
        (-5.0, 4.0, -3e-5),
    ],
)
def test_the_temperature_rises_while_the_entropy_is_below_its_target(
    monkeypatch: Patch, target_entropy: float | None, log_prob: float, step: float
) -> None:
    # Adam's first step is its step size, the actor's.
    algorithm = build("cql", target_entropy=target_entropy)
    _fake_policy(monkeypatch, algorithm, lambda obs: torch.full_like(obs[..., 0], log_prob))
    algorithm.update(batches(1)[0])
    assert float(algorithm.model.temperature.log_value.detach()) == pytest.approx(step, rel=1e-6)


def test_the_actor_clones_for_exactly_so_many_updates() -> None:
    algorithm = build("cql", bc_updates=2, alpha=0.1)
    for seed, batch in enumerate(batches(4)):
        torch.manual_seed(seed)
        actions, log_probs = algorithm.model.actor.sample(batch["obs"])
        value = algorithm.model.critic(batch["obs"], actions).amin(0)
        likelihood = algorithm.model.actor.log_prob(batch["obs"], batch["actions"])
        cloning, free = ((0.1 * log_probs - gain).mean().detach() for gain in (likelihood, value))
        assert not torch.isclose(cloning, free)
        torch.manual_seed(seed)
        loss = algorithm.update(batch).metrics["actor_loss"]
        torch.testing.assert_close(loss, cloning if seed < 2 else free)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"temperature": 3e-5, "actor": 3e-5, "critic": 3e-4, "lagrange": 3e-4}),
        ({"actor_learning_rate": 1e-4}, {"temperature": 1e-4, "actor": 1e-4, "critic": 3e-4, "lagrange": 3e-4}),
        ({"critic_learning_rate": 1e-3}, {"temperature": 3e-5, "actor": 3e-5, "critic": 1e-3, "lagrange": 1e-3}),
        (
            {"temperature_learning_rate": 7e-4, "lagrange_learning_rate": 8e-4},
            {"temperature": 7e-4, "actor": 3e-5, "critic": 3e-4, "lagrange": 8e-4},
        ),
        ({"actor_learning_rate": None}, {"temperature": 3e-4, "actor": 3e-4, "critic": 3e-4, "lagrange": 3e-4}),
    ],
)
def test_the_temperature_is_as_fast_as_the_actor_and_the_multiplier_as_the_critics(
    options: dict[str, Any], expected: dict[str, float]
) -> None:
    algorithm = build("cql", conservative_gap=1.0, **options)
    assert {child: optimizer.learning_rate for child, optimizer in algorithm.optimizers.items()} == expected


def _random_values() -> tuple[Tensor, Tensor, Tensor]:
    """Values (2, 4) of logged actions and (6, 2, 4) of sampled ones, and the log-densities (6, 4) of those."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return normal(2, 4).requires_grad_(), normal(6, 2, 4).requires_grad_(), normal(6, 4)


def _make_constant(critic: Any, value: float) -> None:
    last = critic.mlp.layers[-1]
    with torch.no_grad():
        last.weight.zero_()
        last.bias.fill_(value)


def _linear_critics(obs: Tensor, actions: Tensor) -> Tensor:
    """Two critics, x + 1 and x = obs[4] + 2 sum(actions), for (B, dim) or (samples, B, dim) actions."""
    values = obs[:, 4] + 2 * actions.sum(-1)
    return torch.stack([values + 1, values], dim=-2)


def _fake_policy(monkeypatch: Patch, algorithm: Any, log_prob: Any, action: Any = None) -> None:
    """A policy whose action and whose log-density are given functions of the observation."""
    choose = action or (lambda obs: torch.zeros_like(obs[..., :ACTION_DIM]))

    def sample(obs: Tensor, *, count: int | None = None) -> tuple[Tensor, Tensor]:
        many = obs if count is None else obs.expand(count, *obs.shape)
        # Nothing of the network's own output, but a graph that leads to its parameters, as gradients are asked for.
        mean, log_std = algorithm.model.actor(obs)
        return choose(many), log_prob(many) + 0 * (mean + log_std).sum(-1)

    monkeypatch.setattr(algorithm.model.actor, "sample", sample)


def _fake_target(monkeypatch: Patch, algorithm: Any, values: list[list[float]]) -> None:
    """Target critics that give the first or second of two values to the first or second of two samples."""
    table = torch.tensor(values, dtype=torch.float64).T[..., None]

    def forward(obs: Tensor, actions: Tensor) -> Tensor:
        rows = table.expand(2, 2, len(obs))
        return rows[0] if actions.ndim == obs.ndim else rows

    monkeypatch.setattr(algorithm.target.critic, "forward", forward)


def _target_of(algorithm: Any, rewards: float) -> float:
    batch: Batch = batches(1)[0]
    batch["rewards"], batch["dones"] = torch.full_like(batch["rewards"], rewards), torch.zeros_like(batch["dones"])
    return float(algorithm.losses(batch)["target_q_mean"])


def _children(algorithm: Any) -> tuple[str, ...]:
    (step,) = algorithm.steps
    children: tuple[str, ...] = step.children
    return children
