"""Several updates in float64 from equal weights and batches, beside d3rlpy's."""

from __future__ import annotations

from collections.abc import Iterator
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

d3rlpy = pytest.importorskip("d3rlpy", reason="needs the extra 'peers'")
RTOL = 1e-9


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    """d3rlpy draws its noise in the default type, so that has to be float64 too."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("policy_noise", [0.0, 0.2])
def test_ten_updates_of_td3_bc_equal_d3rlpys(policy_noise: float) -> None:
    ours = build("td3_bc", policy_noise=policy_noise)
    peer = _peer_td3_bc(policy_noise, ours)
    modules = peer._modules
    # d3rlpy updates its actor when the number of updates done before is even, we when the number including this one
    # is: starting its count at 1 makes both move on updates 2, 4, 6.
    for step, batch in enumerate(batches(10), start=1):
        torch.manual_seed(step)
        metrics = ours.update(batch).metrics
        torch.manual_seed(step)
        peer_metrics = peer.inner_update(peer_batch(batch), step)
        # d3rlpy adds the losses of its critics up in float32, so the loss it reports has seven digits only; the
        # gradients do not pass through that sum's rounding, and the parameters below are compared in full.
        assert float(metrics["critic_loss"]) == pytest.approx(peer_metrics["critic_loss"], rel=1e-6)
    assert_layers_equal(actor_layers(ours.model.actor), peer_layers(modules.policy), RTOL)
    assert_layers_equal(actor_layers(ours.target.actor), peer_layers(modules.targ_policy), RTOL)
    for member in range(2):
        assert_layers_equal(critic_layers(ours.model.critic, member), peer_layers(modules.q_funcs[member]), RTOL)
        assert_layers_equal(critic_layers(ours.target.critic, member), peer_layers(modules.targ_q_funcs[member]), RTOL)


def test_ten_updates_of_deterministic_bc_equal_d3rlpys() -> None:
    ours = build("bc")
    encoder = d3rlpy.models.VectorEncoderFactory([16, 16])
    peer: Any = d3rlpy.algos.BCConfig(learning_rate=3e-4, encoder_factory=encoder, policy_type="deterministic").create()
    peer.create_impl((OBS_DIM,), ACTION_DIM)
    copy_layers(peer_layers(peer.impl._modules.imitator), actor_layers(ours.model.actor))
    for step, batch in enumerate(batches(10)):
        ours.update(batch)
        peer.impl.inner_update(peer_batch(batch), step)
    assert_layers_equal(actor_layers(ours.model.actor), peer_layers(peer.impl._modules.imitator), RTOL)


def _peer_td3_bc(policy_noise: float, ours: Any) -> Any:
    encoder = d3rlpy.models.VectorEncoderFactory([16, 16])
    algo: Any = d3rlpy.algos.TD3PlusBCConfig(
        actor_encoder_factory=encoder, critic_encoder_factory=encoder, target_smoothing_sigma=policy_noise
    ).create()
    algo.create_impl((OBS_DIM,), ACTION_DIM)
    modules = algo.impl._modules
    for policy in (modules.policy, modules.targ_policy):
        copy_layers(peer_layers(policy), actor_layers(ours.model.actor))
    for member in range(2):
        for ensemble in (modules.q_funcs, modules.targ_q_funcs):
            copy_layers(peer_layers(ensemble[member]), critic_layers(ours.model.critic, member))
    return algo.impl
