"""MARWIL's formulas on numbers that can be checked by hand, and its updates beside a second implementation."""

from __future__ import annotations

import math
from pathlib import Path
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


def _with_values(algorithm: Any, value: float) -> Any:
    """The algorithm with a value of the same size for every observation."""
    with torch.no_grad():
        last = algorithm.model.value.mlp.layers[-1]
        last.weight.zero_()
        last.bias.fill_(value)
    return algorithm


def test_an_advantage_of_one_scale_weighs_e() -> None:
    # A = 10, sqrt(c) = sqrt(100) = 10: w = exp(1 * 10 / 10) = e, so - w * log pi = e; the value pays 0.5 * 10^2.
    metrics = _metrics([10.0], [0.0], 100.0)
    assert metrics["weight_max"] == pytest.approx(2.718282, abs=1e-6)
    assert metrics["actor_loss"] == pytest.approx(math.e, rel=1e-6)
    assert metrics["value_loss"] == pytest.approx(50.0)
    assert metrics["advantage_mean"] == pytest.approx(10.0)
    assert metrics["lambda_return_mean"] == pytest.approx(10.0)


def test_beta_is_an_inverse_temperature() -> None:
    # exp(0.5 * 10 / 10) = e^0.5 and exp(-2 * 10 / 10) = e^-2.
    assert _metrics([10.0], [0.0], 100.0, beta=0.5)["weight_max"] == pytest.approx(math.exp(0.5))
    assert _metrics([-10.0], [0.0], 100.0, beta=2.0)["weight_max"] == pytest.approx(math.exp(-2))


def test_weights_are_bounded() -> None:
    # e^4 = 54.6 becomes 20, the default; e^2 = 7.39 stays: the mean of both is 13.694528.
    metrics = _metrics([40.0, 20.0], [0.0, 0.0], 100.0)
    assert metrics["weight_max"] == pytest.approx(20.0)
    assert metrics["weight_mean"] == pytest.approx((20 + math.exp(2)) / 2, rel=1e-6)
    assert _metrics([40.0], [0.0], 100.0, max_weight=100.0)["weight_max"] == pytest.approx(math.exp(4), rel=1e-6)


def test_the_loss_of_the_value_has_a_weight_of_its_own() -> None:
    # 0.5 * mean(3^2, 1^2) = 2.5, times 0.1.
    assert _metrics([3.0, 1.0], [0.0, 0.0], 1.0, value_weight=0.1)["value_loss"] == pytest.approx(0.25)


def test_a_scale_of_zero_gives_finite_weights() -> None:
    # 1e-8 stands beside the square root, so that nothing is divided by zero.
    assert _metrics([0.0], [0.0], 0.0)["weight_max"] == 1.0
    assert _metrics([1.0], [0.0], 0.0)["weight_max"] == 20.0


def test_beta_zero_is_the_likelihood_of_cloning() -> None:
    algorithm = _build(beta=0.0)
    batch = _batches(1)[0]
    mean, log_std = algorithm.model.actor(batch["obs"])
    nll = -torch.distributions.Normal(mean, log_std.exp()).log_prob(batch["actions"]).sum(-1).mean()  # type: ignore[no-untyped-call]
    metrics = algorithm.losses(batch)
    torch.testing.assert_close(metrics["actor_loss"], nll.detach())
    assert float(metrics["weight_max"]) == 1.0


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


def test_the_scale_moves_to_the_mean_square_by_its_rate() -> None:
    # The mean square of 3 and -1 is 5: from 1 a quarter of the way to 5 is 2.
    advantages = torch.tensor([3.0, -1.0])
    assert float(moved_scale(torch.tensor(1.0), advantages, 0.25)) == pytest.approx(2.0)
    assert float(moved_scale(torch.tensor(1.0), advantages, 0.0)) == 1.0
    assert float(moved_scale(torch.tensor(1.0), advantages, 1.0)) == pytest.approx(5.0)


def test_a_scale_that_has_not_begun_starts_at_the_first_batch() -> None:
    assert float(moved_scale(torch.tensor(0.0), torch.tensor([3.0, -1.0]), 0.25)) == pytest.approx(5.0)


def test_at_rate_one_advantages_of_one_size_weigh_e_or_one_over_e() -> None:
    # c = mean A^2 = 49, so A / sqrt(c) = +-1, whatever c was before.
    algorithm = _with_values(_build(scale_start=3.0, scale_rate=1.0), 2.0)
    batch = _batches(1)[0]
    signs = torch.where(torch.arange(32) % 4 == 0, 1.0, -1.0).double()
    metrics = algorithm.update(batch | {"lambda_returns": 2 + 7 * signs}).metrics
    assert float(metrics["advantage_scale"]) == pytest.approx(49.0)
    assert float(metrics["weight_max"]) == pytest.approx(math.e)
    # A quarter of the rows is better than promised.
    assert float(metrics["weight_mean"]) == pytest.approx(0.25 * math.e + 0.75 / math.e)


