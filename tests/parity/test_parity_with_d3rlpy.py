"""Several updates in float64 from equal weights, batches and noise, beside d3rlpy's.

Where d3rlpy computes something else than the papers, a subclass in this file does the same, and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from peers import (
    ACTION_DIM,
    OBS_DIM,
    SPACES,
    actor_layers,
    assert_layers_equal,
    batches,
    copy_layers,
    critic_layers,
    peer_batch,
    peer_layers,
)
from torch import Tensor, nn

from rl_training.algorithms import ALGORITHMS, Algorithm
from rl_training.algorithms.awac import AWAC
from rl_training.algorithms.base import Step
from rl_training.algorithms.base.losses import bellman, critic_objective
from rl_training.algorithms.crr import CRR
from rl_training.algorithms.iql import IQL
from rl_training.core.batches import Batch, Metrics
from rl_training.models import gaussian_log_prob
from rl_training.models.actors import log_tanh_slope

d3rlpy = pytest.importorskip("d3rlpy", reason="needs the extra 'peers'")
RTOL = 1e-8
UPDATES, ROWS, LATENTS = 7, 32, 2 * ACTION_DIM
TARGET_SAMPLES, MMD_SAMPLES, ACTION_SAMPLES = 6, 4, 7

Layers = list[tuple[Tensor, Tensor]]
Shape = tuple[int, ...]
# d3rlpy makes its networks and its noise in the default type, so that has to be float64 too.
pytestmark = pytest.mark.usefixtures("float64")


@contextmanager
def _answered(serve: Callable[[Shape], Tensor]) -> Iterator[None]:
    """Answer requests for standard normal numbers, ours and those of torch.distributions."""

    def randn(*shape: Any, **_: Any) -> Tensor:
        return serve(tuple(shape if isinstance(shape[0], int) else shape[0]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "randn", randn)
        patch.setattr(torch, "randn_like", lambda like: serve(tuple(like.shape)))
        patch.setattr(torch.distributions.normal, "_standard_normal", lambda shape, **_: serve(tuple(shape)))
        yield


@contextmanager
def _served(*draws: Tensor) -> Iterator[None]:
    """Answer with these numbers, in this order and all of them."""
    left = list(draws)

    def serve(shape: Shape) -> Tensor:
        drawn = left.pop(0)
        assert drawn.shape == shape
        return drawn

    with _answered(serve):
        yield
    assert not left


@contextmanager
def _seeded(number: int) -> Iterator[list[Shape]]:
    """Answer with numbers that depend on the order of the draws alone; gives the shapes that were asked for."""
    generator, shapes, randn = torch.Generator().manual_seed(number), [], torch.randn

    def serve(shape: Shape) -> Tensor:
        shapes.append(shape)
        return randn(shape, generator=generator)

    with _answered(serve):
        yield shapes


def _draw(seed: int, *shapes: Shape) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator) for shape in shapes]


def _build(cls: type[Algorithm], **options: Any) -> Any:
    torch.manual_seed(0)
    ours: Any = cls.build(SPACES, cls.hyper_class(**{"hidden_sizes": (16, 16), **options})).double()
    # Norms start as the identity: without this, copying them in the wrong order would go unnoticed.
    for norm in ours.model.critic.mlp.norms if hasattr(ours.model, "critic") else ():
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.uniform_(norm.bias, -0.5, 0.5)
    for name, child in ours.target.named_children():
        child.load_state_dict(getattr(ours.model, name).state_dict())
    return ours


def _create(name: str, ours: Any, **settings: Any) -> Any:
    """d3rlpy's implementation with our weights, in the online networks and in the lagged ones."""
    config = getattr(d3rlpy.algos, f"{name}Config")
    factory, sizes = d3rlpy.models.VectorEncoderFactory, list(ours.hyper.hidden_sizes)
    for option in config.__dataclass_fields__:
        if option.endswith("encoder_factory"):
            is_normed = option.startswith("critic") and getattr(ours.hyper, "critic_layer_norm", False)
            settings[option] = factory(sizes, use_layer_norm=is_normed)
    algorithm: Any = config(**settings).create()
    algorithm.create_impl((OBS_DIM,), ACTION_DIM)
    modules = algorithm.impl._modules
    for part in ("policy", "targ_policy"):
        # Its learned deviation is float32 whatever the default type.
        getattr(modules, part, nn.Module()).double()
    for mine, theirs in _pairs(ours, modules):
        copy_layers(theirs, mine)
    return algorithm.impl


