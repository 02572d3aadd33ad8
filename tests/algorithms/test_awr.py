"""AWR's formulas on numbers that can be checked by hand, and its updates beside a second implementation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from peers import ACTION_DIM, OBS_DIM, actor_layers, assert_layers_equal, batches, build, copy_layers, peer_layers
from torch import Tensor, nn

from rl_training.algorithms import Algorithm
from rl_training.algorithms.awr import actor_objective
from rl_training.core.batches import Batch
from rl_training.data import TransitionDataset, source_for, with_lambda_returns

RTOL = 1e-8


def _batches(count: int, size: int = 32) -> list[Batch]:
    """Random observations, actions, returns and advantages in float64; some advantages are large."""
    return [
        {
            "obs": batch["obs"],
            "actions": batch["actions"],
            "lambda_returns": 30 * batch["rewards"] + 10,
            "advantages": 2 * batch["next_obs"][:, 0],
        }
        for batch in batches(count, size)
    ]


def _actor(advantages: list[float], *, means: list[list[float]] | None = None, **options: float) -> dict[str, float]:
    count = len(advantages)
    metrics = actor_objective(
        advantages=torch.tensor(advantages),
        log_probs=torch.full((count,), -1.0),
        means=torch.zeros(count, 1) if means is None else torch.tensor(means),
        **{"temperature": 1.0, "max_weight": 20.0, "bound_weight": 10.0, **options},
    )
    return {name: float(value) for name, value in metrics.items()}


def test_standardised_advantages_and_their_weights() -> None:
    # V = 0 and one-step episodes with rewards 0, 1, 2, so A = 0, 1, 2: mean 1, deviation sqrt(2 / 3) = 0.816497, and
    # 1 / (0.816497 + 1e-5) = 1.224730; exp(-1.224730) = 0.293837, exp(0) = 1, exp(1.224730) = 3.403247.
    dataset = TransitionDataset.from_dict(
        {
            "obs": np.zeros((3, 1)),
            "next_obs": np.zeros((3, 1)),
            "actions": np.zeros((3, 1)),
            "rewards": np.array([0.0, 1.0, 2.0]),
            "dones": np.ones(3),
        }
    )
    estimated = with_lambda_returns(dataset, lambda obs: torch.zeros(len(obs)), gamma=0.9, td_lambda=0.5)
    advantages = estimated.advantages.tolist()
    assert advantages == pytest.approx([-1.224730, 0.0, 1.224730], abs=1e-6)
    metrics = _actor(advantages)
    assert metrics["weight_min"] == pytest.approx(0.293837, abs=1e-6)
    assert metrics["weight_max"] == pytest.approx(3.403247, abs=1e-6)
    assert metrics["weight_mean"] == pytest.approx((0.293837 + 1 + 3.403247) / 3, abs=1e-6)
    # All log-densities are -1, so the loss is the mean weight.
    assert metrics["actor_loss"] == pytest.approx(metrics["weight_mean"])


def test_weights_are_bounded() -> None:
    # e^4 = 54.6 becomes 20, the default of the authors.
    assert _actor([4.0, 0.0])["weight_max"] == 20.0
    assert _actor([4.0, 0.0], max_weight=2.0)["weight_max"] == 2.0
    assert _actor([4.0, 0.0], max_weight=100.0)["weight_max"] == pytest.approx(math.exp(4))


def test_a_mean_beyond_the_bounds_has_its_price() -> None:
    # Row 1 is out by 0.5 and 1: 0.5 * (0.25 + 1) = 0.625; row 2 is inside: the mean is 0.3125, times 10.
    metrics = _actor([0.0, 0.0], means=[[1.5, -2.0], [1.0, -0.9]])
    assert metrics["bound_loss"] == pytest.approx(0.3125)
    assert metrics["actor_loss"] == pytest.approx(1 + 3.125)
    assert _actor([0.0, 0.0], means=[[1.5, -2.0], [1.0, -0.9]], bound_weight=0.0)["actor_loss"] == pytest.approx(1.0)


def test_the_policys_mean_is_not_squashed_and_its_deviation_not_learned() -> None:
    algorithm = build("awr", action_std=0.2)
    obs = _batches(1)[0]["obs"]
    with torch.no_grad():
        algorithm.model.actor.mlp.layers[-1].bias.fill_(1.5)
    mean, log_std = algorithm.model.actor(obs)
    torch.testing.assert_close(mean, algorithm.model.actor.mlp(obs))
    assert float(mean.detach().min()) > 1
    # What is done in the end keeps to the bounds.
    assert algorithm.act(obs).tolist() == [[1.0] * ACTION_DIM] * 32
    assert log_std.tolist() == pytest.approx([math.log(0.2)] * ACTION_DIM)
    assert not log_std.requires_grad
    assert "log_std" not in dict(algorithm.model.actor.named_parameters())
    for batch in _batches(3):
        algorithm.update(batch)
    assert algorithm.model.actor.log_std.tolist() == log_std.tolist()


def _values_for_returns(algorithm: Algorithm, obs: Tensor) -> Tensor:
    """The values that returns are computed with: advantages of episodes that end at once, without a reward."""
    rows = {"obs": obs, "next_obs": obs, "rewards": torch.zeros(len(obs)), "dones": torch.ones(len(obs))}
    return -algorithm.annotate(rows, torch.arange(len(obs)))["advantages"]


def test_values_for_returns_are_those_of_normalised_observations() -> None:
    algorithm: Any = build("awr")
    obs = _batches(1)[0]["obs"]
    algorithm.set_obs_statistics(torch.full((OBS_DIM,), 2.0), torch.full((OBS_DIM,), 4.0))
    expected = algorithm.model.value((obs - 2) / 4).detach()
    torch.testing.assert_close(_values_for_returns(algorithm, obs), expected)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.5, "max_weight": 3.0, "bound_weight": 2.0, "action_std": 0.2, "value_scale": 10.0},
        {"bound_weight": 0.0, "max_weight": 1e9},
    ],
)
def test_ten_updates_equal_a_second_implementation(options: dict[str, float]) -> None:
    ours = build("awr", **options)
    with torch.no_grad():
        # Some means beyond the bounds, so that their price is paid.
        ours.model.actor.mlp.layers[-1].weight.mul_(100)
    naive = _Naive(ours, **options)
    for batch in _batches(10):
        metrics, (value_loss, actor_loss) = ours.update(batch).metrics, naive.update(batch)
        assert float(metrics["value_loss"]) == pytest.approx(value_loss, rel=RTOL)
        assert float(metrics["actor_loss"]) == pytest.approx(actor_loss, rel=RTOL)
        assert float(metrics["bound_loss"]) > 0
    assert_layers_equal(actor_layers(ours.model.actor), peer_layers(naive.actor), RTOL)
    assert_layers_equal(actor_layers(ours.model.value), peer_layers(naive.value), RTOL)


GAMMA, TD_LAMBDA = 0.875, 0.75
"""Numbers of few binary digits: the recursion keeps its factors in float32."""


def test_updates_from_a_source_equal_a_second_implementation_of_the_whole_iteration() -> None:
    interval = 3
    ours = build("awr", gamma=GAMMA, td_lambda=TD_LAMBDA, recompute_interval=interval)
    naive = _Naive(ours)
    dataset = _episodes()
    source, _ = source_for(ours, dataset)
    for update in range(11):
        batch = source.sample(16)
        if update % interval == 0:
            returns, advantages = naive.estimate(dataset)
        # The first observation is the number of the row.
        rows = batch["obs"][:, 0].long()
        torch.testing.assert_close(batch["lambda_returns"], returns[rows], rtol=RTOL, atol=0)
        torch.testing.assert_close(batch["advantages"], advantages[rows], rtol=1e-7, atol=1e-9)
        ours.update(batch)
        chosen = {name: dataset.fields[name].double()[rows] for name in ("obs", "actions")}
        naive.update(chosen | {"lambda_returns": returns[rows], "advantages": advantages[rows]})
    assert_layers_equal(actor_layers(ours.model.actor), peer_layers(naive.actor), RTOL)
    assert_layers_equal(actor_layers(ours.model.value), peer_layers(naive.value), RTOL)


def _episodes() -> TransitionDataset:
    """Episodes of 4, 1, 3 and 2 rows that end in turn by a time limit and by termination."""
    rng = np.random.default_rng(0)
    rows = 10
    obs = rng.normal(size=(rows, OBS_DIM))
    obs[:, 0] = np.arange(rows)
    next_obs = np.concatenate([obs[1:], obs[:1]])
    ends, dones = np.isin(np.arange(rows), [3, 4, 7, 9]), np.isin(np.arange(rows), [4, 9])
    next_obs[ends] = rng.normal(size=(4, OBS_DIM))
    return TransitionDataset.from_dict(
        {
            "obs": obs,
            "next_obs": next_obs,
            "actions": np.tanh(rng.normal(size=(rows, ACTION_DIM))),
            "rewards": 10 * rng.normal(size=rows),
            "dones": dones,
            "truncations": ends & ~dones,
        }
    )


class _Naive:
    """AWR once more, straight from its formulas, row by row, with torch's own Adam."""

    def __init__(
        self,
        ours: Any,
        *,
        temperature: float = 1.0,
        max_weight: float = 20.0,
        bound_weight: float = 10.0,
        action_std: float = 0.4,
        value_scale: float = 100.0,
    ) -> None:
        self.temperature, self.max_weight, self.bound_weight = temperature, max_weight, bound_weight
        # The deviation is kept as a logarithm in float32, until the algorithm is made float64.
        self.action_std = math.exp(float(torch.tensor(math.log(action_std))))
        self.value_scale = value_scale
        self.actor, self.value = _perceptron(ACTION_DIM), _perceptron(1)
        copy_layers(peer_layers(self.actor), actor_layers(ours.model.actor))
        copy_layers(peer_layers(self.value), actor_layers(ours.model.value))
        self.value_optimizer = torch.optim.Adam(self.value.parameters(), lr=1e-3)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=1e-4)

    def estimate(self, dataset: TransitionDataset) -> tuple[Tensor, Tensor]:
        """Returns and standardised advantages of all rows, episode by episode."""
        returns, advantages = [], []
        for episode in dataset.episodes():
            with torch.no_grad():
                values = (self.value_scale * self.value(episode.observations.double())[:, 0]).tolist()
            if episode.terminations[-1]:
                values[-1] = 0.0
            rewards = episode.rewards.tolist()
            backwards = [rewards[-1] + GAMMA * values[-1]]
            for t in reversed(range(len(rewards) - 1)):
                mixed = (1 - TD_LAMBDA) * values[t + 1] + TD_LAMBDA * backwards[-1]
                backwards.append(rewards[t] + GAMMA * mixed)
            returns += backwards[::-1]
            advantages += [gain - value for gain, value in zip(backwards[::-1], values[:-1], strict=True)]
        mean, deviation = np.mean(advantages), np.std(advantages)
        standardised = [(advantage - mean) / (deviation + 1e-5) for advantage in advantages]
        return torch.tensor(returns, dtype=torch.float64), torch.tensor(standardised, dtype=torch.float64)

    def update(self, batch: Batch) -> tuple[float, float]:
        """One step on each network; the losses before it."""
        rows = len(batch["obs"])
        value_loss: Tensor = torch.zeros((), dtype=torch.float64)
        actor_loss: Tensor = torch.zeros((), dtype=torch.float64)
        for row in range(rows):
            obs = batch["obs"][row]
            error = (batch["lambda_returns"][row] - self.value_scale * self.value(obs)[0]) / self.value_scale
            value_loss = value_loss + 0.5 * error**2 / rows
            mean = self.actor(obs)
            variance = self.action_std**2
            squares = (batch["actions"][row] - mean) ** 2 / variance
            log_prob = -0.5 * (squares + math.log(2 * math.pi * variance)).sum()
            weight = min(math.exp(float(batch["advantages"][row]) / self.temperature), self.max_weight)
            outside = torch.clamp(mean - 1, min=0) + torch.clamp(mean + 1, max=0)
            actor_loss = actor_loss + (self.bound_weight * 0.5 * (outside**2).sum() - weight * log_prob) / rows
        for loss, optimizer in ((value_loss, self.value_optimizer), (actor_loss, self.actor_optimizer)):
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
        return value_loss.item(), actor_loss.item()


def _perceptron(outputs: int) -> nn.Sequential:
    layers = (nn.Linear(OBS_DIM, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, outputs))
    return nn.Sequential(*layers).double()


def test_a_batch_of_one_row_has_finite_metrics() -> None:
    assert all(map(math.isfinite, _actor([1.0]).values()))