def test_weights_are_made_with_the_scale_that_the_batch_has_moved() -> None:
    # c = 1 + 0.5 * (9 - 1) = 5 before it is used: w = exp(3 / sqrt(5)), not exp(3 / 1).
    algorithm = _with_values(_build(scale_start=1.0, scale_rate=0.5), 0.0)
    batch = _batches(1)[0] | {"lambda_returns": torch.full((32,), 3.0, dtype=torch.float64)}
    metrics = algorithm.update(batch).metrics
    assert float(metrics["advantage_scale"]) == pytest.approx(5.0)
    assert float(metrics["weight_max"]) == pytest.approx(math.exp(3 / math.sqrt(5)))
    assert float(algorithm.advantage_scale) == pytest.approx(5.0)


def test_by_default_the_scale_starts_at_the_first_batch_and_follows() -> None:
    algorithm = _with_values(_build(), 0.0)
    first, second = _batches(2)
    assert float(algorithm.advantage_scale) == 0.0
    start = float(first["lambda_returns"].square().mean())
    algorithm.update(first)
    assert float(algorithm.advantage_scale) == pytest.approx(start)
    values = algorithm.model.value(second["obs"]).detach()
    square = float((second["lambda_returns"] - values).square().mean())
    algorithm.update(second)
    assert float(algorithm.advantage_scale) == pytest.approx(start + 1e-3 * (square - start), rel=1e-12)


def test_rllibs_scale_stays_where_it_starts() -> None:
    # Each batch moves it 1e-8 of the way from 100 towards about 10, so that weights are exp(A / 10).
    algorithm = _build(scale_start=100.0, scale_rate=1e-8, max_weight=1e6)
    for batch in _batches(5):
        before = float(algorithm.advantage_scale)
        square = (batch["lambda_returns"] - algorithm.model.value(batch["obs"]).detach()).square().mean()
        metrics = algorithm.update(batch).metrics
        assert float(algorithm.advantage_scale) == pytest.approx(before + 1e-8 * (float(square) - before), rel=1e-14)
        assert float(metrics["weight_max"]) == pytest.approx(math.exp(float(metrics["advantage_max"]) / 10), rel=1e-6)
    assert float(algorithm.advantage_scale) == pytest.approx(100.0, abs=1e-4)
    assert float(algorithm.advantage_scale) < 100.0


def test_losses_without_a_step_leave_the_scale_alone() -> None:
    algorithm = _build(scale_start=4.0, scale_rate=1.0)
    algorithm.losses(_batches(1)[0])
    assert float(algorithm.advantage_scale) == 4.0


def test_the_scale_is_saved_and_loaded_with_the_networks(tmp_path: Path) -> None:
    algorithm, fresh = _build(scale_rate=0.1), _build(scale_rate=0.1)
    *before, after = _batches(4)
    for batch in before:
        algorithm.update(batch)
    assert torch.equal(algorithm.state_dict()["advantage_scale"], algorithm.advantage_scale)
    torch.save(algorithm.state_dict(), tmp_path / "state.pt")
    fresh.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert float(fresh.advantage_scale) == float(algorithm.advantage_scale) > 0
    assert torch.equal(fresh.update(after).metrics["weight_max"], algorithm.update(after).metrics["weight_max"])
    assert torch.equal(fresh.advantage_scale, algorithm.advantage_scale)


def test_the_policys_loss_carries_no_gradient_to_the_value() -> None:
    values, log_probs = torch.zeros(2, requires_grad=True), torch.zeros(2, requires_grad=True)
    metrics = marwil_loss(
        lambda_returns=torch.tensor([1.0, -3.0]), values=values, log_probs=log_probs, scale=torch.tensor(1.0), beta=1.0
    )
    by_value, by_log_prob = torch.autograd.grad(metrics["actor_loss"], [values, log_probs], allow_unused=True)
    assert by_value is None
    # d / d log_prob_i of - mean w log_prob = - w_i / 2 with w = e^1 and e^-3.
    torch.testing.assert_close(by_log_prob, torch.tensor([-math.e / 2, -math.exp(-3) / 2]))
    # d / d V_i of 0.5 mean (R - V)^2 = - (R_i - V_i) / 2.
    (by_value,) = torch.autograd.grad(metrics["value_loss"], values)
    torch.testing.assert_close(by_value, torch.tensor([-0.5, 1.5]))


def test_a_bonus_on_the_deviation_is_weighted_like_the_likelihood() -> None:
    # With V = R all weights are 1: the loss is the likelihood's, less 0.3 times the mean log-deviation.
    batch = _batches(1)[0] | {"lambda_returns": torch.full((32,), 2.0, dtype=torch.float64)}
    plain, bonus = (_with_values(_build(log_std_weight=weight), 2.0) for weight in (0.0, 0.3))
    losses, more = plain.losses(batch), bonus.losses(batch)
    torch.testing.assert_close(more["actor_loss"], losses["actor_loss"] - 0.3 * losses["log_std_mean"])


def test_between_the_layers_is_tanh_and_the_mean_goes_through_it() -> None:
    algorithm = _build()
    obs = _batches(1)[0]["obs"]
    for network in (algorithm.model.actor.mlp, algorithm.model.value.mlp):
        first, second, last = network.layers
        torch.testing.assert_close(network(obs), last(second(first(obs).tanh()).tanh()))
    mean, log_std = algorithm.model.actor(obs)
    outputs = algorithm.model.actor.mlp(obs)
    torch.testing.assert_close(mean, outputs[:, :ACTION_DIM].tanh())
    torch.testing.assert_close(log_std, outputs[:, ACTION_DIM:].clamp(-5, 2))


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
