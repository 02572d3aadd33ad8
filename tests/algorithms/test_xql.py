"""XQL's formulas on numbers that can be checked by hand, and several updates beside a second implementation."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from peers import ACTION_DIM, OBS_DIM, actor_layers, assert_layers_equal, batches, build, copy_layers, critic_layers
from torch import Tensor, nn

from rl_training.algorithms.xql import value_objective, xql_loss
from rl_training.core.batches import Batch


def _loss(z: list[float], errors: tuple[float, float] = (0.0, 0.0), **hyper: Any) -> dict[str, float]:
    """The whole objective for given scaled errors of values of 2, and errors of both critics on one row."""
    temperature = hyper.setdefault("loss_temperature", 1.0)
    values = torch.full((len(z),), 2.0, dtype=torch.float64)
    metrics = xql_loss(
        values=values,
        target_q_values=values + temperature * torch.tensor(z, dtype=torch.float64),
        log_probs=torch.full_like(values, -0.5),
        q_values=torch.tensor(errors, dtype=torch.float64)[:, None] + 3,
        bellman_targets=torch.full((1,), 3.0, dtype=torch.float64),
        **hyper,
    )
    return {name: float(value) for name, value in metrics.items()}


def _slopes(z: list[float], **hyper: Any) -> list[float]:
    """How the value's loss changes with each value, times the number of rows."""
    values = torch.zeros(len(z), dtype=torch.float64, requires_grad=True)
    settings = {"loss_temperature": 1.0, "gumbel_clip": 7.0, **hyper}
    target = torch.tensor(z, dtype=torch.float64) * settings["loss_temperature"]
    (slopes,) = torch.autograd.grad(
        value_objective(values=values, target_q_values=target, **settings)["value_loss"], values
    )
    return [float(slope) * len(z) for slope in slopes]


def _slope(q: Tensor, value: float, loss_temperature: float) -> float:
    """How the value's loss changes with one value for all rows."""
    single = torch.tensor(value, dtype=torch.float64, requires_grad=True)
    loss = value_objective(
        values=single.expand_as(q), target_q_values=q, loss_temperature=loss_temperature, gumbel_clip=7.0
    )["value_loss"]
    return float(torch.autograd.grad(loss, single)[0])


@pytest.mark.parametrize(
    ("z", "expected"),
    [
        ([0.0], 0.0),
        # (e - 2) / e: what is not rescaled, e^z - z - 1 = 0.718282, over e^M with M = 1.
        ([1.0], 0.718282 / math.e),
        # Beside a row of 0, which costs nothing, M = 0: half of e^-1 + 1 - 1.
        ([0.0, -1.0], 0.367879 / 2),
        # Half of (e - 2) / e.
        ([0.0, 1.0], 0.132121),
        # M is at least -1: (e^-3 + 3 - 1) e.
        ([-3.0], 5.571898),
        # Cut at 7: (e^7 - 8) / e^7.
        ([10.0], 0.992705),
    ],
)
def test_the_value_loss_of_given_errors(z: list[float], expected: float) -> None:
    assert _loss(z)["value_loss"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("loss_temperature", "expected"),
    # temperature * ln(mean of exp(q / temperature)): ln((1 + e) / 2), 0.1 ln((1 + e^10) / 2), 10 ln((1 + e^0.1) / 2).
    [(1.0, 0.620115), (0.1, 0.930690), (10.0, 0.512495)],
)
def test_the_best_value_is_a_soft_maximum(loss_temperature: float, expected: float) -> None:
    q = torch.tensor([0.0, 1.0], dtype=torch.float64)
    assert _slope(q, expected, loss_temperature) == pytest.approx(0.0, abs=1e-5)
    assert _slope(q, expected - 0.01, loss_temperature) < 0 < _slope(q, expected + 0.01, loss_temperature)
    # Between the mean, where it still rises, and the maximum.
    assert _slope(q, 0.5, loss_temperature) < 0 < _slope(q, 1.0, loss_temperature)


def test_the_scale_of_the_loss_carries_no_gradient() -> None:
    # d/dV of (e^z - z - 1) / e^M with M = 1 held constant: -(e^z - 1) / e.
    assert _slopes([1.0, 0.5]) == pytest.approx([-(math.e - 1) / math.e, -(math.exp(0.5) - 1) / math.e])


