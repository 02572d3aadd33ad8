"""Evaluation data follows the rules of training: bounds of actions, and which datasets fit which spaces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from steering import QUICK, steering_log, towards

from rl_training import TrainConfig, estimate, select
from rl_training.core.errors import ConfigError, DatasetError
from rl_training.core.spaces import BoxActions, DiscreteActions, SpaceSpec
from rl_training.data import TransitionDataset, fit_spaces
from rl_training.runtime import bind_options, find_task, load_data
from rl_training.selection.evaluation_data import data_given


def log_with(actions: Any) -> dict[str, Any]:
    log = steering_log(4)
    return {**log, "actions": np.asarray(actions)}


def in_training(log: dict[str, Any], **options: Any) -> SpaceSpec:
    config = TrainConfig(algo="bc", algo_kwargs=options)
    return load_data(config, bind_options(config), find_task(config), TransitionDataset.from_dict(log)).spaces


ROWS = len(steering_log(4)["rewards"])
RAMP = np.linspace(0, 1, ROWS, dtype=np.float32)[:, None]


@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        (RAMP, BoxActions((0.0,), (1.0,))),
        (RAMP - 0.5, BoxActions((-1.0,), (1.0,))),
        (3 * RAMP, BoxActions((0.0,), (3.0,))),
        (np.concatenate([RAMP, 0 * RAMP], axis=1), BoxActions((0.0, 0.0), (1.0, 1.0))),
        (np.arange(ROWS) % 3, DiscreteActions(3)),
    ],
    ids=["unit", "inside [-1, 1]", "others", "one constant", "discrete"],
)
def test_bounds_are_the_same_in_training_and_in_judging(actions: Any, expected: Any) -> None:
    log = log_with(actions)
    assert in_training(log).action == data_given(log, []).log.spaces.action == expected


def test_a_constant_action_needs_bounds_in_training_and_in_judging() -> None:
    log = log_with(np.concatenate([3 * RAMP, 0 * RAMP + 2], axis=1))
    bounds: dict[str, Any] = {"action_low": [0, 0], "action_high": [3, 3]}

    def policy(obs: Any) -> Any:
        return np.repeat(np.clip(towards(obs), 0, 1), 2, axis=1)

    for function in (
        lambda: in_training(log),
        lambda: estimate({"it": policy}, log),
        lambda: select({"it": policy}, log),
    ):
        with pytest.raises(DatasetError, match="action column 1 is 2 throughout; set action_low and action_high"):
            function()
    expected = BoxActions((0.0, 0.0), (3.0, 3.0))
    assert in_training(log, **bounds).action == data_given(log, [], **bounds).log.spaces.action == expected
    assert estimate({"it": policy}, log, **bounds, **{**QUICK, "updates": 20}).episodes == 4
    for low, high, got in (([0], [3], "1 and 1"), ([0, 0], [3, 3, 3], "2 and 3")):
        with pytest.raises(ConfigError, match=f"must have 2 numbers, got {got}"):
            estimate({"it": policy}, log, action_low=low, action_high=high)


ONE_HOT = np.eye(2, dtype=np.float32)[np.arange(ROWS) % 2]


@pytest.mark.parametrize(
    ("actions", "space", "problem"),
    [
        (np.arange(ROWS) % 2, DiscreteActions(2), None),
        ((np.arange(ROWS) % 2).astype(np.float32)[:, None], DiscreteActions(2), None),
        (ONE_HOT, DiscreteActions(2), None),
        (RAMP, DiscreteActions(2), "continuous actions, the policy has 2 discrete actions"),
        (RAMP, BoxActions((0.0,), (1.0,)), None),
        (np.arange(ROWS) % 2, BoxActions((0.0,), (1.0,)), None),
        (ONE_HOT, BoxActions((0.0,), (1.0,)), "action_dim 2, the policy has 1"),
    ],
)
def test_a_dataset_is_given_actions_of_the_kind_of_a_space_or_refused(
    actions: Any, space: Any, problem: str | None
) -> None:
    dataset = TransitionDataset.from_dict(log_with(actions))
    spaces = SpaceSpec.vector(dataset.obs_dim, space)
    if problem is not None:
        with pytest.raises(DatasetError, match=problem):
            fit_spaces(dataset, spaces, "the policy")
        return
    fitted = fit_spaces(dataset, spaces, "the policy")
    assert fitted.has_actions_of(space)
    assert np.allclose(fitted.actions.numpy().ravel(), ONE_HOT[:, 1] if len(np.unique(actions)) == 2 else RAMP.ravel())
    with pytest.raises(DatasetError, match="the dataset has obs_dim 1, the policy has 2"):
        fit_spaces(dataset, SpaceSpec.vector(2, space), "the policy")
