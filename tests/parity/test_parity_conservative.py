"""Several updates in float64 from equal weights, batches and noise: CQL and Cal-QL beside d3rlpy's, and SAC-N and EDAC,
which d3rlpy does not have, beside a second implementation that is as plain as their formulas.
"""

from __future__ import annotations

import copy
import math
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
    heads_apart,
    peer_batch,
    peer_layers,
)
from torch import Tensor, nn

from rl_training.algorithms.base import Step
from rl_training.algorithms.cql import CQL
from rl_training.core.batches import Batch
from rl_training.models import MLPCQLModel

RTOL = 1e-8
SAMPLES = 4
BATCH_SIZE = 32
Layers = list[tuple[Tensor, Tensor]]
Patch = pytest.MonkeyPatch
# d3rlpy builds its networks in the default type, so that has to be float64 too.
pytestmark = pytest.mark.usefixtures("float64")


def _strengthen(model: Any) -> None:
    """Last layers as large as the others: new ones are so small that every action and value is close to 0."""
    with torch.no_grad():
        for layer in (model.actor.mlp.layers[-1], model.critic.mlp.layers[-1]):
            layer.weight.normal_(std=0.3)


class CriticFirstCQL(CQL):
    """CQL in d3rlpy's order: the critics, then the actor with the new critics, then the lagged copies.

    Ours takes all gradients before anything moves. The multiplier and the temperature stay as they are.
    """

    @classmethod
    def make_steps(cls, hyper: Any) -> tuple[Step, ...]:
        return (Step("critic"), Step("actor", tracks=("critic",)))


class Noise:
    """The draws of one update, (samples, rows, dim) where there are several per row, and each library's order of them.

    Ours samples at s and s' in one call and draws for the target last; d3rlpy draws for the target first, and needs
    none where it takes the policy's mean. Its uniform actions are one long list, the samples of a row together.
    """

    def __init__(self, number: int, target_samples: int | None, *, peer_needs_target: bool) -> None:
        generator = torch.Generator().manual_seed(number)
        many, one = (SAMPLES, BATCH_SIZE, ACTION_DIM), (BATCH_SIZE, ACTION_DIM)
        current, following = (torch.randn(many, generator=generator) for _ in range(2))
        target = torch.randn(one if target_samples is None else many, generator=generator)
        actor = torch.randn(one, generator=generator)
        self.uniform = torch.rand(many, generator=generator)
        self.ours = [torch.cat([current, following], dim=1), target, actor]
        self.theirs = [*([target] if peer_needs_target else []), current, following, actor]

    def give_to_us(self, patch: Patch) -> None:
        patch.setattr(torch, "randn_like", lambda like: _take(self.ours, like.shape))
        patch.setattr(torch, "rand_like", lambda like: _take([self.uniform], like.shape))

    def give_to_d3rlpy(self, patch: Patch) -> None:
        flat = (2 * self.uniform - 1).transpose(0, 1).reshape(-1, ACTION_DIM)
        normal = "torch.distributions.normal._standard_normal"
        patch.setattr(normal, lambda shape, dtype, device: _take(self.theirs, shape))
        patch.setattr(torch.Tensor, "uniform_", lambda like, low, high: _take([flat], like.shape))

    def assert_used_up(self) -> None:
        assert self.ours == self.theirs == []


def _take(queue: list[Tensor], shape: Any) -> Tensor:
    noise = queue.pop(0)
    assert noise.shape == tuple(shape)
    return noise


OURS: dict[str, dict[str, Any]] = {
    "mean": {"target_action": "mean"},
    "max": {"max_backup": "max_of_min"},
    "soft": {"backup_entropy": True},
}
THEIRS: dict[str, dict[str, Any]] = {"mean": {}, "max": {"max_q_backup": True}, "soft": {"soft_q_backup": True}}
"""By kind of target."""


