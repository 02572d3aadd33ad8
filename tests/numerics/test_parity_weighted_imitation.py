"""Several updates of AWAC, IQL and CRR in float64 from equal weights, batches and noise, beside d3rlpy's.

Where d3rlpy computes something else than the papers, a subclass in this file does the same, and says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

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
from torch import Tensor

from rl_training.algorithms import Algorithm
from rl_training.algorithms.awac import AWAC
from rl_training.algorithms.base import Step
from rl_training.algorithms.crr import CRR
from rl_training.algorithms.iql import IQL
from rl_training.algorithms.losses import bellman, critic_objective
from rl_training.models.actors import gaussian_log_prob, log_tanh_slope
from rl_training.types import Batch, Metrics

d3rlpy = pytest.importorskip("d3rlpy", reason="needs the extra 'peers'")
RTOL = 1e-8
UPDATES = 7
A = TypeVar("A", bound=Algorithm)


class Noise:
    """Standard normal numbers that depend on the update and on the order of the draws, whoever asks for them."""

    def __init__(self) -> None:
        self.generator = torch.Generator()
        self.draws = 0

    def start(self, update: int) -> None:
        """Begin the same sequence anew, for the other side."""
        self.generator.manual_seed(update)

    def draw(self, shape: tuple[int, ...]) -> Tensor:
        self.draws += 1
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def ours(self, like: Tensor, count: int | None) -> Tensor:
        return self.draw(tuple(like.shape) if count is None else (count, *like.shape))

    def theirs(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        return self.draw(tuple(shape))


@pytest.fixture
def noise(monkeypatch: pytest.MonkeyPatch) -> Noise:
    """One source of noise for our policies and for those of d3rlpy, which are built on torch.distributions."""
    source = Noise()
    monkeypatch.setattr("rl_training.models.actors._noise", source.ours)
    monkeypatch.setattr("torch.distributions.normal._standard_normal", source.theirs)
    return source


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    """d3rlpy makes its networks in the default type."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class PeerAWAC(AWAC):
    """AWAC as in d3rlpy, which inherits the critic of SAC and sums the actor's loss."""

    def critic_loss(self, batch: Batch) -> Metrics:
        """Bootstraps from tanh of a sample around the mean before its tanh, less its log-density at temperature 1."""
        next_obs, actor = batch["next_obs"], self.model.actor
        with torch.no_grad():
            raw_mean, (_, log_std) = actor.mlp(next_obs), actor(next_obs)
            # Through the module, for that is where the noise is replaced.
            raw = raw_mean + log_std.exp() * _our_noise(raw_mean)
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


@pytest.mark.parametrize(("samples", "weight_decay"), [(1, 0.0), (3, 1e-2)])
def test_updates_of_awac_equal_d3rlpys(noise: Noise, samples: int, weight_decay: float) -> None:
    ours = _build(
        PeerAWAC,
        weights="softmax",
        spread="sigmoid",
        awac_lambda=0.5,
        num_action_samples=samples,
        actor_weight_decay=weight_decay,
    )
    peer = _peer(
        d3rlpy.algos.AWACConfig(
            lam=0.5,
            n_action_samples=samples,
            actor_optim_factory=d3rlpy.optimizers.AdamFactory(weight_decay=weight_decay),
            **_encoders(),
        ),
        ours,
    )
    _update(ours, peer, noise)
    _assert_equal(ours, peer)
    # One draw for the target and one for the baseline, on either side.
    assert noise.draws == 4 * UPDATES


@pytest.mark.parametrize(("expectile", "beta", "max_weight"), [(0.75, 3.0, 100.0), (0.875, 10.0, 1.5)])
def test_updates_of_iql_equal_d3rlpys(noise: Noise, expectile: float, beta: float, max_weight: float) -> None:
    # Expectiles that are exact in float32, for d3rlpy rounds its weights to that.
    ours = _build(PeerIQL, spread="sigmoid", expectile=expectile, beta=beta, max_weight=max_weight)
    value_encoder = d3rlpy.models.VectorEncoderFactory([16, 16])
    peer = _peer(
        d3rlpy.algos.IQLConfig(
            expectile=expectile,
            weight_temp=beta,
            max_weight=max_weight,
            value_encoder_factory=value_encoder,
            **_encoders(),
        ),
        ours,
    )
    _update(ours, peer, noise)
    _assert_equal(ours, peer)
    assert_layers_equal(actor_layers(ours.model.value), peer_layers(peer._modules.value_func), RTOL)
    assert noise.draws == 0


