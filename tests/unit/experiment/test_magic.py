"""MAGIC, against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from rl_training.experiment.importance import Trajectories, weighted_doubly_robust
from rl_training.experiment.magic import episode_parts, magic, smallest_on_simplex

# Two steps of two actions; the coin is logged, the policy takes action 1 with 0.8, and Q is rough.
ACTIONS = np.array([(1, 1), (1, 0), (0, 0), (0, 1), (1, 1)])
FIRST, SECOND = ACTIONS.T
Q = np.stack([np.where(FIRST == 1, 2.0, 0.5), np.where(SECOND == 1, np.where(FIRST == 1, 1.6, 0.8), 0.2)], axis=1)
V = np.stack([np.full(5, 1.7), np.where(FIRST == 1, 1.32, 0.68)], axis=1)


@pytest.fixture
def log() -> Trajectories:
    rewards = np.stack([FIRST, SECOND * (1 + FIRST)], axis=1)
    log_probs = np.log(np.where(ACTIONS == 1, 0.8, 0.2))
    return Trajectories.from_rows(rewards.ravel(), log_probs.ravel(), np.full(10, np.log(0.5)), [2] * 5)


def test_the_parts_go_from_the_model_to_the_weighted_doubly_robust_estimate(log: Trajectories) -> None:
    parts = episode_parts(log, 0.9, Q, V)

    assert parts.sum(axis=0) == pytest.approx([1.7, 1.877142857, 2.153728223], abs=1e-9)
    assert parts.sum(axis=0)[-1] == pytest.approx(weighted_doubly_robust(log, 0.9, Q, V).value)
    centred = parts - parts.mean(axis=0)
    covariance = centred.T @ centred * 5 / 4
    assert covariance[0] == pytest.approx([0, 0, 0], abs=1e-12)
    assert (covariance[1, 1], covariance[1, 2], covariance[2, 2]) == pytest.approx(
        (0.003135, 0.008704, 0.045286), abs=1e-6
    )


@pytest.mark.parametrize(
    ("interval", "value", "shares"),
    [((1.8, 2.5), 1.834866, [0.23866, 0.76134, 0]), ((1.0, 3.0), 1.7, [1, 0, 0])],
)
def test_the_mixture_is_that_worked_out_by_hand(
    log: Trajectories, interval: tuple[float, float], value: float, shares: list[float]
) -> None:
    found = magic(log, 0.9, Q, V, interval=interval)

    assert found.value == pytest.approx(value, abs=1e-4)
    assert found.shares == pytest.approx(shares, abs=1e-4)


def test_without_an_interval_it_is_that_of_the_resampled_episodes(log: Trajectories) -> None:
    found = magic(log, 0.9, Q, V)

    assert found.shares.sum() == pytest.approx(1)
    assert found.parts.min() <= found.value <= found.parts.max()


@pytest.mark.parametrize("seed", range(30))
def test_the_smallest_value_on_the_simplex_meets_its_conditions(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 40))
    factors = rng.normal(size=(int(rng.integers(1, size + 3)), size)) + rng.normal()
    matrix = factors.T @ factors

    x = smallest_on_simplex(matrix)

    assert x.min() >= 0
    assert x.sum() == pytest.approx(1)
    # Where entries are used, all slopes are equal; elsewhere they are not smaller.
    slopes = matrix @ x
    assert slopes.min() >= x @ slopes - 1e-8 * np.trace(matrix)


def test_a_matrix_of_zeros_has_any_mixture() -> None:
    assert smallest_on_simplex(np.zeros((3, 3))).sum() == pytest.approx(1)
