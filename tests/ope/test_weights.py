"""When importance weights can be trusted."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import genpareto

from rl_training.ope.weights import (
    WeightDiagnostics,
    WeightVerdict,
    check_cuts,
    check_weights,
    diagnose,
    effective_sample_size,
    largest_share,
    tail_index,
)


@pytest.fixture
def sound() -> WeightDiagnostics:
    """Weights of 1,000 episodes that pass every check."""
    return diagnose(np.random.default_rng(0).uniform(0.5, 1.5, size=(1000, 3)))


def test_sound_weights_proceed_without_a_word(sound: WeightDiagnostics) -> None:
    assert check_weights(sound) == WeightVerdict("proceed", ())


def test_weights_of_the_logged_policy_itself_proceed() -> None:
    rounded = 1 + 1e-16 * np.random.default_rng(0).normal(size=(500, 2))

    assert check_weights(diagnose(np.ones((500, 1)))) == WeightVerdict("proceed", ())
    assert check_weights(diagnose(rounded)) == WeightVerdict("proceed", ())


@pytest.mark.parametrize(
    ("change", "level", "reason"),
    [
        ({"effective_sample_sizes": np.array([1000, 99.0])}, "warn", "sample size is 99.0 of 1000 episodes"),
        ({"effective_sample_sizes": np.array([1000, 29.0])}, "refuse", "at least 30"),
        ({"effective_sample_sizes": np.array([200.0]), "episodes": 5000}, "warn", "10 % would be safe"),
        ({"effective_sample_sizes": np.array([200.0]), "episodes": 30_000}, "refuse", "1 % are needed"),
        ({"effective_sample_sizes": np.array([1.0, 500.0])}, "proceed", ""),
        ({"largest_shares": np.array([0.02])}, "warn", "2.0% of all weight"),
        ({"largest_shares": np.array([0.1])}, "refuse", "at most 10 %"),
        ({"means": np.array([1.25]), "mean_errors": np.array([0.1])}, "warn", "2.5 standard errors from 1"),
        ({"means": np.array([0.6]), "mean_errors": np.array([0.1])}, "refuse", "not in the log"),
        ({"means": np.array([1.3, 1.0]), "mean_errors": np.array([0.05, 0.1])}, "warn", "at step 0 the mean weight"),
        ({"means": np.array([1e300]), "mean_errors": np.array([math.inf])}, "refuse", "the mean weight is 1e+300"),
        ({"tail_index": 0.5}, "warn", "tail index of the weights is 0.50"),
        ({"tail_index": 0.7}, "refuse", "variance is infinite"),
        ({"tail_index": math.nan}, "proceed", ""),
        ({"zero_propensities": 0.001}, "refuse", "0.10% of the logged actions have a probability of zero"),
        ({"unsupported": 0.0}, "proceed", ""),
        ({"unsupported": 5e-4}, "warn", "0.05% of its probability"),
        ({"unsupported": 0.2}, "refuse", "20.00% of its probability to actions that the log never has"),
    ],
)
def test_each_check_warns_and_refuses_at_its_bound(
    sound: WeightDiagnostics, change: dict[str, object], level: str, reason: str
) -> None:
    verdict = check_weights(replace(sound, **change))  # type: ignore[arg-type]

    assert verdict.level == level
    assert len(verdict.reasons) == (level != "proceed")
    assert reason in "".join(verdict.reasons)


def test_the_worst_check_decides_and_all_reasons_are_given(sound: WeightDiagnostics) -> None:
    verdict = check_weights(replace(sound, tail_index=0.6, largest_shares=np.array([0.5]), unsupported=0.3))

    assert verdict.level == "refuse"
    assert len(verdict.reasons) == 3


def test_weights_without_any_support_are_refused() -> None:
    # The policy would never have done what the log has.
    verdict = check_weights(diagnose(np.zeros(200)))

    assert verdict.level == "refuse"
    assert any("sample size is 0.0 of 200" in reason for reason in verdict.reasons)
    assert any("the mean weight is 0" in reason for reason in verdict.reasons)


def test_sizes_and_shares_of_huge_weights_are_finite() -> None:
    weights = np.exp([700.0, 699, 0, -700])

    assert effective_sample_size(weights) == pytest.approx((1 + math.exp(-1)) ** 2 / (1 + math.exp(-2)))
    assert largest_share(weights) == pytest.approx(1 / (1 + math.exp(-1)))


@pytest.mark.parametrize("index", [0.2, 0.5, 1.0])
def test_the_tail_index_of_pareto_weights_is_recovered(index: float) -> None:
    weights = np.random.default_rng(0).pareto(1 / index, size=200_000)

    assert tail_index(weights) == pytest.approx(index, abs=0.1)
    assert tail_index(1e200 * weights) == pytest.approx(tail_index(weights))


def test_the_tail_index_agrees_with_the_most_likely_one() -> None:
    weights = np.sort(np.random.default_rng(1).lognormal(sigma=2, size=5000))
    size = math.ceil(3 * math.sqrt(5000))

    likely = genpareto.fit(weights[-size:] - weights[-size - 1], floc=0)[0]

    # Less the shrinkage towards a half by ten values.
    assert (tail_index(weights) * (size + 10) - 5) / size == pytest.approx(likely, abs=0.05)


def test_bounded_weights_have_a_negative_tail_index() -> None:
    assert tail_index(np.random.default_rng(0).uniform(size=2000)) < -0.5


@pytest.mark.parametrize("size", [100, 121, 1600])
def test_few_distinct_weights_have_a_tail_index_or_none(size: int) -> None:
    two = np.concatenate([np.ones(size * 9 // 10), np.full(size // 10, 2.0)])

    assert tail_index(np.ones(size)) == 0
    assert not tail_index(two) >= 0.5
    assert math.isnan(tail_index([*np.ones(size), 50.0, 60.0]))
    assert math.isnan(tail_index([1.0, 2, 3, 4]))


def test_the_share_of_impossible_logged_actions_is_counted() -> None:
    with np.errstate(divide="ignore"):
        found = diagnose(np.ones(4), behavior_log_probs=np.log([0.5, 0.0, 0.5, 0.5]))

    assert found.zero_propensities == 0.25


def test_cuts_at_one_length_are_no_matter_and_cuts_that_depend_on_the_policy_are_refused() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, 15, size=400)
    cut = np.ones(400, dtype=bool)
    independent = rng.uniform(0.5, 1.5, size=400)

    assert check_cuts([10, 10, 3], [True, True, False], [1.0, 2.0, 1.0]) is None
    warned = check_cuts(lengths, cut, independent)
    refused = check_cuts(lengths, cut, np.where(lengths > 10, 2.0, 0.5))
    assert warned is not None
    assert warned.level == "warn"
    assert "up to the truncation" in warned.reason
    assert refused is not None
    assert refused.level == "refuse"
    assert "400 episodes were truncated, after 5 to 14 steps; truncation depends on the policy" in refused.reason
