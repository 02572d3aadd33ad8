"""Importance sampling through `estimate`, on logs whose answers are known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sepsis import Sepsis

from rl_training import estimate
from rl_training.cli.estimate import print_weighted
from rl_training.core.errors import ConfigError
from rl_training.ope.weighted import WeightedEstimate, WeightedValue, compared, kernel_densities
from rl_training.ope.weights import number_states, second_moment_radius
from rl_training.selection import Estimates

Array = NDArray[Any]
QUICK: dict[str, Any] = {"members": 3, "tau": 0.2, "updates": 120, "hidden_sizes": (16,), "learning_rate": 3e-3}


def two_steps(episodes: int = 400, *, cut: bool = False, seed: int = 0) -> dict[str, Any]:
    """A coin is thrown twice. The second reward is twice as large after a first 1."""
    rng = np.random.default_rng(seed)
    actions = rng.integers(2, size=(episodes, 2))
    rewards = np.stack([actions[:, 0], actions[:, 1] * (1 + actions[:, 0])], axis=1).astype(float)
    obs = np.stack([np.zeros(episodes), 1 + actions[:, 0]], axis=1)
    ends = np.tile([False, True], episodes)
    return {
        "observations": np.float32(obs.reshape(-1, 1)),
        "next_observations": np.float32(np.stack([obs[:, 1], np.full(episodes, 3)], axis=1).reshape(-1, 1)),
        "actions": actions.ravel(),
        "rewards": rewards.ravel(),
        "terminals": ends & (not cut),
        "timeouts": ends & cut,
        "propensities": np.full(2 * episodes, 0.5),
    }


def ones(obs: Array, chance: float = 0.8) -> Array:
    """A policy that throws 1 with a chance of 0.8; its value with a discount of 0.9 is 2.096."""
    return np.tile([1 - chance, chance], (len(obs), 1))


@pytest.fixture(scope="module")
def judged() -> Estimates:
    policies = {"ones": ones, "always": lambda obs: np.ones(len(obs), dtype=np.int64)}
    return estimate(policies, two_steps(), gamma=0.9, **{**QUICK, "updates": 400})


def test_every_estimator_is_near_the_true_value(judged: Estimates) -> None:
    found = judged.by_weights("ones")
    assert found.level == "proceed"
    assert [each.estimator for each in found.estimates] == ["PDWIS", "PDIS", "WIS", "IS", "WDR", "DR"]
    for each in found.estimates:
        assert each.value == pytest.approx(2.096, abs=4 * each.standard_error), each.estimator
        assert each.interval is not None
        assert each.interval[0] < each.value < each.interval[1]
    # Values of other episodes take most of the variance away.
    assert found["DR"].standard_error < 0.5 * found["PDIS"].standard_error


def test_the_difference_from_the_data_is_paired(judged: Estimates) -> None:
    found, log = judged.by_weights("ones"), two_steps()
    logged = (log["rewards"].reshape(-1, 2) @ [1, 0.9]).mean()
    assert found.headline is not None
    assert found.difference == pytest.approx(found.headline.value - logged)
    assert found.difference_interval is not None
    # J is 1.175 for the coin.
    assert found.difference_interval[0] < 2.096 - 1.175 < found.difference_interval[1]


def test_a_certain_action_has_weights_of_0_and_4(judged: Estimates) -> None:
    found, log = judged.by_weights("always"), two_steps()
    both = log["actions"].reshape(-1, 2).all(1)
    assert found.weights["effective_sample_size"] == pytest.approx(both.sum())
    assert found["WIS"].value == pytest.approx(1 + 0.9 * 2)
    assert not found.is_drawn


def test_results_are_plain_values(judged: Estimates) -> None:
    plain = json.loads(json.dumps(judged.to_plain(), allow_nan=False))
    assert plain["weighted"][0]["name"] == "ones"
    assert sum(plain["weighted"][0]["weights"]["log10_histogram"]["counts"]) == 400
    assert plain["not_weighted"] is None


def test_a_log_without_probabilities_says_so() -> None:
    log = {name: value for name, value in two_steps(40).items() if name != "propensities"}
    found = estimate({"ones": ones}, log, gamma=0.9, **{**QUICK, "updates": 5})
    assert found.weighted == ()
    assert "the data has no action probabilities" in (found.not_weighted or "")
    with pytest.raises(KeyError, match="no policy has an importance sampling estimate: the data has no action"):
        found.by_weights("ones")


def test_weights_can_be_left_out() -> None:
    found = estimate({"ones": ones}, two_steps(40), gamma=0.9, weights=False, **{**QUICK, "updates": 5})
    assert (found.weighted, found.not_weighted) == ((), "it was not asked for")


def test_wrong_probabilities_are_refused_and_give_no_value() -> None:
    log = two_steps() | {"propensities": np.full(800, 0.4)}
    found = estimate({"ones": ones}, log, gamma=0.9, **{**QUICK, "updates": 5}).by_weights("ones")
    assert found.level == "refuse"
    assert (found.estimates, found.headline, found.difference) == ((), None, None)
    assert any("the logged probabilities are wrong" in reason for reason in found.reasons)
    with pytest.raises(KeyError, match="there are none: refused"):
        found["PDWIS"]


def test_probability_on_masked_actions_is_refused() -> None:
    log = two_steps() | {"valid_actions": np.ones((800, 2))}
    log["valid_actions"][:200, 0] = 0
    log["actions"][:200] = 1
    found = estimate({"ones": ones}, log, gamma=0.9, **{**QUICK, "updates": 5}).by_weights("ones")
    assert any("5.00% of its probability to actions that the log never has" in reason for reason in found.reasons)


def test_truncated_episodes_continue_in_the_doubly_robust_estimate_only() -> None:
    found = estimate({"ones": ones}, two_steps(cut=True), gamma=0.5, **{**QUICK, "updates": 400}).by_weights("ones")
    assert found.recommended == "WDR"
    assert found.difference is None
    # Up to the cut: 0.8 + 0.5 * (0.8 * 1.6 + 0.2 * 0.8).
    assert found["PDWIS"].value == pytest.approx(1.52, abs=4 * found["PDWIS"].standard_error)
    # FQE and this estimate continue in the same way.
    assert found["WDR"].value != pytest.approx(found["PDWIS"].value, abs=1e-3)


class Drawing:
    """A policy that says how probable its actions are and draws them."""

    def predict(self, obs: Array, *, deterministic: bool = True) -> Array:
        noise = np.zeros((len(obs), 1)) if deterministic else np.random.default_rng(0).uniform(-0.5, 0.5, (len(obs), 1))
        return np.clip(0.4 + noise, -1, 1)

    def log_probs(self, obs: Array, actions: Array) -> Array:
        with np.errstate(divide="ignore"):
            found: Array = np.log(np.where(np.abs(actions[:, 0] - 0.4) <= 0.5, 1.0, 0.0))
        return found


def single_decisions(rows: int = 3000) -> dict[str, Any]:
    """Uniform actions in [-1, 1]; the reward is best at 0.5."""
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (rows, 1))
    return {
        "observations": np.float32(rng.normal(size=(rows, 1))),
        "next_observations": np.zeros((rows, 1), dtype=np.float32),
        "actions": np.float32(actions),
        "rewards": -((actions[:, 0] - 0.5) ** 2),
        "terminals": np.ones(rows, dtype=bool),
        "behavior_log_probs": np.full(rows, np.log(0.5)),
    }


def test_a_deterministic_policy_for_single_decisions_is_smoothed_and_the_bandwidth_is_said() -> None:
    found = estimate({"still": np.zeros_like}, single_decisions(), **QUICK)
    assert found.gamma == 0
    by_weights = found.by_weights("still")
    assert by_weights.recommended == "SNIPS"
    assert by_weights.bandwidth in (0.05, 0.1, 0.2, 0.3, 0.5, 0.8)
    # The bias of the kernel with a quadratic reward is -h^2 / 5.
    expected = -0.25 - by_weights.bandwidth**2 / 5
    assert by_weights["SNIPS"].value == pytest.approx(expected, abs=4 * by_weights["SNIPS"].standard_error)


def test_a_policy_that_draws_continuous_actions_is_weighted_by_its_own_densities() -> None:
    found = estimate({"drawing": Drawing()}, single_decisions(), **QUICK).by_weights("drawing")
    assert (found.is_drawn, found.bandwidth, found.agrees) == (True, None, None)
    # The mean of -(a - 0.5)^2 for a between -0.1 and 0.9.
    truth = -((0.4**3 + 0.6**3) / 3)
    for each in found.estimates:
        if each.estimator != "clipped IPS":
            assert each.value == pytest.approx(truth, abs=4 * each.standard_error), each.estimator


def test_a_deterministic_policy_has_no_weights_for_whole_episodes() -> None:
    log = two_steps(40) | {"actions": np.float32(np.random.default_rng(0).uniform(-1, 1, (80, 1)))}
    found = estimate({"still": np.zeros_like}, log, gamma=0.9, **{**QUICK, "updates": 5}).by_weights("still")
    assert found.level == "refuse"
    assert "the policy is deterministic, so its continuous actions have no density" in found.reasons[0]


@pytest.mark.parametrize("answer", [np.zeros(3), np.full(3000, np.nan), np.zeros((3000, 1))])
def test_log_probs_that_are_none_are_refused(answer: Array) -> None:
    class Wrong(Drawing):
        def log_probs(self, obs: Array, actions: Array) -> Array:
            return answer

    with pytest.raises(ConfigError, match="wrong: log_probs must give one number per row"):
        estimate({"wrong": Wrong()}, single_decisions(), **{**QUICK, "updates": 2})


def test_the_table_says_where_importance_sampling_and_fqe_disagree(
    judged: Estimates, capsys: pytest.CaptureFixture[str]
) -> None:
    apart = WeightedValue("PDWIS", 9.0, 0.1, (8.8, 9.2))
    found = WeightedEstimate("ones", "proceed", (), (apart, replace(apart, estimator="WDR")), "PDWIS")
    fit = replace(judged["ones"], value=2.0, interval=(1.9, 2.1))
    refused = WeightedEstimate("always", "refuse", ("too few",))
    both = (compared(found, fit.interval), refused)
    print_weighted(replace(judged, policies=(fit, judged["always"]), weighted=both))
    shown = capsys.readouterr().out
    assert "ones: the two disagree beyond their intervals (9 by importance sampling, 2 by FQE): rely" in shown
    assert "always: refused: too few" in shown


def test_a_log_is_no_policy(tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", **two_steps(4))
    with pytest.raises(ConfigError, match=r"other\.npz is a log, not a policy: it has logged actions only"):
        estimate({"other": str(tmp_path / "other.npz")}, two_steps(40))


def test_intervals_without_a_common_value_disagree() -> None:
    value = WeightedValue("PDWIS", 1.0, 0.1, (0.8, 1.2))
    found = WeightedEstimate("some", "proceed", (), (value,), "PDWIS")
    assert compared(found, (1.1, 1.5)).agrees is True
    assert compared(found, (1.3, 1.5)).agrees is False
    assert compared(found, None).agrees is None


def test_the_growth_of_squared_weights_is_the_spectral_radius() -> None:
    """One state that continues with probability 0.9 whatever is done; pi = 0.8, b = 0.5: 0.9 * (0.64 + 0.04) / 0.5."""
    rng = np.random.default_rng(0)
    obs = np.zeros((20_000, 1), dtype=np.float32)
    actions, continues = rng.integers(2, size=20_000), rng.uniform(size=20_000) < 0.9
    states, after = number_states(obs, obs)
    chances = np.where(actions == 1, 0.8, 0.2)
    found = second_moment_radius(states, actions, np.where(continues, after, -1), chances, np.full(20_000, 0.5))
    assert found == pytest.approx(0.9 * 1.36, rel=0.01)
    same = second_moment_radius(
        states, actions, np.where(continues, after, -1), np.full(20_000, 0.5), np.full(20_000, 0.5)
    )
    assert same == pytest.approx(0.9, rel=0.01)


def test_weights_whose_squares_grow_are_refused() -> None:
    """Episodes continue with probability 0.9, so the growth is 0.9 * 1.36 = 1.22 per step."""
    rng = np.random.default_rng(0)
    rows = [(rng.integers(2), rng.uniform() < 0.1) for _ in range(4000)]
    actions, ends = (np.array(column) for column in zip(*rows, strict=True))
    ends[-1] = True
    log = {
        "observations": np.zeros((4000, 1), dtype=np.float32),
        "next_observations": np.zeros((4000, 1), dtype=np.float32),
        "actions": actions,
        "rewards": actions.astype(float),
        "terminals": ends,
        "propensities": np.full(4000, 0.5),
    }
    policies = {"ones": ones, "nearly": lambda obs: ones(obs, 0.55)}
    found = estimate(policies, log, gamma=0.5, **{**QUICK, "updates": 5})
    assert any("grows 1.2" in reason for reason in found.by_weights("ones").reasons)
    assert found.by_weights("nearly").weights["second_moment_radius"] == pytest.approx(0.9 * 1.01, abs=0.03)
    assert found.by_weights("nearly").level != "refuse"


def test_kernels_near_the_bounds_are_densities_inside_them() -> None:
    taken = np.linspace(-1, 1, 20_001)[:, None]
    for chosen in (-1.0, -0.9, 0.0, 1.0):
        densities = kernel_densities(np.full_like(taken, chosen), taken, 0.3)
        assert np.trapezoid(densities, taken[:, 0]) == pytest.approx(1, abs=1e-3)


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
    assert "it has logged actions only" in str(caught.value)


def test_a_uniform_log_judges_the_uniform_policy_by_its_own_mean(shared_data: Path) -> None:
    source = str(shared_data / "obd" / "men_random.csv.gz")
    result = estimate({"uniform": uniform}, source, columns=COLUMNS, members=2, updates=20, hidden_sizes=(16,))

    found = result.by_weights("uniform")

    assert found.level == "proceed"
    assert found["SNIPS"].value == pytest.approx(0.0046, abs=1e-6)
    assert found.difference == pytest.approx(0, abs=1e-6)
