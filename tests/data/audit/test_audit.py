"""Every check of the audit finds its defect, in the right rows, and says nothing about a log without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from audited import BOUNDS, EPISODES, LENGTH, ROWS, Arrays, findings, good_log

from rl_training.data import TransitionDataset
from rl_training.data.audit import CHEAP, CHECKS, audit, check_data, order
from rl_training.data.audit.view import View, worst
from rl_training.data.dataset_audit import audit_data

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


def late_actions(arrays: Arrays) -> None:
    arrays["actions"][1:] = arrays["actions"][:-1].copy()


def early_actions(arrays: Arrays) -> None:
    arrays["actions"][:-1] = arrays["actions"][1:].copy()


def late_actions_of_one_operator(arrays: Arrays) -> None:
    for start in LAST[[3, 4]] + 1:
        rows = slice(start, start + LENGTH)
        arrays["actions"][rows] = np.roll(arrays["actions"][rows], 1, axis=0)


def wrong_sign_of_one_operator(arrays: Arrays) -> None:
    arrays["actions"][3 * LENGTH : 6 * LENGTH, 1] *= -1


def exchanged_actions_of_one_operator(arrays: Arrays) -> None:
    arrays["actions"][7 * LENGTH : 9 * LENGTH] = arrays["actions"][7 * LENGTH : 9 * LENGTH, ::-1].copy()


def end_of(kind: str) -> Callable[[Arrays], None]:
    """As a recorder writes the last next observation that it does not have."""

    def change(arrays: Arrays) -> None:
        ends = {
            "zeros": 0,
            "the observation before": arrays["obs"][LAST],
            "the first": arrays["obs"][(LAST + 1) % ROWS],
        }
        arrays["next_obs"][LAST] = ends[kind]

    return change


def sums_of_rewards(arrays: Arrays) -> None:
    arrays["rewards"] = np.cumsum(np.abs(arrays["rewards"]).reshape(EPISODES, LENGTH), axis=1).reshape(-1)


def missing_readings(arrays: Arrays) -> None:
    arrays["obs"][50::100, 2] = -999
    arrays["next_obs"][49::100, 2] = -999


def frozen(arrays: Arrays) -> None:
    for start in (LENGTH, 2 * LENGTH, 3 * LENGTH):
        arrays["obs"][start + 5 : start + 35, 1] = arrays["obs"][start + 5, 1]
        arrays["next_obs"][start + 4 : start + 34, 1] = arrays["obs"][start + 5, 1]


def at_rest(arrays: Arrays) -> None:
    """A door that nothing touches for the first half of each episode."""
    place = np.maximum(np.tile(np.arange(LENGTH + 1) - LENGTH // 2, EPISODES).reshape(EPISODES, -1), 0) ** 2 * 0.01
    arrays["obs"][:, 1], arrays["next_obs"][:, 1] = place[:, :-1].reshape(-1), place[:, 1:].reshape(-1)


def struck(arrays: Arrays) -> None:
    """A nail that rests for three quarters of each episode, and is then driven in."""
    place = np.tile(np.arange(LENGTH + 1) > LENGTH * 3 // 4, EPISODES).reshape(EPISODES, -1) * np.float32(9)
    place += np.where(place > 0, np.random.default_rng(8).normal(size=place.shape), 0).astype(np.float32)
    arrays["obs"][:, 1], arrays["next_obs"][:, 1] = place[:, :-1].reshape(-1), place[:, 1:].reshape(-1)


def unit_changes(arrays: Arrays) -> None:
    for name in ("obs", "next_obs"):
        arrays[name][ROWS // 2 :, 1] *= 1000


def noisy_late_rewards(arrays: Arrays) -> None:
    noise = np.random.default_rng(2).normal(size=ROWS) * arrays["rewards"].std()
    arrays["rewards"] = (arrays["rewards"] + noise).astype(np.float32)
    late_rewards(arrays)


def rewards_two_rows_late(arrays: Arrays) -> None:
    arrays["rewards"][2:] = arrays["rewards"][:-2].copy()


def late_bump(arrays: Arrays) -> None:
    """Rewards near one value of one column, a row late."""
    arrays["rewards"] = np.exp(-((arrays["obs"][:, 0] / 0.1) ** 2)).astype(np.float32)
    late_rewards(arrays)


def repeated(shift: int) -> Callable[[Arrays], None]:
    """Single rows with the action of a neighbour."""

    def change(arrays: Arrays) -> None:
        rows = np.arange(7, ROWS - 1, 19)
        arrays["actions"][rows] = arrays["actions"][rows + shift]

    change.__name__ = f"repeated_{shift}"
    return change


def unlogged_commands(arrays: Arrays) -> None:
    """The log keeps the command that was logged last while the operator gives others."""
    for start in range(3 * LENGTH, ROWS, 3 * LENGTH):
        arrays["actions"][start + 5 : start + 35, 0] = arrays["actions"][start + 5, 0]


def confounded(*, actions: float, rewards: float, lasts: bool = True) -> Arrays:
    """A good log with a cause in no column: it pushes actions and rewards, in whole episodes or from row to row."""
    rng = np.random.default_rng(4)
    cause = np.repeat(rng.normal(size=EPISODES), LENGTH) if lasts else rng.normal(size=ROWS)
    arrays = from_actions(lambda state, memory: loose(state, memory) + actions * cause[memory["row"]])
    gain = arrays["next_obs"][:, 0] + rewards * cause + 0.05 * rng.normal(size=ROWS)
    return {**arrays, "rewards": gain.astype(np.float32)}


def hidden_cause(arrays: Arrays) -> None:
    arrays |= confounded(actions=0.3, rewards=0.3)


def spikes(arrays: Arrays) -> None:
    """A loose contact."""
    values = np.tile([-40.0, 50.0, 30.0], 4)
    arrays["obs"][50::100, 2], arrays["next_obs"][49::100, 2] = values, values


def dead(arrays: Arrays) -> None:
    """A sensor that reads the same in the last seven episodes."""
    start = ROWS - 7 * LENGTH
    arrays["obs"][start:, 1] = arrays["next_obs"][start:, 1] = arrays["obs"][start, 1]


def few_reach_the_limit(arrays: Arrays) -> None:
    """Most episodes terminate at some time, and five where the time is up."""
    early = LAST[:25] - np.random.default_rng(5).integers(5, 30, 25)
    kept = np.concatenate([np.arange(last - (last % LENGTH), last + 1) for last in [*early, *LAST[25:]]])
    for name in arrays:
        arrays[name] = arrays[name][kept]
    arrays["dones"] = np.isin(kept, [*early, *LAST[25:]])
    arrays["truncations"][:] = False


def stopped_by_hand(arrays: Arrays) -> None:
    """Episodes of different lengths, all recorded as terminated."""
    ends = np.cumsum(np.random.default_rng(6).integers(8, 24, 90))
    arrays["dones"] = np.isin(np.arange(ROWS), [*ends, ROWS - 1])
    arrays["truncations"][:] = False
    inside = np.flatnonzero(~arrays["dones"][:-1])
    arrays["next_obs"][inside] = arrays["obs"][inside + 1]


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


def equal_column(arrays: Arrays) -> None:
    for name in ("obs", "next_obs"):
        arrays[name][:, 2] = arrays[name][:, 0]


def nearly_copied_column(arrays: Arrays) -> None:
    noise = np.random.default_rng(6).normal(size=ROWS + 1) * 0.001
    arrays["obs"][:, 2] = 1 - arrays["obs"][:, 0] + noise[:-1]
    arrays["next_obs"][:, 2] = 1 - arrays["next_obs"][:, 0] + noise[1:]


def learning(arrays: Arrays) -> None:
    arrays["rewards"] += np.linspace(0, 3, ROWS, dtype=np.float32)


def other_unit(arrays: Arrays) -> None:
    arrays["actions"][:, 1] /= 5000


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
    Defect("jumps", "warn", no_border, "likely borders between episodes, without an end flag"),
    Defect("timestamps", "fail", set_at("timestamps", 17, 0.0), "runs back", (17,), 1),
    Defect("control intervals", "warn", uneven, "the usual 0.5", (201, 202, 203, 204, 205)),
    Defect("episode ends", "warn", one_episode, "all 1,200 rows are one episode", (ROWS - 1,)),
    Defect("time limits", "warn", all_terminate, "after exactly 40 steps", tuple(LAST[:5]), EPISODES),
    Defect("time limits", "warn", most_terminate_at_the_limit, "27 of 33 terminated", tuple(LAST[3:8]), 27),
    Defect("time limits", "warn", few_reach_the_limit, "5 of 30 terminated episodes end after exactly 40 steps"),
    Defect("time limits", "warn", stopped_by_hand, "such ends look like cuts recorded as terminations"),
    Defect("constant columns", "warn", constant_column, "never change: 1"),
    Defect("duplicated columns", "warn", copied_column, "0 and 2"),
    Defect("duplicated columns", "warn", equal_column, "(1 of them equal): 0 and 2"),
    Defect("duplicated columns", "warn", nearly_copied_column, "(none of them exactly equal): 0 and 2"),
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
    Defect("reward timing", "warn", late_rewards, "fit the row before better", (2, 3, 4, 5, 6)),
    Defect("reward timing", "warn", early_rewards, "fit the row after better", (2, 3, 4, 5, 6)),
    Defect("reward timing", "warn", noisy_late_rewards, "fit the row before better", (2, 3, 4, 5, 6)),
    Defect("reward timing", "warn", rewards_two_rows_late, "fit the second row before better"),
    Defect("reward timing", "warn", late_bump, "fit the row before better"),
    Defect("action timing", "warn", late_actions, "change with the action of the row after", count=ROWS),
    Defect("action timing", "warn", early_actions, "change with the action of the row before", count=ROWS),
    Defect(
        "action timing",
        "warn",
        late_actions_of_one_operator,
        "in 2 episodes of 30, observations change with the action of the row after",
        (4 * LENGTH, 5 * LENGTH),
        2 * LENGTH,
    ),
    Defect(
        "action timing", "warn", repeated(-1), "the action is that of the row before, and observations do not follow"
    ),
    Defect("action timing", "warn", repeated(1), "the action is that of the row after, and observations do not follow"),
    Defect("action timing", "warn", unlogged_commands, "the action is that of the row before", count=9 * 29),
    Defect("hidden causes", "warn", hidden_cause, "a hidden cause seems to move both"),
    Defect(
        "action columns",
        "warn",
        wrong_sign_of_one_operator,
        "in 3 episodes of 30, observations change with the negative of action column 1",
        (3 * LENGTH, 4 * LENGTH, 5 * LENGTH),
        3 * LENGTH,
    ),
    Defect("action columns", "warn", exchanged_actions_of_one_operator, "action columns 0 and 1 exchanged"),
    Defect("cut episodes", "warn", end_of("zeros"), "29 of 29 cut episodes the last next_obs is zeros"),
    Defect("cut episodes", "warn", end_of("the observation before"), "the observation before the last action"),
    Defect("cut episodes", "warn", end_of("the first"), "first observation of the next episode", tuple(LAST[:5])),
    Defect("cumulative rewards", "warn", sums_of_rewards, "never do anything but rise inside an episode"),
    Defect("outliers", "warn", missing_readings, "2 (12 rows, all -999, as if missing)", (50, 150, 250, 350, 450), 12),
    Defect("outliers", "warn", spikes, "2 (12 rows, -40 to 50)", (50, 150, 250, 350, 450), 12),
    Defect("frozen sensors", "warn", frozen, "stay the same for 20 rows or more: 1 ("),
    Defect(
        "frozen sensors", "warn", dead, f"1 (from row {ROWS - 7 * LENGTH} to the last one)", (ROWS - 7 * LENGTH,), 1
    ),
    Defect("drift", "warn", unit_changes, "the range of observation column 1 (times "),
    Defect("returns", "warn", equal_returns, "all 30 episodes have the return 780"),
    Defect("drift", "warn", drifting, "columns 2"),
    Defect("drift", "warn", learning, "returns ("),
    Defect("behaviour", "warn", deterministic, "nearly deterministic"),
    Defect("trajectories", "warn", few_long_episodes, "3 episodes"),
]


def test_a_good_log_passes_every_check() -> None:
    assert {name: each.message for name, each in findings(good_log()).items() if each.is_alarm} == {}
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


def test_every_check_has_a_defect_that_it_finds() -> None:
    elsewhere = {"finite", "order", "end flags", "coverage", "enough data"}
    # In test_choices.
    elsewhere |= {"valid actions", "next masks", "propensities"}
    assert {defect.check for defect in DEFECTS} | elsewhere == set(findings(good_log()))


def test_an_action_column_in_another_unit_is_named_without_bounds_too() -> None:
    arrays = good_log()
    assert not findings(arrays, bounds=None)["action scale"].is_alarm
    other_unit(arrays)
    finding = findings(arrays, bounds=None)["action scale"]
    assert finding.verdict == "warn"
    assert "column 0 is more than 1000 times that of 1" in finding.message


def test_returns_are_told_with_their_spread_and_the_share_near_the_best() -> None:
    arrays = good_log()
    arrays["rewards"] = np.repeat(np.where(np.arange(EPISODES) < 24, 0.0, 1.0), LENGTH)
    message = findings(arrays)["returns"].message
    assert message == "mean return 8, standard deviation 16, from 0 to 40; 20% of the episodes are near the best"


def test_a_long_episode_among_short_ones_counts_as_few() -> None:
    arrays = good_log()
    kept = np.concatenate([LAST[20:], [ROWS - 1]])
    arrays["truncations"] = np.isin(np.arange(ROWS), kept)
    inside = ~arrays["truncations"][:-1]
    arrays["next_obs"][:-1][inside] = arrays["obs"][1:][inside]
    finding = findings(arrays)["trajectories"]
    assert finding.verdict == "warn"
    # 840 rows and nine times 40: 1200^2 / (840^2 + 9 * 40^2).
    assert "10 episodes of 40 to 840 rows; weighted by length they count as 2.0" in finding.message


def test_directions_in_which_the_data_varies_are_counted() -> None:
    arrays = good_log()
    assert findings(arrays)["coverage"].message.endswith("vary in about 5 independent ways")
    arrays["actions"][:, 1] = -arrays["actions"][:, 0]
    # One way holds the variance of two columns: (2 + 1 + 1 + 1)^2 / (4 + 1 + 1 + 1), or less.
    assert "about 3 independent ways" in findings(arrays)["coverage"].message


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
    assert not findings(arrays)["jumps"].is_alarm
    no_border(arrays)
    finding = findings(arrays)["jumps"]
    assert (finding.rows, finding.count) == (tuple(LAST[:5]), EPISODES - 1)
    assert "every 40 rows" in finding.message


def test_a_reading_that_is_wrong_once_is_no_border() -> None:
    arrays = good_log()
    # The wrong observation is the next one of the row before it, too.
    arrays["obs"][100] = arrays["next_obs"][99] = 30
    assert not findings(arrays)["jumps"].is_alarm


def test_a_border_between_two_episodes_is_found_by_where_it_leads() -> None:
    arrays = good_log()
    # Episodes start at one place and leave it for another.
    for name, first in (("obs", 0), ("next_obs", 1)):
        path = 12 * (1 - np.exp(-0.3 * np.arange(first, LENGTH + first)))
        arrays[name] += np.tile(path, EPISODES).astype(np.float32)[:, None]
    arrays["truncations"][LAST[7]] = False
    arrays["next_obs"][LAST[7]] = arrays["obs"][LAST[7] + 1]
    finding = findings(arrays)["jumps"]
    assert (finding.verdict, finding.rows) == ("warn", (int(LAST[7]),))
    assert "after 1 row do not follow" in finding.message
    assert "a likely border" in finding.message


def both_flags(arrays: Arrays) -> None:
    arrays["dones"][LAST[[0, 2]]] = True


def early_termination(arrays: Arrays) -> None:
    arrays["episode_ends"] = arrays.pop("truncations")
    arrays["dones"][[LAST[1] - 1, LAST[1]]] = True


@pytest.mark.parametrize(
    ("break_", "says", "rows"),
    [
        (both_flags, "both set in 2 rows; they count as terminations", (LAST[0], LAST[2])),
        (early_termination, "set in 1 row before the last row of an episode; it is ignored", (LAST[1] - 1,)),
    ],
)
def test_end_flags_that_contradict_each_other_are_named_with_their_rows_in_training_too(
    break_: Callable[[Arrays], None], says: str, rows: tuple[int, ...]
) -> None:
    arrays = good_log()
    break_(arrays)
    view = View(TransitionDataset.from_dict(arrays), BOUNDS)
    for checks in (CHECKS, CHEAP):
        (finding,) = [each for each in check_data(view, checks) if each.check == "end flags"]
        assert (finding.verdict, finding.rows, finding.count) == ("warn", rows, len(rows))
        assert says in finding.message


def from_a_table(arrays: Arrays) -> TransitionDataset:
    names = {f"obs_{k}": arrays["obs"][:, k] for k in range(3)} | {f"act_{k}": arrays["actions"][:, k] for k in (0, 1)}
    flags = {"over": arrays["dones"], "cut": arrays["truncations"], "run": np.arange(ROWS) // LENGTH}
    columns: dict[str, Any] = {"obs": ["obs_*"], "actions": ["act_*"], "reward": "reward", "episode": "run"}
    columns |= {"terminated": "over", "truncated": "cut"}
    return TransitionDataset.from_table(pa.table({**names, **flags, "reward": arrays["rewards"]}), columns)


def from_episodes(arrays: Arrays) -> TransitionDataset:
    episodes = []
    for start in range(0, ROWS, LENGTH):
        rows = slice(start, start + LENGTH)
        obs = np.concatenate([arrays["obs"][rows], arrays["next_obs"][rows][-1:]])
        episode = {"observations": obs, "actions": arrays["actions"][rows], "rewards": arrays["rewards"][rows]}
        episodes.append({**episode, "terminations": arrays["dones"][rows], "truncations": arrays["truncations"][rows]})
    return TransitionDataset.from_episodes(episodes)


@pytest.mark.parametrize("make", [from_a_table, from_episodes])
def test_end_flags_that_contradict_each_other_are_named_wherever_they_come_from(
    make: Callable[[Arrays], TransitionDataset],
) -> None:
    arrays = good_log()
    assert not order.end_flags(View(make(arrays))).is_alarm
    both_flags(arrays)
    finding = order.end_flags(View(make(arrays)))
    assert (finding.verdict, finding.rows) == ("warn", (LAST[0], LAST[2]))


def test_masks_beside_ends_of_the_recording_do_not_contradict_them() -> None:
    arrays = good_log()
    arrays["masks"] = ~arrays["dones"]
    arrays["terminals"] = arrays.pop("truncations")
    del arrays["dones"]
    assert not findings(arrays)["end flags"].is_alarm


def test_discrete_actions_that_were_hardly_taken_are_named() -> None:
    arrays = good_log()
    arrays["actions"] = np.arange(ROWS) % 3
    assert not findings(arrays, bounds=None)["coverage"].is_alarm
    arrays["actions"][:] = np.arange(ROWS) % 2
    arrays["actions"][50] = 2
    finding = findings(arrays, bounds=None)["coverage"]
    assert (finding.verdict, finding.rows) == ("warn", (50,))
    assert "hardly ever taken: 2" in finding.message


def test_few_rows_are_called_few() -> None:
    assert findings(good_log(episodes=12, length=40))["enough data"].verdict == "warn"


def sparse(arrays: Arrays) -> None:
    arrays["rewards"] = (arrays["next_obs"][:, 0] > 2).astype(np.float32)


def terminal_only(arrays: Arrays) -> None:
    arrays["rewards"][:] = 0
    arrays["rewards"][LAST] = 1


def noisy(arrays: Arrays) -> None:
    arrays["rewards"] += np.random.default_rng(3).normal(size=ROWS).astype(np.float32)


def noise_alone(arrays: Arrays) -> None:
    arrays["rewards"] = np.random.default_rng(4).normal(size=ROWS)


def heavy_tails(arrays: Arrays) -> None:
    arrays["rewards"] += np.random.default_rng(5).standard_cauchy(size=ROWS).astype(np.float32)


def of_the_observation(arrays: Arrays) -> None:
    # Seen before the action: the row before knows it as well, as its next observation.
    arrays["rewards"] = -np.abs(arrays["obs"]).sum(axis=1)


def of_the_next_observation(arrays: Arrays) -> None:
    arrays["rewards"] = np.exp(-(arrays["next_obs"] ** 2).sum(axis=1))


def summed_over_an_episode(arrays: Arrays) -> None:
    arrays["rewards"] = np.cumsum(arrays["rewards"].reshape(EPISODES, LENGTH), axis=1).reshape(-1)


@pytest.mark.parametrize(
    "rewards",
    [
        sparse,
        terminal_only,
        noisy,
        noise_alone,
        heavy_tails,
        of_the_observation,
        of_the_next_observation,
        summed_over_an_episode,
        set_at("rewards", slice(None), 1.0),
    ],
)
def test_rewards_of_their_own_rows_are_not_called_late(rewards: Callable[[Arrays], None]) -> None:
    arrays = good_log()
    rewards(arrays)
    assert not findings(arrays)["reward timing"].is_alarm


@pytest.mark.parametrize(("shift", "which"), [(1, "before"), (-1, "after")])
def test_rewards_of_an_angle_are_found_to_be_late_by_its_cosine_and_sine(shift: int, which: str) -> None:
    arrays = good_log()
    angles, after = (np.cumsum(arrays[name][:, 0]) for name in ("obs", "next_obs"))
    for name, angle in (("obs", angles), ("next_obs", after)):
        arrays[name] = np.stack([np.cos(angle), np.sin(angle), arrays[name][:, 1]], axis=1)
    arrays["next_obs"][:-1] = arrays["obs"][1:]
    turned = np.arctan2(arrays["obs"][:, 1], arrays["obs"][:, 0])
    # What the action costs is a ten thousandth of what the angle costs.
    arrays["rewards"] = -(turned**2) - 1e-3 * arrays["actions"][:, 0] ** 2
    assert not findings(arrays)["reward timing"].is_alarm
    arrays["rewards"] = np.roll(arrays["rewards"], shift)
    finding = findings(arrays)["reward timing"]
    assert finding.verdict == "warn"
    assert f"fit the row {which} better" in finding.message


def from_actions(rule: Callable[[Any, dict[str, Any]], Any], *, delay: bool = False) -> Arrays:
    """A good log whose actions are chosen by a rule from the state and what the rule remembers."""
    rng = np.random.default_rng(7)
    arrays = good_log()
    effect = np.array([[0.3, 0.0, 0.1], [0.0, 0.3, -0.1]])
    for start in range(0, ROWS, LENGTH):
        state = rng.normal(size=3)
        memory: dict[str, Any] = {"rng": rng, "noise": np.zeros(2), "last": np.zeros(2), "row": start}
        for row in range(start, start + LENGTH):
            action = np.clip(rule(state, memory), -0.999, 0.999)
            after = 0.95 * state + (memory["last"] if delay else action) @ effect + 0.01 * rng.normal(size=3)
            arrays["obs"][row], arrays["actions"][row], arrays["next_obs"][row] = state, action, after
            state, memory["last"], memory["row"] = after, action, row + 1
    return arrays


def autocorrelated(state: Any, memory: dict[str, Any]) -> Any:
    memory["noise"] = 0.95 * memory["noise"] + 0.1 * memory["rng"].normal(size=2)
    return memory["noise"] - 0.2 * state[:2]


def held_for_five_rows(state: Any, memory: dict[str, Any]) -> Any:
    is_new = memory["rng"].random() < 0.2
    return 0.4 * memory["rng"].normal(size=2) - 0.2 * state[:2] if is_new else memory["last"]


def without_noise(state: Any, memory: dict[str, Any]) -> Any:
    return -0.3 * state[:2]


def nearly_without_noise(state: Any, memory: dict[str, Any]) -> Any:
    return 0.02 * memory["rng"].normal(size=2) - 0.3 * state[:2]


def loose(state: Any, memory: dict[str, Any]) -> Any:
    return 0.4 * memory["rng"].normal(size=2) - 0.2 * state[:2]


@pytest.mark.parametrize("rule", [autocorrelated, held_for_five_rows, without_noise, nearly_without_noise, loose])
def test_actions_of_their_own_rows_are_not_called_shifted(rule: Callable[..., Any]) -> None:
    assert not findings(from_actions(rule))["action timing"].is_alarm


def test_a_process_that_reacts_one_step_late_is_told_from_a_shifted_log_by_advice() -> None:
    finding = findings(from_actions(loose, delay=True))["action timing"]
    assert "change with the action of the row before" in finding.message
    assert "if the process itself reacts one step late, add the action before to the observations" in finding.advice


def test_a_process_that_continues_after_a_cut_is_no_false_end() -> None:
    arrays = good_log()
    # One long run, cut into shifts: the next observation is the first one of the next shift.
    steps = np.random.default_rng(3).normal(size=(ROWS + 1, 3))
    run = np.cumsum(0.1 * steps, axis=0, dtype=np.float32)
    arrays["obs"], arrays["next_obs"] = run[:-1], run[1:]
    assert not findings(arrays)["cut episodes"].is_alarm


def test_coarse_readings_are_no_false_ends() -> None:
    arrays = good_log()
    for name in ("obs", "next_obs"):
        arrays[name] = np.round(arrays[name][:, :1])
    assert not findings(arrays)["cut episodes"].is_alarm


def test_distances_that_shrink_are_no_sums_of_rewards() -> None:
    arrays = good_log()
    sums_of_rewards(arrays)
    arrays["rewards"] -= arrays["rewards"].max()
    assert not findings(arrays)["cumulative rewards"].is_alarm


@pytest.mark.parametrize(
    "about",
    [{"actions": 0.2, "rewards": 0}, {"actions": 0, "rewards": 0.3}, {"actions": 0.2, "rewards": 0.3, "lasts": False}],
    ids=["moves actions", "moves rewards", "changes from row to row"],
)
def test_a_cause_is_not_called_hidden_where_nothing_tells_of_it(about: dict[str, Any]) -> None:
    finding = findings(confounded(**about))["hidden causes"]
    assert finding.verdict == "pass"
    assert "cannot be seen" in finding.message


@pytest.mark.parametrize("rule", [autocorrelated, held_for_five_rows, without_noise, nearly_without_noise, loose])
@pytest.mark.parametrize("delay", [False, True])
def test_rules_and_processes_with_a_memory_are_no_hidden_causes(rule: Callable[..., Any], *, delay: bool) -> None:
    assert not findings(from_actions(rule, delay=delay))["hidden causes"].is_alarm


def test_terminations_that_the_last_row_shows_are_no_cuts() -> None:
    arrays = good_log()
    stopped_by_hand(arrays)
    arrays["rewards"][arrays["dones"]] += 3
    assert not findings(arrays)["time limits"].is_alarm


def test_a_column_with_few_values_is_no_border_and_columns_that_jump_are_named() -> None:
    arrays = good_log()
    tariff = np.where(np.arange(ROWS + 1) % 24 < 8, 0.1, 0.3)
    for name, part in (("obs", tariff[:-1]), ("next_obs", tariff[1:])):
        arrays[name] = np.column_stack([arrays[name], part])
    assert not findings(arrays)["jumps"].is_alarm
    for name in ("obs", "next_obs"):
        arrays[name][:, 2] += np.tile(np.linspace(0, 8, LENGTH, dtype=np.float32), EPISODES)
    no_border(arrays)
    assert "most of all in 2, " in findings(arrays)["jumps"].message


@pytest.mark.parametrize("move", [at_rest, struck])
def test_things_at_rest_are_no_missing_readings(move: Callable[[Arrays], None]) -> None:
    arrays = good_log()
    move(arrays)
    found = findings(arrays)
    assert not found["frozen sensors"].is_alarm
    assert not found["outliers"].is_alarm


def test_missing_readings_of_single_decisions_are_found() -> None:
    arrays = good_log()
    arrays["truncations"][:], arrays["dones"][:] = False, True
    arrays["obs"][50::100, 2] = -999
    assert findings(arrays)["outliers"].count == 12


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


def test_rows_and_columns_of_a_table_are_named_as_they_stand_in_it() -> None:
    rng = np.random.default_rng(0)
    rows = 400
    columns = {
        "run": np.arange(rows) // 20,
        "t": np.arange(rows) % 20,
        "temp": rng.normal(size=rows),
        "stuck": np.ones(rows),
        "valve": rng.uniform(-1, 1, rows),
        "reward": rng.normal(size=rows),
        "end": np.arange(rows) % 20 == 19,
    }
    order = rng.permutation(rows)
    table = pa.table({name: values[order] for name, values in columns.items()})
    mapping = {"obs": ["temp", "stuck"], "actions": ["valve"], "reward": "reward", "episode": "run", "step": "t"}
    report = audit_data(TransitionDataset.from_table(table, {**mapping, "terminated": "end"}))
    found = {each.check: each for each in report.findings}
    assert "stuck" in found["constant columns"].message
    limits = found["time limits"]
    assert limits.count == 20
    assert all(columns["end"][order[row - 1]] for row in limits.rows)
    assert report.first_row == 1


def log(lengths: Sequence[int], *, terminated: bool = True, last: bool = True) -> TransitionDataset:
    """Episodes of given lengths that all terminate or are all cut; `last` says whether the last one terminates."""
    rows = sum(lengths)
    ends = np.isin(np.arange(rows), np.cumsum(lengths) - 1)
    dones = ends & terminated
    dones[-1] &= last
    obs = np.arange(rows, dtype=np.float32)[:, None]
    return TransitionDataset.from_dict(
        {
            "obs": obs,
            "next_obs": obs + 1,
            "actions": np.zeros((rows, 1)),
            "rewards": np.arange(rows),
            "dones": dones,
            "truncations": ends & ~dones,
        }
    )


def test_a_time_limit_recorded_as_termination_is_remarked_on() -> None:
    (remark,) = audit(log([10] * 5))
    assert "after exactly 10 steps, which looks like a time limit recorded as termination" in remark
    assert "'timeouts' or 'truncations'" in remark


def test_a_recording_that_stops_within_an_episode_still_shows_its_time_limit() -> None:
    (remark,) = audit(log([10, 10, 10, 10, 4], last=False))
    assert "after exactly 10 steps" in remark


@pytest.mark.parametrize(
    "dataset",
    [
        pytest.param(log([10] * 5, terminated=False), id="a time limit recorded as one"),
        pytest.param(log([10, 9, 10, 10]), id="different lengths"),
        pytest.param(log([10] * 3), id="too few episodes to tell"),
        pytest.param(log([1] * 6), id="one step each"),
    ],
)
def test_plausible_ends_are_not_remarked_on(dataset: TransitionDataset) -> None:
    assert audit(dataset) == []


def test_shuffled_rows_are_remarked_on() -> None:
    order = np.random.default_rng(0).permutation(100)
    dataset = TransitionDataset.from_dict(
        {
            "obs": order[:, None],
            # Nowhere does a row begin where the one before it led.
            "next_obs": order[:, None] + 0.5,
            "actions": np.zeros((100, 1)),
            "rewards": order,
            "dones": np.zeros(100),
        }
    )
    assert audit(dataset) == ["no row continues the one before it: the rows seem shuffled, so episodes are not known"]


def test_equal_rewards_are_remarked_on() -> None:
    assert audit(log([3, 4]).with_reward_transform(scale=0, shift=-1)) == ["every reward is -1"]
