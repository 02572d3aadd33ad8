"""REDQ's and DroQ's formulas and order of updates on numbers that can be checked by hand."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
import torch
from naive_redq import assert_equal_over_updates
from peers import ACTION_DIM, batches, build
from torch import Tensor, nn

from rl_training.algorithms.redq import draw_subset, redq_loss
from rl_training.algorithms.rlpd import rlpd_loss
from rl_training.models import MLPREDQModel, QEnsemble

Patch = pytest.MonkeyPatch
CPU = torch.device("cpu")
DROQ: dict[str, Any] = {
    "num_critics": 2,
    "num_target_critics": 2,
    "critic_dropout": 0.01,
    "critic_layer_norm": True,
}


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


# Critics.


# Dropout.


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


def test_held_out_losses_and_actions_are_without_dropout(monkeypatch: Patch) -> None:
    plain, droq = (build("redq", **{**DROQ, "critic_dropout": share}) for share in (0.0, 0.2))
    batch = batches(1)[0]
    monkeypatch.setattr(torch, "randn_like", torch.zeros_like)
    expected = plain.losses(batch)
    for name, value in droq.losses(batch).items():
        assert torch.equal(value, expected[name]), name
    assert torch.equal(droq.act(batch["obs"]), plain.act(batch["obs"]))
    assert droq.training


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


PLAIN: dict[str, Any] = {
    "num_critics": 2,
    "num_target_critics": 2,
    "critic_layer_norm": False,
    "alpha": 0.2,
    "policy_delay": 1,
}
"""SAC's form: two critics that both make the target, nothing normalised, all moving at once."""


def test_it_is_redq_with_normalised_critics_update_by_update() -> None:
    rlpd = build("rlpd", num_critics=5, policy_delay=2)
    redq = build("redq", num_critics=5, policy_delay=2, critic_layer_norm=True)
    for batch in batches(4):
        seen = []
        for algorithm in (rlpd, redq):
            torch.manual_seed(2)
            seen.append(algorithm.update(batch).metrics)
        assert seen[0].keys() == seen[1].keys()
        assert all(torch.equal(value, seen[1][name]) for name, value in seen[0].items())
        for ours, theirs in zip(rlpd.parameters(), redq.parameters(), strict=True):
            assert torch.equal(ours, theirs)
    assert rlpd_loss is redq_loss


def test_without_backup_entropy_the_actor_is_paid_for_it_all_the_same(monkeypatch: Patch) -> None:
    monkeypatch.setattr(torch, "randn_like", torch.ones_like)
    batch, losses = batches(1)[0], []
    for backup_entropy in (False, True):
        algorithm: Any = build("rlpd", num_critics=3, backup_entropy=backup_entropy)
        losses.append(algorithm.actor_loss(batch))
    assert losses[0].keys() == losses[1].keys()
    assert all(torch.equal(losses[0][name], losses[1][name]) for name in losses[0])


@pytest.mark.parametrize("hyper", [{}, {"num_target_critics": 1}, PLAIN], ids=["subset", "one", "plain"])
@pytest.mark.parametrize("backup_entropy", [True, False])
def test_six_updates_equal_a_naive_implementations_rlpd(
    monkeypatch: Patch, backup_entropy: bool, hyper: dict[str, Any]
) -> None:
    small = {"num_critics": 4, "policy_delay": 2, "learning_rate": 1e-3, "tau": 0.1}
    ours = build("rlpd", **{**small, **hyper}, backup_entropy=backup_entropy)
    torch.manual_seed(4)
    assert_equal_over_updates(ours, batches(6), monkeypatch)
