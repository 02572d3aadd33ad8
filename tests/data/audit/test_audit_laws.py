"""Good logs pass the audit, and a mistake anywhere in one is found where it is."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rl_training.core.spaces import BoxActions
from rl_training.data import TransitionDataset
from rl_training.data.audit import borders, check_data
from rl_training.data.audit.view import AuditFinding, View

LAW = settings(deadline=None, max_examples=30, derandomize=True)
SEEDS = st.integers(0, 2**31 - 1)
Arrays = dict[str, NDArray[Any]]


def log(seed: int) -> Arrays:
    """Episodes of different lengths in a linear system of a random size, pushed at random."""
    rng = np.random.default_rng(seed)
    size, width = int(rng.integers(2, 6)), int(rng.integers(1, 4))
    effect = rng.normal(size=(width, size)) * 0.2
    rows = []
    for length in rng.integers(20, 60, size=25):
        state = rng.normal(size=size)
        for step in range(length):
            action = rng.uniform(-1, 1, size=width)
            after = 0.9 * state + action @ effect + 0.02 * rng.normal(size=size)
            rows.append((state, action, after, after[0] - np.abs(action).sum(), step == length - 1))
            state = after
    obs, actions, next_obs, rewards, ends = map(np.array, zip(*rows, strict=True))
    times = 0.1 * np.arange(len(obs))
    return {
        "obs": obs,
        "actions": actions,
        "next_obs": next_obs,
        "rewards": rewards,
        "dones": np.zeros(len(obs), bool),
        "truncations": ends,
        "timestamps": times,
    }


def findings(arrays: Arrays) -> dict[str, AuditFinding]:
    dataset = TransitionDataset.from_dict(arrays)
    width = dataset.action_dim
    view = View(dataset, BoxActions((-1.0,) * width, (1.0,) * width))
    return {each.check: each for each in check_data(view)}


@LAW
@given(SEEDS)
def test_a_good_log_passes(seed: int) -> None:
    assert {each.check: each.message for each in findings(log(seed)).values() if each.is_alarm} == {}


@LAW
@given(SEEDS, st.data())
def test_a_wrong_next_observation_is_found_anywhere(seed: int, data: st.DataObject) -> None:
    arrays = log(seed)
    inside = np.flatnonzero(~arrays["truncations"].astype(bool))
    row = data.draw(st.sampled_from(inside.tolist()))
    column = data.draw(st.integers(0, arrays["obs"].shape[1] - 1))
    arrays["next_obs"][row, column] += data.draw(st.sampled_from([-0.3, 0.1, 5.0]))
    finding = findings(arrays)["next observations"]
    assert (finding.verdict, finding.rows) == ("warn", (row,))


@LAW
@given(SEEDS, st.sampled_from([-1, 0, 2, 3]))
def test_a_shift_of_all_next_observations_is_found(seed: int, shift: int) -> None:
    arrays = log(seed)
    arrays["next_obs"] = np.roll(arrays["obs"], -shift, axis=0)
    finding = findings(arrays)["next observations"]
    assert finding.verdict == "fail"
    assert "in nearly all of them" in finding.message


@LAW
@given(SEEDS, st.integers(2, 24))
def test_borders_without_end_flags_are_found_and_nothing_else(seed: int, kept: int) -> None:
    arrays = log(seed)
    ends = np.flatnonzero(arrays["truncations"])
    forgotten = np.delete(ends[:-1], slice(0, None, kept))
    arrays["truncations"][forgotten] = False
    arrays["next_obs"][forgotten] = arrays["obs"][forgotten + 1]
    view = View(TransitionDataset.from_dict(arrays))
    found = borders.likely_borders(view)
    assert set(found) <= set(forgotten)
    # Some runs begin near where the one before ended.
    assert len(found) >= 0.5 * len(forgotten)


@LAW
@given(SEEDS, st.data())
def test_an_action_out_of_bounds_is_found_anywhere(seed: int, data: st.DataObject) -> None:
    arrays = log(seed)
    row = data.draw(st.integers(0, len(arrays["obs"]) - 1))
    arrays["actions"][row, -1] = data.draw(st.sampled_from([-1.01, 1.01, 100.0]))
    finding = findings(arrays)["action bounds"]
    assert (finding.verdict, finding.rows) == ("fail", (row,))


@LAW
@given(SEEDS, st.data())
def test_time_that_runs_back_is_found_anywhere(seed: int, data: st.DataObject) -> None:
    arrays = log(seed)
    inside = np.flatnonzero(~arrays["truncations"].astype(bool))
    row = data.draw(st.sampled_from(inside.tolist()))
    arrays["timestamps"][row + 1 :] -= 60.0
    finding = findings(arrays)["timestamps"]
    assert (finding.verdict, finding.rows) == ("fail", (row + 1,))


@LAW
@given(SEEDS, st.data())
def test_a_copied_episode_is_found_wherever_it_stands(seed: int, data: st.DataObject) -> None:
    arrays = log(seed)
    stops = np.flatnonzero(arrays["truncations"]) + 1
    starts = np.concatenate([[0], stops[:-1]])
    source, place = sorted(data.draw(st.lists(st.integers(0, 24), min_size=2, max_size=2, unique=True)))
    where = int(starts[place])
    broken = {
        name: np.concatenate([array[:where], array[starts[source] : stops[source]], array[where:]])
        for name, array in arrays.items()
    }
    finding = findings(broken)["duplicated episodes"]
    assert (finding.verdict, finding.rows) == ("warn", (where,))


@LAW
@given(SEEDS, st.sampled_from([1, -1]), st.sampled_from([0.0, 0.1, 0.3]))
def test_rewards_that_come_a_step_late_or_early_are_found_under_noise(seed: int, shift: int, noise: float) -> None:
    arrays = log(seed)
    rewards = arrays["rewards"]
    rewards = rewards + noise * rewards.std() * np.random.default_rng(seed).normal(size=len(rewards))
    arrays["rewards"] = rewards
    assert not findings(arrays)["reward timing"].is_alarm
    arrays["rewards"] = np.roll(rewards, shift)
    finding = findings(arrays)["reward timing"]
    assert finding.verdict == "warn"
    assert ("the row before" if shift == 1 else "the row after") in finding.message


@LAW
@given(SEEDS, st.data())
def test_end_flags_that_contradict_each_other_are_found_anywhere(seed: int, data: st.DataObject) -> None:
    arrays = log(seed)
    ends = np.flatnonzero(arrays["truncations"]).tolist()
    both = sorted(data.draw(st.lists(st.sampled_from(ends), min_size=1, max_size=5, unique=True)))
    arrays["dones"][both] = True
    finding = findings(arrays)["end flags"]
    assert (finding.verdict, list(finding.rows)) == ("warn", both)


@LAW
@given(SEEDS, st.data())
def test_a_reward_far_outside_the_others_is_found_anywhere(seed: int, data: st.DataObject) -> None:
    arrays = log(seed)
    row = data.draw(st.integers(0, len(arrays["obs"]) - 1))
    arrays["rewards"][row] = data.draw(st.sampled_from([-1e3, 1e3, 1e6]))
    finding = findings(arrays)["reward outliers"]
    assert (finding.verdict, finding.rows) == ("warn", (row,))


@LAW
@given(SEEDS, st.data())
def test_a_sensor_that_is_stuck_is_found_in_any_column(seed: int, data: st.DataObject) -> None:
    arrays = log(seed)
    column = data.draw(st.integers(0, arrays["obs"].shape[1] - 1))
    for name in ("obs", "next_obs"):
        arrays[name][:, column] = arrays[name][0, column]
    finding = findings(arrays)["constant columns"]
    assert finding.verdict == "warn"
    assert finding.message.endswith(f"never change: {column}")
