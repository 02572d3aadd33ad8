"""Several updates in float64 from equal weights and batches, beside those of Stable-Baselines3's own `train`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from peers import (
    ACTION_DIM,
    actor_layers,
    assert_layers_equal,
    batches,
    build,
    copy_layers,
    critic_layers,
    heads_apart,
    peer_layers,
)
from sb3_peers import (
    feed_noise,
    in_float64,
    make_peer,
    stable_baselines3,
    train_peer,
    use_their_log_prob,
)

from rl_training.core.batches import Batch

RTOL = 1e-10
UPDATES = 10
SHARED: dict[str, Any] = {"learning_rate": 1e-3, "gamma": 0.95, "tau": 0.02}
"""Neither side's defaults, so that every one of them has to be read."""


@pytest.fixture(autouse=True)
def _float64(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    in_float64(monkeypatch)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("n_step", [False, True])
def test_ten_updates_of_ddpg_equal_theirs(n_step: bool) -> None:
    ours = build("ddpg", **SHARED)
    # Their DDPG is TD3 with one critic, and draws smoothing noise that it then clips to 0.
    theirs = make_peer(stable_baselines3.DDPG, **SHARED)
    _copy_deterministic(ours, theirs)
    for batch in _batches(n_step):
        metrics, peer_metrics = ours.update(batch).metrics, train_peer(theirs, batch)
        _assert_losses_equal(metrics, peer_metrics, critic_loss="critic_loss", actor_loss="actor_loss")
    _assert_deterministic_equal(ours, theirs)


@pytest.mark.parametrize("n_step", [False, True])
@pytest.mark.parametrize("delay", [2, 3])
def test_ten_updates_of_td3_equal_theirs(delay: int, n_step: bool) -> None:
    # So much noise that it is often clipped, and its sum with the action too.
    noise, clip = 0.8, 1.1
    ours = build("td3", **SHARED, policy_delay=delay, policy_noise=noise, noise_clip=clip)
    theirs = make_peer(
        stable_baselines3.TD3, **SHARED, policy_delay=delay, target_policy_noise=noise, target_noise_clip=clip
    )
    _copy_deterministic(ours, theirs)
    for number, batch in enumerate(_batches(n_step)):
        # Both draw one tensor of the actions' shape per update, so the same seed gives the same noise.
        torch.manual_seed(number)
        metrics = ours.update(batch).metrics
        torch.manual_seed(number)
        _assert_losses_equal(metrics, train_peer(theirs, batch), critic_loss="critic_loss")
    _assert_deterministic_equal(ours, theirs)


@pytest.mark.parametrize("n_step", [False, True])
@pytest.mark.parametrize(
    ("alpha", "target_entropy"), [("auto", None), ("auto", 1.5), (0.3, None)], ids=["learned", "to_given", "fixed"]
)
def test_ten_updates_of_sac_equal_theirs(
    monkeypatch: pytest.MonkeyPatch, alpha: Any, target_entropy: float | None, n_step: bool
) -> None:
    use_their_log_prob(monkeypatch)
    ours = build("sac", **SHARED, alpha=alpha, target_entropy=target_entropy)
    entropy = "auto" if target_entropy is None else target_entropy
    theirs = make_peer(stable_baselines3.SAC, **SHARED, ent_coef=alpha, target_entropy=entropy)
    _copy_soft(ours, theirs)
    losses = {"critic_loss": "critic_loss", "actor_loss": "actor_loss"}
    if alpha == "auto":
        losses |= {"temperature_loss": "ent_coef_loss", "temperature": "ent_coef"}
    for batch in _batches(n_step):
        now, after = torch.randn(2, 32, ACTION_DIM)
        # They sample at s before anything else and move the temperature first, then the critics; we sample at s after
        # the critics have moved. The actor moves last on either side, and all use the temperature as it was before.
        feed_noise(monkeypatch, ours=[after, now], theirs=[now, after])
        _assert_losses_equal(ours.update(batch).metrics, train_peer(theirs, batch), **losses)
    assert_layers_equal(heads_apart(ours.model.actor), peer_layers(theirs.actor), RTOL)
    _assert_critics_equal(ours, theirs)
    log_temperature = theirs.log_ent_coef.detach()[0] if alpha == "auto" else theirs.ent_coef_tensor.log()
    torch.testing.assert_close(ours.model.temperature.log_value.detach(), log_temperature, rtol=RTOL, atol=1e-14)


def test_their_log_density_is_off_by_what_they_add_to_the_slope(monkeypatch: pytest.MonkeyPatch) -> None:
    # Why the form has to be made equal above: at u = 10 the slope of the tanh is 8e-9, far below the 1e-6 they add.
    ours = build("sac")
    mean, log_std = torch.zeros(1, 1), torch.zeros(1, 1)
    distribution = stable_baselines3.common.distributions.SquashedDiagGaussianDistribution(1)
    feed_noise(monkeypatch, ours=[torch.full((1, 1), 10.0)], theirs=[torch.full((1, 1), 10.0)])
    _, theirs = distribution.log_prob_from_params(mean, log_std)
    monkeypatch.setattr(type(ours.model.actor), "forward", lambda *_, **__: (mean, log_std))
    _, exact = ours.model.actor.sample(torch.zeros(1, 1))
    assert [float(exact), float(theirs)] == pytest.approx([-32.3052329, -37.1116], abs=1e-4)


def _batches(n_step: bool) -> list[Batch]:
    """Batches that, where rewards are sums over several steps, have a discount of their own for each row."""
    found = batches(UPDATES)
    powers = torch.arange(32) % 3 + 1
    return [batch | {"discounts": SHARED["gamma"] ** powers} for batch in found] if n_step else found


def _copy_deterministic(ours: Any, theirs: Any) -> None:
    for actor in (theirs.actor, theirs.actor_target):
        copy_layers(peer_layers(actor), actor_layers(ours.model.actor))
    _copy_critics(ours, theirs)


def _copy_soft(ours: Any, theirs: Any) -> None:
    copy_layers(peer_layers(theirs.actor), heads_apart(ours.model.actor))
    _copy_critics(ours, theirs)


def _copy_critics(ours: Any, theirs: Any) -> None:
    for critic in (theirs.critic, theirs.critic_target):
        for member, network in enumerate(critic.q_networks):
            copy_layers(peer_layers(network), critic_layers(ours.model.critic, member))


def _assert_deterministic_equal(ours: Any, theirs: Any) -> None:
    assert_layers_equal(actor_layers(ours.model.actor), peer_layers(theirs.actor), RTOL)
    assert_layers_equal(actor_layers(ours.target.actor), peer_layers(theirs.actor_target), RTOL)
    _assert_critics_equal(ours, theirs)


def _assert_critics_equal(ours: Any, theirs: Any) -> None:
    for critic, peer_critic in ((ours.model.critic, theirs.critic), (ours.target.critic, theirs.critic_target)):
        assert len(critic.mlp.layers[0].weight) == len(peer_critic.q_networks)
        for member, network in enumerate(peer_critic.q_networks):
            assert_layers_equal(critic_layers(critic, member), peer_layers(network), RTOL)


def _assert_losses_equal(metrics: Any, peer_metrics: dict[str, float], **names: str) -> None:
    for name, peer_name in names.items():
        assert float(metrics[name]) == pytest.approx(peer_metrics[peer_name], rel=RTOL), name
