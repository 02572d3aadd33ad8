"""Selection of policies by a log whose answers are known, and by real episodes."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from steering import QUICK, Array, away, rest, steering_log, towards

import rl_training
from rl_training.cli.select import shuffle_text
from rl_training.core.errors import ConfigError, DatasetError
from rl_training.core.spaces import BoxActions, SpaceSpec
from rl_training.data import TransitionDataset
from rl_training.ope import EvaluationLog, FitOptions, FitSettings, OutOfTimeError, Verdict
from rl_training.selection.evaluation_data import data_given
from rl_training.selection.ranking import _limit, regret_at_k, shuffle_control, spearman
from rl_training.selection.real_episodes import Prior, Pull, RealEpisodes, prior_from_values
from rl_training.selection.results import Selection
from rl_training.selection.select import NO_TIME, preferred, select

selecting = import_module("rl_training.selection.select")
"""The module; in its district, its name is that of the function."""

POLICIES = {"away": away, "towards": towards, "rest": rest}
SPACES = SpaceSpec.vector(1, BoxActions((-2.0,), (2.0,)))


@cache
def few_episodes() -> Selection:
    """Three policies on a log that is too small to keep episodes apart."""
    return select(POLICIES, steering_log(), **QUICK)


@cache
def many_policies() -> Selection:
    """Twelve policies, the best of which hardly differ, and one that the log does not back."""
    scaled = {f"{share:+.1f}": partial(_scaled, share) for share in np.linspace(-0.2, 0.9, 12)}
    return select(scaled, steering_log(120), **QUICK)


def _scaled(share: float, obs: Array) -> Array:
    return share * towards(obs)


def test_the_package_has_the_function() -> None:
    assert rl_training.select is select


def test_policies_are_ranked_and_the_best_is_chosen() -> None:
    found = few_episodes()
    assert [each.name for each in found.candidates] == ["towards", "rest", "away"]
    assert [each.rank for each in found.candidates] == [1, 2, 3]
    assert found.chosen == "towards"
    assert found.best == ("towards",)
    assert [each.is_among_the_best for each in found.candidates] == [True, False, False]


def test_on_few_episodes_the_policy_is_chosen_but_the_same_episodes_claim_nothing() -> None:
    claim = select(POLICIES, steering_log(19), **QUICK).claim
    assert claim is not None
    assert (claim.basis, claim.verdict, claim.value) == ("selection episodes", "cannot be judged", None)
    assert claim.reasons == ("the same 19 episodes selected it among 3, which makes its value too high",)


def test_without_a_choice_all_episodes_make_the_claim() -> None:
    found = select({"towards": towards}, steering_log(19), **QUICK)
    claim, estimate = found.claim, found.estimates["towards"]
    assert claim is not None
    assert (claim.basis, claim.episodes, claim.value) == ("held-out episodes", 19, estimate.value)


def test_with_many_episodes_the_claim_is_made_on_others_than_those_that_selected() -> None:
    found = many_policies()
    assert found.claim is not None
    assert found.claim.basis == "held-out episodes"
    assert (found.estimates.episodes, found.claim.episodes) == (60, 60)
    assert found.claim.value != found[str(found.chosen)].value


def test_of_those_as_good_as_the_best_one_that_is_better_than_the_data_is_preferred() -> None:
    found = few_episodes().estimates
    words: dict[str, Verdict] = {
        "away": "better than the data",
        "towards": "not distinguishable",
        "rest": "better than the data",
    }
    policies = tuple(replace(each, verdict=words[each.name]) for each in found.policies)
    assert preferred(replace(found, policies=policies, best=("towards", "rest", "away"))) == "rest"
    assert preferred(replace(found, policies=policies, best=("towards",))) == "towards"
    assert preferred(replace(found, best=())) is None


def test_policies_that_there_is_no_time_for_are_named_and_the_others_are_ranked() -> None:
    def stop(name: str, done: int, total: int) -> None:
        if name == "rest":
            raise OutOfTimeError

    found = select(POLICIES, steering_log(), progress=stop, **QUICK)
    assert [each.name for each in found.candidates if each.rank is not None] == ["towards", "away"]
    assert found["rest"].reasons == (NO_TIME,)
    assert found.chosen == "towards"


def decisions(*, is_honest: bool) -> dict[str, Any]:
    """Random actions, of which 1 is better, with their probabilities, or with others that depend on rewards."""
    rng = np.random.default_rng(0)
    choices = rng.integers(0, 2, 600)
    rewards = (rng.random(600) < np.where(choices == 1, 0.7, 0.2)).astype(np.float32)
    # With the second pair the mean weight is 1 all the same.
    chances = np.full(600, 0.5) if is_honest else np.where(choices == 0, 0.5, np.where(rewards > 0, 0.8, 0.8 / 3))
    obs = rng.normal(size=(600, 1)).astype(np.float32)
    log = {"observations": obs, "actions": choices, "rewards": rewards, "next_observations": obs}
    return {**log, "terminals": np.ones(600, dtype=bool), "behavior_log_probs": np.log(chances)}


def second(obs: Array) -> Array:
    return np.ones(len(obs), dtype=np.int64)


@pytest.mark.parametrize("is_honest", [True, False])
def test_a_policy_is_not_called_better_if_importance_sampling_contradicts_fqe(is_honest: bool) -> None:
    options: dict[str, Any] = {**QUICK, "gamma": 0.0, "updates": 200, "members": 4}
    claim = select({"second": second}, decisions(is_honest=is_honest), **options).claim
    assert claim is not None
    assert claim.weighted is not None
    assert claim.weighted.agrees is is_honest
    if is_honest:
        assert (claim.verdict, claim.reasons) == ("better than the data", ())
    else:
        assert claim.verdict == "cannot be judged"
        assert claim.reasons[0].startswith("importance sampling and FQE disagree beyond their intervals (0.4")


def test_the_two_halves_share_no_episode() -> None:
    log = steering_log(120)
    dataset = TransitionDataset.from_dict(log)
    data = data_given(dataset, [])
    first, second = data.halves(0)
    assert second is not None
    starts = [set(part.log.dataset.obs[part.log.starts][:, 0].tolist()) for part in (first, second)]
    assert [len(each) for each in starts] == [60, 60]
    assert not starts[0] & starts[1]


def test_of_many_policies_only_the_best_quarter_gets_a_fit_with_members() -> None:
    found = many_policies()
    assert len(found.estimates.policies) == selecting.FEWEST
    assert [each.rank for each in found.candidates] == list(range(1, 13))
    rough = [each for each in found.candidates if each.verdict is None]
    assert [each.name for each in rough[-3:]] == ["+0.0", "-0.1", "-0.2"]
    assert all(each.interval is None and each.value is not None for each in rough)
    assert float(str(found.chosen)) >= 0.5


def test_a_policy_outside_the_log_is_listed_and_not_ranked() -> None:
    log = steering_log()
    # The log never leaves [-0.2, 0.2] in its actions; the policy does.
    log["actions"] = 0.1 * log["actions"]
    found = select({"far": towards, "near": rest}, log, **QUICK)
    far = found["far"]
    assert far.rank is None
    assert any("far from everything that was logged" in reason for reason in far.reasons)
    assert found.candidates[-1] is far
    assert found.chosen != "far"


def test_policies_outside_the_log_take_no_place_on_the_shortlist() -> None:
    log = steering_log()
    log["actions"] = 0.1 * log["actions"]
    near = {f"near {k}": partial(_scaled, k / 100) for k in range(9)}
    found = select({"far": towards, **near}, log, **{**QUICK, "members": 2})
    assert "far" not in [each.name for each in found.estimates.policies]
    assert "far from everything that was logged" in found["far"].reasons[0]


def test_a_selection_is_plain_values(tmp_path: Path) -> None:
    file = few_episodes().save(tmp_path / "selection.json")
    assert file is not None
    stored = json.loads(file.read_text())
    assert stored["chosen"] == "towards"
    assert stored["claim"]["basis"] == "held-out episodes"
    # Functions lie in no folder.
    assert few_episodes().save() is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"checkpoints": "some"}, "checkpoints must be latest or all, got 'some'"),
        ({"episodes": -1}, "episodes must be at least 0"),
        ({"episodes": 3}, "real episodes are run with runs and checkpoints; away is neither"),
        ({"members": 1}, "an interval needs at least 2 members"),
    ],
)
def test_mistakes_are_refused_before_anything_is_fitted(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        select(POLICIES, steering_log(), **{**QUICK, **options})


def test_functions_need_a_dataset() -> None:
    with pytest.raises(ConfigError, match="pass dataset="):
        select(POLICIES)


class _Arm:
    """A policy whose returns are known."""

    def __init__(self, mean: float) -> None:
        self.mean, self.seeds = mean, list[int]()

    def evaluate(self, *, env: Any, episodes: int, seed: int, num_envs: int) -> SimpleNamespace:
        self.seeds.append(seed)
        return SimpleNamespace(returns=(self.mean + np.random.default_rng(seed).normal(),) * episodes)


def test_real_episodes_overrule_a_wrong_log() -> None:
    arms: dict[str, Any] = {"liked": _Arm(-50.0), "good": _Arm(-10.0), "bad": _Arm(-90.0)}
    prior = Prior({"liked": -20.0, "good": -40.0, "bad": -60.0}, spread=10.0)
    told: list[Pull] = []
    rule, pulls = RealEpisodes(40, arms, tell=told.append).spend(prior)
    assert pulls == told
    assert pulls[0].policy == "liked"
    assert pulls[-1].best == "good"
    # Between what the log said and what the episodes say.
    assert -40 < pulls[-1].best_believed < -10
    # It ends when the selection is clear, not when the budget is spent.
    assert len(pulls) < 40
    assert pulls[-1].doubt < 0.05 <= pulls[-2].doubt
    assert rule.counts.sum() == len(pulls)


def test_all_policies_meet_the_same_episodes() -> None:
    arms: dict[str, Any] = {"a": _Arm(0.0), "b": _Arm(0.0)}
    RealEpisodes(8, arms).spend(Prior({"a": 0.0, "b": 0.0}, spread=10.0))
    for arm in arms.values():
        assert arm.seeds == list(range(10_000, 10_000 + len(arm.seeds)))
        assert arm.seeds


def test_without_estimates_all_start_alike_and_explore_more() -> None:
    rule = Prior({"a": -5.0, "b": -5.0}, spread=2.0, is_flat=True).start()
    assert rule.means.tolist() == [-5.0, -5.0]
    assert rule.exploration == 3.0


def _log(rewards: list[float], *, cut: bool) -> EvaluationLog:
    """Two episodes of two steps."""
    ends = [0, 1, 0, 1]
    arrays = {
        "observations": np.zeros((4, 1)),
        "next_observations": np.zeros((4, 1)),
        "actions": np.zeros((4, 1)),
        "rewards": np.array(rewards),
        "terminals": np.array([0, 0, 0, 0] if cut else ends),
        "timeouts": np.array(ends if cut else [0, 0, 0, 0]),
    }
    return EvaluationLog(TransitionDataset.from_dict(arrays), SPACES)


def test_values_become_returns_on_a_line_through_the_means_of_the_log() -> None:
    prior = prior_from_values(
        {"same": -15.0, "better": -7.5}, _log([-1, -2, -3, -4], cut=True), gamma=0.9, logged_value=-15
    )
    assert prior.means["same"] == pytest.approx(-5)
    assert prior.means["better"] == pytest.approx(-2.5)
    assert prior.spread == pytest.approx(np.std([-3, -7], ddof=1))


def test_where_rewards_have_both_signs_a_constant_reward_gives_the_slope() -> None:
    # Two steps of terminated episodes are worth 1 + 0.5 discounted; of truncated ones, which continue, 2.
    for cut, discounted in ((False, 1.5), (True, 2.0)):
        prior = prior_from_values({"a": 3.0}, _log([-1, 1, 1, 1], cut=cut), gamma=0.5, logged_value=0.001)
        assert prior.means["a"] == pytest.approx(1 + 2 / discounted * (3.0 - 0.001))


def test_shuffled_rewards_leave_nothing_of_a_ranking_by_rewards() -> None:
    scaled = {f"{share:+.1f}": partial(_scaled, share) for share in np.linspace(-0.3, 0.9, 7)}
    found = select(scaled, steering_log(120, seed=1), shuffle=True, **{**QUICK, "hidden_sizes": (32, 32)})
    assert found.shuffled is not None
    assert found.shuffled.passes
    assert set(found.shuffled.values) == {each.name for each in found.candidates if each.value is not None}


def test_a_ranking_by_the_length_of_episodes_is_left_and_told() -> None:
    log = steering_log(80)
    # Every step is worth the same, and an episode ends far from 0.
    log["terminals"] = np.abs(log["next_observations"][:, 0]) > 0.6
    log["timeouts"] &= ~log["terminals"]
    log["rewards"] = np.ones_like(log["rewards"])
    data = data_given(log, []).log
    scaled = {f"{share:+.1f}": partial(_scaled, share) for share in np.linspace(-0.3, 0.9, 7)}
    settings = FitSettings(FitOptions(**{name: value for name, value in QUICK.items() if name != "split"}))
    ranked = shuffle_control(scaled, dict.fromkeys(scaled, 0.0), data, settings)
    assert ranked is not None
    control = shuffle_control(scaled, ranked.values, data, settings)
    assert control is not None
    assert control.correlation == pytest.approx(1)
    assert not control.passes
    assert shuffle_text(control).startswith("Shuffle control: failed, rank correlation 1.00")
    # By tables of its distribution, one order in twenty has a correlation of 0.71 or more, and with ten of 0.56.
    assert control.limit == pytest.approx(0.7, abs=0.03)
    assert _limit(10) == pytest.approx(0.55, abs=0.02)


def test_few_policies_have_no_shuffle_control() -> None:
    assert select(POLICIES, steering_log(), shuffle=True, **QUICK).shuffled is None


TRUTH = [0, 0.5, 1, 0.8]
ESTIMATES = [0.2, 0.9, 0.1, 0.7]


def test_the_rank_correlation_of_four_policies_is_that_worked_out_by_hand() -> None:
    assert spearman(TRUTH, ESTIMATES) == pytest.approx(-0.4, abs=1e-12)
    assert spearman(TRUTH, np.exp(TRUTH)) == pytest.approx(1)
    # Equal values share their mean rank: 1.5, 1.5, 3 against 1, 2, 3.
    assert spearman([0, 0, 5], [1, 2, 3]) == pytest.approx(math.sqrt(3) / 2)


def test_there_is_no_rank_correlation_where_all_are_equal() -> None:
    assert math.isnan(spearman([1, 1, 1], [1, 2, 3]))


@pytest.mark.parametrize(("k", "expected"), [(1, 0.5), (2, 0.2), (3, 0.2), (4, 0.0)])
def test_regret_is_what_the_best_of_the_shortlist_lacks(k: int, expected: float) -> None:
    assert regret_at_k(TRUTH, ESTIMATES, k) == pytest.approx(expected, abs=1e-12)
    # A share of the range: units do not matter.
    assert regret_at_k(10 * np.array(TRUTH) - 7, ESTIMATES, k) == pytest.approx(expected, abs=1e-12)


def test_equal_policies_cause_no_regret() -> None:
    assert regret_at_k([2, 2], [0, 1], 1) == 0


def test_impossible_rankings_are_refused() -> None:
    with pytest.raises(DatasetError, match="from 1 to 4"):
        regret_at_k(TRUTH, ESTIMATES, 5)
    with pytest.raises(DatasetError, match=r"\(2,\) and \(3,\)"):
        spearman([1, 2], [1, 2, 3])