@pytest.mark.parametrize(("two_sided_clip", "below"), [(False, (1 - math.exp(-2)) / math.exp(0.5)), (True, 0.0)])
def test_errors_beyond_the_clip_do_not_pull(two_sided_clip: bool, below: float) -> None:
    # Cut at 0.5, which is M then; from below only where that is asked for.
    slopes = _slopes([2.0, 0.25, -2.0], gumbel_clip=0.5, two_sided_clip=two_sided_clip)
    assert slopes == pytest.approx([0.0, -(math.exp(0.25) - 1) / math.exp(0.5), below])


def test_a_large_clip_does_not_overflow() -> None:
    # e^900 is no number, but e^(900 - 900) - 901 e^-900 is 1.
    assert _loss([900.0], gumbel_clip=1000.0)["value_loss"] == pytest.approx(1.0)


def test_errors_are_reported_before_they_are_cut() -> None:
    metrics = _loss([10.0, 8.0, 7.0, -9.0])
    assert metrics["gumbel_z_max"] == pytest.approx(10.0)
    assert metrics["gumbel_clip_fraction"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("errors", "huber_delta", "expected"),
    [
        # Half of the square within 20: 2; beyond, 20 * 30 - 20^2 / 2 = 400; the sum over critics.
        ((2.0, 0.0), 20.0, 2.0),
        ((30.0, 0.0), 20.0, 400.0),
        ((-30.0, 2.0), 20.0, 402.0),
        ((2.0, 0.0), 1.0, 1.5),
    ],
)
def test_the_critics_loss_is_hubers(errors: tuple[float, float], huber_delta: float, expected: float) -> None:
    assert _loss([0.0], errors, huber_delta=huber_delta)["critic_loss"] == pytest.approx(expected)


class NaiveXQL:
    """The algorithm once more, row by row from its formulas."""

    def __init__(self, ours: Any) -> None:
        self.hyper = ours.hyper
        self.policy, self.value = _network(OBS_DIM, ACTION_DIM), _network(OBS_DIM, 1, ours.hyper.value_layer_norm)
        self.critics = [_network(OBS_DIM + ACTION_DIM, 1) for _ in range(2)]
        copy_layers(_linear(self.policy), actor_layers(ours.model.actor))
        copy_layers(_linear(self.value), actor_layers(ours.model.value))
        for member, critic in enumerate(self.critics):
            copy_layers(_linear(critic), critic_layers(ours.model.critic, member))
        self.lagged = copy.deepcopy(self.critics)
        self.log_std = nn.Parameter(torch.zeros(ACTION_DIM, dtype=torch.float64))
        rate = ours.hyper.learning_rate
        self.policy_optimizer = torch.optim.Adam([*self.policy.parameters(), self.log_std], lr=rate)
        self.value_optimizer = torch.optim.Adam(self.value.parameters(), lr=rate)
        self.critic_optimizer = torch.optim.Adam(nn.ModuleList(self.critics).parameters(), lr=rate)

    def update(self, batch: Batch) -> None:
        for _ in range(self.hyper.value_updates):
            _minimise(self.value_loss(batch), self.value_optimizer)
        _minimise(self.policy_loss(batch), self.policy_optimizer)
        _minimise(self.critic_loss(batch), self.critic_optimizer)
        with torch.no_grad():
            for lagged, critic in zip(self.lagged, self.critics, strict=True):
                for old, new in zip(lagged.parameters(), critic.parameters(), strict=True):
                    old.copy_(self.hyper.tau * new + (1 - self.hyper.tau) * old)

    def lagged_q(self, obs: Tensor, action: Tensor) -> float:
        return min(float(critic(torch.cat([obs, action])).detach()) for critic in self.lagged)

    def value_loss(self, batch: Batch) -> Tensor:
        hyper, states, actions = self.hyper, list(batch["obs"]), batch["actions"]
        if hyper.action_noise:
            noise = torch.randn(actions.shape, dtype=torch.float64) * hyper.action_noise
            actions = torch.clamp(actions + torch.clamp(noise, -0.5, 0.5), -1, 1)
        pairs = list(zip(states, actions, strict=True))
        if hyper.random_actions:
            for uniform in torch.rand(hyper.random_actions, *actions.shape, dtype=torch.float64):
                pairs += list(zip(states, uniform * 2 - 1, strict=True))
        scaled = []
        for obs, action in pairs:
            z = (self.lagged_q(obs, action) - self.value(obs)[0]) / hyper.loss_temperature
            z = hyper.gumbel_clip + 0 * z if z > hyper.gumbel_clip else z
            z = -hyper.gumbel_clip + 0 * z if hyper.two_sided_clip and z < -hyper.gumbel_clip else z
            scaled.append(z)
        top = max(-1.0, *(z.item() for z in scaled))
        return sum((torch.exp(z) - z - 1 for z in scaled), torch.tensor(0.0)) / len(scaled) / math.exp(top)

    def policy_loss(self, batch: Batch) -> Tensor:
        total = torch.tensor(0.0)
        for obs, action in zip(batch["obs"], batch["actions"], strict=True):
            advantage = self.lagged_q(obs, action) - self.value(obs).item()
            weight = min(math.exp(self.hyper.beta * advantage), self.hyper.max_weight)
            normal: Any = torch.distributions.Normal(torch.tanh(self.policy(obs)), torch.exp(self.log_std))
            total = total - weight * normal.log_prob(action).sum()
        return total / len(batch["obs"])

    def critic_loss(self, batch: Batch) -> Tensor:
        total = torch.tensor(0.0)
        for row in range(len(batch["obs"])):
            bootstrap = self.value(batch["next_obs"][row]).item() if batch["dones"][row] == 0 else 0.0
            target = float(batch["rewards"][row]) + self.hyper.gamma * bootstrap
            for critic in self.critics:
                error = abs(critic(torch.cat([batch["obs"][row], batch["actions"][row]]))[0] - target)
                delta = self.hyper.huber_delta
                total = total + (error**2 / 2 if error <= delta else delta * error - delta**2 / 2)
        return total / len(batch["obs"])


