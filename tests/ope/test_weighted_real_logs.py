"""Estimates by weights through `estimate`, on ICU-Sepsis and on Open Bandit data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sepsis import Sepsis

from rl_training import estimate
from rl_training.core.errors import ConfigError
from rl_training.selection.results import Estimates

ITEMS = 34
COLUMNS = {
    "obs": ["position"],
    "actions": ["item_id"],
    "action_kind": "discrete",
    "reward": "click",
    "propensity": "propensity_score",
    "episodes": "each_row",
}


@pytest.fixture(scope="module")
def sepsis(shared_data: Path) -> Sepsis:
    return Sepsis(shared_data / "icu_sepsis" / "dynamics.npz")


def weighed(sepsis: Sepsis, episodes: int, *, updates: int, seed: int = 0, gamma: float = 0.99) -> Estimates:
    """Tilts of the clinicians and a greedy policy, by a log of the clinicians."""
    tables = {f"tilt {eta}": sepsis.tilted(eta) for eta in (1, 5, 10, 20, 50)}
    tables |= {"clinicians": sepsis.clinicians, "greedy": sepsis.greedy()}
    policies = {name: sepsis.function(table) for name, table in tables.items()}
    log = sepsis.arrays(sepsis.sample(episodes, np.random.default_rng(seed)))
    return estimate(policies, log, gamma=gamma, updates=updates, members=2, hidden_sizes=(16,))


def check_sepsis(found: Estimates, sepsis: Sepsis) -> None:
    """Near policies are right within their error, far ones are refused."""
    for eta in (1, 5, 10):
        near = found.by_weights(f"tilt {eta}")
        truth = sepsis.value(sepsis.tilted(eta), 0.99)
        assert near.level == "proceed"
        for each in near.estimates:
            assert each.value == pytest.approx(truth, abs=3.5 * each.standard_error), (eta, each.estimator)
        assert near.weights["second_moment_radius"] < 1
    own = found.by_weights("clinicians")
    assert own.level == "proceed"
    # Probabilities are stored in single precision.
    assert own["PDWIS"].value == pytest.approx(found.logged_value, abs=1e-5)
    for name in ("tilt 50", "greedy"):
        far = found.by_weights(name)
        assert far.level == "refuse"
        assert any("the variance of the weights is infinite" in reason for reason in far.reasons), name
        assert far.estimates == ()


def test_near_policies_are_estimated_and_infinite_variances_refused_on_sepsis(sepsis: Sepsis) -> None:
    check_sepsis(weighed(sepsis, 1000, updates=60), sepsis)


@pytest.mark.slow
def test_infinite_variances_are_refused_in_most_logs_of_sepsis(sepsis: Sepsis) -> None:
    logs = [weighed(sepsis, 5000, updates=20, seed=seed) for seed in range(6)]
    for found in logs:
        check_sepsis(found, sepsis)
    # The mean square of its weights grows 1.037-fold: the log has not always what shows it.
    assert sum(found.by_weights("tilt 20").level == "refuse" for found in logs) >= 4


def uniform(obs: NDArray[Any]) -> NDArray[Any]:
    """Every item as often."""
    return np.full((len(obs), ITEMS), 1 / ITEMS)


def test_the_uniform_policy_from_the_log_of_thompson_sampling_has_the_known_numbers(shared_data: Path) -> None:
    source = str(shared_data / "obd" / "men_bts.csv.gz")
    result = estimate({"uniform": uniform}, source, columns=COLUMNS, members=2, updates=100, hidden_sizes=(16,))

    found = result.by_weights("uniform")

    assert (result.gamma, result.episodes) == (0.0, 10_000)
    assert found.level == "warn"
    assert found["IPS"].value == pytest.approx(0.003008626, abs=1e-8)
    assert found["IPS"].standard_error == pytest.approx(0.000773935, abs=1e-8)
    assert found["SNIPS"].value == pytest.approx(0.003189423, abs=1e-8)
    assert found["SNIPS"].standard_error == pytest.approx(0.000827823, abs=1e-8)
    assert found.weights["effective_sample_size"] == pytest.approx(655.71, abs=0.01)
    assert found.weights["mean"] == pytest.approx(0.943314, abs=1e-6)
    # 46 clicks of 10,000 where items were shown uniformly.
    truth, error = 0.0046, 0.00068
    for each in found.estimates:
        if each.estimator != "clipped IPS":
            assert abs(each.value - truth) < 2 * np.hypot(each.standard_error, error), each.estimator


def test_thompson_sampling_from_the_uniform_log_is_refused_with_the_reason(shared_data: Path) -> None:
    folder = shared_data / "obd"
    with pytest.raises(ConfigError) as caught:
        estimate({"bts": str(folder / "men_bts.csv.gz")}, str(folder / "men_random.csv.gz"), columns=COLUMNS)

    assert "men_bts.csv.gz is a log, not a policy" in str(caught.value)
    assert "not of those that were not" in str(caught.value)


def test_a_uniform_log_judges_the_uniform_policy_by_its_own_mean(shared_data: Path) -> None:
    source = str(shared_data / "obd" / "men_random.csv.gz")
    result = estimate({"uniform": uniform}, source, columns=COLUMNS, members=2, updates=20, hidden_sizes=(16,))

    found = result.by_weights("uniform")

    assert found.level == "proceed"
    assert found["SNIPS"].value == pytest.approx(0.0046, abs=1e-6)
    assert found.difference == pytest.approx(0, abs=1e-6)
