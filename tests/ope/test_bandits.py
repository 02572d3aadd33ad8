"""Estimators for single decisions, against numbers worked out by hand and two logs of a shop."""

from __future__ import annotations

import csv
import gzip
import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from rl_training.core.errors import DatasetError
from rl_training.ope.importance import (
    clipped,
    dr,
    episode_folds,
    ips,
    kernel_weights,
    slope,
    sndr,
    snips,
)
from rl_training.ope.intervals import EpisodeEstimate, bootstrap
from rl_training.ope.weights import check_weights, diagnose, effective_sample_size

Floats = NDArray[np.float64]

W = np.array([0.2, 0.5, 0.5, 0.8]) / np.array([0.5, 0.25, 0.25, 0.1])
R = np.array([1.0, 0, 1, 1])
Q = np.array([0.6, 0.3, 0.3, 0.5])
V = np.full(4, 0.45)


@pytest.mark.parametrize(
    ("estimate", "expected"),
    [
        (ips(R, W), 2.6),
        (snips(R, W), 0.838709677),
        (dr(R, W, Q, V), 1.69),
        (sndr(R, W, Q, V), 0.85),
        (ips(R, clipped(W, 2)), 1.1),
        (ips(R, clipped(W, math.inf)), 2.6),
    ],
)
def test_four_rows_have_the_values_worked_out_by_hand(estimate: EpisodeEstimate, expected: float) -> None:
    assert estimate.value == pytest.approx(expected, abs=1e-9)


def test_the_standard_error_of_snips_is_that_of_its_residuals() -> None:
    value = snips(R, W).value

    assert snips(R, W).standard_error == pytest.approx(math.sqrt(((W * (R - value)) ** 2).sum()) / W.sum())
    assert effective_sample_size(W) == pytest.approx(2.130820399, abs=1e-9)


def test_kernel_weights_are_those_worked_out_by_hand() -> None:
    taken = np.array([-0.5, 0, 0.1, 0.4, 0.9])
    rewards = np.array([0, 1, 1, 0.5, 0])

    weights = kernel_weights(np.full(5, 0.2), taken, np.full(5, 0.5), 0.5)

    assert weights == pytest.approx([0, 2.52, 2.88, 2.52, 0], abs=1e-9)
    assert ips(rewards, weights).value == pytest.approx(1.332, abs=1e-9)
    assert snips(rewards, weights).value == pytest.approx(0.840909091, abs=1e-9)


@pytest.mark.parametrize(
    ("action", "bandwidth", "expected"),
    # The kernel's bias for a quadratic reward is -h^2 / 5: the truth is -0.25 and -0.09.
    [(0.0, 0.5, -0.3), (0.0, 0.25, -0.2625), (0.2, 0.5, -0.14)],
)
def test_the_kernel_estimate_of_a_quadratic_reward_has_its_known_bias(
    action: float, bandwidth: float, expected: float
) -> None:
    # Midpoints of a fine grid stand for the uniform distribution on [-1, 1].
    taken = (np.arange(200_000) + 0.5) / 100_000 - 1

    weights = kernel_weights(np.full(taken.shape, action), taken, np.full(taken.shape, 0.5), bandwidth)

    assert weights.mean() == pytest.approx(1, abs=1e-8)
    assert ips(-((taken - 0.5) ** 2), weights).value == pytest.approx(expected, abs=1e-8)


def test_kernels_of_several_dimensions_are_multiplied() -> None:
    weights = kernel_weights([[0.0, 0.0], [0.0, 0.0]], [[0.1, 0.2], [0.1, 0.6]], [0.25, 0.25], 0.5)

    single = [kernel_weights([0.0], [a], [0.5], 0.5)[0] for a in (0.1, 0.2)]
    assert weights == pytest.approx([single[0] * single[1], 0])


def test_kernel_weights_refuse_what_does_not_belong_together() -> None:
    with pytest.raises(DatasetError, match=r"\(2, 1\), \(2,\) and \(2,\)"):
        kernel_weights([[0.0], [0.0]], [0.0, 0.0], [1.0, 1.0], 0.5)
    with pytest.raises(DatasetError, match="above 0, got 0"):
        kernel_weights([0.0], [0.0], [1.0], 0)


def test_slope_follows_estimates_as_long_as_they_agree_with_all_less_certain_ones() -> None:
    def estimate(value: float, width: float) -> EpisodeEstimate:
        return EpisodeEstimate.of_mean(value + width * np.array([-1.0, 1.0] * 50))

    uncertain, agreeing, certain, biased = estimate(1.0, 4), estimate(1.2, 2), estimate(1.1, 1), estimate(9.0, 0.1)

    assert slope([uncertain, agreeing, certain]) == 2
    assert slope([biased, certain, agreeing, uncertain]) == 1
    # One that comes after a disagreement is not looked at again.
    assert slope([uncertain, estimate(9.0, 2), certain]) == 0
    assert slope([biased]) == 0


