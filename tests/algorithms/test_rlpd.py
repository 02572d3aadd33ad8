"""What RLPD changes in REDQ on numbers that can be checked by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from naive_redq import assert_equal_over_updates
from peers import batches, build
from torch import Tensor

from rl_training.algorithms.redq import redq_loss
from rl_training.algorithms.rlpd import rlpd_loss

Patch = pytest.MonkeyPatch
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


def _target(*, alpha: float, backup_entropy: bool) -> tuple[Tensor, Any, Any]:
    """The targets of four rows, two of them terminal, with noise of 1 and the critics 3 and 1 chosen."""
    algorithm: Any = build("rlpd", num_critics=5, alpha=alpha, gamma=0.5, backup_entropy=backup_entropy)
    batch = batches(1, size=4)[0]
    batch["dones"] = torch.tensor([0.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    return algorithm.targets(batch), algorithm, batch


@pytest.fixture
def _fixed_draws(monkeypatch: Patch) -> None:
    monkeypatch.setattr(torch, "randn_like", torch.ones_like)
    monkeypatch.setattr(torch, "randperm", lambda count, device: torch.tensor([3, 1, 0, 2, 4]))


@pytest.mark.usefixtures("_fixed_draws")
def test_without_backup_entropy_the_target_does_not_depend_on_the_temperature() -> None:
    targets, algorithm, batch = _target(alpha=0.3, backup_entropy=False)
    with torch.no_grad():
        mean, log_std = algorithm.model.actor(batch["next_obs"])
        q = algorithm.target.critic(batch["next_obs"], (mean + log_std.exp()).tanh())
        expected = batch["rewards"] + torch.tensor([0.5, 0.0, 0.5, 0.0]) * torch.minimum(q[3], q[1])
    torch.testing.assert_close(targets, expected)
    assert torch.equal(targets, _target(alpha=100.0, backup_entropy=False)[0])


@pytest.mark.usefixtures("_fixed_draws")
def test_with_backup_entropy_the_target_pays_for_it_where_the_task_goes_on() -> None:
    targets, algorithm, batch = _target(alpha=0.3, backup_entropy=True)
    without = _target(alpha=0.3, backup_entropy=False)[0]
    with torch.no_grad():
        mean, log_std = algorithm.model.actor(batch["next_obs"])
        raw = mean + log_std.exp()
        # The density of N(1; 0, 1) over the slope of tanh.
        log_prob = (-0.5 - 0.5 * math.log(2 * math.pi) - log_std - (1 - raw.tanh().square()).log()).sum(-1)
    torch.testing.assert_close(targets - without, -0.3 * log_prob * torch.tensor([0.5, 0.0, 0.5, 0.0]))


def test_without_backup_entropy_the_actor_is_paid_for_it_all_the_same(monkeypatch: Patch) -> None:
    monkeypatch.setattr(torch, "randn_like", torch.ones_like)
    batch, losses = batches(1)[0], []
    for backup_entropy in (False, True):
        algorithm: Any = build("rlpd", num_critics=3, backup_entropy=backup_entropy)
        losses.append(algorithm.actor_loss(batch))
    assert losses[0].keys() == losses[1].keys()
    assert all(torch.equal(losses[0][name], losses[1][name]) for name in losses[0])


def test_one_critic_in_the_target_is_whichever_is_drawn(monkeypatch: Patch) -> None:
    algorithm: Any = build("rlpd", num_critics=4, num_target_critics=1, alpha=0.0, gamma=1.0)
    batch = batches(1)[0]
    monkeypatch.setattr(torch, "randn_like", torch.zeros_like)
    with torch.no_grad():
        next_actions = algorithm.model.actor(batch["next_obs"])[0].tanh()
        q = algorithm.target.critic(batch["next_obs"], next_actions)
    for first in range(4):
        order = torch.arange(4).roll(-first)
        monkeypatch.setattr(torch, "randperm", lambda count, device, order=order: order)
        torch.testing.assert_close(algorithm.targets(batch), batch["rewards"] + (1 - batch["dones"]) * q[first])


@pytest.mark.parametrize("hyper", [{}, {"num_target_critics": 1}, PLAIN], ids=["subset", "one", "plain"])
@pytest.mark.parametrize("backup_entropy", [True, False])
def test_six_updates_equal_a_naive_implementations(
    monkeypatch: Patch, backup_entropy: bool, hyper: dict[str, Any]
) -> None:
    small = {"num_critics": 4, "policy_delay": 2, "learning_rate": 1e-3, "tau": 0.1}
    ours = build("rlpd", **{**small, **hyper}, backup_entropy=backup_entropy)
    torch.manual_seed(4)
    assert_equal_over_updates(ours, batches(6), monkeypatch)


def test_in_its_plain_form_critics_learn_as_sacs_do_but_for_the_half() -> None:
    rlpd: Any = build("rlpd", **PLAIN)
    sac: Any = build("sac", alpha=0.2)
    for child in ("model", "target"):
        getattr(rlpd, child).load_state_dict(getattr(sac, child).state_dict())
    batch, found = batches(1)[0], []
    for algorithm in (rlpd, sac):
        torch.manual_seed(3)
        loss = algorithm.critic_loss(batch)["critic_loss"]
        found.append(torch.autograd.grad(loss, list(algorithm.model.critic.parameters())))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, 2 * theirs, rtol=1e-12, atol=1e-16)
    assert [(step.name, rlpd.resolve_number(step.every)) for step in rlpd.steps] == [("critic", 1), ("actor", 1)]


def test_every_hidden_layer_of_the_critics_is_normalised_and_none_of_the_actor() -> None:
    model: Any = build("rlpd", critic_hidden_sizes=(8, 8, 8)).model
    assert [norm.weight.shape for norm in model.critic.mlp.norms] == [(10, 8)] * 3
    assert model.critic.mlp.norm == "before"
    assert len(model.actor.mlp.norms) == 0
    assert len(build("rlpd", critic_layer_norm=False).model.critic.mlp.norms) == 0


@pytest.mark.parametrize(("layer_norm", "bounded"), [(True, True), (False, False)])
def test_normalised_critics_cannot_grow_without_bound_away_from_the_data(layer_norm: bool, bounded: bool) -> None:
    # A normalised layer of 16 units has the length sqrt(16) whatever comes in, so with the bias of 0 at the start a
    # value is at most 4 times the length of the last weights.
    critic: Any = build("rlpd", critic_layer_norm=layer_norm).model.critic
    batch = batches(1)[0]
    with torch.no_grad():
        values = critic(batch["obs"], 1e4 * batch["actions"]).abs().amax(1)
        bounds = 4 * critic.mlp.layers[-1].weight.norm(dim=(1, 2))
    assert bool((values <= bounds).all()) == bounded


def test_logged_actions_on_their_bounds_are_as_good_as_just_inside() -> None:
    # Critics are smooth in the action at this scale, and nothing else sees it.
    batch, losses = batches(1)[0], []
    batch["actions"] = batch["actions"].sign()
    for clip in (1.0, 1 - 1e-5):
        algorithm = build("rlpd", num_critics=3)
        torch.manual_seed(3)
        losses.append(algorithm.losses({**batch, "actions": batch["actions"].clamp(-clip, clip)}))
    for name, value in losses[0].items():
        torch.testing.assert_close(value, losses[1][name], rtol=1e-4, atol=1e-5)