def _pairs(ours: Any, modules: Any) -> list[tuple[Layers, Layers]]:
    """Our layers beside theirs, of every network that both have."""
    pairs = [
        (critic_layers(side.critic, member) + _norms(side.critic, member), peer_layers(network) + _peer_norms(network))
        for side, name in ((ours.model, "q_funcs"), (ours.target, "targ_q_funcs"))
        for member, network in enumerate(getattr(modules, name, ()))
    ]
    names = {"policy": "model.actor", "imitator": "model.actor", "targ_policy": "target.actor"}
    names |= {"value_func": "model.value", "vae_encoder": "model.vae.encoder", "vae_decoder": "model.vae.decoder"}
    for name, path in names.items():
        if hasattr(modules, name):
            mine, theirs = actor_layers(ours.get_submodule(path)), peer_layers(getattr(modules, name))
            pairs.append((_split_head(mine) if len(mine) < len(theirs) else mine, theirs))
    return pairs


def _split_head(layers: Layers) -> Layers:
    """Our one last layer for mean and log-deviation as d3rlpy's two."""
    *hidden, (weight, bias) = layers
    return [*hidden, *zip(weight.chunk(2), bias.chunk(2), strict=True)]


def _norms(critic: Any, member: int) -> Layers:
    return [(norm.weight[member], norm.bias[member]) for norm in critic.mlp.norms]


def _peer_norms(module: nn.Module) -> Layers:
    return [(layer.weight, layer.bias) for layer in module.modules() if isinstance(layer, nn.LayerNorm)]


def _assert_equal(ours: Any, peer: Any) -> None:
    for mine, theirs in _pairs(ours, peer._modules):
        assert_layers_equal(mine, theirs, RTOL)


class PeerAWAC(AWAC):
    """AWAC as in d3rlpy, which inherits the critic of SAC and sums the actor's loss."""

    def critic_loss(self, batch: Batch) -> Metrics:
        """Bootstraps from tanh of a sample around the mean before its tanh, less its log-density at temperature 1."""
        next_obs, actor = batch["next_obs"], self.model.actor
        with torch.no_grad():
            raw_mean, (_, log_std) = actor.mlp(next_obs), actor(next_obs)
            raw = raw_mean + log_std.exp() * torch.randn_like(raw_mean)
            entropy = log_tanh_slope(raw).sum(-1) - gaussian_log_prob(raw, raw_mean, log_std)
            next_q = self.target.critic(next_obs, raw.tanh()).amin(0)
            target_q = bellman(batch, next_q + entropy, self.hyper.gamma)
        q = self.model.critic(batch["obs"], batch["actions"])
        return critic_objective(q_values=q, target_q_values=target_q)

    def actor_loss(self, batch: Batch) -> Metrics:
        """The sum over the batch, which Adam's epsilon and weight decay can tell from the mean."""
        metrics = super().actor_loss(batch)
        return metrics | {"actor_loss": metrics["actor_loss"] * len(batch["obs"])}


class PeerIQL(IQL):
    """IQL as in d3rlpy: critics and value move together, then the actor, with the new value."""

    @classmethod
    def make_steps(cls, hyper: Any) -> tuple[Step, ...]:
        return Step("joint", trains=("critic", "value")), Step("actor", tracks=("critic",))

    def joint_loss(self, batch: Batch) -> Metrics:
        return self.critic_loss(batch) | self.value_loss(batch)


