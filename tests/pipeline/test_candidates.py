"""Algorithms that suit a log, and the reasons for them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from steering import steering_log

from rl_training.core.errors import ConfigError
from rl_training.data import TransitionDataset
from rl_training.pipeline.candidates import (
    AlgorithmCandidate,
    DatasetFacts,
    choose_candidates,
    is_clone,
    named_candidates,
)
from rl_training.pipeline.config import PipelineConfig

BROAD = DatasetFacts(
    rows=20_000,
    episodes=100,
    is_discrete=False,
    has_rewards=True,
    rewards_differ=True,
    is_single_step=False,
    action_spread=0.5,
    returns=(-10.0, -5.0, 0.0),
    near_best=0.2,
)


def names(candidates: list[AlgorithmCandidate]) -> list[str]:
    return [each.name for each in candidates]


def test_a_broad_log_gets_a_clone_of_its_best_episodes_and_two_learners() -> None:
    found = choose_candidates(BROAD)
    assert names(found) == ["bc", "bc_best", "td3_bc", "iql"]
    assert found[1].options == {"best_fraction": 0.2}
    assert "the best 20% of the episodes" in found[1].reason
    assert found[2].options == {"reward_normalize": "return_range"}


def test_a_log_of_nearly_one_action_per_situation_gets_learners_that_stay_near_it() -> None:
    assert names(choose_candidates(replace(BROAD, action_spread=0.1, rows=100_000))) == [
        "bc",
        "td3_bc",
        "iql",
    ]


def test_a_log_that_looks_random_is_not_called_random_and_changes_no_option() -> None:
    random = replace(BROAD, action_spread=0.95)
    assert choose_candidates(random) == choose_candidates(BROAD)
    said = "actions hardly depend on the observation: they are random, or depend on something that is not logged"
    assert random.describe()[-1] == said


def test_many_rows_get_rebrac_too() -> None:
    assert names(choose_candidates(replace(BROAD, rows=50_000)))[-1] == "rebrac"
    assert "rebrac" not in names(choose_candidates(replace(BROAD, rows=49_999)))


@pytest.mark.parametrize(("near", "share"), [(0.02, 0.1), (0.67, 0.67), (0.9, None)])
def test_the_best_ones_are_all_near_the_best_and_no_fewer_than_a_tenth(near: float, share: float | None) -> None:
    found = {each.name: each.options for each in choose_candidates(replace(BROAD, near_best=near))}
    assert found.get("bc_best") == (None if share is None else {"best_fraction": share})


def test_few_episodes_have_no_best_ones() -> None:
    assert "bc_best" not in names(choose_candidates(replace(BROAD, episodes=19)))
    some = choose_candidates(replace(BROAD, episodes=20))
    assert some[1].options == {"best_fraction": 0.5}


@pytest.mark.parametrize(
    "change", [{"has_rewards": False, "returns": None, "near_best": None}, {"rewards_differ": False}]
)
def test_without_telling_rewards_only_the_clone_is_left(change: dict[str, object]) -> None:
    facts = replace(BROAD, **change)  # type: ignore[arg-type]
    assert names(choose_candidates(facts)) == ["bc"]
    assert any("nothing can be called better" in line for line in facts.describe())


def test_discrete_actions_get_algorithms_that_stay_near_the_log() -> None:
    choices = replace(BROAD, is_discrete=True, returns=(0.0, 100.0, 400.0))
    found = choose_candidates(choices, gamma=0.9)
    assert names(found)[:4] == ["bc", "bc_best", "discrete_bcq", "discrete_iql"]
    iql = found[3].options
    assert (iql["gamma"], iql["reward_scale"], iql["beta"]) == (0.9, 0.0025, 20.0)
    assert "dqn" not in names(found)
    many = choose_candidates(replace(choices, rows=50_000))
    assert names(many)[-1] == "discrete_cql"


def test_without_a_discount_estimates_are_undiscounted_and_algorithms_keep_their_own() -> None:
    assert PipelineConfig(data="log.npz", gamma=1).gamma == 1
    assert all("gamma" not in each.options for each in choose_candidates(BROAD, gamma=1))


def test_actions_that_look_random_get_dqn_that_learns_from_the_log() -> None:
    learner = choose_candidates(replace(BROAD, is_discrete=True, action_spread=0.95))[-1]
    assert (learner.name, learner.options["mode"]) == ("dqn", "offline")
    assert "they are random, or depend on something that is not logged" in learner.reason


def test_single_decisions_have_discount_0() -> None:
    learner = choose_candidates(replace(BROAD, is_discrete=True, is_single_step=True))[1]
    assert learner.options == {"gamma": 0.0, "mode": "offline"}
    assert "discount 0" in learner.reason


def test_named_algorithms_are_tried_once_and_always_beside_the_clone() -> None:
    assert names(named_candidates(["td3_bc", "bc", "td3_bc", "bc_best"], BROAD)) == ["bc", "td3_bc", "bc_best"]
    with pytest.raises(ConfigError, match="no algorithm for a log is called 'td3_bd'; did you mean 'td3_bc'"):
        named_candidates(["td3_bd"], BROAD)
    with pytest.raises(ConfigError, match="no algorithm for a log is called 'sac'"):
        named_candidates(["sac"], BROAD)
    fitting = "td3_bc is not for discrete actions, which the log has: bc, bc_best, discrete_bcq, discrete_iql"
    with pytest.raises(ConfigError, match=fitting):
        named_candidates(["td3_bc"], replace(BROAD, is_discrete=True))


def test_only_the_clone_of_all_episodes_counts_as_the_clone() -> None:
    assert is_clone("bc_seed0")
    assert not is_clone("bc_best_seed0")


def test_facts_are_those_of_the_data() -> None:
    log = steering_log(100)
    facts = DatasetFacts.of(TransitionDataset.from_dict(log))
    returns = log["rewards"].reshape(100, 25).sum(1)
    assert (facts.rows, facts.episodes, facts.is_discrete, facts.is_single_step) == (2500, 100, False, False)
    assert facts.returns == pytest.approx((returns.min(), returns.mean(), returns.max()), rel=1e-5)
    assert facts.looks_random
    edge = returns.max() - 0.1 * (returns.max() - returns.min())
    assert facts.near_best == pytest.approx((returns >= edge).mean())
    del log["rewards"]
    assert not DatasetFacts.of(TransitionDataset.from_dict(log)).can_improve


def test_equal_rewards_still_tell_something_where_episodes_end_early_or_late() -> None:
    ends = np.isin(np.arange(60), [9, 29, 59])
    log = {
        "observations": np.arange(60.0)[:, None],
        "actions": np.zeros((60, 1)),
        "rewards": np.ones(60),
        "terminals": ends,
        "timeouts": np.zeros(60, dtype=bool),
    }
    assert DatasetFacts.of(TransitionDataset.from_dict(log)).rewards_differ
    cut = {**log, "terminals": np.zeros(60, dtype=bool), "timeouts": ends}
    assert not DatasetFacts.of(TransitionDataset.from_dict(cut)).rewards_differ