@pytest.mark.parametrize(
    "hyper",
    [
        {},
        {"value_layer_norm": False, "loss_temperature": 0.5, "beta": 10.0, "max_weight": 2.0},
        {"value_updates": 3, "gumbel_clip": 0.2, "huber_delta": 0.5},
        {"two_sided_clip": True, "gumbel_clip": 0.2, "loss_temperature": 1.0},
        {"random_actions": 2, "action_noise": 0.6, "value_updates": 2},
    ],
    ids=["default", "sharp", "often", "two-sided", "noisy"],
)
def test_updates_equal_those_of_a_naive_implementation(hyper: dict[str, Any]) -> None:
    ours: Any = build("xql", learning_rate=3e-3, tau=0.1, **hyper)
    naive = NaiveXQL(ours)
    for number, batch in enumerate(batches(5, size=12)):
        torch.manual_seed(number)
        ours.update(batch)
        torch.manual_seed(number)
        naive.update(batch)
    rtol = 1e-8
    assert_layers_equal(actor_layers(ours.model.actor), _linear(naive.policy), rtol)
    torch.testing.assert_close(ours.model.actor.log_std, naive.log_std, rtol=rtol, atol=1e-14)
    assert_layers_equal(actor_layers(ours.model.value), _linear(naive.value), rtol)
    norms = [(norm.weight, norm.bias) for norm in ours.model.value.mlp.norms]
    assert_layers_equal(norms, _norms(naive.value), rtol)
    for member in range(2):
        assert_layers_equal(critic_layers(ours.model.critic, member), _linear(naive.critics[member]), rtol)
        assert_layers_equal(critic_layers(ours.target.critic, member), _linear(naive.lagged[member]), rtol)


def test_only_the_value_moves_several_times() -> None:
    algorithm: Any = build("xql", value_updates=4)
    assert algorithm.update(batches(1)[0]).num_gradient_steps == 1
    steps = {name: float(optimizer.count) for name, optimizer in algorithm.optimizers.items()}
    assert steps == {"value": 4.0, "actor": 1.0, "critic": 1.0}


def _network(inputs: int, outputs: int, layer_norm: bool = False) -> nn.Sequential:
    layers: list[nn.Module] = []
    for size in (inputs, 16):
        layers += [nn.Linear(size, 16), *([nn.LayerNorm(16)] if layer_norm else []), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(16, outputs)).double()


def _linear(network: nn.Module) -> list[tuple[Tensor, Tensor]]:
    return [(layer.weight, layer.bias) for layer in network.modules() if isinstance(layer, nn.Linear)]


def _norms(network: nn.Module) -> list[tuple[Tensor, Tensor]]:
    return [(layer.weight, layer.bias) for layer in network.modules() if isinstance(layer, nn.LayerNorm)]


def _minimise(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
