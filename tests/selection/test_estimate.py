"""Estimates of policies from a log whose answers are known by running the task."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from steering import QUICK, STEPS, away, rest, steering_log, towards, true_value

import rl_training
from rl_training.core.errors import ConfigError, DatasetError
from rl_training.data import TransitionDataset
from rl_training.ope.fqe import FQE
from rl_training.runtime import Split
from rl_training.selection.estimate import estimate
from rl_training.selection.results import Estimates

POLICIES = {"towards": towards, "away": away, "rest": rest}


@cache
def judged() -> Estimates:
    """Three policies, one good, one bad, one like the behaviour."""
    return estimate(POLICIES, steering_log(), **QUICK)


def test_the_package_has_the_function() -> None:
    assert rl_training.estimate is estimate


def test_values_are_near_those_of_running_the_policies() -> None:
    log = steering_log()
    for name, policy in POLICIES.items():
        found = judged()[name]
        assert found.value is not None
        assert found.value == pytest.approx(true_value(policy, log), abs=0.5), name


def test_policies_get_their_verdicts() -> None:
    verdicts = {each.name: each.verdict for each in judged().policies}
    assert verdicts == {"towards": "better than the data", "away": "worse than the data", "rest": "not distinguishable"}
    assert judged().best == ("towards",)


def test_the_control_is_the_logged_behaviour() -> None:
    found = judged()
    assert found.control_passes
    assert found.behavior_value == pytest.approx(found.logged_value, abs=found.control_tolerance)
    # Cut episodes are longer than the horizon, so that what was logged is nearly all of their value.
    log = steering_log()
    discounts = 0.9 ** np.arange(STEPS)
    assert found.logged_value == pytest.approx(float((log["rewards"].reshape(-1, STEPS) @ discounts).mean()), abs=0.3)
    assert found.logged_return == pytest.approx(float(log["rewards"].reshape(-1, STEPS).sum(1).mean()), rel=1e-5)


def test_results_are_plain_values_and_the_same_again() -> None:
    plain = judged().to_plain()
    assert json.loads(json.dumps(plain))["policies"][0]["name"] == "towards"
    again = estimate({"towards": towards}, steering_log(), **QUICK)
    assert again["towards"].raw_value == judged()["towards"].raw_value


def test_a_broken_estimator_is_caught_by_the_control(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next observation is taken to be a place where the point never was, as by a mistake in the data."""
    original = FQE.critic_loss

    def broken(self: FQE, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return original(self, {**batch, "next_obs": 3 * batch["obs"].sign()})

    monkeypatch.setattr(FQE, "critic_loss", broken)
    found = estimate({"towards": towards}, steering_log(), **QUICK)
    assert not found.control_passes
    assert found["towards"].verdict == "cannot be judged"
    assert found["towards"].value is None
    assert "does not reproduce the log" in found["towards"].reasons[0]


def test_too_few_updates_are_refused_and_kappa_is_known() -> None:
    found = estimate({"towards": towards}, steering_log(), updates=30, **QUICK)
    assert found.kappa == pytest.approx(30 * 0.2 * 0.1)
    assert "stopped too early (kappa 0.6" in found["towards"].reasons[0]


def test_too_few_episodes_are_refused() -> None:
    found = estimate({"towards": towards}, steering_log(8), **{**QUICK, "updates": 20})
    assert any("only 8 episodes, at least 10 are needed" in reason for reason in found["towards"].reasons)


def test_a_policy_far_from_the_log_is_refused() -> None:
    found = estimate({"far": lambda obs: np.full_like(obs, 40.0)}, steering_log(), updates=20, **QUICK)
    assert found["far"].novel_share > 0.9
    assert any("far from everything that was logged" in reason for reason in found["far"].reasons)


def test_rewards_times_ten_give_values_times_ten() -> None:
    log = steering_log()
    tenfold = estimate({"towards": towards}, {**log, "rewards": 10 * log["rewards"]}, **QUICK)
    assert tenfold["towards"].value == pytest.approx(10 * (judged()["towards"].value or 0), rel=1e-3)


def test_transformed_rewards_are_refused() -> None:
    data = TransitionDataset.from_dict(steering_log()).with_reward_transform(scale=2.0)
    with pytest.raises(DatasetError, match="rewards were transformed"):
        estimate({"towards": towards}, data)


def test_functions_in_a_list_are_known_by_their_names() -> None:
    found = estimate([towards, towards], steering_log(), **{**QUICK, "updates": 10})
    assert [each.name for each in found.policies] == ["towards", "towards 2"]
    with pytest.raises(KeyError, match="no policy is called 'away'; there are towards, towards 2"):
        found["away"]


@pytest.mark.parametrize(
    ("policies", "options", "words"),
    [
        ({"f": lambda obs: obs[:, :0]}, {}, r"f answers 1000 observations with an array of shape \(1000, 0\)"),
        ({"f": lambda obs: obs * np.nan}, {}, "f answers with actions that are not finite"),
        ({"f": 3}, {}, "f is neither a run, nor a function"),
        ([], {}, "no policy is named"),
        (towards, {"members": 1}, "at least 2 members, got 1"),
        (towards, {"gamma": 1.0}, "gamma 1 needs episodes that terminate, and 0 % of these do"),
        (towards, {"widths": (3,)}, "widths"),
    ],
)
def test_mistakes_are_named(policies: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        estimate(policies, steering_log(), **options)


def test_a_function_without_data_is_refused() -> None:
    with pytest.raises(ConfigError, match="pass dataset="):
        estimate(towards)


def test_rows_without_order_are_refused() -> None:
    log = steering_log()
    order = np.random.default_rng(0).permutation(len(log["rewards"]))
    shuffled = {name: value[order] for name, value in log.items()}
    shuffled["timeouts"] = np.ones_like(shuffled["timeouts"])
    with pytest.raises(DatasetError, match="whole episodes"):
        estimate(towards, shuffled)


def _discrete_log(episodes: int = 60, *, seed: int = 0) -> dict[str, Any]:
    """Two steps through two states with three actions, whose rewards are 0, 1 and 4 in the second state."""
    rng = np.random.default_rng(seed)
    chosen = rng.integers(3, size=2 * episodes)
    rewards = np.where(np.arange(2 * episodes) % 2, np.array([0.0, 1.0, 4.0])[chosen], 0.0)
    eye = np.eye(2, dtype=np.float32)
    return {
        "observations": eye[[0, 1] * episodes],
        "actions": chosen,
        "rewards": rewards.astype(np.float32),
        "next_observations": eye[[1, 1] * episodes],
        "terminals": np.arange(2 * episodes) % 2 == 1,
    }


def test_discrete_actions_and_their_probabilities_are_evaluated() -> None:
    def best(obs: Any) -> Any:
        return np.full(len(obs), 2)

    def mixed(obs: Any) -> Any:
        return np.tile([0.25, 0.5, 0.25], (len(obs), 1))

    found = estimate([best, mixed], _discrete_log(), **QUICK)
    assert found["best"].value == pytest.approx(0.9 * 4, abs=0.1)
    assert found["mixed"].value == pytest.approx(0.9 * 1.5, abs=0.3)
    assert found["best"].verdict == "better than the data"
    assert found["best"].novel_share == 0


def test_actions_that_were_never_logged_in_a_state_cannot_be_judged() -> None:
    log = _discrete_log()
    # In the second state, the third action was never taken.
    log["actions"] = np.where((np.arange(120) % 2 == 1) & (log["actions"] == 2), 0, log["actions"])
    found = estimate({"best": lambda obs: np.full(len(obs), 2)}, log, **QUICK)
    assert found["best"].novel_share == pytest.approx(0.5)
    assert any("never logged in such a state" in reason for reason in found["best"].reasons)


def test_probabilities_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(ConfigError, match="do not add up to 1"):
        estimate(lambda obs: np.ones((len(obs), 3)), _discrete_log())


def test_only_runs_keep_their_estimates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert judged().save() == []
    assert list(tmp_path.iterdir()) == []


def test_a_refusal_of_weights_names_overfitting_where_episodes_may_have_trained_the_policy() -> None:
    rng, steps = np.random.default_rng(0), 20
    ends = np.tile(np.arange(steps) == steps - 1, 60)
    log = {
        "observations": rng.normal(size=(60 * steps, 1)),
        "actions": rng.integers(2, size=60 * steps),
        "rewards": rng.normal(size=60 * steps),
        "terminals": ends,
        "propensities": np.full(60 * steps, 0.5),
    }
    first: dict[str, Any] = {"gamma": 0.5, "members": 3, "updates": 60, "hidden_sizes": (4,)}
    answers: list[tuple[Split, bool]] = [("auto", True), ("held-out", False)]
    for split, is_named in answers:
        (found,) = estimate({"ones": lambda obs: np.ones(len(obs), int)}, log, split=split, **first).weighted
        assert found.level == "refuse"
        assert any("may be overfitted to these episodes: " in each for each in found.reasons) == is_named