class PeerCRR(CRR):
    """CRR as in d3rlpy: the actor moves after the critics and with their new values."""

    @classmethod
    def make_steps(cls, hyper: Any) -> tuple[Step, ...]:
        follow = Step("actor", tracks=("critic", "actor"), track_every="target_update_interval")
        return Step("critic"), follow


TD3BC, BC, REBRAC = (ALGORITHMS[name] for name in ("td3_bc", "bc", "rebrac"))
FAST = {"actor_learning_rate": 3e-3, "critic_learning_rate": 3e-3}
"""A step size at which seven updates are no small change."""
REBRAC_RATES = {"actor_learning_rate": 1e-3, "critic_learning_rate": 1e-3}
WIDE = (16, 16, 16)
SIGMOID: dict[str, Any] = {"spread": "sigmoid", **FAST}
CRR_DEFAULTS: dict[str, Any] = {"max_weight": 1.2, "target_update_interval": 3, **FAST}
HARD: dict[str, Any] = {"tau": 1.0, "target_update_interval": 3}
"""Copies that are made anew at intervals."""


def _adam(weight_decay: float) -> dict[str, Any]:
    return {"actor_optim_factory": d3rlpy.optimizers.AdamFactory(weight_decay=weight_decay)}


CASES: list[tuple[type[Algorithm], dict[str, Any], str, dict[str, Any], int]] = [
    (TD3BC, {"policy_noise": 0.0}, "TD3PlusBC", {"target_smoothing_sigma": 0.0}, 1),
    (TD3BC, {"policy_noise": 0.2}, "TD3PlusBC", {"target_smoothing_sigma": 0.2}, 1),
    (BC, {}, "BC", {"learning_rate": 3e-4, "policy_type": "deterministic"}, 0),
    *(
        (
            REBRAC,
            {"hidden_sizes": WIDE, "critic_layer_norm": norm, "actor_bc_weight": 0.3, "critic_bc_weight": 0.7},
            "ReBRAC",
            {"actor_beta": 0.3, "critic_beta": 0.7, **REBRAC_RATES},
            1,
        )
        for norm in (True, False)
    ),
    *(
        (
            PeerAWAC,
            {"weights": "softmax", "awac_lambda": 0.5, "num_action_samples": samples, **SIGMOID}
            | {"actor_weight_decay": decay},
            "AWAC",
            {"lam": 0.5, "n_action_samples": samples, **_adam(decay), **FAST},
            2,
        )
        for samples, decay in ((1, 0.0), (3, 1e-2))
    ),
    # Expectiles that are exact in float32, for d3rlpy rounds its weights to that.
    *(
        (
            PeerIQL,
            {"expectile": expectile, "beta": beta, "max_weight": bound, "learning_rate": 3e-3, **SIGMOID},
            "IQL",
            {"expectile": expectile, "weight_temp": beta, "max_weight": bound, **FAST},
            0,
        )
        for expectile, beta, bound in ((0.75, 3.0, 100.0), (0.875, 10.0, 1.5))
    ),
    # One critic, for of several d3rlpy takes the mean in the advantage and we the smallest.
    *(
        (
            PeerCRR,
            {"num_critics": 1, "advantage": advantage, **weights, **follow, **FAST},
            "CRR",
            {"weight_type": weights["weights"], "advantage_type": advantage, "beta": weights.get("beta", 1.0)}
            | {"target_update_type": "hard" if follow else "soft", **CRR_DEFAULTS},
            2,
        )
        for weights, advantage, follow in (
            ({"weights": "exp", "beta": 1.0, "max_weight": 1.2}, "mean", {}),
            ({"weights": "exp", "beta": 0.1, "max_weight": 1.2}, "max", HARD),
            ({"weights": "binary"}, "mean", HARD),
            ({"weights": "binary"}, "max", {}),
        )
    ),
]
"""Ours and our options, theirs and their settings, and how often either draws noise in an update."""


