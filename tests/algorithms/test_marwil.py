"""MARWIL's formulas on numbers that can be checked by hand, and its updates beside a second implementation."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from peers import ACTION_DIM, OBS_DIM, actor_layers, assert_layers_equal, batches, build, copy_layers, peer_layers
from torch import Tensor, nn

from rl_training.algorithms.marwil import marwil_loss, moved_scale
from rl_training.core.batches import Batch

RTOL = 1e-8


def _build(**hyper: Any) -> Any:
    return build("marwil", **hyper)


def _batches(count: int, size: int = 32) -> list[Batch]:
    """Random observations, actions and returns in float64."""
    return [
        {"obs": batch["obs"], "actions": batch["actions"], "lambda_returns": 3 * batch["rewards"] + 1}
        for batch in batches(count, size)
    ]


def _metrics(returns: list[float], values: list[float], scale: float, **options: float) -> dict[str, float]:
    metrics = marwil_loss(
        lambda_returns=torch.tensor(returns),
        values=torch.tensor(values),
        log_probs=torch.full((len(returns),), -1.0),
        scale=torch.tensor(scale),
        **{"beta": 1.0, **options},
    )
    return {name: float(value) for name, value in metrics.items()}


def test_an_advantage_of_one_scale_weighs_e() -> None:
    # A = 10, sqrt(c) = sqrt(100) = 10: w = exp(1 * 10 / 10) = e, so - w * log pi = e; the value pays 0.5 * 10^2.
    metrics = _metrics([10.0], [0.0], 100.0)
    assert metrics["weight_max"] == pytest.approx(2.718282, abs=1e-6)
    assert metrics["actor_loss"] == pytest.approx(math.e, rel=1e-6)
    assert metrics["value_loss"] == pytest.approx(50.0)
    assert metrics["advantage_mean"] == pytest.approx(10.0)
    assert metrics["lambda_return_mean"] == pytest.approx(10.0)


def test_weights_are_bounded() -> None:
    # e^4 = 54.6 becomes 20, the default; e^2 = 7.39 stays: the mean of both is 13.694528.
    metrics = _metrics([40.0, 20.0], [0.0, 0.0], 100.0)
    assert metrics["weight_max"] == pytest.approx(20.0)
    assert metrics["weight_mean"] == pytest.approx((20 + math.exp(2)) / 2, rel=1e-6)
    assert _metrics([40.0], [0.0], 100.0, max_weight=100.0)["weight_max"] == pytest.approx(math.exp(4), rel=1e-6)


def test_a_scale_of_zero_gives_finite_weights() -> None:
    # 1e-8 stands beside the square root, so that nothing is divided by zero.
    assert _metrics([0.0], [0.0], 0.0)["weight_max"] == 1.0
    assert _metrics([1.0], [0.0], 0.0)["weight_max"] == 20.0


def test_ten_updates_with_beta_zero_equal_ten_of_cloning() -> None:
    marwil, cloning = _build(beta=0.0, learning_rate=1e-3), build("bc", policy="stochastic")
    # The same network: MARWIL's has tanh between its layers, and so gets the other its activation.
    cloning.model.actor.mlp.activation = torch.tanh
    cloning.model.actor.load_state_dict(marwil.model.actor.state_dict())
    cloning.set_learning_rate_multiplier(1e-3 / cloning.hyper.learning_rate)
    for batch in _batches(10):
        marwil.update(batch)
        cloning.update(batch)
    assert_layers_equal(actor_layers(marwil.model.actor), actor_layers(cloning.model.actor), RTOL)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        # Perfect values leave nothing unexplained.
        ([1.0, 2.0, 3.0], 1.0),
        # The mean explains nothing; neither does anything that is off by a constant from it.
        ([2.0, 2.0, 2.0], 0.0),
        ([7.0, 7.0, 7.0], 0.0),
        # Errors -0.5, 0, 0.5 have a quarter of the variance of the returns.
        ([1.5, 2.0, 2.5], 0.75),
        # The opposite of the returns leaves errors of twice their size: 1 - 4.
        ([3.0, 2.0, 1.0], -3.0),
    ],
)
def test_explained_variance(values: list[float], expected: float) -> None:
    assert _metrics([1.0, 2.0, 3.0], values, 1.0)["value_explained_variance"] == pytest.approx(expected, abs=1e-6)


def test_a_scale_that_has_not_begun_starts_at_the_first_batch() -> None:
    assert float(moved_scale(torch.tensor(0.0), torch.tensor([3.0, -1.0]), 0.25)) == pytest.approx(5.0)


def test_losses_without_a_step_leave_the_scale_alone() -> None:
    algorithm = _build(scale_start=4.0, scale_rate=1.0)
    algorithm.losses(_batches(1)[0])
    assert float(algorithm.advantage_scale) == 4.0


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"beta": 2.5, "max_weight": 1.5, "value_weight": 0.3},
        {"scale_start": 100.0, "scale_rate": 1e-8, "max_weight": 1e9},
        {"scale_start": 0.5, "scale_rate": 0.3, "log_std_weight": 0.2},
        {"value_learning_rate": 3e-3},
    ],
)
def test_ten_updates_equal_a_second_implementation(options: dict[str, float]) -> None:
    ours = _build(learning_rate=1e-3, **options)
    naive = _Naive(ours, **options)
    for batch in _batches(10):
        metrics, (actor_loss, value_loss) = ours.update(batch).metrics, naive.update(batch)
        assert float(metrics["actor_loss"]) == pytest.approx(actor_loss, rel=RTOL)
        assert float(metrics["value_loss"]) == pytest.approx(value_loss, rel=RTOL)
        assert float(ours.advantage_scale) == pytest.approx(naive.scale, rel=RTOL)
    assert_layers_equal(actor_layers(ours.model.actor), peer_layers(naive.actor), RTOL)
    assert_layers_equal(actor_layers(ours.model.value), peer_layers(naive.value), RTOL)


class _Naive:
    """MARWIL once more, straight from its formulas: one loss, one backward pass, torch's own Adam."""

    def __init__(
        self,
        ours: Any,
        *,
        beta: float = 1.0,
        max_weight: float = 20.0,
        value_weight: float = 1.0,
        scale_start: float | None = None,
        scale_rate: float = 1e-3,
        log_std_weight: float = 0.0,
        value_learning_rate: float = 1e-3,
    ) -> None:
        self.beta, self.max_weight, self.value_weight = beta, max_weight, value_weight
        self.scale, self.scale_rate, self.log_std_weight = scale_start, scale_rate, log_std_weight
        self.actor, self.value = _perceptron(2 * ACTION_DIM), _perceptron(1)
        copy_layers(peer_layers(self.actor), actor_layers(ours.model.actor))
        copy_layers(peer_layers(self.value), actor_layers(ours.model.value))
        self.optimizer = torch.optim.Adam(
            [
                {"params": list(self.actor.parameters()), "lr": 1e-3},
                {"params": list(self.value.parameters()), "lr": value_learning_rate},
            ]
        )

    def update(self, batch: Batch) -> tuple[float, float]:
        """One step on both networks; the losses before it."""
        advantages = batch["lambda_returns"] - self.value(batch["obs"])[:, 0]
        square = (advantages**2).mean().item()
        self.scale = square if self.scale is None else self.scale + self.scale_rate * (square - self.scale)
        total: Tensor = torch.zeros((), dtype=torch.float64)
        for row in range(len(advantages)):
            mean, log_std = self.actor(batch["obs"][row : row + 1])[0].split(ACTION_DIM)
            mean, log_std = torch.tanh(mean), torch.clamp(log_std, -5, 2)
            variance = torch.exp(log_std) ** 2
            squares = (batch["actions"][row] - mean) ** 2 / variance
            log_prob = -0.5 * (squares + torch.log(2 * math.pi * variance)).sum()
            weight = math.exp(self.beta * advantages[row].item() / (1e-8 + math.sqrt(self.scale)))
            total = total - min(weight, self.max_weight) * (log_prob + self.log_std_weight * log_std.mean())
        actor_loss = total / len(advantages)
        value_loss = self.value_weight * 0.5 * (advantages**2).mean()
        self.optimizer.zero_grad()
        (actor_loss + value_loss).backward()
        self.optimizer.step()
        return actor_loss.item(), value_loss.item()


def _perceptron(outputs: int) -> nn.Sequential:
    layers = (nn.Linear(OBS_DIM, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, outputs))
    return nn.Sequential(*layers).double()


def test_at_rate_one_advantages_of_one_size_weigh_e_or_one_over_e() -> None:
    # c = mean A^2 = 49, so A / sqrt(c) = +-1, whatever c was before.
    algorithm = _build(scale_start=3.0, scale_rate=1.0)
    last = algorithm.model.value.mlp.layers[-1]
    nn.init.zeros_(last.weight)
    nn.init.constant_(last.bias, 2.0)
    batch = _batches(1)[0]
    signs = torch.where(torch.arange(32) % 4 == 0, 1.0, -1.0).double()
    metrics = algorithm.update(batch | {"lambda_returns": 2 + 7 * signs}).metrics
    assert float(metrics["advantage_scale"]) == pytest.approx(49.0)
    assert float(metrics["weight_max"]) == pytest.approx(math.e)
    # A quarter of the rows is better than promised.
    assert float(metrics["weight_mean"]) == pytest.approx(0.25 * math.e + 0.75 / math.e)
