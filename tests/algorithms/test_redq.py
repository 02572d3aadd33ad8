"""REDQ's and DroQ's formulas and order of updates on numbers that can be checked by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest
import torch
from naive_redq import assert_equal_over_updates
from peers import ACTION_DIM, batches, build, critic_layers
from torch import Tensor, nn
from torch.nn import functional

from rl_training.algorithms.redq import draw_subset, redq_loss
from rl_training.models import EnsembleMLP, MLPREDQModel, QEnsemble

Patch = pytest.MonkeyPatch
CPU = torch.device("cpu")
DROQ: dict[str, Any] = {
    "num_critics": 2,
    "num_target_critics": 2,
    "critic_dropout": 0.01,
    "critic_layer_norm": True,
}


def test_the_whole_objective_on_two_rows() -> None:
    # Temperature e^0.5. Loss of log(alpha): -0.5 * mean((-1, 3) - 1.5) = -0.5 * -0.5 = 0.25.
    # Actor: mean((-1, 3)) = 1 times the temperature, minus the mean of all values, 8 / 6.
    # Critics: errors (1, 3), (0, 2), (1, 1) against (0, 1), mean squares 5 + 2 + 1 = 8: a sum, and no half.
    metrics = redq_loss(
        q_values=torch.tensor([[1.0, 4.0], [0.0, 3.0], [1.0, 2.0]]),
        target_q_values=torch.tensor([0.0, 1.0]),
        policy_q_values=torch.tensor([[1.0, 4.0], [2.0, -2.0], [3.0, 0.0]]),
        policy_log_probs=torch.tensor([-1.0, 3.0]),
        log_temperature=torch.tensor(0.5),
        target_entropy=-1.5,
    )
    assert float(metrics["temperature_loss"]) == pytest.approx(0.25)
    assert float(metrics["temperature"]) == pytest.approx(math.exp(0.5))
    assert float(metrics["entropy"]) == pytest.approx(-1.0)
    assert float(metrics["actor_loss"]) == pytest.approx(math.exp(0.5) - 8 / 6)
    assert float(metrics["critic_loss"]) == pytest.approx(8.0)
    # Deviations of (1, 0, 1) and (4, 3, 2) around their means: sqrt(2 / 9) and sqrt(2 / 3).
    assert float(metrics["q_std_ensemble"]) == pytest.approx((math.sqrt(2 / 9) + math.sqrt(2 / 3)) / 2)


def test_the_actor_learns_from_every_critic_alike_and_not_the_temperature() -> None:
    q = torch.tensor([[1.0, 4.0], [2.0, -2.0], [3.0, 0.0]], requires_grad=True)
    log_probs, log_temperature = torch.tensor([-1.0, 3.0], requires_grad=True), torch.zeros((), requires_grad=True)
    loss = redq_loss(
        q_values=torch.zeros(3, 2),
        target_q_values=torch.zeros(2),
        policy_q_values=q,
        policy_log_probs=log_probs,
        log_temperature=log_temperature,
        target_entropy=-1.0,
    )["actor_loss"]
    gradients = torch.autograd.grad(loss, [q, log_probs, log_temperature], allow_unused=True)
    # Of the mean over 3 critics and 2 rows, and the temperature 1 over 2 rows.
    torch.testing.assert_close(gradients[0], torch.full((3, 2), -1 / 6))
    assert gradients[1].tolist() == [0.5, 0.5]
    assert gradients[2] is None


# The subset of target critics.


@pytest.mark.parametrize(("size", "expected"), [(1, 4.5), (2, 8 / 3), (10, 0.0)])
def test_the_smallest_of_a_random_subset_is_what_it_is_on_average(size: int, expected: float) -> None:
    # Of 0..9: one is 4.5 on average; the smaller k of a pair has probability 2 (9 - k) / 90, which sums to 8 / 3; of
    # all it is 0. With a deviation of 2.87 at most, the mean of 20,000 is within 0.05 but for one case in 70.
    torch.manual_seed(0)
    draws = torch.stack([draw_subset(size, 10, CPU) for _ in range(20_000)])
    assert float(draws.amin(1).double().mean()) == pytest.approx(expected, abs=0.05)
    ordered = draws.sort(dim=1).values
    assert bool((ordered[:, 1:] > ordered[:, :-1]).all())
    assert draws.shape == (20_000, size)


def test_every_pair_is_drawn_equally_often() -> None:
    torch.manual_seed(0)
    counts = dict.fromkeys(permutations(range(4), 2), 0)
    for _ in range(6_000):
        first, second = draw_subset(2, 4, CPU).tolist()
        counts[first, second] += 1
    # 6,000 over 12 ordered pairs, with a deviation of sqrt(500 * 11 / 12) = 21.
    assert all(abs(count - 500) < 90 for count in counts.values())


def _with_constant_targets(**hyper: Any) -> Any:
    """Lagged critic k says k everywhere; gamma is 1 and entropy pays nothing, so the target is r + what they say."""
    algorithm = build("redq", alpha=0.0, gamma=1.0, **hyper)
    last: Any = algorithm.target.critic.mlp.layers[-1]
    last.weight.zero_()
    last.bias.copy_(torch.arange(algorithm.hyper.num_critics)[:, None])
    return algorithm


def test_one_subset_makes_the_target_of_a_whole_batch_and_changes_between_updates() -> None:
    algorithm, batch = _with_constant_targets(), batches(1)[0]
    batch["dones"] = torch.zeros_like(batch["dones"])
    torch.manual_seed(0)
    seen = []
    for _ in range(300):
        values = algorithm.targets(batch) - batch["rewards"]
        torch.testing.assert_close(values, values[0].expand_as(values))
        seen.append(round(float(values[0])))
    # The larger of two different ones is never the smaller: 9 does not occur. 8 / 3 as above, with a deviation of
    # sqrt(44 / 9 / 300) = 0.13.
    assert set(seen) == set(range(9))
    assert sum(seen) / 300 == pytest.approx(8 / 3, abs=0.4)


def test_a_fraction_of_a_critic_counts_as_often_as_it_says() -> None:
    algorithm, batch = _with_constant_targets(num_target_critics=1.25), batches(1, size=1)[0]
    batch["dones"] = torch.zeros_like(batch["dones"])
    torch.manual_seed(0)
    seen = [float(algorithm.targets(batch) - batch["rewards"]) for _ in range(2_000)]
    # One of 0..9 three times out of four, else the smaller of two: 0.75 * 4.5 + 0.25 * 8 / 3, with a deviation of at
    # most sqrt(9 / 2,000) = 0.07. The largest occurs only where one is drawn: 0.75 * 0.1 of the time.
    assert sum(seen) / 2_000 == pytest.approx(0.75 * 4.5 + 0.25 * 8 / 3, abs=0.25)
    assert sum(round(value) == 9 for value in seen) / 2_000 == pytest.approx(0.075, abs=0.02)


def test_where_all_critics_are_in_the_target_nothing_is_drawn(monkeypatch: Patch) -> None:
    algorithm, batch = _with_constant_targets(num_critics=4, num_target_critics=4), batches(1)[0]
    monkeypatch.delattr(torch, "randperm")
    torch.testing.assert_close(algorithm.targets(batch), batch["rewards"])


def test_only_the_chosen_target_critics_are_evaluated(monkeypatch: Patch) -> None:
    algorithm: Any = build("redq", num_critics=7, num_target_critics=3)
    products, plain = [], torch.addmm

    def addmm(*tensors: Tensor) -> Tensor:
        products.append(tensors)
        return plain(*tensors)

    monkeypatch.setattr(torch, "addmm", addmm)
    algorithm.targets(batches(1)[0])
    # Three layers of three critics; the actor's layers are another kind of product.
    assert len(products) == 3 * 3


@pytest.mark.parametrize("norm", ["none", "before"])
def test_chosen_members_are_those_at_the_indices_in_their_order(norm: Any) -> None:
    torch.manual_seed(0)
    critic = QEnsemble(5, 3, hidden_sizes=(8, 8), size=6, norm=norm).double()
    for parameter in critic.mlp.norms.parameters():
        nn.init.normal_(parameter)
    batch = batches(1)[0]
    every = critic(batch["obs"], batch["actions"])
    some = critic(batch["obs"], batch["actions"], members=torch.tensor([4, 0, 3]))
    torch.testing.assert_close(some, every[[4, 0, 3]], rtol=0, atol=0)


def test_the_target_discounts_the_smallest_chosen_critic_and_the_entropy_and_stops_at_termination(
    monkeypatch: Patch,
) -> None:
    algorithm: Any = build("redq", num_critics=5, num_target_critics=2, alpha=0.3, gamma=0.5)
    # Noise of 1: the sample is one deviation from the mean, and its density that of N(1; 0, 1) over the slope.
    monkeypatch.setattr(torch, "randn_like", torch.ones_like)
    monkeypatch.setattr(torch, "randperm", lambda count, device: torch.tensor([3, 1, 0, 2, 4]))
    batch = batches(1, size=4)[0]
    batch["dones"] = torch.tensor([0.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    with torch.no_grad():
        mean, log_std = algorithm.model.actor(batch["next_obs"])
        raw = mean + log_std.exp()
        log_prob = (-0.5 - 0.5 * math.log(2 * math.pi) - log_std - (1 - raw.tanh().square()).log()).sum(-1)
        q = algorithm.target.critic(batch["next_obs"], raw.tanh())
        smaller = torch.minimum(q[3], q[1])
        expected = batch["rewards"] + torch.tensor([0.5, 0.0, 0.5, 0.0]) * (smaller - 0.3 * log_prob)
    torch.testing.assert_close(algorithm.targets(batch), expected)
    torch.testing.assert_close(algorithm.losses(batch)["target_q_mean"], expected.mean())


# Critics.


def test_a_member_of_an_ensemble_learns_as_the_same_critic_would_alone() -> None:
    algorithm: Any = build("redq", num_critics=4)
    batch = batches(1)[0]
    target = algorithm.targets(batch)
    q = algorithm.model.critic(batch["obs"], batch["actions"])
    loss = redq_loss(
        q_values=q,
        target_q_values=target,
        policy_q_values=q,
        policy_log_probs=target,
        log_temperature=torch.zeros(()),
        target_entropy=0.0,
    )["critic_loss"]
    layers = [layer.weight for layer in algorithm.model.critic.mlp.layers]
    together = torch.autograd.grad(loss, layers)
    for member in range(4):
        alone = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1)).double()
        linear: Any = [layer for layer in alone if isinstance(layer, nn.Linear)]
        for layer, (weight, bias) in zip(linear, critic_layers(algorithm.model.critic, member), strict=True):
            layer.weight.data.copy_(weight)
            layer.bias.data.copy_(bias)
        values = alone(torch.cat([batch["obs"], batch["actions"]], dim=-1)).squeeze(-1)
        own = torch.autograd.grad(functional.mse_loss(values, target), [layer.weight for layer in linear])
        for stacked, gradient in zip(together, own, strict=True):
            torch.testing.assert_close(stacked[member].T, gradient)


def test_two_critics_that_both_make_the_target_learn_as_sacs_do_but_for_the_half() -> None:
    redq: Any = build("redq", num_critics=2, num_target_critics=2, policy_delay=1)
    sac: Any = build("sac")
    for child in ("model", "target"):
        getattr(redq, child).load_state_dict(getattr(sac, child).state_dict())
    batch, found = batches(1)[0], []
    for algorithm in (redq, sac):
        torch.manual_seed(3)
        metrics = algorithm.critic_loss(batch)
        gradients = torch.autograd.grad(metrics["critic_loss"], list(algorithm.model.critic.parameters()))
        found.append((metrics, gradients))
    (ours, our_gradients), (theirs, their_gradients) = found
    assert torch.equal(ours["target_q_mean"], theirs["target_q_mean"])
    torch.testing.assert_close(ours["critic_loss"], 2 * theirs["critic_loss"], rtol=1e-14, atol=0)
    for mine, other in zip(our_gradients, their_gradients, strict=True):
        torch.testing.assert_close(mine, 2 * other, rtol=1e-12, atol=1e-16)


# Dropout.


def _halves(rows: Tensor, share: float) -> Tensor:
    """In place of dropout: keep the units with an even number."""
    return rows * (torch.arange(rows.shape[-1]) % 2 == 0) / (1 - share)


def test_a_hidden_layer_is_linear_then_dropout_then_normalised_then_relu(monkeypatch: Patch) -> None:
    torch.manual_seed(0)
    network: Any = EnsembleMLP(1, 3, (6,), 1, norm="before", dropout=0.5).double()
    hidden, last = (layer.pairs()[0] for layer in network.layers)
    rows = torch.randn(4, 3, dtype=torch.float64)
    monkeypatch.setattr(functional, "dropout", _halves)
    linear = rows @ hidden[0] + hidden[1]
    # By hand: half the units are 0, the others count twice; then mean 0 and deviation 1 over the six.
    dropped = linear * torch.tensor([2.0, 0.0, 2.0, 0.0, 2.0, 0.0])
    deviation = (dropped.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    units = ((dropped - dropped.mean(-1, keepdim=True)) / deviation).relu()
    torch.testing.assert_close(network(rows, training=True)[0], units @ last[0] + last[1])
    late = functional.layer_norm(linear, (6,)).relu() * torch.tensor([2.0, 0.0, 2.0, 0.0, 2.0, 0.0])
    assert not torch.allclose(network(rows, training=True)[0], late @ last[0] + last[1])


def test_each_critic_has_a_mask_of_its_own() -> None:
    torch.manual_seed(0)
    critic: Any = QEnsemble(5, 3, hidden_sizes=(32, 32), size=2, dropout=0.3)
    for parameter in critic.parameters():
        parameter.data.copy_(parameter.data[:1].expand_as(parameter))
    obs, actions = torch.randn(64, 5), torch.rand(64, 3)
    first, second = critic(obs, actions)
    assert torch.equal(first, second)
    first, second = critic(obs, actions, training=True)
    assert bool((first != second).all())


@pytest.mark.parametrize("share", [0.0, 0.2])
def test_dropout_acts_wherever_an_update_evaluates_critics_lagged_ones_included(
    monkeypatch: Patch, share: float
) -> None:
    algorithm: Any = build("redq", **{**DROQ, "critic_dropout": share})
    batch = batches(1)[0]
    monkeypatch.setattr(torch, "randn_like", torch.zeros_like)
    passes: dict[str, Callable[[], Tensor]] = {
        "target": lambda: algorithm.targets(batch),
        "critic": lambda: algorithm.critic_loss(batch)["q_mean"],
        "actor": lambda: algorithm.actor_loss(batch)["actor_loss"],
    }
    for name, evaluate in passes.items():
        assert torch.equal(evaluate(), evaluate()) == (share == 0), name


def test_held_out_losses_and_actions_are_without_dropout(monkeypatch: Patch) -> None:
    plain, droq = (build("redq", **{**DROQ, "critic_dropout": share}) for share in (0.0, 0.2))
    batch = batches(1)[0]
    monkeypatch.setattr(torch, "randn_like", torch.zeros_like)
    expected = plain.losses(batch)
    for name, value in droq.losses(batch).items():
        assert torch.equal(value, expected[name]), name
    assert torch.equal(droq.act(batch["obs"]), plain.act(batch["obs"]))
    assert droq.training


def test_without_dropout_and_normalisation_droq_is_redq_with_two_critics(monkeypatch: Patch) -> None:
    droq = build("redq", **{**DROQ, "critic_dropout": 0.0, "critic_layer_norm": False}, policy_delay=1)
    redq = build("redq", num_critics=2, policy_delay=1)
    monkeypatch.delattr(functional, "dropout")
    for algorithm in (droq, redq):
        torch.manual_seed(2)
        for batch in batches(3):
            algorithm.update(batch)
    for ours, theirs in zip(droq.parameters(), redq.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_updates_drop_what_eager_ones_drop(backend: str) -> None:
    eager, compiled = (build("redq", **{**DROQ, "critic_dropout": 0.3}, policy_delay=1) for _ in range(2))
    torch._dynamo.reset()
    compiled.compile_steps(backend=backend)
    for algorithm in (eager, compiled):
        torch.manual_seed(5)
        for batch in batches(2):
            algorithm.update(batch)
    for ours, theirs in zip(eager.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-14)


# Updates.


@pytest.mark.parametrize(
    "hyper",
    [
        {"num_critics": 5, "num_target_critics": 2, "policy_delay": 2},
        {"num_critics": 3, "num_target_critics": 1, "policy_delay": 1, "target_entropy": 5.0},
        {"num_critics": 4, "num_target_critics": 4, "policy_delay": 3, "alpha": 0.2},
        {**DROQ, "policy_delay": 2},
        {**DROQ, "policy_delay": 1, "critic_dropout": 0.4, "alpha": 0.1},
        {"num_critics": 4, "critic_dropout": 0.2, "policy_delay": 2},
    ],
    ids=["redq", "one", "all", "droq", "much_dropout", "subset_with_dropout"],
)
def test_six_updates_equal_a_naive_implementations(monkeypatch: Patch, hyper: dict[str, Any]) -> None:
    ours = build("redq", learning_rate=1e-3, tau=0.1, **hyper)
    torch.manual_seed(4)
    assert_equal_over_updates(ours, batches(6), monkeypatch)


def test_of_twenty_updates_all_move_critics_and_their_copies_and_the_last_moves_the_rest() -> None:
    algorithm: Any = build("redq", num_critics=3, learning_rate=1e-3)
    moves = {"actor": 0, "temperature": 0, "critic": 0, "target": 0}
    for number, batch in enumerate(batches(20), start=1):
        modules = {**dict(algorithm.model.named_children()), "target": algorithm.target.critic}
        before = {name: _copy(module) for name, module in modules.items()}
        algorithm.update(batch)
        moved = {name for name, module in modules.items() if _differ(before[name], module)}
        assert moved >= {"critic", "target"}
        assert ("actor" in moved) == ("temperature" in moved) == (number == 20)
        moves = {name: count + (name in moved) for name, count in moves.items()}
    assert moves == {"actor": 1, "temperature": 1, "critic": 20, "target": 20}


def test_the_actor_follows_the_critics_as_the_same_update_left_them() -> None:
    # After one step of Adam its first moment is 0.1 times the gradient, taken here by hand from a copy whose critics
    # have moved already; with large steps the order makes a difference.
    algorithm: Any = build("redq", num_critics=3, policy_delay=1, learning_rate=0.05)
    copy: Any = build("redq", num_critics=3, policy_delay=1, learning_rate=0.05)
    batch = batches(1)[0]
    torch.manual_seed(7)
    algorithm.update(batch)
    torch.manual_seed(7)
    copy.critic_loss(batch)
    copy.model.critic.load_state_dict(algorithm.model.critic.state_dict())
    loss = copy.actor_loss(batch)["actor_loss"]
    gradients = torch.autograd.grad(loss, list(copy.model.actor.parameters()))
    for moment, gradient in zip(algorithm.optimizers["actor"].exp_avg.parameters(), gradients, strict=True):
        torch.testing.assert_close(moment.detach(), 0.1 * gradient, rtol=1e-8, atol=1e-14)


@pytest.mark.parametrize(("target_entropy", "expected"), [(None, -1.5), (-3.0, -3.0)])
def test_the_entropy_to_reach_is_minus_half_the_dimension_unless_given(
    target_entropy: float | None, expected: float
) -> None:
    algorithm: Any = build("redq", target_entropy=target_entropy)
    assert algorithm.hyper.target_entropy_for(ACTION_DIM) == expected
    metrics = algorithm.actor_loss(batches(1)[0])
    (gradient,) = torch.autograd.grad(metrics["temperature_loss"], algorithm.model.temperature.log_value)
    # The slope of - log(alpha) * (mean log pi + target), where the entropy is - mean log pi.
    assert float(gradient) == pytest.approx(float(metrics["entropy"].detach()) - expected)


# Networks and options.


def test_critics_may_be_normalised_after_every_hidden_layer_and_the_actor_is_not() -> None:
    for layer_norm in (False, True):
        model: Any = MLPREDQModel(obs_dim=5, action_dim=3, hidden_sizes=(8, 7), critic_layer_norm=layer_norm)
        assert [norm.weight.shape for norm in model.critic.mlp.norms] == ([(10, 8), (10, 7)] if layer_norm else [])
        assert model.critic.mlp.norm == ("before" if layer_norm else "none")
        assert len(model.actor.mlp.norms) == 0
        assert model.actor.log_std_range == (-20.0, 2.0)


def _copy(module: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in module.parameters()]


def _differ(before: list[Tensor], module: nn.Module) -> bool:
    return any(not torch.equal(old, new) for old, new in zip(before, module.parameters(), strict=True))
