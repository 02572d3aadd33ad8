"""Verdicts: when a policy is called better, worse or not distinguishable, or is refused a verdict."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from rl_training.ope import verdicts as claims
from rl_training.ope.fqe import resampled_episodes
from rl_training.ope.verdicts import Control

NO_ERROR: defaultdict[str, float] = defaultdict(float)
MEMBERS = np.array([-1.2, 0.9, -0.4, 1.1, 0.3, -0.8, 0.2, -0.1, 0.6, -0.6])


def values(centre: float, std: float = 1.0) -> claims.Values:
    """A first member and ten others with this standard deviation around it."""
    return centre + std * np.concatenate([[0.0], MEMBERS / MEMBERS.std(ddof=1)])


def control(**changes: Any) -> Control:
    """Logged returns with mean 10 and standard deviation 2, which the estimator reproduces."""
    returns = np.array([8.0, 12.0] * 50) * 1.0
    parts: dict[str, Any] = {"logged": values(10.0, 0.2), "estimated": values(10.1, 0.3), "returns": returns}
    return Control(**{**parts, **changes})


def refused(found: claims.Values, about: Control | None = None, **changes: Any) -> list[str]:
    """The reasons against one policy."""
    facts: dict[str, Any] = {"clipped": 0.0, "bounds": (0.0, 100.0), "novel": 0.05}
    return claims.refuse_one(about or control(), found, **{**facts, **changes})


def test_the_interval_has_students_quantile_of_nine_degrees_of_freedom() -> None:
    low, high = claims.student_interval(values(5.0, 2.0))
    assert (low, high) == pytest.approx((5 - 2.262157 * 2, 5 + 2.262157 * 2), abs=1e-5)


@pytest.mark.parametrize(("policies", "quantile"), [(1, 2.262157), (2, 2.685011), (5, 3.249836), (10, 3.689662)])
def test_simultaneous_intervals_have_the_quantile_of_a_share_of_the_error(policies: int, quantile: float) -> None:
    values = np.array([5.0, *np.random.default_rng(0).normal(5, 2, size=10)])
    error = 1.5
    found = claims.simultaneous(
        5.0, claims.student_interval(values, error=error), policies=policies, members=len(values) - 1
    )
    assert found == pytest.approx(claims.student_interval(values, error=error, confidence=1 - 0.05 / policies))
    half = quantile * math.hypot(values[1:].std(ddof=1), error)
    assert found == pytest.approx((5 - half, 5 + half), rel=1e-5)


def test_the_probability_of_being_above_is_students() -> None:
    assert claims.probability_above(values(0.0)) == pytest.approx(0.5)
    assert claims.probability_above(values(2.262157)) == pytest.approx(0.975, abs=1e-6)
    assert claims.probability_above(np.zeros(11)) == 0.5
    assert claims.probability_above(np.ones(11)) == 1.0


def test_the_error_of_the_fits_makes_claims_more_careful() -> None:
    low, high = claims.student_interval(values(0.0, 3.0), error=4.0)
    assert (low, high) == pytest.approx((-2.262157 * 5, 2.262157 * 5), abs=1e-4)
    assert claims.judge_differences({"one": values(3.0)}, {"one": 0.1}) == {"one": claims.BETTER}
    assert claims.judge_differences({"one": values(3.0)}, {"one": 3.0}) == {"one": claims.SAME}
    found = {"best": values(10.0, 0.1), "other": values(7.0, 0.5)}
    assert claims.among_the_best(found, NO_ERROR) == ["best"]
    assert claims.among_the_best(found, {"best": 1.5, "other": 1.5}) == ["best", "other"]


def test_an_estimate_is_known_no_better_than_it_still_moves() -> None:
    course = np.array([-90.0, -40.0, -20.0, -10.0, -5.0, -2.0, 1.0, 4.0, 2.0, 3.0])
    assert claims.movement(course) == 2.0
    assert claims.movement(np.array([7.0])) == 0.0


def test_anchored_values_lose_the_error_that_the_estimates_share() -> None:
    found = claims.anchored(control(logged=values(10.0, 0), estimated=values(14.0, 0)), values(15.0, 0))
    np.testing.assert_allclose(found, 11.0)


def test_policies_are_called_better_worse_or_neither() -> None:
    verdicts = claims.judge_differences({"good": values(5.0), "bad": values(-5.0), "same": values(0.5)}, NO_ERROR)
    assert verdicts == {"good": claims.BETTER, "bad": claims.WORSE, "same": claims.SAME}


def test_what_is_enough_for_one_policy_is_not_for_the_best_of_twenty() -> None:
    difference = values(2.0)
    assert claims.judge_differences({"one": difference}, NO_ERROR) == {"one": claims.BETTER}
    many = {f"policy {number}": difference if number == 0 else values(0.0) for number in range(20)}
    assert set(claims.judge_differences(many, NO_ERROR).values()) == {claims.SAME}


def test_all_that_could_be_the_best_are_named_the_best_first() -> None:
    shared = values(0.0, 3.0)
    found = {"close": shared + values(9.5, 0.5), "best": shared + values(10.0, 0.0), "far": shared + values(1.0, 0.5)}
    assert claims.among_the_best(found, NO_ERROR) == ["best", "close"]
    assert claims.among_the_best({}, {}) == []
    assert claims.among_the_best({"only": shared}, NO_ERROR) == ["only"]


def test_a_sound_estimate_is_not_refused() -> None:
    assert refused(values(11.0)) == []
    assert claims.refuse_all(control(), kappa=5.0, episodes=100, untrusted=None) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kappa": 2.9}, "stopped too early (kappa 2.9, at least 3 is needed): about 6 % of the value"),
        ({"episodes": 9}, "only 9 episodes, at least 10"),
        ({"untrusted": "they trained it"}, "they trained it"),
    ],
)
def test_too_little_work_or_data_is_a_reason_against_all(changes: dict[str, Any], words: str) -> None:
    facts: dict[str, Any] = {"kappa": 5.0, "episodes": 100, "untrusted": None}
    (reason,) = claims.refuse_all(control(), **{**facts, **changes})
    assert words in reason


def test_an_estimator_that_misses_the_log_says_nothing_about_policies() -> None:
    wrong = control(estimated=values(13.0, 0.3))
    (reason,) = claims.refuse_all(wrong, kappa=5.0, episodes=100, untrusted=None)
    assert "does not reproduce the log: it estimates 13 for the logged behaviour, whose mean return is 10" in reason


def test_the_control_accepts_what_chance_explains() -> None:
    about = control()
    assert about.std == pytest.approx(2.01, abs=0.01)
    assert about.tolerance == pytest.approx(0.2 * about.std)
    alone = control(estimated=values(10.0, 0.0))
    assert alone.tolerance == pytest.approx(2 * about.std / math.sqrt(100))
    many = {"returns": np.array([8.0, 12.0] * 5000)}
    assert control(estimated=values(10.0, 0.0), **many).tolerance == pytest.approx(0.2, abs=1e-3)
    assert control(estimated=values(10.0, 0.15), **many).tolerance == pytest.approx(0.3, abs=0.01)
    assert control(estimated=values(10.0, 5.0), **many).tolerance == pytest.approx(0.4, abs=1e-3)
    constant = control(returns=np.full(50, 10.0), logged=values(10.0, 0.0), estimated=values(10.0, 0.0) + 1e-4)
    assert constant.passes


def test_the_usual_error_is_not_small_because_one_member_is_right_by_chance() -> None:
    found = control(logged=np.full(5, 10.0), estimated=np.array([10.0, 11.0, 9.0, 12.0, 8.0]))
    assert found.error == 0.0
    assert found.usual_error == pytest.approx(2**0.5)


@pytest.mark.parametrize(
    ("found", "changes", "words"),
    [
        (values(11.0), {"clipped": 0.06}, "6 % of the fitted values were clipped to the possible range"),
        (values(11.0, 2.5), {}, "members disagree"),
        (values(11.0), {"novel": 0.3}, "30 % of its actions are far from everything that was logged"),
        (values(11.0), {"novel": 0.2, "missing": 0.05}, "20 % of its actions were never logged in such a state"),
        (values(15.0), {}, "outside the data"),
        (values(11.0), {"bounds": (0.0, 10.0)}, "outside the data"),
    ],
)
def test_a_policy_that_the_log_does_not_tell_about_is_refused(
    found: claims.Values, changes: dict[str, Any], words: str
) -> None:
    (reason,) = refused(found, **changes)
    assert words in reason


def test_a_policy_may_lack_support_where_the_behaviour_lacks_it_too() -> None:
    assert refused(values(11.0), novel=0.2, missing=0.12) == []
    assert refused(values(11.0), novel=0.09, missing=0.0) == []
    (reason,) = refused(values(11.0), novel=0.3, missing=0.6)
    assert "(at most 25 % can be judged)" in reason


def test_probabilities_are_never_shown_as_certain() -> None:
    texts = [claims.probability_text(each) for each in (0.0, 0.004, 0.5, 0.876, 0.999, 1.0)]
    assert texts == ["<0.01", "<0.01", "0.50", "0.88", ">0.99", ">0.99"]


def _episodes(rng: np.random.Generator, count: int, chances: Any, rewards: Any) -> list[Any]:
    """Logs of the six-state task: rows (state, action, next state, ended) and rewards with noise, by episode."""
    logs = []
    for _ in range(count):
        state, rows = int(rng.integers(6)), []
        for _ in range(60):
            action = int(rng.random() < 0.3)
            reward = rewards[state, action] + 0.5 * rng.normal()
            ended = bool(rng.random() < 0.05)
            following = int(np.searchsorted(np.cumsum(chances[state, action]), rng.random()))
            rows.append((state, action, min(following, 5), ended, reward))
            state = min(following, 5)
            if ended:
                break
        logs.append(rows)
    return logs


def _solved(logs: Any, weights: Any, gamma: float) -> tuple[float, Any]:
    """The fixed point of FQE with a table, by weighted counts, for a policy with probabilities 0.3 and 0.7."""
    counts, sums, moves = np.full((6, 2), 1e-9), np.zeros((6, 2)), np.zeros((6, 2, 6))
    for rows, weight in zip(logs, weights, strict=True):
        for state, action, following, ended, reward in rows:
            counts[state, action] += weight
            sums[state, action] += weight * reward
            moves[state, action, following] += weight * (not ended)
    policy = np.array([0.3, 0.7])
    matrix = (moves / counts[..., None]).reshape(12, 6)
    q = np.linalg.solve(np.eye(12) - gamma * np.kron(matrix, policy), (sums / counts).reshape(12)).reshape(6, 2)
    starts = q[[rows[0][0] for rows in logs]] @ policy
    return float(weights @ starts / weights.sum()), starts


@pytest.mark.slow
def test_the_members_interval_covers_the_truth_as_often_as_it_says_and_first_states_alone_do_not() -> None:
    rng = np.random.default_rng(3)
    chances, rewards = rng.dirichlet(0.5 * np.ones(6), size=(6, 2)), rng.normal(size=(6, 2))
    policy, gamma = np.array([0.3, 0.7]), 0.9
    matrix = 0.95 * np.einsum("a,sat->st", policy, chances)
    truth = float(np.linalg.solve(np.eye(6) - gamma * matrix, rewards @ policy).mean())
    assert truth == pytest.approx(0.884227, abs=1e-6)
    covered, covered_by_starts, runs = 0, 0, 200
    for number in range(runs):
        logs = _episodes(np.random.default_rng([7, number]), 100, chances, rewards)
        members = resampled_episodes(100, 10, seed=number).numpy()
        found = np.array([_solved(logs, weights, gamma)[0] for weights in members])
        low, high = claims.student_interval(found)
        covered += low <= truth <= high
        _, starts = _solved(logs, members[0], gamma)
        half = 1.96 * starts.std(ddof=1) / 10
        covered_by_starts += abs(found[0] - truth) <= half
    assert 0.90 <= covered / runs <= 0.99
    assert covered_by_starts / runs < 0.70


@pytest.mark.parametrize(
    ("gamma", "words"),
    [
        (0.0, "over the next step (discount 0)"),
        (0.958, "over the next 24 steps (discount 0.958)"),
        (0.9995, "over the next 2,000 steps (discount 0.9995)"),
        (1.0, "over whole episodes (undiscounted)"),
    ],
)
def test_a_horizon_is_said_in_steps_with_its_discount(gamma: float, words: str) -> None:
    assert claims.horizon_text(gamma) == words
