"""Off-policy estimates on ICU-Sepsis, a table of 716 states in which every value can be computed exactly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sepsis import ACTIONS, RUNNING, SURVIVED, Floats, Log, Sepsis

from rl_training.ope.importance import (
    doubly_robust,
    episode_folds,
    importance_sampling,
    pad_rows,
    per_decision,
    weighted_doubly_robust,
    weighted_importance_sampling,
    weighted_per_decision,
)
from rl_training.ope.intervals import EpisodeEstimate, episode_interval
from rl_training.ope.policies import Support
from rl_training.ope.weights import WeightVerdict
from rl_training.selection import data_given

Ints = NDArray[np.int64]


@pytest.fixture(scope="module")
def sepsis(shared_data: Path) -> Sepsis:
    return Sepsis(shared_data / "icu_sepsis" / "dynamics.npz")


def test_exact_values_are_the_known_ones(sepsis: Sepsis) -> None:
    uniform = np.full((RUNNING, ACTIONS), 1 / ACTIONS)

    for policy, undiscounted, discounted in (
        (uniform, 0.780071, 0.719095),
        (sepsis.clinicians, 0.781845, 0.722158),
        (sepsis.greedy(), 0.861798, 0.799185),
        (sepsis.tilted(10), 0.789628, 0.729253),
        (sepsis.tilted(50), 0.813497, 0.751538),
    ):
        assert sepsis.value(policy, 1.0) == pytest.approx(undiscounted, abs=1e-6)
        assert sepsis.value(policy, 0.99) == pytest.approx(discounted, abs=1e-6)


@pytest.mark.parametrize(
    ("eta", "square", "variance", "radius"),
    [
        (1, 1.00081, 0.17152, 0.9022),
        (10, 1.08532, 0.23945, 0.9111),
        (20, np.inf, np.inf, 1.0371),
        (50, np.inf, np.inf, 2.6006),
    ],
)
def test_weights_have_the_known_second_moments(
    sepsis: Sepsis, eta: float, square: float, variance: float, radius: float
) -> None:
    assert sepsis.variance(sepsis.tilted(eta)) == pytest.approx((square, variance, radius), abs=1e-4)


def test_weighted_estimates_of_a_near_policy_are_right(sepsis: Sepsis) -> None:
    rng = np.random.default_rng(0)
    policy = sepsis.tilted(10)
    truth = sepsis.value(policy, 0.99)
    logs = [sepsis.weighted(sepsis.sample(1000, rng), policy) for _ in range(6)]

    for estimator in (importance_sampling, per_decision, weighted_importance_sampling, weighted_per_decision):
        estimates = [estimator(log, 0.99).value for log in logs]
        # One log has a standard deviation of 0.017 to 0.019.
        assert np.mean(estimates) == pytest.approx(truth, abs=3 * 0.019 / np.sqrt(6))
        assert 0.004 < np.std(estimates) < 0.04


def test_what_a_log_lacks_is_known_from_the_log_alone(sepsis: Sepsis) -> None:
    """One in eight of the clinicians' own actions is not in a log of 1,000 episodes; theirs is not a far policy."""
    data = sepsis.arrays(sepsis.sample(1000, np.random.default_rng(0)))
    support = Support(data_given(data, []).log)
    act = sepsis.function(sepsis.clinicians)
    share = support.novel_share(lambda obs: torch.from_numpy(act(obs.numpy())))

    assert 0.1 < share < 0.15
    assert support.missing == pytest.approx(share, abs=0.03)