@pytest.mark.parametrize(
    ("weights", "advantage", "target_update", "beta"),
    [
        ("exp", "mean", "soft", 1.0),
        ("exp", "max", "hard", 0.1),
        ("binary", "mean", "hard", 1.0),
        ("binary", "max", "soft", 1.0),
    ],
)
def test_updates_of_crr_equal_d3rlpys(
    noise: Noise, weights: str, advantage: str, target_update: str, beta: float
) -> None:
    # One critic, for of several d3rlpy takes the mean in the advantage and we the smallest.
    hard = {"tau": 1.0, "target_update_interval": 3} if target_update == "hard" else {"tau": 0.005}
    exp = {"beta": beta, "max_weight": 1.2} if weights == "exp" else {}
    ours = _build(PeerCRR, num_critics=1, weights=weights, advantage=advantage, **exp, **hard)
    peer = _peer(
        d3rlpy.algos.CRRConfig(
            weight_type=weights,
            advantage_type=advantage,
            beta=beta,
            max_weight=1.2,
            target_update_type=target_update,
            target_update_interval=3,
            **_encoders(),
        ),
        ours,
    )
    _update(ours, peer, noise)
    _assert_equal(ours, peer)
    assert_layers_equal(_gaussian_layers(ours.target.actor), peer_layers(peer._modules.targ_policy), RTOL)
    assert noise.draws == 4 * UPDATES


def _build(cls: type[A], **hyper: Any) -> A:
    torch.manual_seed(0)
    # A step size at which seven updates are no small change.
    settings = {"hidden_sizes": (16, 16), "learning_rate": 3e-3, **hyper}
    return cls.build(SPACES, cls.hyper_class(**settings)).double()


def _encoders() -> dict[str, Any]:
    encoder = d3rlpy.models.VectorEncoderFactory([16, 16])
    return {
        "actor_encoder_factory": encoder,
        "critic_encoder_factory": encoder,
        "actor_learning_rate": 3e-3,
        "critic_learning_rate": 3e-3,
    }


def _peer(config: Any, ours: Any) -> Any:
    """d3rlpy's algorithm with our weights, in the online networks and in the lagged ones."""
    algo = config.create()
    algo.create_impl((OBS_DIM,), ACTION_DIM)
    modules = algo.impl._modules
    for policy in _policies(modules):
        # Its learned deviation is float32 whatever the default type.
        policy.double()
        copy_layers(peer_layers(policy), _gaussian_layers(ours.model.actor))
    for member in range(len(modules.q_funcs)):
        for ensemble in (modules.q_funcs, modules.targ_q_funcs):
            copy_layers(peer_layers(ensemble[member]), critic_layers(ours.model.critic, member))
    if hasattr(modules, "value_func"):
        copy_layers(peer_layers(modules.value_func), actor_layers(ours.model.value))
    return algo.impl


def _policies(modules: Any) -> list[Any]:
    return [modules.policy, modules.targ_policy] if hasattr(modules, "targ_policy") else [modules.policy]


def _gaussian_layers(actor: Any) -> list[tuple[Tensor, Tensor]]:
    """Our layers as d3rlpy has them: where the deviation depends on the observation, by a layer of its own."""
    layers = actor_layers(actor)
    if actor.spread != "state":
        return layers
    *hidden, (weight, bias) = layers
    return [*hidden, *zip(weight.chunk(2), bias.chunk(2), strict=True)]


def _our_noise(like: Tensor) -> Tensor:
    from rl_training.models import actors

    return actors._noise(like, None)


def _update(ours: Algorithm, peer: Any, noise: Noise) -> None:
    for number, batch in enumerate(batches(UPDATES), start=1):
        noise.start(number)
        ours.update(batch)
        noise.start(number)
        # d3rlpy's lagged copies move when the number it is given can be divided by the interval, as ours do.
        peer.inner_update(peer_batch(batch), number)


def _assert_equal(ours: Any, peer: Any) -> None:
    modules = peer._modules
    assert_layers_equal(_gaussian_layers(ours.model.actor), peer_layers(modules.policy), RTOL)
    if ours.model.actor.spread == "sigmoid":
        torch.testing.assert_close(ours.model.actor.log_std, modules.policy._logstd[0], rtol=RTOL, atol=1e-14)
    for member in range(len(modules.q_funcs)):
        assert_layers_equal(critic_layers(ours.model.critic, member), peer_layers(modules.q_funcs[member]), RTOL)
        assert_layers_equal(critic_layers(ours.target.critic, member), peer_layers(modules.targ_q_funcs[member]), RTOL)
