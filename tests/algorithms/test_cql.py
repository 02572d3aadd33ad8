"""CQL's formulas, options and order of updates on numbers that can be checked by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from peers import ACTION_DIM, batches, build
from torch import Tensor

from rl_training.algorithms.cql import LagrangeForm, conservative_gaps, cql_loss, lagrange_objective
from rl_training.core.batches import Batch
from rl_training.models import MLPCQLModel

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


def test_raising_sampled_values_raises_the_gap_and_raising_logged_ones_lowers_it() -> None:
    q, sampled, log_densities = (values.detach() for values in _random_values())

    def gap(raise_q: float = 0.0, raise_sampled: float = 0.0) -> Tensor:
        return conservative_gaps(
            q_values=q + raise_q,
            sampled_q_values=sampled + raise_sampled,
            log_densities=log_densities,
            temperature=1.0,
        )

    torch.testing.assert_close(gap(raise_sampled=0.3), gap() + 0.3)
    torch.testing.assert_close(gap(raise_q=0.3), gap() - 0.3)


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


def test_the_whole_objective_is_error_plus_weight_times_gaps() -> None:
    # Squared errors: critic 1 errs by 1 and 3 (mean 5), critic 2 by 0 and 2 (mean 2). Gaps for d = 1, N = 1: critic 1
    # has samples of value 1 and 4 like its logged ones, so its gap is ln 2 + ln 3; critic 2 likewise.
    q = torch.tensor([[1.0, 4.0], [0.0, 3.0]])
    uniform = torch.full((1, 2), -math.log(2))
    metrics = cql_loss(
        q_values=q,
        target_q_values=torch.tensor([0.0, 1.0]),
        random_q_values=q[None],
        policy_q_values=q[None],
        next_policy_q_values=q[None],
        policy_log_probs=uniform,
        next_policy_log_probs=uniform,
        action_dim=1,
        conservative_weight=10.0,
    )
    gap = math.log(6)
    assert float(metrics["td_loss"]) == pytest.approx(7.0)
    assert float(metrics["critic_loss"]) == pytest.approx(7.0 + 10 * 2 * gap)
    assert [float(metrics[f"cql_penalty_{number}"]) for number in (1, 2)] == pytest.approx([gap, gap])


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


def test_the_critic_loss_gives_no_gradient_to_the_policy_the_temperature_or_the_multiplier() -> None:
    algorithm: Any = build("cql", conservative_gap=1.0, backup_entropy=True)
    loss = algorithm.critic_loss(batches(1)[0])["critic_loss"]
    others = [*algorithm.model.actor.parameters(), algorithm.model.temperature.log_value]
    others += [algorithm.model.lagrange.log_value, *algorithm.target.parameters()]
    trained = [parameter for parameter in others if parameter.requires_grad]
    assert all(gradient is None for gradient in torch.autograd.grad(loss, trained, allow_unused=True))


@pytest.mark.parametrize("calibrated", [False, True])
def test_without_weight_the_critics_are_sacs(monkeypatch: Patch, calibrated: bool) -> None:
    algorithm: Any = build("cql", conservative_weight=0.0, calibrated=calibrated)
    critics = list(algorithm.model.critic.parameters())
    batch = batches(1)[0] | {"returns_to_go": torch.ones(32, dtype=torch.float64)}
    # Noise of 1 everywhere, so that it does not matter which draw comes first.
    monkeypatch.setattr(torch, "randn_like", torch.ones_like)
    loss = algorithm.critic_loss(batch)["critic_loss"]
    with torch.no_grad():
        mean, log_std = algorithm.model.actor(batch["next_obs"])
        next_q = algorithm.target.critic(batch["next_obs"], (mean + log_std.exp()).tanh())
        target = batch["rewards"] + 0.99 * (1 - batch["dones"]) * torch.minimum(next_q[0], next_q[1])
    q = algorithm.model.critic(batch["obs"], batch["actions"])
    plain = (q[0] - target).square().mean() + (q[1] - target).square().mean()
    torch.testing.assert_close(loss, plain, rtol=1e-12, atol=0)
    gradients = zip(torch.autograd.grad(loss, critics), torch.autograd.grad(plain, critics), strict=True)
    for ours, expected in gradients:
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-15)


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


def test_the_target_may_use_the_policys_mean() -> None:
    algorithm = build("cql", target_action="mean", gamma=0.5)
    batch = batches(1, size=4)[0]
    batch["dones"] = torch.tensor([0.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    with torch.no_grad():
        # A new actor's mean is so close to 0 that it is its own tanh.
        algorithm.model.actor.mlp.layers[-1].bias.fill_(1.0)
        mean = algorithm.model.actor(batch["next_obs"])[0].tanh()
        next_q = algorithm.target.critic(batch["next_obs"], mean).amin(0)
    expected = batch["rewards"] + torch.tensor([0.5, 0.0, 0.5, 0.0]) * next_q
    for seed in (0, 1):
        torch.manual_seed(seed)
        torch.testing.assert_close(algorithm.losses(batch)["target_q_mean"], expected.mean())


def test_the_target_samples_the_policy_by_default() -> None:
    algorithm, batch = build("cql"), batches(1)[0]
    values = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        values.append(float(algorithm.losses(batch)["target_q_mean"]))
    assert values[0] != values[1]


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


@pytest.mark.parametrize(("gap", "step"), [(-1e3, 3e-4), (1e3, -3e-4)])
@pytest.mark.parametrize("form", ["weight_inside", "weight_outside"])
def test_the_multiplier_rises_above_the_gap_and_falls_below(form: str, gap: float, step: float) -> None:
    # Adam's first step is its step size, that of the critics, in the direction of the gradient's sign.
    algorithm = build("cql", conservative_gap=gap, lagrange_form=form)
    assert float(algorithm.model.lagrange.log_value.detach()) == 1.0
    algorithm.update(batches(1)[0])
    assert float(algorithm.model.lagrange.log_value.detach()) == pytest.approx(1.0 + step, rel=1e-9)


def test_the_penalty_of_a_learned_multiplier_is_in_the_critic_loss() -> None:
    algorithm, batch = build("cql", conservative_gap=0.8, conservative_weight=5.0), batches(1)[0]
    metrics = {name: float(value) for name, value in algorithm.losses(batch).items()}
    excess = metrics["cql_penalty_1"] + metrics["cql_penalty_2"] - 1.6
    # log multiplier 1 at the start: the multiplier is e.
    assert metrics["critic_loss"] == pytest.approx(metrics["td_loss"] + math.e * 5 * excess, rel=1e-6)
    assert metrics["lagrange_loss"] == pytest.approx(-math.e * 5 * excess / 2, rel=1e-6)


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


def test_all_children_move_by_gradients_taken_before_any_of_them_moved() -> None:
    # After one step of Adam its first moment is 0.1 times the gradient; the gradients here are taken one loss at a
    # time from the parameters as they were.
    algorithm: Any = build("cql", conservative_gap=1.0, learning_rate=0.1, actor_learning_rate=0.1)
    batch = batches(1)[0]
    expected: dict[str, list[Tensor]] = {}
    for child in _children(algorithm):
        torch.manual_seed(4)
        loss = algorithm.joint_loss(batch)[f"{child}_loss"]
        parameters = list(getattr(algorithm.model, child).parameters())
        expected[child] = list(torch.autograd.grad(loss, parameters))
    torch.manual_seed(4)
    algorithm.update(batch)
    assert set(expected) == {"temperature", "actor", "critic", "lagrange"}
    for child, gradients in expected.items():
        for moment, gradient in zip(algorithm.optimizers[child].exp_avg.parameters(), gradients, strict=True):
            torch.testing.assert_close(moment.detach(), 0.1 * gradient, rtol=1e-9, atol=1e-15)


def test_the_actor_weighs_entropy_against_the_smaller_critic(monkeypatch: Patch) -> None:
    # Log-density -2, temperature 0.5, critics 1 + x and x with x = obs[4] + 2 sum(actions) of constant actions 0.1.
    algorithm, batch = build("cql", alpha=0.5), batches(1)[0]
    monkeypatch.setattr(algorithm.model.critic, "forward", _linear_critics)
    _fake_policy(
        monkeypatch,
        algorithm,
        lambda obs: torch.full_like(obs[..., 0], -2.0),
        lambda obs: torch.full_like(obs[..., :3], 0.1),
    )
    expected = 0.5 * -2.0 - (batch["obs"][:, 4].mean() + 2 * 0.3)
    torch.testing.assert_close(algorithm.losses(batch)["actor_loss"], expected)


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


def test_the_temperature_moves_by_what_the_entropy_lacks(monkeypatch: Patch) -> None:
    # - log(alpha) (log pi + target): the slope in log(alpha) is -(4 - 3), and log(alpha) = 0 makes the loss 0.
    algorithm: Any = build("cql")
    _fake_policy(monkeypatch, algorithm, lambda obs: torch.full_like(obs[..., 0], 4.0))
    metrics = algorithm.actor_loss(batches(1)[0])
    (slope,) = torch.autograd.grad(metrics["temperature_loss"], algorithm.model.temperature.log_value)
    assert [float(slope), metrics["temperature_loss"].item()] == pytest.approx([-1.0, 0.0])
    assert metrics["entropy"].item() == pytest.approx(-4.0)


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


def test_a_loaded_algorithm_goes_on_cloning_where_it_was() -> None:
    straight, resumed = build("cql", bc_updates=2), build("cql", bc_updates=2)
    first, second, third = batches(3)
    torch.manual_seed(0)
    straight.update(first)
    resumed.load_state_dict(straight.state_dict())
    for batch in (second, third):
        losses = []
        for algorithm in (straight, resumed):
            torch.manual_seed(1)
            losses.append(algorithm.update(batch).metrics["actor_loss"])
        torch.testing.assert_close(*losses, rtol=0, atol=0)


def test_actor_and_critics_start_as_in_the_reproduction() -> None:
    torch.manual_seed(0)
    model: Any = MLPCQLModel(obs_dim=5, action_dim=3, hidden_sizes=(64, 64))
    model.requires_grad_(False)
    first, second, last = model.actor.mlp.layers
    for layer, fan_in in ((first, 5), (second, 64)):
        bound = 1 / math.sqrt(fan_in)
        for values in (layer.weight, layer.bias):
            assert 0.9 * bound < float(values.abs().max()) <= bound
    # Xavier with gain 0.01: uniform within 0.01 sqrt(6 / (fan in + fan out)).
    bound = 0.01 * math.sqrt(6 / (64 + 6))
    assert 0.9 * bound < float(last.weight.abs().max()) <= bound
    assert float(last.bias.abs().max()) == 0
    assert model.actor.std_affinity.tolist() == [1.0, -1.0]
    assert model.actor.log_std_range == (-20.0, 2.0)
    for layer, gain in zip(model.critic.mlp.layers, (math.sqrt(2), math.sqrt(2), 0.01), strict=True):
        assert float(layer.bias.abs().max()) == 0
        for weight in layer.weight:
            # Orthogonal: the smaller of the two products with its own transpose is gain^2 times the identity.
            square = weight @ weight.T if weight.shape[0] <= weight.shape[1] else weight.T @ weight
            torch.testing.assert_close(square, gain**2 * torch.eye(len(square)), atol=1e-5, rtol=1e-5)
        assert not torch.equal(*layer.weight)
    assert [float(model.temperature()), float(model.lagrange())] == pytest.approx([1.0, math.e])


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