@pytest.mark.parametrize("target", ["mean", "max", "soft"])
@pytest.mark.parametrize("calibrated", [False, True])
def test_six_updates_of_cql_and_cal_ql_equal_d3rlpys(calibrated: bool, target: str) -> None:
    pytest.importorskip("d3rlpy", reason="needs the extra 'peers'")
    ours = _our_cql(calibrated=calibrated, **OURS[target])
    peer = _peer_cql("CalQLConfig" if calibrated else "CQLConfig", ours, **THEIRS[target])
    for number, batch in enumerate(batches(6, BATCH_SIZE)):
        # Returns around the values, so that some of them bound and some do not.
        batch["returns_to_go"] = batch["rewards"].roll(1)
        noise = Noise(number, SAMPLES if target == "max" else None, peer_needs_target=target != "mean")
        with pytest.MonkeyPatch.context() as patch:
            noise.give_to_us(patch)
            metrics = ours.update(batch).metrics
        with pytest.MonkeyPatch.context() as patch:
            noise.give_to_d3rlpy(patch)
            peer_metrics = peer.inner_update(_peer_batch(batch), number)
        noise.assert_used_up()
        # d3rlpy adds up the critics' errors in float32, so the loss it reports has seven digits only.
        assert float(metrics["critic_loss"]) == pytest.approx(peer_metrics["critic_loss"], rel=1e-6)
        assert float(metrics["actor_loss"]) == pytest.approx(peer_metrics["actor_loss"], rel=1e-8)
    if calibrated:
        assert 0.05 < float(metrics["calibration_bound_rate_pi"]) < 0.95
    modules = peer._modules
    assert_layers_equal(heads_apart(ours.model.actor), peer_layers(modules.policy), RTOL)
    for member in range(2):
        assert_layers_equal(critic_layers(ours.model.critic, member), peer_layers(modules.q_funcs[member]), RTOL)
        assert_layers_equal(critic_layers(ours.target.critic, member), peer_layers(modules.targ_q_funcs[member]), RTOL)


@pytest.mark.parametrize("gap", [1.0, 30.0])
def test_six_steps_of_the_multiplier_equal_d3rlpys(gap: float) -> None:
    # Gaps of new critics are around 6, so one gap is below and one above them. d3rlpy moves the multiplier before the
    # critics use it, ours after; here only the multiplier's own steps are compared, by the gaps that ours met.
    pytest.importorskip("d3rlpy", reason="needs the extra 'peers'")
    ours: Any = build("cql", conservative_gap=gap, conservative_weight=5.0, lagrange_learning_rate=1e-2)
    peer = _peer_cql("CQLConfig", ours, alpha_learning_rate=1e-2)
    log_multiplier = peer._modules.log_alpha._parameter
    start = float(log_multiplier.detach())
    assert start == float(ours.model.lagrange.log_value.detach()) == 1.0
    for batch in batches(6, BATCH_SIZE):
        metrics = ours.update(batch).metrics
        gaps = torch.stack([metrics["cql_penalty_1"], metrics["cql_penalty_2"]])
        peer.update_alpha(5.0 * (gaps - gap))
        assert ours.model.lagrange.log_value.item() == pytest.approx(log_multiplier.item(), rel=RTOL)
    assert (log_multiplier.item() > start) == (gap == 1.0)


def _our_cql(**hyper: Any) -> Any:
    torch.manual_seed(0)
    model: Any = MLPCQLModel(obs_dim=OBS_DIM, action_dim=ACTION_DIM, hidden_sizes=(16, 16), alpha=0.2)
    # d3rlpy's log-deviation is the network's output as it is.
    model.actor.std_affinity = None
    _strengthen(model)
    return CriticFirstCQL(
        model,
        hidden_sizes=(16, 16),
        alpha=0.2,
        conservative_weight=5.0,
        conservative_gap=2.0,
        num_action_samples=SAMPLES,
        actor_learning_rate=1e-4,
        **hyper,
    )


