"""Several updates in float64 from equal weights, batches and noise, beside those of sb3-contrib's own `train`.

What differs between the two, and is made equal here:

- They cast observations and the levels of quantiles to float32; both casts are taken out.
- They take log(1 - a^2 + 1e-6) for the slope of tanh, we the exact form; ours is set to theirs.
- In TQC they draw the noise of the action at s before that of the action at s', we after it; each draw is given.
- In CrossQ they normalise by the unbiased variance of a batch, we by the biased one; ours is set to theirs.
- Their warm-up of w passes lasts w + 1 of them, ours w; ours is told one more.
- They add epsilon to the variance after it was divided by r^2, we before, and have d as part of the mean, so that a
  unit that is silent in a whole batch comes out as 0 there and as d here; ours is set to theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peers import ACTION_DIM, assert_layers_equal, batches, build, copy_layers, critic_layers, heads_apart, peer_layers
from sb3_peers import feed_noise, in_float64, make_peer, train_peer, use_their_log_prob
from torch import Tensor

from rl_training.models.batch_renorm import BatchRenorm

sb3_contrib: Any = pytest.importorskip("sb3_contrib", reason="needs the extra 'peers'")
RTOL = 1e-8
UPDATES = 10

Layers = list[tuple[Tensor, Tensor]]
Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def _equal_arithmetic(monkeypatch: Patch) -> Iterator[None]:
    in_float64(monkeypatch)
    use_their_log_prob(monkeypatch)
    yield
    torch.set_default_dtype(torch.float32)


def _update_both(monkeypatch: Patch, ours: Any, theirs: Any, *, at_s_first: bool) -> list[dict[str, float]]:
    """Updates of both with the same noise, which we draw for s' first; what ours reported."""
    reports = []
    for batch in batches(UPDATES):
        now, after = torch.randn(2, 32, ACTION_DIM)
        feed_noise(monkeypatch, ours=[after, now], theirs=[now, after] if at_s_first else [after, now])
        reports.append({name: float(value) for name, value in ours.update(batch).metrics.items()})
        peer_report = train_peer(theirs, batch)
        assert reports[-1]["critic_loss"] == pytest.approx(peer_report["critic_loss"], rel=RTOL)
    return reports


def _assert_temperatures_equal(ours: Any, theirs: Any) -> None:
    log_temperature = ours.model.temperature.log_value.detach()
    if theirs.ent_coef_optimizer is None:
        torch.testing.assert_close(log_temperature, theirs.ent_coef_tensor.log(), rtol=RTOL, atol=0)
        return
    torch.testing.assert_close(log_temperature, theirs.log_ent_coef.detach()[0], rtol=RTOL, atol=0)
    # Otherwise it would have been equal from the start.
    assert abs(float(log_temperature)) > 1e-3


@pytest.mark.parametrize("alpha", ["auto", 0.2])
@pytest.mark.parametrize(("quantiles", "dropped"), [(25, 2), (7, 0)])
def test_ten_updates_of_tqc_equal_theirs(monkeypatch: Patch, alpha: float | str, quantiles: int, dropped: int) -> None:
    shared: dict[str, Any] = {"learning_rate": 1e-3, "gamma": 0.95, "tau": 0.02}
    ours: Any = build("tqc", **shared, alpha=alpha, num_quantiles=quantiles, dropped_quantiles=dropped)
    policy = {"n_critics": 2, "n_quantiles": quantiles}
    theirs = make_peer(sb3_contrib.TQC, **shared, ent_coef=alpha, policy=policy, top_quantiles_to_drop_per_net=dropped)
    levels = (torch.arange(quantiles) + 0.5) / quantiles
    exact = partial(sb3_contrib.common.utils.quantile_huber_loss, cum_prob=levels[:, None])
    monkeypatch.setattr("sb3_contrib.tqc.tqc.quantile_huber_loss", exact)
    copy_layers(peer_layers(theirs.actor), heads_apart(ours.model.actor))
    for critics in (theirs.critic, theirs.critic_target):
        for member, network in enumerate(critics.q_networks):
            copy_layers(peer_layers(network), critic_layers(ours.model.critic, member))
    _update_both(monkeypatch, ours, theirs, at_s_first=True)
    assert_layers_equal(heads_apart(ours.model.actor), peer_layers(theirs.actor), RTOL)
    for critics, peers in ((ours.model.critic, theirs.critic), (ours.target.critic, theirs.critic_target)):
        for member, network in enumerate(peers.q_networks):
            assert_layers_equal(critic_layers(critics, member), peer_layers(network), RTOL)
    _assert_temperatures_equal(ours, theirs)


