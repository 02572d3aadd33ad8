"""DQN against hand-computed numbers, Stable-Baselines3 and d3rlpy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import pytest
import torch
from peers import OBS_DIM, actor_layers, assert_layers_equal, batches, copy_layers, peer_batch, peer_layers

from rl_training.acting.policy import Policy
from rl_training.algorithms import ALGORITHMS, Algorithm, dqn_loss
from rl_training.core.batches import Batch
from rl_training.core.spaces import DiscreteActions, SpaceSpec
from rl_training.models.discrete import DiscreteCritic, duel

CHOICES = 3
SPACES = SpaceSpec.vector(OBS_DIM, DiscreteActions(CHOICES))
UPDATES = 10
RTOL = 1e-10


def _build(name: str = "dqn", **hyper: Any) -> Algorithm:
    cls = ALGORITHMS[name]
    torch.manual_seed(0)
    return cls.build(SPACES, cls.hyper_class(**{"hidden_sizes": (16, 16), **hyper})).double()


def _batches(count: int = UPDATES) -> list[Batch]:
    generator = torch.Generator().manual_seed(2)
    return [batch | {"actions": torch.randint(CHOICES, (32,), generator=generator)} for batch in batches(count)]


@pytest.fixture
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def test_a_duel_adds_centred_advantages_to_the_value() -> None:
    assert duel(torch.tensor([[1.0]]), torch.tensor([[1.0, 2.0, 3.0]])).tolist() == [[0.0, 1.0, 2.0]]


def test_the_advantages_of_a_dueling_critic_are_centred_in_each_state() -> None:
    torch.manual_seed(0)
    critic, obs = DiscreteCritic(4, 3, hidden_sizes=(8,), dueling=True), torch.randn(6, 4)
    outputs = critic.mlp(obs)
    assert outputs.shape == (6, 4)
    torch.testing.assert_close(critic(obs).mean(-1), outputs[:, 0])


def test_the_critic_chooses_and_the_target_network_values() -> None:
    batch = {name: torch.zeros(1) for name in ("obs", "rewards", "next_obs", "dones")}
    for double, expected in ((True, 2.97), (False, 4.95)):
        algorithm: Any = _build(double=double)
        for networks, values in ((algorithm.model, [1.0, 2.0]), (algorithm.target, [5.0, 3.0])):
            networks.critic = _Fixed(torch.tensor([values]))
        assert float(algorithm.target_atoms(batch)) == pytest.approx(expected)


class _Fixed(torch.nn.Module):
    """A critic with the same values everywhere."""

    def __init__(self, values: torch.Tensor) -> None:
        super().__init__()
        self.values = values

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.values

    def quantiles(self, obs: torch.Tensor) -> torch.Tensor:
        return self.values[..., None]


def test_the_loss_is_quadratic_within_delta_and_linear_beyond() -> None:
    q = torch.tensor([[1.0, 9.0], [9.0, 4.0]])
    numbers = {"q_values": q, "actions": torch.tensor([0, 1]), "target_q_values": torch.tensor([0.5, 1.0])}
    # Errors of 0.5 and 3: 0.125 and 2.5 with delta 1, 0.25 and 9 squared.
    assert float(dqn_loss(**numbers)["critic_loss"]) == pytest.approx((0.125 + 2.5) / 2)
    metrics = dqn_loss(**numbers, huber_delta=None)
    assert float(metrics["critic_loss"]) == pytest.approx((0.25 + 9) / 2)
    found = {name: float(value) for name, value in metrics.items() if name != "critic_loss"}
    assert found == pytest.approx(
        {
            "td_error_abs": 1.75,
            "q_mean": 2.5,
            "q_greedy_mean": 9.0,
            "q_gap": 6.5,
            "agreement": 0.0,
            "target_q_mean": 0.75,
        }
    )


def test_termination_stops_the_bootstrap_and_discounts_replace_gamma() -> None:
    algorithm, batch = _build(gamma=0.5), _batches(1)[0]
    with torch.no_grad():
        chosen = algorithm.model.critic(batch["next_obs"]).argmax(-1)
        following = algorithm.target.critic(batch["next_obs"]).gather(1, chosen[:, None])[:, 0]
    for extra, factor in (({}, 0.5), ({"discounts": torch.full((32,), 0.125).double()}, 0.125)):
        expected = (batch["rewards"] + factor * (1 - batch["dones"]) * following).mean()
        assert float(algorithm.losses(batch | extra)["target_q_mean"]) == pytest.approx(float(expected))


def test_the_target_network_is_copied_after_every_interval() -> None:
    algorithm = _build(target_update_interval=3)
    equal = []
    for batch in _batches(6):
        algorithm.update(batch)
        pairs = zip(algorithm.model.critic.parameters(), algorithm.target.critic.parameters(), strict=True)
        equal.append(all(torch.equal(one, other) for one, other in pairs))
    assert equal == [False, False, True] * 2


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dqn", {"tau": 1.0, "target_update_interval": 1}),
        ("dqn", {"tau": 1.0, "target_update_interval": 1, "num_quantiles": 3, "huber_delta": None}),
        ("discrete_bcq", {"tau": 1.0}),
        ("discrete_iql", {"tau": 1.0}),
        ("discrete_crr", {"tau": 1.0}),
    ],
)
def test_a_table_learns_the_values_of_a_chain_and_nothing_about_an_action_that_was_not_logged(
    name: str, options: dict[str, Any]
) -> None:
    # One state gives 1 and leads to another, which gives 2 and ends: 1 + 0.9 * 2 = 2.8, and 2. Observations have a
    # place for each state, and networks are linear, so that they are tables.
    spaces, cls = SpaceSpec.vector(2, DiscreteActions(2)), ALGORITHMS[name]
    torch.manual_seed(0)
    options = {"hidden_sizes": (), "gamma": 0.9, "learning_rate": 0.03, **options}
    algorithm: Any = cls.build(spaces, cls.hyper_class(**options)).double()
    obs = torch.eye(2).double()
    batch = {
        "obs": obs,
        "actions": torch.zeros(2, dtype=torch.int64),
        "rewards": torch.tensor([1.0, 2.0]).double(),
        "next_obs": obs.flip(0),
        "dones": torch.tensor([0.0, 1.0]).double(),
    }
    other = torch.ones(2, dtype=torch.int64)
    before = algorithm.model.values(obs, other).detach()
    for _ in range(700):
        algorithm.update(batch)
    assert algorithm.model.values(obs, batch["actions"]).tolist() == pytest.approx([2.8, 2.0], abs=2e-3)
    assert torch.equal(algorithm.model.values(obs, other), before)
    assert algorithm.act(obs).tolist() == [0, 0]


def test_the_policy_is_greedy_and_exploration_is_uniform() -> None:
    algorithm, obs = _build(), torch.randn(500, OBS_DIM).double()
    greedy = algorithm.act(obs)
    assert torch.equal(greedy, algorithm.model.critic(obs).argmax(-1))
    policy = Policy.sharing(algorithm, SPACES)
    assert torch.equal(policy.explore(obs).actions, greedy)
    changed = (policy.explore(obs, noise=0.3).actions != greedy).double().mean()
    assert float(changed) == pytest.approx(0.2, abs=0.06)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("n_step", [False, True])
def test_ten_updates_equal_those_of_stable_baselines3(n_step: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from sb3_peers import GivenBatch, in_float64, stable_baselines3, train_peer

    class Choosing(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Box(-9.0, 9.0, (OBS_DIM,))
        action_space = gymnasium.spaces.Discrete(CHOICES)

    in_float64(monkeypatch)
    settings: dict[str, Any] = {"learning_rate": 1e-2, "gamma": 0.95, "max_grad_norm": 0.1}
    ours = _build(**settings, double=False, target_update_interval=4)
    peer = stable_baselines3.DQN(
        "MlpPolicy", Choosing(), buffer_size=1, device="cpu", policy_kwargs={"net_arch": [16, 16]}, **settings
    )
    peer.set_logger(stable_baselines3.common.logger.Logger(folder=None, output_formats=[]))
    peer.replay_buffer = GivenBatch()
    for network in (peer.q_net, peer.q_net_target):
        copy_layers(peer_layers(network), actor_layers(ours.model.critic))
    for number, batch in enumerate(_batches(), start=1):
        if n_step:
            batch |= {"discounts": 0.95 ** (torch.arange(32) % 3 + 1).double()}
        metrics, peer_metrics = ours.update(batch).metrics, train_peer(peer, batch)
        assert float(metrics["critic_loss"]) == pytest.approx(peer_metrics["loss"], rel=RTOL)
        if number % 4 == 0:
            # They copy when environments are stepped, which nobody does here.
            peer.q_net_target.load_state_dict(peer.q_net.state_dict())
    assert_layers_equal(actor_layers(ours.model.critic), peer_layers(peer.q_net), RTOL)
    assert_layers_equal(actor_layers(ours.target.critic), peer_layers(peer.q_net_target), RTOL)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("double", [False, True])
def test_ten_updates_equal_those_of_d3rlpy(double: bool) -> None:
    d3rlpy = pytest.importorskip("d3rlpy", reason="needs the extra 'peers'")
    ours = _build(double=double, learning_rate=1e-2, max_grad_norm=None, target_update_interval=4)
    config = d3rlpy.algos.DoubleDQNConfig if double else d3rlpy.algos.DQNConfig
    encoder = d3rlpy.models.VectorEncoderFactory([16, 16])
    peer: Any = config(learning_rate=1e-2, encoder_factory=encoder, target_update_interval=4).create()
    peer.create_impl((OBS_DIM,), CHOICES)
    modules = peer.impl._modules
    for critics in (modules.q_funcs, modules.targ_q_funcs):
        copy_layers(peer_layers(critics), actor_layers(ours.model.critic))
    for number, batch in enumerate(_batches(), start=1):
        ours.update(batch)
        peer.impl.inner_update(peer_batch(batch), number)
    assert_layers_equal(actor_layers(ours.model.critic), peer_layers(modules.q_funcs), RTOL)
    assert_layers_equal(actor_layers(ours.target.critic), peer_layers(modules.targ_q_funcs), RTOL)


@pytest.mark.usefixtures("float64")
def test_ten_updates_of_cloning_discrete_actions_equal_those_of_d3rlpy() -> None:
    d3rlpy = pytest.importorskip("d3rlpy", reason="needs the extra 'peers'")
    ours = _build("bc", learning_rate=1e-2)
    encoder = d3rlpy.models.VectorEncoderFactory([16, 16])
    # Their penalty on log-probabilities is none of ours.
    peer: Any = d3rlpy.algos.DiscreteBCConfig(learning_rate=1e-2, encoder_factory=encoder, beta=0.0).create()
    peer.create_impl((OBS_DIM,), CHOICES)
    copy_layers(peer_layers(peer.impl._modules.imitator), actor_layers(ours.model.actor))
    for step, batch in enumerate(_batches()):
        ours.update(batch)
        peer.impl.inner_update(peer_batch(batch), step)
    assert_layers_equal(actor_layers(ours.model.actor), peer_layers(peer.impl._modules.imitator), RTOL)
