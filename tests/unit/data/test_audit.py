"""Every check of the audit finds its defect, in the right rows, and says nothing about a log without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from audited import BOUNDS, EPISODES, LENGTH, ROWS, Arrays, findings, good_log

from rl_training.data import TransitionDataset
from rl_training.data.audit import CHECKS, View, check_data, worst

LAST = np.arange(LENGTH - 1, ROWS, LENGTH)
"""The last rows of episodes."""


@dataclass(frozen=True)
class Defect:
    """A change that breaks a good log, and what the audit must say of it."""

    check: str
    verdict: str
    break_: Callable[[Arrays], None]
    says: str = ""
    rows: tuple[int, ...] | None = None
    count: int | None = None


def set_at(name: str, where: Any, value: float) -> Callable[[Arrays], None]:
    def change(arrays: Arrays) -> None:
        arrays[name][where] = value

    return change


def shifted_next_obs(arrays: Arrays) -> None:
    arrays["next_obs"][:-2] = arrays["obs"][2:]


def shift_grows(arrays: Arrays) -> None:
    """As if each episode's last observation had been lost before the columns were joined."""
    joined = np.concatenate([arrays["obs"][start + 1 : start + LENGTH] for start in range(0, ROWS, LENGTH)])
    arrays["next_obs"][: len(joined)] = joined


def no_border(arrays: Arrays) -> None:
    """Runs joined without end flags, with the next row as next observation."""
    arrays["truncations"][LAST] = False
    arrays["next_obs"][:-1] = arrays["obs"][1:]


def unmarked_end(arrays: Arrays) -> None:
    arrays["truncations"][LAST[4]] = False


def late_rewards(arrays: Arrays) -> None:
    arrays["rewards"][1:] = arrays["rewards"][:-1].copy()


def early_rewards(arrays: Arrays) -> None:
    arrays["rewards"][:-1] = arrays["rewards"][1:].copy()


def copied_episode(arrays: Arrays) -> None:
    for name in ("obs", "actions", "rewards", "next_obs"):
        arrays[name][5 * LENGTH : 6 * LENGTH] = arrays[name][:LENGTH]


def copied_rows(arrays: Arrays) -> None:
    for name in ("obs", "actions", "rewards", "next_obs"):
        arrays[name][100:110] = arrays[name][10:20]


def all_terminate(arrays: Arrays) -> None:
    arrays["dones"], arrays["truncations"] = arrays["truncations"], arrays["dones"]


def most_terminate_at_the_limit(arrays: Arrays) -> None:
    all_terminate(arrays)
    arrays["dones"][[10, 50, 95]] = True


def drifting(arrays: Arrays) -> None:
    slope = np.linspace(0, 6, ROWS, dtype=np.float32)
    arrays["obs"][:, 2] += slope
    arrays["next_obs"][:, 2] += slope


def deterministic(arrays: Arrays) -> None:
    arrays["actions"][:] = np.clip(0.3 * arrays["obs"][:, :2], -0.999, 0.999)


def copied_column(arrays: Arrays) -> None:
    for name in ("obs", "next_obs"):
        arrays[name][:, 2] = 2 * arrays[name][:, 0]


def constant_column(arrays: Arrays) -> None:
    for name in ("obs", "next_obs"):
        arrays[name][:, 1] = 7


def reward_in_obs(arrays: Arrays) -> None:
    arrays["obs"][:, 1] = 2 * arrays["rewards"] + 1