def _unbiased(rows: Tensor) -> tuple[Tensor, Tensor]:
    return rows.mean(-2, keepdim=True), rows.var(-2, keepdim=True)


def _renormalize_as_they_do(
    rows: Tensor, mean: Tensor, var: Tensor, *, scale: Tensor, shift: Tensor, eps: float
) -> Tensor:
    return (rows - (mean - shift * var.sqrt() / scale)) / (var / scale.square() + eps).sqrt()


def _networks(ours: Any, theirs: Any) -> list[tuple[Any, int, Any]]:
    """Each of our perceptrons, the member of it, and the module of theirs with the same layers."""
    critics = [(ours.model.critic.mlp, member, network) for member, network in enumerate(theirs.critic.q_networks)]
    return [(ours.model.actor.mlp, 0, theirs.actor), *critics]


def _layers(mlp: Any, member: int) -> Layers:
    """Our layers, the actor's last one as the two that they have for mean and log-deviation."""
    *hidden, (weight, bias) = critic_layers(SimpleNamespace(mlp=mlp), member)
    heads = 2 if mlp.size == 1 else 1
    return [*hidden, *zip(weight.chunk(heads), bias.chunk(heads), strict=True)]


def _norms(norms: Sequence[BatchRenorm], member: int) -> list[tuple[Tensor, ...]]:
    parts = [(norm.weight, norm.bias, norm.running_mean, norm.running_var) for norm in norms]
    return [(*(part[member, 0] for part in of_norm), norms[0].steps) for of_norm in parts]


def _peer_norms(module: Any) -> list[tuple[Tensor, ...]]:
    norms = [part for part in module.modules() if hasattr(part, "ra_mean")]
    return [(norm.scale, norm.bias, norm.ra_mean, norm.ra_var, norm.steps) for norm in norms]


@pytest.mark.parametrize("alpha", ["auto", 0.2])
@pytest.mark.parametrize("warmup", [100_000, 1])
def test_ten_updates_of_crossq_equal_theirs(monkeypatch: Patch, alpha: float | str, warmup: int) -> None:
    shared: dict[str, Any] = {"learning_rate": 2e-3, "gamma": 0.95, "policy_delay": 2}
    ours: Any = build("crossq", **shared, alpha=alpha, critic_hidden_sizes=None, norm_warmup=warmup + 1)
    policy = {"n_critics": 2, "renorm_warmup_steps": warmup}
    theirs = make_peer(sb3_contrib.CrossQ, **shared, ent_coef=alpha, policy=policy)
    # Their running statistics are float32 whatever the default type.
    theirs.policy.double()
    monkeypatch.setattr("rl_training.models.batch_renorm.batch_statistics", _unbiased)
    monkeypatch.setattr("rl_training.models.batch_renorm.renormalize", _renormalize_as_they_do)
    for mlp, member, network in _networks(ours, theirs):
        copy_layers(peer_layers(network), _layers(mlp, member))
    reports = _update_both(monkeypatch, ours, theirs, at_s_first=False)
    for mlp, member, network in _networks(ours, theirs):
        assert_layers_equal(_layers(mlp, member), peer_layers(network), RTOL)
        torch.testing.assert_close(_norms(mlp.norms, member), _peer_norms(network), rtol=RTOL, atol=1e-14)
    _assert_temperatures_equal(ours, theirs)
    # After the warm-up r is clipped for some features and free for others, so that both are compared.
    assert any(0 < report["bn_r_clip_share"] < 1 for report in reports) == (warmup == 1)
