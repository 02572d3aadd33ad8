"""Several updates of BCQ, BEAR and ReBRAC in float64 from equal weights, batches and draws, beside d3rlpy's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from peers import (
    ACTION_DIM,
    OBS_DIM,
    actor_layers,
    assert_layers_equal,
    batches,
    build,
    copy_layers,
    critic_layers,
    peer_batch,
    peer_layers,
)
from torch import Tensor, nn

from rl_training.types import Batch

d3rlpy = pytest.importorskip("d3rlpy", reason="needs the extra 'peers'")
RTOL = 1e-8
UPDATES, ROWS, LATENTS = 6, 32, 2 * ACTION_DIM
TARGET_SAMPLES, MMD_SAMPLES, ACTION_SAMPLES = 6, 4, 7

Layers = list[tuple[Tensor, Tensor]]


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    """d3rlpy makes its networks in the default type, so that has to be float64 too."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(("phi", "min_q_weight"), [(0.05, 0.75), (0.9, 0.4)])
def test_updates_of_bcq_equal_d3rlpys(phi: float, min_q_weight: float, monkeypatch: pytest.MonkeyPatch) -> None:
    _mend_decoder(monkeypatch)
    ours = build(
        "bcq",
        vae_hidden_sizes=(16, 16),
        phi=phi,
        min_q_weight=min_q_weight,
        num_target_samples=TARGET_SAMPLES,
        num_action_samples=TARGET_SAMPLES,
    )
    encoder = d3rlpy.models.VectorEncoderFactory([16, 16])
    peer = _create(
        d3rlpy.algos.BCQConfig(
            actor_encoder_factory=encoder,
            critic_encoder_factory=encoder,
            imitator_encoder_factory=encoder,
            action_flexibility=phi,
            lam=min_q_weight,
            # d3rlpy has one number of samples for the target and for acting.
            n_action_samples=TARGET_SAMPLES,
        )
    )
    modules = peer._modules
    pairs = [
        *_critic_pairs(ours, modules),
        *_vae_pairs(ours, modules),
        (actor_layers(ours.model.actor), peer_layers(modules.policy)),
        (actor_layers(ours.target.actor), peer_layers(modules.targ_policy)),
    ]
    _copy(pairs)
    for step, batch in enumerate(batches(UPDATES, ROWS)):
        vae, target, actor = _draw(step, (ROWS, LATENTS), (TARGET_SAMPLES, ROWS, LATENTS), (ROWS, LATENTS))
        with _served(vae, target, actor):
            ours.update(batch)
        with _served(vae, _by_state(target), actor):
            peer.inner_update(peer_batch(batch), step)
    _assert_equal(pairs)

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
    pairs = _bear_pairs(ours, peer)
    _copy(pairs)
    for step, batch in enumerate(batches(UPDATES, ROWS)):
        _update_bears(ours, peer, batch, step, warmup=2)
    _assert_equal(pairs)

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
    pairs = _bear_pairs(ours, peer)
    _copy(pairs)
    for step, batch in enumerate(batches(UPDATES, ROWS)):
        _update_bears(ours, peer, batch, step, warmup=0)
    _assert_equal(pairs)
    log_alpha = modules.log_alpha._parameter.detach().squeeze()
    torch.testing.assert_close(ours.model.lagrange.log_value.detach(), log_alpha, rtol=RTOL, atol=0.0)
    # No distance exceeds sqrt(2 + 1e-6), that between samples which have nothing in common.
    assert float(log_alpha.sign()) == direction


@pytest.mark.parametrize("layer_norm", [True, False])
def test_updates_of_rebrac_equal_d3rlpys(layer_norm: bool) -> None:
    weights = {"actor_bc_weight": 0.3, "critic_bc_weight": 0.7}
    ours = build("rebrac", hidden_sizes=(16, 16, 16), critic_layer_norm=layer_norm, **weights)
    # They start as the identity: without this, copying them in the wrong order would go unnoticed.
    with torch.no_grad():
        for norm in ours.model.critic.mlp.norms:
            norm.weight.uniform_(0.5, 1.5)
            norm.bias.uniform_(-0.5, 0.5)
    ours.target.critic.load_state_dict(ours.model.critic.state_dict())
    factory = d3rlpy.models.VectorEncoderFactory
    peer = _create(
        d3rlpy.algos.ReBRACConfig(
            actor_encoder_factory=factory([16, 16, 16]),
            critic_encoder_factory=factory([16, 16, 16], use_layer_norm=layer_norm),
            actor_learning_rate=1e-3,
            critic_learning_rate=1e-3,
            actor_beta=weights["actor_bc_weight"],
            critic_beta=weights["critic_bc_weight"],
        )
    )
    modules = peer._modules
    pairs = [
        *_critic_pairs(ours, modules),
        (actor_layers(ours.model.actor), peer_layers(modules.policy)),
        (actor_layers(ours.target.actor), peer_layers(modules.targ_policy)),
    ]
    _copy(pairs)
    # d3rlpy updates its actor when the number of updates done before is even, we when the number including this one
    # is: starting its count at 1 makes both move on updates 2, 4, 6.
    for step, batch in enumerate(batches(UPDATES, ROWS), start=1):
        noise, raw = _draw(step, (ROWS, ACTION_DIM), (ROWS, ACTION_DIM))
        batch["next_actions"] = raw.tanh()
        with _served(noise):
            ours.update(batch)
        with _served(noise):
            peer.inner_update(replace(peer_batch(batch), next_actions=batch["next_actions"]), step)
    _assert_equal(pairs)


