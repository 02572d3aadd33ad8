"""Updates of algorithms for discrete actions in float64, from equal weights and batches, beside those of two peers.

What differs between d3rlpy and us, and is made equal here:

- Its errors are always Huber's, ours in SAC are squares by default; ours have `huber_delta: 1`.
- It has the levels of quantiles and the temperature in float32; both are made float64. It adds up losses of critics in
  float32 too, so that the loss it reports has seven digits; slopes do not pass through that rounding.
- It has no bound on the norm of gradients, ours in DQN have; ours is taken out.
- Its target networks are copies that are made anew at intervals. Ours are so with `tau: 1`.
- In BCQ, critic and clone share their hidden layers unless it is told otherwise. Its penalty is on log-probabilities
  and not on what the network puts out; with a weight it is given the latter. It multiplies values, shifted to be
  positive, by the mask, where ours are minus infinity, which chooses the same.
- In SAC, the target entropy is 0.98 times the largest, the slope of the temperature is that of alpha and not of log
  alpha, that is alpha times ours, and the actor sees the temperature after its step. The ratio is given to ours, the
  slope is divided by alpha, and the step is held back until the actor has moved.

sb3-contrib's QR-DQN always lets the target network choose, divides by the root of the second moment plus 0.01 over the
size of a batch, casts observations and levels to float32, and has the outputs in another order.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import pytest
import torch
from discrete_cases import NUM_ACTIONS, build, discrete_batches
from peers import (
    OBS_DIM,
    actor_layers,
    assert_layers_equal,
    copy_layers,
    critic_layers,
    peer_batch,
    peer_layers,
)
from torch import Tensor
from torch.distributions import Categorical

RTOL = 1e-10
UPDATES = 10
QUANTILES = 5
SHARED: dict[str, Any] = {"learning_rate": 1e-2, "gamma": 0.95}

Layers = list[tuple[Tensor, Tensor]]
Patch = pytest.MonkeyPatch
# Peers make their networks in the default type.
pytestmark = pytest.mark.usefixtures("float64")


@pytest.fixture
def d3rlpy(monkeypatch: Patch) -> Any:
    """The package, with levels of quantiles in float64."""
    found = pytest.importorskip("d3rlpy", reason="needs the extra 'peers'")

    def levels(count: int, device: object) -> Tensor:
        return ((torch.arange(count) + 0.5) / count).view(1, -1)

    monkeypatch.setattr("d3rlpy.models.torch.q_functions.qr_q_function._make_taus", levels)
    return found


def _create(d3rlpy: Any, name: str, *, quantiles: int | None = None, **settings: Any) -> Any:
    """An implementation of d3rlpy's with small networks."""
    factories = d3rlpy.models.q_functions
    heads = (
        factories.MeanQFunctionFactory() if quantiles is None else factories.QRQFunctionFactory(n_quantiles=quantiles)
    )
    config = getattr(d3rlpy.algos, f"{name}Config")
    algorithm: Any = config(q_func_factory=heads, **settings).create()
    algorithm.create_impl((OBS_DIM,), NUM_ACTIONS)
    return algorithm.impl


def _networks(d3rlpy: Any) -> Any:
    return d3rlpy.models.VectorEncoderFactory([16, 16])