def test_doubly_robust_estimates_need_cross_fitting(sepsis: Sepsis) -> None:
    """A table of logged pairs with 0 elsewhere says 0.40; residuals can mend that only on episodes it has not seen."""
    rng = np.random.default_rng(0)
    log = sepsis.sample(1000, rng)
    policy = sepsis.clinicians
    truth = sepsis.value(policy, 0.99)
    trajectories = sepsis.weighted(log, policy)
    episode = np.repeat(np.arange(len(log.lengths)), log.lengths)

    def fit(train: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        rows = train[episode]
        counts = np.zeros((RUNNING, ACTIONS, 716))
        np.add.at(counts, (log.states[rows], log.actions[rows], log.next_states[rows]), 1)
        shares = counts / np.maximum(counts.sum(axis=2, keepdims=True), 1)
        chain = np.einsum("sa,sat->st", policy, shares, optimize=True)
        v = np.linalg.solve(np.eye(RUNNING) - 0.99 * chain[:, :RUNNING], chain[:, SURVIVED])
        q = shares[:, :, SURVIVED] + 0.99 * shares[:, :, :RUNNING] @ v
        return pad_rows(q[log.states, log.actions], log.lengths), pad_rows(v[log.states], log.lengths)

    same, folds = fit(np.ones(len(log.lengths), dtype=bool)), episode_folds(len(log.lengths), 2)
    unseen = [fit(folds != fold) for fold in range(2)]
    crossed = [np.where(folds[:, None] == 0, *parts) for parts in zip(*unseen, strict=True)]

    assert same[1][:, 0].mean() == pytest.approx(0.40, abs=0.03)
    assert doubly_robust(trajectories, 0.99, *same).value == pytest.approx(same[1][:, 0].mean(), abs=0.01)
    for estimator in (doubly_robust, weighted_doubly_robust):
        estimate = estimator(trajectories, 0.99, *crossed)
        assert estimate.value == pytest.approx(truth, abs=3 * estimate.standard_error)
        assert estimate.standard_error < 0.03


def test_the_clinicians_themselves_and_near_policies_are_judged(sepsis: Sepsis) -> None:
    log = sepsis.sample(1000, np.random.default_rng(0))

    assert sepsis.judge(log, sepsis.clinicians) == WeightVerdict("proceed", ())
    for eta in (1, 5, 10):
        assert sepsis.judge(log, sepsis.tilted(eta)).level == "proceed"
    # Whatever the policy, its estimate from its own log is the logged mean.
    own = importance_sampling(sepsis.weighted(log, sepsis.clinicians), 1.0)
    assert own.value == pytest.approx(EpisodeEstimate.of_mean(np.add.reduceat(log.rewards, starts(log))).value)


def test_a_greedy_policy_is_refused(sepsis: Sepsis) -> None:
    rng = np.random.default_rng(0)
    policy = sepsis.greedy()

    for _ in range(5):
        log = sepsis.sample(1000, rng)
        verdict = sepsis.judge(log, policy)
        assert verdict.level == "refuse"
        assert any("of 1000 episodes; at least 30" in reason for reason in verdict.reasons)
        # What would have been said: far below the truth of 0.8.
        assert importance_sampling(sepsis.weighted(log, policy), 0.99).value < 0.5


def test_an_infinite_variance_is_seen_only_where_rare_episodes_were_logged(sepsis: Sepsis) -> None:
    rng = np.random.default_rng(0)
    logs = [sepsis.sample(1000, rng) for _ in range(10)]

    far, near = sepsis.tilted(50), sepsis.tilted(20)
    passed_far = sum(sepsis.judge(log, far).level == "proceed" for log in logs)
    passed_near = sum(sepsis.judge(log, near).level == "proceed" for log in logs)

    # Both variances are infinite. The farther policy rarely passes without a warning, the nearer one mostly does.
    assert passed_far <= 3
    assert passed_near >= 5


@pytest.mark.slow
def test_importance_sampling_is_unbiased_and_its_intervals_hold_as_often_as_they_say(sepsis: Sepsis) -> None:
    rng = np.random.default_rng(0)
    policy = sepsis.tilted(10)
    truth = sepsis.value(policy, 1.0)
    estimates = [importance_sampling(sepsis.weighted(sepsis.sample(500, rng), policy), 1.0) for _ in range(200)]
    found = [episode_interval(estimate, seed=seed) for seed, estimate in enumerate(estimates)]
    covered = [each is not None and each.low <= truth <= each.high for each in found]

    assert np.mean([estimate.value for estimate in estimates]) == pytest.approx(truth, abs=0.0047)
    assert 0.91 <= np.mean(covered) <= 0.98


def test_actions_that_clinicians_never_take_are_refused(sepsis: Sepsis) -> None:
    log = sepsis.sample(1000, np.random.default_rng(0))
    mixed = 0.99 * sepsis.clinicians + 0.01 / ACTIONS

    verdict = sepsis.judge(log, mixed)

    assert verdict.level == "refuse"
    assert any("to actions that the log never has" in reason for reason in verdict.reasons)


def starts(log: Log) -> Ints:
    return np.concatenate([[0], np.cumsum(log.lengths)[:-1]])
