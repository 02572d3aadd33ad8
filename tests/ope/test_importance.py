"""Importance sampling, against two tasks that are worked out by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rl_training.core.errors import DatasetError
from rl_training.core.statistics import holm, student_cdf
from rl_training.data import TransitionDataset
from rl_training.ope.importance import (
    Trajectories,
    doubly_robust,
    episode_folds,
    importance_sampling,
    pad_rows,
    per_decision,
    weighted_doubly_robust,
    weighted_importance_sampling,
    weighted_per_decision,
)
from rl_training.ope.intervals import EpisodeEstimate
from rl_training.ope.weights import diagnose

Floats = NDArray[np.float64]
GAMMA = 0.9
LOG = [(1, 1), (1, 0), (0, 0), (0, 1), (1, 1)]
EVERY_EPISODE = list(product((0, 1), (0, 1)))
ROUGH_Q = ({1: 2.0, 0: 0.5}, {(1, 1): 1.6, (1, 0): 0.2, (0, 1): 0.8, (0, 0): 0.2})
TRUE_Q = ({1: 2.44, 0: 0.72}, {(1, 1): 2.0, (1, 0): 0.0, (0, 1): 1.0, (0, 0): 0.0})


def two_steps(episodes: Sequence[tuple[int, int]]) -> Trajectories:
    """Two actions in two steps: the first earns itself, the second earns double after a first one of 1.

    The logged policy throws a coin; the policy in question takes action 1 with a probability of 0.8.
    """
    actions = np.array(episodes)
    rewards = np.stack([actions[:, 0], actions[:, 1] * (1 + actions[:, 0])], axis=1)
    log_probs = np.log(np.where(actions == 1, 0.8, 0.2)).ravel()
    return Trajectories.from_rows(rewards.ravel(), log_probs, np.full(log_probs.shape, np.log(0.5)), [2] * len(actions))


def values_of(
    episodes: Sequence[tuple[int, int]], model: tuple[dict[int, float], dict[tuple[int, int], float]]
) -> tuple[Floats, Floats]:
    first, second = model
    q = np.array([[first[a], second[a, b]] for a, b in episodes])
    v = np.array([[0.8 * first[1] + 0.2 * first[0], 0.8 * second[a, 1] + 0.2 * second[a, 0]] for a, _ in episodes])
    return q, v


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (importance_sampling, 3.1104),
        (weighted_importance_sampling, 2.370731707),
        (per_decision, 2.9184),
        (weighted_per_decision, 2.349825784),
    ],
)
def test_estimates_from_weights_are_those_worked_out_by_hand(
    estimator: Callable[[Trajectories, float], EpisodeEstimate], expected: float
) -> None:
    assert estimator(two_steps(LOG), GAMMA).value == pytest.approx(expected, abs=1e-9)


def test_estimates_with_a_rough_q_are_those_worked_out_by_hand() -> None:
    q, v = values_of(LOG, ROUGH_Q)

    plain, weighted = doubly_robust(two_steps(LOG), GAMMA, q, v), weighted_doubly_robust(two_steps(LOG), GAMMA, q, v)

    assert plain.value == pytest.approx(2.26128, abs=1e-9)
    assert plain.standard_error == pytest.approx(0.271445270, abs=1e-9)
    assert weighted.value == pytest.approx(2.153728223, abs=1e-9)
    assert v[:, 0].mean() == pytest.approx(1.7)


def test_the_true_q_makes_doubly_robust_exact_and_q_of_zero_makes_it_per_decision() -> None:
    log = two_steps(LOG)
    exact = doubly_robust(log, GAMMA, *values_of(LOG, TRUE_Q))
    zero = np.zeros((5, 2))

    assert exact.value == pytest.approx(2.096, abs=1e-9)
    assert exact.standard_error == pytest.approx(0, abs=1e-12)
    assert doubly_robust(log, GAMMA, zero, zero).value == pytest.approx(2.9184, abs=1e-9)
    assert weighted_doubly_robust(log, GAMMA, zero, zero).value == pytest.approx(2.349825784, abs=1e-9)


def test_unbiased_estimators_have_the_true_value_and_their_known_variance_over_all_episodes() -> None:
    # The four episodes are equally likely under the logged policy, so that means over them are expectations.
    log = two_steps(EVERY_EPISODE)

    for estimate, variance in (
        (importance_sampling(log, GAMMA), 8.637184),
        (per_decision(log, GAMMA), 5.964544),
        (doubly_robust(log, GAMMA, *values_of(EVERY_EPISODE, ROUGH_Q)), 0.23182528),
    ):
        assert estimate.value == pytest.approx(2.096, abs=1e-9)
        assert estimate.numerators.var() == pytest.approx(variance, abs=1e-9)
    assert log.returns(GAMMA).mean() == pytest.approx(1.175)


def test_diagnostics_of_the_weights_are_those_worked_out_by_hand() -> None:
    log = two_steps(LOG)
    found = diagnose(log.weights)

    assert log.final_weights == pytest.approx([2.56, 0.64, 0.16, 0.64, 2.56])
    assert log.returns(GAMMA) == pytest.approx([2.8, 1, 0, 0.9, 2.8])
    assert found.effective_sample_sizes == pytest.approx([3.92, 3.084403670], abs=1e-9)
    assert found.largest_shares[-1] == pytest.approx(0.390243902, abs=1e-9)
    assert found.means == pytest.approx([1.12, 1.312], abs=1e-12)


def test_an_episode_that_has_ended_keeps_its_weight() -> None:
    # Action 0 ends the task with reward 1. Action 1 earns 1 and is followed by a forced step that earns 1.
    log = Trajectories.from_rows([1, 1, 1], np.log([0.2, 0.8, 1.0]), np.log([0.5, 0.5, 1.0]), lengths=np.array([1, 2]))

    assert log.weights == pytest.approx(np.array([[0.4, 0.4], [1.6, 1.6]]))
    # Weights of running episodes only would give 2.0.
    assert weighted_per_decision(log, 1.0).value == pytest.approx(1.8, abs=1e-9)
    assert per_decision(log, 1.0).value == pytest.approx(1.8, abs=1e-9)


def test_values_after_the_end_of_an_episode_do_not_count() -> None:
    log = Trajectories.from_rows([1, 1, 1], np.zeros(3), np.zeros(3), lengths=[1, 2])
    q = np.array([[0.5, 99.0], [0.5, 0.5]])

    assert doubly_robust(log, 1.0, q, q).value == pytest.approx(1.5)
    assert weighted_doubly_robust(log, 1.0, q, q).value == pytest.approx(1.5)
    with pytest.raises(DatasetError, match=r"shape of the rewards, \(2, 2\), got \(2, 1\)"):
        doubly_robust(log, 1.0, q[:, :1], q)


def test_hundreds_of_steps_neither_overflow_nor_vanish() -> None:
    steps = 3000
    behavior = np.zeros(2 * steps)
    log_probs = np.concatenate([np.full(steps, 2.0), np.full(steps, -2.0)])

    log = Trajectories.from_rows(np.ones(2 * steps), log_probs, behavior, [steps, steps])

    assert log.final_weights[0] == np.exp(700)
    assert log.final_weights[1] == np.exp(-700)
    assert weighted_importance_sampling(log, 1.0).value == pytest.approx(steps)


def test_weights_multiply_in_double_precision() -> None:
    steps = 2000
    log = Trajectories.from_rows(
        np.ones(steps, dtype=np.float32),
        np.full(steps, np.log(0.3) + 1e-6),
        np.full(steps, np.log(0.3)),
        lengths=[steps],
    )

    assert log.final_weights[0] == pytest.approx(np.exp(2e-3), rel=1e-9)


def test_an_action_that_the_policy_never_takes_ends_the_weight_of_its_episode() -> None:
    with np.errstate(divide="ignore"):
        log = Trajectories.from_rows([1, 1, 1, 1], np.log([0.0, 1, 1, 1]), np.log([0.5, 0.0, 0.5, 0.5]), [2, 2])

    # The second logged probability is impossible too; it must not bring the weight back.
    assert log.weights[0] == pytest.approx([0, 0], abs=1e-300)
    assert log.weights[1] == pytest.approx([2, 4])
    assert weighted_importance_sampling(log, 1.0).value == pytest.approx(2)


def test_probabilities_that_are_no_numbers_are_refused_with_their_episode() -> None:
    with pytest.raises(DatasetError, match="episode 1"):
        Trajectories.from_rows([1, 1], [0.0, np.nan], [0.0, 0.0], [1, 1])


def test_lengths_must_add_up_to_the_rows() -> None:
    with pytest.raises(DatasetError, match="2 episodes have 4 rows"):
        pad_rows([1.0, 2, 3], np.array([2, 2]))
    assert pad_rows([1.0, 2, 3], np.array([1, 2])).tolist() == [[1, 0], [2, 3]]


def test_the_standard_error_of_a_weighted_estimate_agrees_with_its_spread_over_logs() -> None:
    rng = np.random.default_rng(0)
    estimates = []
    for _ in range(400):
        episodes = [(int(a), int(b)) for a, b in rng.integers(2, size=(200, 2))]
        estimates.append(weighted_per_decision(two_steps(episodes), GAMMA))

    spread = np.std([estimate.value for estimate in estimates])
    assert np.mean([estimate.standard_error for estimate in estimates]) == pytest.approx(spread, rel=0.1)
    assert np.mean([estimate.value for estimate in estimates]) == pytest.approx(2.096, abs=0.03)


def test_folds_are_of_whole_episodes_and_nearly_equal() -> None:
    folds = episode_folds(11, 3, seed=1)

    assert sorted(np.bincount(folds)) == [3, 4, 4]
    assert (folds == episode_folds(11, 3, seed=1)).all()
    assert not (folds == episode_folds(11, 3, seed=2)).all()
    with pytest.raises(DatasetError, match="2 to 11 folds"):
        episode_folds(11, 1)


def test_a_dataset_becomes_episodes_with_the_probabilities_that_it_has() -> None:
    rows: dict[str, Any] = {
        "obs": np.zeros((3, 1)),
        "next_obs": np.zeros((3, 1)),
        "actions": [0, 1, 0],
        "rewards": [1.0, 1.0, 1.0],
    }
    ends = {"terminals": [1, 0, 1]}
    data = TransitionDataset.from_dict({**rows, **ends, "propensities": [0.5, 0.5, 1.0]})

    log = Trajectories.from_dataset(data, np.log([0.2, 0.8, 1.0]))

    assert log.weights == pytest.approx(np.array([[0.4, 0.4], [1.6, 1.6]]), rel=1e-6)
    assert weighted_per_decision(log, 1.0).value == pytest.approx(1.8, rel=1e-6)
    with pytest.raises(DatasetError, match="the data has none: log them as 'behavior_log_probs'"):
        Trajectories.from_dataset(TransitionDataset.from_dict({**rows, **ends}), np.zeros(3))


def test_policies_as_good_as_the_data_are_rarely_called_better() -> None:
    """Twenty policies, all as good as the logged one; Holm's adjustment keeps the family's error near 5 %."""
    rng = np.random.default_rng(0)
    chances = np.linspace(0.3, 0.7, 20)
    mistakes = 0
    for _ in range(200):
        actions, rewards = rng.integers(2, size=100), rng.normal(size=100)
        logged = EpisodeEstimate.of_mean(rewards)
        p_values = []
        for chance in chances:
            log_probs = np.log(np.where(actions == 1, chance, 1 - chance))
            log = Trajectories.from_rows(rewards, log_probs, np.full(100, np.log(0.5)), [1] * 100)
            move = importance_sampling(log, 1.0) - logged
            p_values.append(student_cdf(-move.value / move.standard_error, 99))
        mistakes += holm(p_values).min() < 0.05

    assert mistakes / 200 <= 0.1


def test_an_estimate_refuses_arrays_that_do_not_fit_together() -> None:
    with pytest.raises(DatasetError, match=r"\(3, 1\) and \(3, 2\)"):
        EpisodeEstimate(np.ones((3, 1)), np.ones((3, 2)))