@pytest.mark.parametrize(("cls", "options", "name", "settings", "draws"), CASES)
def test_updates_equal_d3rlpys(
    cls: type[Algorithm], options: dict[str, Any], name: str, settings: dict[str, Any], draws: int
) -> None:
    ours = _build(cls, **options)
    peer = _create(name, ours, **settings)
    # Where d3rlpy updates its actor on every second update, that is when the number of updates done before is even, we
    # when the number including this one is: starting its count at 1 makes both move on updates 2, 4, 6.
    for number, batch in enumerate(batches(UPDATES, ROWS), start=1):
        theirs = peer_batch(batch)
        if "next_actions" in ours.needs:
            batch["next_actions"] = batch["actions"].roll(1, 0)
            theirs = replace(theirs, next_actions=batch["next_actions"])
        with _seeded(number) as shapes:
            metrics = ours.update(batch).metrics
        with _seeded(number) as peer_shapes:
            peer_metrics = peer.inner_update(theirs, number)
        assert shapes == peer_shapes
        assert len(shapes) == draws
        if cls is TD3BC:
            # d3rlpy adds the losses of its critics up in float32, so the loss it reports has seven digits only; the
            # gradients do not pass through that sum's rounding, and the parameters below are compared in full.
            assert float(metrics["critic_loss"]) == pytest.approx(peer_metrics["critic_loss"], rel=1e-6)
    _assert_equal(ours, peer)
    if options.get("spread") == "sigmoid":
        log_std = peer._modules.policy._logstd[0]
        torch.testing.assert_close(ours.model.actor.log_std, log_std, rtol=RTOL, atol=1e-14)


@pytest.mark.parametrize(("phi", "min_q_weight"), [(0.05, 0.75), (0.9, 0.4)])
def test_updates_of_bcq_equal_d3rlpys(phi: float, min_q_weight: float, monkeypatch: pytest.MonkeyPatch) -> None:
    _mend_decoder(monkeypatch)
    # d3rlpy has one number of samples for the target and for acting.
    samples = {"num_target_samples": TARGET_SAMPLES, "num_action_samples": TARGET_SAMPLES}
    ours = _build(ALGORITHMS["bcq"], vae_hidden_sizes=(16, 16), phi=phi, min_q_weight=min_q_weight, **samples)
    peer = _create("BCQ", ours, action_flexibility=phi, lam=min_q_weight, n_action_samples=TARGET_SAMPLES)
    for step, batch in enumerate(batches(UPDATES, ROWS)):
        vae, target, actor = _draw(step, (ROWS, LATENTS), (TARGET_SAMPLES, ROWS, LATENTS), (ROWS, LATENTS))
        with _served(vae, target, actor):
            ours.update(batch)
        # Theirs are in one column of rows, those of a state together.
        with _served(vae, target.transpose(0, 1).flatten(0, 1), actor):
            peer.inner_update(peer_batch(batch), step)
    _assert_equal(ours, peer)
    obs = batches(1, ROWS)[0]["obs"]
    with _served(ours.model.candidates.squeeze(1).repeat(ROWS, 1)), torch.no_grad():
        expected = peer.inner_predict_best_action(obs)
    torch.testing.assert_close(ours.act(obs), expected, rtol=RTOL, atol=1e-14)