def _bears(*, warmup: int, kernel: str = "laplacian", threshold: float = 0.05) -> tuple[Any, Any]:
    ours = build(
        "bear",
        vae_hidden_sizes=(16, 16),
        # d3rlpy's option for the multiplier's step size is ignored: it uses the actor's.
        actor_learning_rate=1e-3,
        lagrange_learning_rate=1e-3,
        mmd_kernel=kernel,
        mmd_sigma=2.0,
        mmd_threshold=threshold,
        mmd_warmup_updates=warmup,
        num_mmd_samples=MMD_SAMPLES,
        num_target_samples=TARGET_SAMPLES,
        num_action_samples=ACTION_SAMPLES,
    )
    encoder = d3rlpy.models.VectorEncoderFactory([16, 16])
    peer = _create(
        d3rlpy.algos.BEARConfig(
            actor_encoder_factory=encoder,
            critic_encoder_factory=encoder,
            imitator_encoder_factory=encoder,
            actor_learning_rate=1e-3,
            # d3rlpy's BEAR is built on SAC: with a temperature of almost nothing that stays so, entropy has no weight.
            initial_temperature=1e-300,
            alpha_threshold=threshold,
            mmd_kernel=kernel,
            mmd_sigma=2.0,
            warmup_steps=warmup,
            n_mmd_action_samples=MMD_SAMPLES,
            n_target_samples=TARGET_SAMPLES,
            n_action_samples=ACTION_SAMPLES,
        )
    )
    peer._modules = replace(peer._modules, temp_optim=None)
    return ours, peer


def _update_bears(ours: Any, peer: Any, batch: Batch, step: int, *, warmup: int) -> None:
    vae, target, behavior, policy = _draw(
        step,
        (ROWS, LATENTS),
        (TARGET_SAMPLES, ROWS, ACTION_DIM),
        (MMD_SAMPLES, ROWS, LATENTS),
        (MMD_SAMPLES, ROWS, ACTION_DIM),
    )
    with _served(vae, target, behavior, policy):
        ours.update(batch)
    # d3rlpy draws the action that it values by itself; ours is the first of those in the distance.
    valued = [] if step < warmup else [policy[0]]
    with _served(vae, target, *valued, behavior.flatten(0, 1), policy):
        peer.inner_update(peer_batch(batch), step)


def _bear_pairs(ours: Any, peer: Any) -> list[tuple[Layers, Layers]]:
    modules = peer._modules
    policy = (_split_head(actor_layers(ours.model.actor)), peer_layers(modules.policy))
    return [*_critic_pairs(ours, modules), *_vae_pairs(ours, modules), policy]


def _critic_pairs(ours: Any, modules: Any) -> list[tuple[Layers, Layers]]:
    return [
        (critic_layers(critic, member) + _norms(critic, member), peer_layers(q_func) + _peer_norms(q_func))
        for critic, q_funcs in ((ours.model.critic, modules.q_funcs), (ours.target.critic, modules.targ_q_funcs))
        for member, q_func in enumerate(q_funcs)
    ]


def _vae_pairs(ours: Any, modules: Any) -> list[tuple[Layers, Layers]]:
    return [
        (_split_head(actor_layers(ours.model.vae.encoder)), peer_layers(modules.vae_encoder)),
        (actor_layers(ours.model.vae.decoder), peer_layers(modules.vae_decoder)),
    ]


def _split_head(layers: Layers) -> Layers:
    """Our one last layer for mean and log-deviation as d3rlpy's two."""
    *hidden, (weight, bias) = layers
    return [*hidden, *zip(weight.chunk(2), bias.chunk(2), strict=True)]


def _norms(critic: Any, member: int) -> Layers:
    return [(norm.weight[member], norm.bias[member]) for norm in critic.mlp.norms]


def _peer_norms(module: nn.Module) -> Layers:
    return [(layer.weight, layer.bias) for layer in module.modules() if isinstance(layer, nn.LayerNorm)]


def _create(config: Any) -> Any:
    algo = config.create()
    algo.create_impl((OBS_DIM,), ACTION_DIM)
    return algo.impl


def _mend_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """d3rlpy's decoder squashes when it is told not to, and does not when it is told to."""
    decoder: Any = d3rlpy.models.torch.imitators.VAEDecoder
    forward = decoder.forward

    def mended(self: Any, x: Tensor, latent: Tensor, with_squash: bool) -> Tensor:
        actions: Tensor = forward(self, x, latent, not with_squash)
        return actions

    monkeypatch.setattr(decoder, "forward", mended)


def _draw(seed: int, *shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator) for shape in shapes]


def _by_state(draws: Tensor) -> Tensor:
    """Draws (samples, batch, dim) in one column of rows, those of a state together."""
    return draws.transpose(0, 1).flatten(0, 1)


@contextmanager
def _served(*draws: Tensor) -> Iterator[None]:
    """Answer requests for standard normal numbers with these, in this order and all of them."""
    left = list(draws)

    def serve(shape: Sequence[int]) -> Tensor:
        drawn = left.pop(0)
        assert drawn.shape == tuple(shape)
        return drawn

    def randn(*shape: Any, **_: Any) -> Tensor:
        return serve(shape if isinstance(shape[0], int) else shape[0])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "randn", randn)
        patch.setattr(torch, "randn_like", lambda like: serve(like.shape))
        patch.setattr(torch.distributions.normal, "_standard_normal", lambda shape, **_: serve(shape))
        yield
    assert not left


def _copy(pairs: list[tuple[Layers, Layers]]) -> None:
    for ours, theirs in pairs:
        copy_layers(theirs, ours)


def _assert_equal(pairs: list[tuple[Layers, Layers]]) -> None:
    for ours, theirs in pairs:
        assert_layers_equal(ours, theirs, RTOL)