def _peer_cql(config: str, ours: Any, **options: Any) -> Any:
    """d3rlpy's implementation with our weights; multiplier and temperature are ours too, and frozen unless asked."""
    import d3rlpy

    encoder = d3rlpy.models.VectorEncoderFactory([16, 16])
    settings = {
        "actor_learning_rate": 1e-4,
        "critic_learning_rate": 3e-4,
        "temp_learning_rate": 0.0,
        "alpha_learning_rate": 0.0,
        "conservative_weight": 5.0,
        "alpha_threshold": 2.0,
        "n_action_samples": SAMPLES,
        "actor_encoder_factory": encoder,
        "critic_encoder_factory": encoder,
    }
    algo: Any = getattr(d3rlpy.algos, config)(**settings | options).create()
    algo.create_impl((OBS_DIM,), ACTION_DIM)
    modules = algo.impl._modules
    copy_layers(peer_layers(modules.policy), heads_apart(ours.model.actor))
    for member in range(2):
        for ensemble in (modules.q_funcs, modules.targ_q_funcs):
            copy_layers(peer_layers(ensemble[member]), critic_layers(ours.model.critic, member))
    for parameter, multiplier in ((modules.log_temp, ours.model.temperature), (modules.log_alpha, ours.model.lagrange)):
        # Made in float32, whatever the default; replaced in place, so that an optimiser that has it keeps it.
        parameter._parameter.data = multiplier.log_value.detach().clone().reshape(1, 1)
    return algo.impl


def _peer_batch(batch: Batch) -> Any:
    made = peer_batch({name: value for name, value in batch.items() if name != "returns_to_go"})
    object.__setattr__(made, "returns_to_go", batch["returns_to_go"][:, None])
    return made