@pytest.mark.parametrize("kernel", ["laplacian", "gaussian"])
def test_updates_of_bear_equal_d3rlpys_during_the_warm_up_and_after_it(
    kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _mend_decoder(monkeypatch)
    ours, peer = _bears(kernel=kernel, warmup=2)
    # d3rlpy does not move the multiplier during the warm-up, and afterwards its gradient undoes the distance's in the
    # actor (see below): here it stays where it is.
    ours.optimizers["lagrange"].learning_rate = 0.0
    peer._modules = replace(peer._modules, alpha_optim=None)
    _update_bears(ours, peer, warmup=2)
    obs = batches(1, ROWS)[0]["obs"]
    with _served(ours.model.candidates.squeeze(1).expand(ROWS, ACTION_SAMPLES, ACTION_DIM)):
        expected = peer.inner_predict_best_action(obs)
    torch.testing.assert_close(ours.act(obs), expected, rtol=RTOL, atol=1e-14)


@pytest.mark.parametrize(("threshold", "direction"), [(0.05, 1.0), (2.0, -1.0)])
def test_updates_of_bears_multiplier_equal_d3rlpys(
    threshold: float, direction: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    _mend_decoder(monkeypatch)
    ours, peer = _bears(threshold=threshold, warmup=0)
    modules = peer._modules
    # Created in float32 whatever the default type.
    modules.log_alpha.double()
    update_alpha = peer.update_alpha

    def update_alpha_only(mmd_loss: Tensor) -> None:
        # d3rlpy's backward pass for the multiplier leaves the negative gradient of the distance in the actor's
        # parameters, where it cancels the one that the actor's own pass adds.
        update_alpha(mmd_loss)
        modules.actor_optim.zero_grad()

    peer.update_alpha = update_alpha_only
    _update_bears(ours, peer, warmup=0)
    log_alpha = modules.log_alpha._parameter.detach().squeeze()
    torch.testing.assert_close(ours.model.lagrange.log_value.detach(), log_alpha, rtol=RTOL, atol=0.0)
    # No distance exceeds sqrt(2 + 1e-6), that between samples which have nothing in common.
    assert float(log_alpha.sign()) == direction


def _bears(*, warmup: int, kernel: str = "laplacian", threshold: float = 0.05) -> tuple[Any, Any]:
    # d3rlpy's option for the multiplier's step size is ignored: it uses the actor's.
    rates = {"actor_learning_rate": 1e-3, "lagrange_learning_rate": 1e-3}
    options: dict[str, Any] = {"mmd_kernel": kernel, "mmd_sigma": 2.0, "mmd_threshold": threshold}
    options |= {"mmd_warmup_updates": warmup, "num_mmd_samples": MMD_SAMPLES, "num_target_samples": TARGET_SAMPLES}
    options |= {"num_action_samples": ACTION_SAMPLES, "vae_hidden_sizes": (16, 16)}
    ours = _build(ALGORITHMS["bear"], **options, **rates)
    # d3rlpy's BEAR is built on SAC: with a temperature of almost nothing that stays so, entropy has no weight.
    settings: dict[str, Any] = {"actor_learning_rate": 1e-3, "initial_temperature": 1e-300, "mmd_sigma": 2.0}
    settings |= {"alpha_threshold": threshold, "mmd_kernel": kernel, "warmup_steps": warmup}
    settings |= {"n_mmd_action_samples": MMD_SAMPLES, "n_target_samples": TARGET_SAMPLES}
    peer = _create("BEAR", ours, n_action_samples=ACTION_SAMPLES, **settings)
    peer._modules = replace(peer._modules, temp_optim=None)
    return ours, peer


def _update_bears(ours: Any, peer: Any, *, warmup: int) -> None:
    behaviors, policies = (MMD_SAMPLES, ROWS, LATENTS), (MMD_SAMPLES, ROWS, ACTION_DIM)
    for step, batch in enumerate(batches(UPDATES, ROWS)):
        targets = (TARGET_SAMPLES, ROWS, ACTION_DIM)
        vae, target, behavior, policy = _draw(step, (ROWS, LATENTS), targets, behaviors, policies)
        with _served(vae, target, behavior, policy):
            ours.update(batch)
        # d3rlpy draws the action that it values by itself; ours is the first of those in the distance.
        valued = [] if step < warmup else [policy[0]]
        with _served(vae, target, *valued, behavior.flatten(0, 1), policy):
            peer.inner_update(peer_batch(batch), step)
    _assert_equal(ours, peer)


def _mend_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """d3rlpy's decoder squashes when it is told not to, and does not when it is told to."""
    decoder: Any = d3rlpy.models.torch.imitators.VAEDecoder
    forward = decoder.forward

    def mended(self: Any, x: Tensor, latent: Tensor, with_squash: bool) -> Tensor:
        actions: Tensor = forward(self, x, latent, not with_squash)
        return actions

    monkeypatch.setattr(decoder, "forward", mended)