def test_slope_stops_exactly_where_the_half_widths_no_longer_meet() -> None:
    student = 1.6603911560169926  # 95 % with 99 degrees of freedom
    error = math.sqrt(100 / 99) / 10
    reach = student * error * (1 + (math.sqrt(6) - 1) * 2)
    spread = np.array([-1.0, 1.0] * 50)

    for factor, expected in ((0.999, 1), (1.001, 0)):
        candidates = [EpisodeEstimate.of_mean(2 * spread), EpisodeEstimate.of_mean(factor * reach + spread)]
        assert slope(candidates, delta=0.05) == expected


def read_log(path: Path) -> tuple[NDArray[np.int64], Floats, Floats]:
    """Items, clicks and propensities."""
    with gzip.open(path, "rt") as file:
        rows = list(csv.DictReader(file))
    items = np.array([int(row["item_id"]) for row in rows])
    clicks, propensities = (np.array([float(row[name]) for row in rows]) for name in ("click", "propensity_score"))
    return items, clicks, propensities


def test_the_uniform_policy_of_the_open_bandit_data_has_its_known_estimates(shared_data: Path) -> None:
    _, clicks, propensities = read_log(shared_data / "obd" / "men_bts.csv.gz")
    weights = (1 / 34) / propensities
    found = diagnose(weights, behavior_log_probs=np.log(propensities))

    assert (len(clicks), clicks.sum()) == (10_000, 69)
    assert weights.mean() == pytest.approx(0.943314, abs=1e-6)
    assert weights.max() == pytest.approx(178.253119, abs=1e-6)
    assert found.effective_sample_sizes[0] == pytest.approx(655.71, abs=0.01)
    plain, normalised = ips(clicks, weights), snips(clicks, weights)
    assert plain.value == pytest.approx(0.003008626, abs=1e-9)
    assert plain.standard_error == pytest.approx(0.000773935, abs=1e-9)
    assert normalised.value == pytest.approx(0.003189423, abs=1e-9)
    assert normalised.standard_error == pytest.approx(0.000827823, abs=1e-9)
    low, high = np.quantile(bootstrap(normalised).values, [0.025, 0.975])
    assert (low, high) == pytest.approx((0.0018, 0.0049), abs=1e-4)
    # 6.6 % of the rows: enough to warn, not to refuse.
    assert check_weights(found).level == "warn"


def test_the_estimate_from_one_open_bandit_log_is_compatible_with_the_other(shared_data: Path) -> None:
    _, clicks, propensities = read_log(shared_data / "obd" / "men_bts.csv.gz")
    truth = EpisodeEstimate.of_mean(read_log(shared_data / "obd" / "men_random.csv.gz")[1])
    estimate = snips(clicks, (1 / 34) / propensities)

    assert truth.value == pytest.approx(0.0046)
    assert truth.standard_error == pytest.approx(0.00068, abs=1e-5)
    z = (truth.value - estimate.value) / math.hypot(truth.standard_error, estimate.standard_error)
    assert z == pytest.approx(1.3, abs=0.05)


def test_clipping_moves_only_the_normalised_estimate_where_no_click_has_a_large_weight(shared_data: Path) -> None:
    _, clicks, propensities = read_log(shared_data / "obd" / "men_bts.csv.gz")
    weights = (1 / 34) / propensities

    for cap in (5, 10, 20, 50):
        assert ips(clicks, clipped(weights, cap)).value == ips(clicks, weights).value
        assert snips(clicks, clipped(weights, cap)).value > 1.02 * snips(clicks, weights).value


def test_cross_fitted_item_rates_bring_the_direct_method_down_to_the_weighted_estimates(shared_data: Path) -> None:
    items, clicks, propensities = read_log(shared_data / "obd" / "men_bts.csv.gz")

    def rates(train: NDArray[np.bool_]) -> Floats:
        shown = np.bincount(items[train], minlength=34)
        found: Floats = np.bincount(items[train], clicks[train], minlength=34) + 50 * clicks[train].mean()
        return found / (shown + 50)

    folds = episode_folds(len(items), 2)
    crossed = np.stack([rates(folds != fold) for fold in range(2)])
    estimate = dr(clicks, (1 / 34) / propensities, crossed[folds, items], crossed.mean(axis=1)[folds])

    assert rates(np.ones(len(items), dtype=bool)).mean() == pytest.approx(0.0053, abs=5e-5)
    assert estimate.value == pytest.approx(0.0032, abs=1e-4)