def _copied_at_intervals(d3rlpy: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of the family of DQN: ours and theirs."""
    ours = {**SHARED, "tau": 1.0, "target_update_interval": 4, "max_grad_norm": None}
    return ours, {**SHARED, "target_update_interval": 4, "encoder_factory": _networks(d3rlpy)}


def _copy_critic(ours: Any, modules: Any) -> None:
    for critics in (modules.q_funcs, modules.targ_q_funcs):
        copy_layers(peer_layers(critics), actor_layers(ours.model.critic))


def _assert_critics_equal(ours: Any, modules: Any) -> None:
    assert_layers_equal(actor_layers(ours.model.critic), peer_layers(modules.q_funcs), RTOL)
    assert_layers_equal(actor_layers(ours.target.critic), peer_layers(modules.targ_q_funcs), RTOL)


def _update_both(ours: Any, peer: Any) -> list[dict[str, float]]:
    """Updates of both, which choose the same after each; what ours reported."""
    reports = []
    for number, batch in enumerate(discrete_batches(UPDATES), start=1):
        reports.append({name: float(value) for name, value in ours.update(batch).metrics.items()})
        peer.inner_update(peer_batch(batch), number)
        assert torch.equal(ours.act(batch["next_obs"]), peer.inner_predict_best_action(batch["next_obs"]))
    return reports


@pytest.mark.parametrize("quantiles", [None, QUANTILES])
@pytest.mark.parametrize("double", [False, True])
def test_updates_of_dqn_equal_d3rlpys(d3rlpy: Any, double: bool, quantiles: int | None) -> None:
    options, settings = _copied_at_intervals(d3rlpy)
    ours = build("dqn", **options, double=double, num_quantiles=quantiles)
    peer = _create(d3rlpy, "DoubleDQN" if double else "DQN", **settings, quantiles=quantiles)
    _copy_critic(ours, peer._modules)
    _update_both(ours, peer)
    _assert_critics_equal(ours, peer._modules)


def test_updates_of_cloned_actions_equal_d3rlpys(d3rlpy: Any) -> None:
    ours = build("bc", learning_rate=1e-2)
    # Their penalty on log-probabilities is none of ours.
    config = d3rlpy.algos.DiscreteBCConfig(learning_rate=1e-2, encoder_factory=_networks(d3rlpy), beta=0.0)
    peer: Any = config.create()
    peer.create_impl((OBS_DIM,), NUM_ACTIONS)
    copy_layers(peer_layers(peer.impl._modules.imitator), actor_layers(ours.model.actor))
    for step, batch in enumerate(discrete_batches(UPDATES)):
        ours.update(batch)
        peer.impl.inner_update(peer_batch(batch), step)
    assert_layers_equal(actor_layers(ours.model.actor), peer_layers(peer.impl._modules.imitator), RTOL)


@pytest.mark.parametrize("quantiles", [None, QUANTILES])
@pytest.mark.parametrize("weight", [0.0, 1.0, 4.0])
def test_updates_of_discrete_cql_equal_d3rlpys(d3rlpy: Any, quantiles: int | None, weight: float) -> None:
    options, settings = _copied_at_intervals(d3rlpy)
    ours = build("discrete_cql", **options, conservative_weight=weight, num_quantiles=quantiles)
    peer = _create(d3rlpy, "DiscreteCQL", **settings, alpha=weight, quantiles=quantiles)
    _copy_critic(ours, peer._modules)
    reports = _update_both(ours, peer)
    _assert_critics_equal(ours, peer._modules)
    # Errors fall into the quadratic part of the loss and into the linear one.
    assert reports[0]["td_error_abs"] > 0.5


@pytest.mark.parametrize("quantiles", [None, QUANTILES])
@pytest.mark.parametrize(("threshold", "penalty"), [(0.3, 0.0), (0.9, 0.0), (0.9, 0.01), (0.9, 0.5)])
def test_updates_of_discrete_bcq_equal_d3rlpys(
    d3rlpy: Any, monkeypatch: Patch, quantiles: int | None, threshold: float, penalty: float
) -> None:
    options, settings = _copied_at_intervals(d3rlpy)
    ours = build("discrete_bcq", **options, threshold=threshold, logit_penalty=penalty, num_quantiles=quantiles)
    peer = _create(
        d3rlpy,
        "DiscreteBCQ",
        **settings,
        action_flexibility=threshold,
        beta=penalty,
        quantiles=quantiles,
        share_encoder=False,
    )
    if penalty:
        monkeypatch.setattr(type(peer._modules.imitator), "forward", _raw_logits)
    _copy_critic(ours, peer._modules)
    copy_layers(peer_layers(peer._modules.imitator), actor_layers(ours.model.clone))
    reports = _update_both(ours, peer)
    _assert_critics_equal(ours, peer._modules)
    assert_layers_equal(actor_layers(ours.model.clone), peer_layers(peer._modules.imitator), RTOL)
    if threshold == 0.9:
        # There are rows in which the best action is not allowed, and others.
        assert 0 < sum(report["constraint_active"] for report in reports) < UPDATES


def _raw_logits(policy: Any, obs: Tensor) -> Any:
    """Their distribution with what the network puts out as logits; its own are normalised to log-probabilities."""
    logits = policy._fc(policy._encoder(obs))
    distribution: Any = Categorical(logits=logits)
    distribution.logits = logits
    return distribution


@pytest.mark.parametrize("num_critics", [2, 3])
@pytest.mark.parametrize("alpha", ["auto", 0.2])
def test_updates_of_discrete_sac_equal_d3rlpys(d3rlpy: Any, alpha: float | str, num_critics: int) -> None:
    learned = alpha == "auto"
    ratio: dict[str, Any] = {"target_entropy_ratio": 0.98} if learned else {}
    copied: dict[str, Any] = {"tau": 1.0, "target_update_interval": 4}
    ours = build("discrete_sac", **SHARED, **ratio, **copied, alpha=alpha, num_critics=num_critics, huber_delta=1.0)
    peer = _create(
        d3rlpy,
        "DiscreteSAC",
        gamma=0.95,
        actor_learning_rate=1e-2,
        critic_learning_rate=1e-2,
        temp_learning_rate=1e-2 if learned else 0.0,
        initial_temperature=1.0 if learned else alpha,
        n_critics=num_critics,
        target_update_interval=4,
        actor_encoder_factory=_networks(d3rlpy),
        critic_encoder_factory=_networks(d3rlpy),
    )
    modules = peer._modules
    log_temperature = _exact_temperature(modules, alpha)
    held: list[Any] = []

    def hold_back(policy: Any) -> dict[str, Tensor]:
        held.append(policy)
        return {}

    move_temperature, peer.update_temp = peer.update_temp, hold_back
    copy_layers(peer_layers(modules.policy), actor_layers(ours.model.actor))
    for member in range(num_critics):
        for critics in (modules.q_funcs, modules.targ_q_funcs):
            copy_layers(peer_layers(critics[member]), critic_layers(ours.model.critic, member))
    for number, batch in enumerate(discrete_batches(UPDATES), start=1):
        metrics = ours.update(batch).metrics
        peer_metrics = peer.inner_update(peer_batch(batch), number)
        assert float(metrics["actor_loss"]) == pytest.approx(peer_metrics["actor_loss"], rel=RTOL)
        assert float(metrics["critic_loss"]) == pytest.approx(peer_metrics["critic_loss"], rel=1e-6)
        if learned:
            move_temperature(held.pop())
    assert not held
    assert_layers_equal(actor_layers(ours.model.actor), peer_layers(modules.policy), RTOL)
    for member in range(num_critics):
        for critics, peers in ((ours.model.critic, modules.q_funcs), (ours.target.critic, modules.targ_q_funcs)):
            assert_layers_equal(critic_layers(critics, member), peer_layers(peers[member]), RTOL)
    found = ours.model.temperature.log_value.detach()
    torch.testing.assert_close(found, log_temperature.detach()[0, 0], rtol=RTOL, atol=0)
    assert abs(float(found)) > 0.01


def _exact_temperature(modules: Any, alpha: float | str) -> Tensor:
    """The logarithm of their temperature in float64, whose slope is from here on that of log alpha."""
    parameter: Any = next(modules.log_temp.double().parameters())
    with torch.no_grad():
        parameter.copy_(torch.zeros(()) if alpha == "auto" else torch.tensor(alpha).log())
    parameter.register_hook(lambda slope: slope / parameter.detach().exp())
    found: Tensor = parameter
    return found


class _DiscreteTask(gymnasium.Env[Any, Any]):
    """What a model needs to know of an environment that it never steps."""

    observation_space = gymnasium.spaces.Box(-9.0, 9.0, (OBS_DIM,))
    action_space = gymnasium.spaces.Discrete(NUM_ACTIONS)


@pytest.mark.parametrize("quantiles", [None, QUANTILES])
@pytest.mark.parametrize("n_step", [False, True])
@pytest.mark.parametrize("max_grad_norm", [None, 0.1])
def test_updates_of_dqn_equal_those_of_stable_baselines3_and_sb3_contrib(
    monkeypatch: Patch, n_step: bool, max_grad_norm: float | None, quantiles: int | None
) -> None:
    sb3_contrib: Any = pytest.importorskip("sb3_contrib", reason="needs the extra 'peers'")
    from sb3_peers import GivenBatch, in_float64, stable_baselines3, train_peer

    in_float64(monkeypatch)
    levels = (torch.arange(QUANTILES) + 0.5) / QUANTILES
    exact = partial(sb3_contrib.common.utils.quantile_huber_loss, cum_prob=levels[None, :, None])
    monkeypatch.setattr("sb3_contrib.qrdqn.qrdqn.quantile_huber_loss", exact)
    settings = {**SHARED, "max_grad_norm": max_grad_norm}
    ours = build("dqn", **settings, double=False, target_update_interval=4, num_quantiles=quantiles)
    cls, networks = stable_baselines3.DQN, {"net_arch": [16, 16], "optimizer_class": torch.optim.Adam}
    if quantiles:
        cls, networks = sb3_contrib.QRDQN, {**networks, "n_quantiles": quantiles}
    no_norm = {} if max_grad_norm or quantiles else {"max_grad_norm": 1e9}
    peer = cls("MlpPolicy", _DiscreteTask(), buffer_size=1, device="cpu", policy_kwargs=networks, **settings | no_norm)
    peer.set_logger(stable_baselines3.common.logger.Logger(folder=None, output_formats=[]))
    peer.replay_buffer = GivenBatch()
    online, lagged = (peer.quantile_net, peer.quantile_net_target) if quantiles else (peer.q_net, peer.q_net_target)
    for network in (online, lagged):
        copy_layers(peer_layers(network), _by_quantile(ours.model.critic, quantiles or 1))
    for number, batch in enumerate(discrete_batches(UPDATES), start=1):
        if n_step:
            batch |= {"discounts": 0.95 ** (torch.arange(32) % 3 + 1).double()}
        metrics, peer_metrics = ours.update(batch).metrics, train_peer(peer, batch)
        assert float(metrics["critic_loss"]) == pytest.approx(peer_metrics["loss"], rel=RTOL)
        if number % 4 == 0:
            # They copy when environments are stepped, which is not done here.
            lagged.load_state_dict(online.state_dict())
        assert torch.equal(ours.act(batch["obs"]), online._predict(batch["obs"]))
    assert_layers_equal(_by_quantile(ours.model.critic, quantiles or 1), peer_layers(online), RTOL)
    assert_layers_equal(_by_quantile(ours.target.critic, quantiles or 1), peer_layers(lagged), RTOL)


def _by_quantile(critic: Any, quantiles: int) -> Layers:
    """Our layers, the outputs of the last one in their order: by quantile first and by action second."""
    *hidden, (weight, bias) = actor_layers(critic)
    order = torch.arange(NUM_ACTIONS * quantiles).view(NUM_ACTIONS, quantiles).T.flatten()
    return [*hidden, (weight[order], bias[order])]