def stuck(arrays: Arrays) -> None:
    arrays["actions"][: ROWS * 2 // 3, 1] = 1


def quantised(arrays: Arrays) -> None:
    arrays["actions"] = np.round(arrays["actions"] * 4) / 4


def one_episode(arrays: Arrays) -> None:
    arrays["truncations"][:] = False


def uneven(arrays: Arrays) -> None:
    arrays["timestamps"][200:220] += 0.2 * np.arange(20)
    arrays["timestamps"][220:] += 4


def equal_returns(arrays: Arrays) -> None:
    arrays["rewards"][:] = np.tile(np.arange(LENGTH, dtype=np.float32), EPISODES)


def few_long_episodes(arrays: Arrays) -> None:
    arrays["truncations"][LAST[:-3]] = False
    arrays["next_obs"][:-1][~arrays["truncations"][:-1]] = arrays["obs"][1:][~arrays["truncations"][:-1]]


DEFECTS = [
    Defect("next observations", "fail", shifted_next_obs, "the row 2 rows later", (0, 1, 2, 3, 4)),
    Defect("next observations", "fail", shift_grows, "by about one per episode", (40, 41, 42, 43, 44)),
    Defect(
        "next observations", "fail", set_at("next_obs", slice(None, None, 7), 0.0), "not the obs", (0, 7, 14, 21, 28)
    ),
    Defect("next observations", "warn", unmarked_end, "without an end flag", (int(LAST[4]),), 1),
    Defect("jumps", "warn", no_border, "without an end flag"),
    Defect("timestamps", "fail", set_at("timestamps", 17, 0.0), "runs back", (17,), 1),
    Defect("control intervals", "warn", uneven, "the usual 0.5", (201, 202, 203, 204, 205)),
    Defect("episode ends", "warn", one_episode, "all 1,200 rows are one episode", (ROWS - 1,)),
    Defect("time limits", "warn", all_terminate, "after exactly 40 steps", tuple(LAST[:5]), EPISODES),
    Defect("time limits", "warn", most_terminate_at_the_limit, "27 of 33 terminated", tuple(LAST[3:8]), 27),
    Defect("constant columns", "warn", constant_column, "never change: 1"),
    Defect("duplicated columns", "warn", copied_column, "0 and 2"),
    Defect("duplicated transitions", "warn", copied_rows, "are copies", (100, 101, 102, 103, 104), 10),
    Defect("duplicated episodes", "warn", copied_episode, "1 episode", (5 * LENGTH,), 1),
    Defect("action bounds", "fail", set_at("actions", ([3, 9], 0), 1.5), "outside [-1, 1]", (3, 9), 2),
    Defect("actions at bounds", "warn", stuck, "more than half of the time: 1", (0, 1, 2, 3, 4), ROWS * 2 // 3),
    Defect("quantised actions", "warn", quantised, "different values: 0, 1"),
    Defect("action scale", "warn", set_at("actions", (slice(None), 1), 0.25), "never change: 1"),
    Defect("action scale", "warn", lambda arrays: arrays.update(actions=arrays["actions"] / 200), "fill less than"),
    Defect("action scale", "warn", lambda arrays: arrays.update(actions=np.abs(arrays["actions"])), "reach below 0"),
    Defect("constant reward", "warn", set_at("rewards", slice(None), -1.0), "every reward is -1"),
    Defect("reward outliers", "warn", set_at("rewards", 77, 1e4), "the first is 1e+04", (77,), 1),
    Defect("reward in observations", "warn", reward_in_obs, "column 1"),
    Defect("reward timing", "warn", late_rewards, "fit the row before better"),
    Defect("reward timing", "warn", early_rewards, "fit the row after better"),
    Defect("returns", "warn", equal_returns, "all 30 episodes have the return 780"),
    Defect("drift", "warn", drifting, "columns 2"),
    Defect("behaviour", "warn", deterministic, "nearly deterministic"),
    Defect("trajectories", "warn", few_long_episodes, "3 episodes"),
]


def test_a_good_log_passes_every_check() -> None:
    assert {name: each.message for name, each in findings(good_log()).items() if each.verdict != "pass"} == {}
    assert len(findings(good_log())) == len(CHECKS)


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: f"{defect.check}-{defect.break_.__name__}")
def test_a_defect_is_found_in_its_rows(defect: Defect) -> None:
    arrays = good_log()
    defect.break_(arrays)
    finding = findings(arrays)[defect.check]
    assert finding.verdict == defect.verdict
    assert defect.says in finding.message
    assert finding.why
    assert finding.advice
    if defect.rows is not None:
        assert finding.rows == defect.rows
    if defect.count is not None:
        assert finding.count == defect.count


def test_values_that_are_not_finite_end_the_audit() -> None:
    dataset = TransitionDataset.from_dict(good_log())
    obs = dataset.obs.clone()
    obs[[5, 12], 1] = torch.nan
    (finding,) = check_data(View(dataset.with_fields(obs=obs)))
    assert (finding.check, finding.verdict, finding.count, finding.rows) == ("finite", "fail", 2, (5, 12))


def test_borders_that_were_not_marked_are_found_where_they_are() -> None:
    arrays = good_log()
    # Runs that begin far from where they end.
    for name in ("obs", "next_obs"):
        arrays[name] += np.tile(np.linspace(0, 8, LENGTH, dtype=np.float32), EPISODES)[:, None]
    assert findings(arrays)["jumps"].verdict == "pass"
    no_border(arrays)
    finding = findings(arrays)["jumps"]
    assert (finding.rows, finding.count) == (tuple(LAST[:5]), EPISODES - 1)
    assert "every 40 rows" in finding.message


def test_end_flags_that_contradict_each_other_are_named_with_their_rows() -> None:
    flags = {name: np.zeros(ROWS, dtype=bool) for name in ("dones", "truncations", "episode_ends")}
    assert findings(good_log(), flags=flags)["end flags"].verdict == "pass"
    flags["dones"][[39, 79]] = flags["truncations"][[39, 119]] = True
    finding = findings(good_log(), flags=flags)["end flags"]
    assert (finding.verdict, finding.rows, finding.count) == ("warn", (39,), 1)
    del flags["truncations"]
    flags["episode_ends"][39] = True
    finding = findings(good_log(), flags=flags)["end flags"]
    assert (finding.verdict, finding.rows, finding.count) == ("warn", (79,), 1)


def test_choices_that_were_hardly_made_are_named() -> None:
    arrays = good_log()
    arrays["actions"] = np.arange(ROWS) % 3
    assert findings(arrays, bounds=None)["coverage"].verdict == "pass"
    arrays["actions"][:] = np.arange(ROWS) % 2
    arrays["actions"][50] = 2
    finding = findings(arrays, bounds=None)["coverage"]
    assert (finding.verdict, finding.rows) == ("warn", (50,))
    assert "hardly ever made: 2" in finding.message


def test_few_rows_are_called_few() -> None:
    assert findings(good_log(episodes=12, length=40))["enough data"].verdict == "warn"


def test_shuffled_rows_are_not_called_broken() -> None:
    arrays = good_log()
    order = np.random.default_rng(1).permutation(ROWS)
    shuffled = {name: array[order] for name, array in arrays.items() if name not in ("truncations", "timestamps")}
    found = findings(shuffled)
    assert found["order"].verdict == "warn"
    assert worst(list(found.values())) == "warn"


def test_rows_are_counted_as_in_the_file() -> None:
    arrays = good_log()
    del arrays["next_obs"]  # the last row of each episode is dropped
    arrays["actions"][[3, LENGTH + 1, 2 * LENGTH], 0] = 2
    assert findings(arrays)["action bounds"].rows == (3, LENGTH + 1, 2 * LENGTH)


def test_without_bounds_no_action_is_outside_them() -> None:
    assert "not known" in findings(good_log(), bounds=None)["action bounds"].message
    assert findings(good_log(), bounds=BOUNDS)["action bounds"].message == "every action is within [-1, 1]"