class PlainSAC:
    """SAC-N and EDAC straight from their formulas: one network per critic, one critic after the other."""

    def __init__(self, ours: Any) -> None:
        hyper = ours.hyper
        self.gamma, self.tau, self.count = hyper.gamma, hyper.tau, hyper.num_critics
        self.diversity_weight = getattr(hyper, "diversity_weight", 0.0)
        self.actor = _linear_layers(actor_layers(ours.model.actor))
        self.critics = [_linear_layers(critic_layers(ours.model.critic, member)) for member in range(self.count)]
        self.targets = copy.deepcopy(self.critics)
        self.log_alpha = torch.zeros((), requires_grad=True)
        rate = hyper.learning_rate
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], lr=rate)
        self.actor_optimizer = torch.optim.Adam(_parameters(self.actor), lr=rate)
        self.critic_optimizers = [torch.optim.Adam(_parameters(critic), lr=rate) for critic in self.critics]

    def update(self, batch: Batch, noises: list[Tensor]) -> None:
        obs, actions, next_obs = batch["obs"], batch["actions"], batch["next_obs"]
        with torch.no_grad():
            _, log_prob = self.sample(obs, noises[0])
        alpha_loss = -(self.log_alpha * (log_prob - ACTION_DIM)).mean()
        _minimise(self.alpha_optimizer, alpha_loss)
        alpha = float(self.log_alpha.detach().exp())
        own_actions, log_prob = self.sample(obs, noises[1])
        lowest = _smallest([_value(critic, obs, own_actions) for critic in self.critics])
        _minimise(self.actor_optimizer, (alpha * log_prob - lowest).mean())
        with torch.no_grad():
            next_actions, log_prob = self.sample(next_obs, noises[2])
            lowest = _smallest([_value(target, next_obs, next_actions) for target in self.targets])
            y = batch["rewards"] + self.gamma * (1 - batch["dones"]) * (lowest - alpha * log_prob)
        loss = torch.zeros(())
        for critic in self.critics:
            loss = loss + (_value(critic, obs, actions) - y).square().mean()
        loss = loss + self.diversity_weight * self.agreement(obs, actions)
        for optimizer in self.critic_optimizers:
            optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        for optimizer in self.critic_optimizers:
            optimizer.step()
        with torch.no_grad():
            for target, critic in zip(self.targets, self.critics, strict=True):
                for lagged, online in zip(_parameters(target), _parameters(critic), strict=True):
                    lagged.copy_(self.tau * online + (1 - self.tau) * lagged)

    def agreement(self, obs: Tensor, actions: Tensor) -> Tensor:
        directions = []
        for critic in self.critics:
            at = actions.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(_value(critic, obs, at).sum(), at, create_graph=True)
            directions.append(gradient / (gradient.norm(dim=-1, keepdim=True) + 1e-10))
        total: Tensor = torch.zeros(())
        for i in range(self.count):
            for j in range(self.count):
                if i != j:
                    total = total + (directions[i] * directions[j]).sum(-1).mean()
        return total / (len(self.critics) - 1)

    def sample(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        outputs = _forward(self.actor, obs)
        mean, std = outputs[:, :ACTION_DIM], outputs[:, ACTION_DIM:].clamp(-5, 2).exp()
        raw = mean + std * noise
        log_density = -((raw - mean) ** 2) / (2 * std**2) - std.log() - 0.5 * math.log(2 * math.pi)
        return raw.tanh(), (log_density - (1 - raw.tanh() ** 2).log()).sum(-1)


@pytest.mark.parametrize(
    ("name", "hyper"),
    [
        ("sac_n", {"num_critics": 1}),
        ("sac_n", {"num_critics": 5}),
        ("edac", {"num_critics": 2, "diversity_weight": 1.0}),
        ("edac", {"num_critics": 4, "diversity_weight": 5.0}),
    ],
)
def test_eight_updates_of_sac_n_and_edac_equal_a_plain_implementation(name: str, hyper: dict[str, Any]) -> None:
    ours: Any = build(name, learning_rate=1e-3, **hyper)
    _strengthen(ours.model)
    ours.target.critic.load_state_dict(ours.model.critic.state_dict())
    plain = PlainSAC(ours)
    start = copy.deepcopy(ours.model.critic)
    for number, batch in enumerate(batches(8, BATCH_SIZE)):
        noises = list(torch.randn(3, BATCH_SIZE, ACTION_DIM, generator=torch.Generator().manual_seed(number)))
        queue = list(noises)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "randn_like", lambda like, queue=queue: _take(queue, like.shape))
            ours.update(batch)
        assert queue == []
        plain.update(batch, noises)
    assert_layers_equal(actor_layers(ours.model.actor), peer_layers(plain.actor), RTOL)
    for member in range(hyper["num_critics"]):
        assert_layers_equal(critic_layers(ours.model.critic, member), peer_layers(plain.critics[member]), RTOL)
        assert_layers_equal(critic_layers(ours.target.critic, member), peer_layers(plain.targets[member]), RTOL)
    assert ours.model.temperature.log_value.item() == pytest.approx(plain.log_alpha.item(), rel=RTOL)
    assert not torch.equal(start.mlp.layers[0].weight, ours.model.critic.mlp.layers[0].weight)


def _linear_layers(layers: Layers) -> nn.ModuleList:
    made = nn.ModuleList(nn.Linear(weight.shape[1], weight.shape[0]) for weight, _ in layers)
    copy_layers(peer_layers(made), layers)
    return made


def _parameters(layers: nn.ModuleList) -> list[nn.Parameter]:
    return list(layers.parameters())


def _forward(layers: nn.ModuleList, rows: Tensor) -> Tensor:
    for number, layer in enumerate(layers, start=1):
        rows = layer(rows)
        if number < len(layers):
            rows = rows.relu()
    return rows


def _value(critic: nn.ModuleList, obs: Tensor, actions: Tensor) -> Tensor:
    return _forward(critic, torch.cat([obs, actions], dim=-1))[:, 0]


def _smallest(values: list[Tensor]) -> Tensor:
    lowest = values[0]
    for value in values[1:]:
        lowest = torch.minimum(lowest, value)
    return lowest


def _minimise(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    optimizer.step()
