"""The audit on 27 logs with one subtle mistake each, and on 24 logs without any.

Every log is simulated: two tanks with three operators, a leg that walks until it falls, a store that orders in whole
numbers, and small plants that look unusual but are right. The bar: at least 20 mistakes found by the check that names
their reason, and no alarm at a right log. The table is benchmarks/results/audit_bugs.md; `--print` only shows it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.core.text import plural
from rl_training.data import TransitionDataset, audit_data

RESULTS = Path(__file__).parent / "results" / "audit_bugs.md"
Array = NDArray[Any]
Arrays = dict[str, Array]
Rng = np.random.Generator
Step = Callable[[Array, Array, Rng], tuple[Array, float, bool]]
Rule = Callable[[Array, dict[str, Any], Rng], Array]
OPERATORS = 3


def simulate(start: Callable[[Rng], Array], step: Step, rule: Rule, *, seed: int, lengths: Sequence[int]) -> Arrays:
    """Episodes up to these lengths; a rule remembers what it likes, and the number of its operator."""
    rng = np.random.default_rng(seed)
    rows = []
    for episode, length in enumerate(lengths):
        state, memory = start(rng), {"operator": episode % OPERATORS, "episode": episode / len(lengths)}
        for number in range(length):
            action = rule(state, memory, rng)
            after, reward, is_over = step(state, action, rng)
            rows.append((state, action, reward, after, is_over, not is_over and number == length - 1))
            state = after
            if is_over:
                break
    names = ("obs", "actions", "rewards", "next_obs", "dones", "truncations")
    arrays = {name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
    return {name: array.astype(np.float32) if array.dtype == np.float64 else array for name, array in arrays.items()}


def tanks_start(rng: Rng) -> Array:
    """Levels of two tanks, the inflow, and the level that is asked for."""
    return np.array([*rng.uniform(0.3, 0.8, 2), 0.5, rng.uniform(0.4, 0.7)])


def tanks(state: Array, action: Array, rng: Rng) -> tuple[Array, float, bool]:
    """The first tank drains into the second one; the actions are a valve and a pump."""
    first, second, inflow, wanted = state
    through = 0.12 * np.sqrt(max(first, 0)) * (1 + 0.6 * action[0])
    out = 0.12 * np.sqrt(max(second, 0)) * (1 + 0.6 * action[1])
    levels = np.array([first + 0.16 * inflow - through, second + through - out]) + 0.004 * rng.normal(size=2)
    after = np.array([*np.clip(levels, 0, 1), np.clip(0.9 * inflow + 0.05 + 0.04 * rng.normal(), 0, 1), wanted])
    cost = 4 * (second - wanted) ** 2 + 0.1 * action[1] ** 2
    return after, float(-cost + 0.01 * rng.normal()), False


def operate(state: Array, memory: dict[str, Any], rng: Rng) -> Array:
    """Level control; each operator has another gain."""
    gain = (1.0, 1.6, 2.4)[memory["operator"]]
    aim = gain * np.array([state[0] - 0.5, state[1] - state[3]])
    return np.clip(aim + 0.25 * rng.normal(size=2), -1, 1)


def leg_start(rng: Rng) -> Array:
    """Two angles and their speeds."""
    return 0.3 * rng.normal(size=4)


def leg(state: Array, action: Array, rng: Rng) -> tuple[Array, float, bool]:
    """Two joints; the leg falls if the first one leans too far."""
    angles, speeds = state[:2], state[2:]
    pull = np.array([2.6 * np.sin(angles[0]) + 0.3 * angles[1], -1.5 * np.sin(angles[1])])
    speeds = 0.98 * speeds + 0.1 * (pull + 2 * action) + 0.02 * rng.normal(size=2)
    angles = angles + 0.1 * speeds
    reward = 1 + speeds[1] - 0.2 * (action**2).sum()
    return np.concatenate([angles, speeds]), float(reward), bool(abs(angles[0]) > 1.2)


def walk(state: Array, memory: dict[str, Any], rng: Rng) -> Array:
    """Keep the leg up, with noise and another rhythm per operator."""
    aim = np.array([-1.7 * state[0] - 0.5 * state[2], 0.5 * np.sin(state[1] + memory["operator"])])
    return np.clip(aim + 0.6 * rng.normal(size=2), -1, 1)


def tank_log(seed: int = 1, episodes: int = 60, length: int = 80) -> Arrays:
    """Shifts of three operators at two tanks, cut by time; the tanks are set anew before each."""
    return simulate(tanks_start, tanks, operate, seed=seed, lengths=[length] * episodes)


def leg_log(seed: int = 2, episodes: int = 80, length: int = 150) -> Arrays:
    """Walks until the leg falls, or the time is up."""
    return simulate(leg_start, leg, walk, seed=seed, lengths=[length] * episodes)


def store_log(seed: int = 3, episodes: int = 60, length: int = 60) -> Arrays:
    """Stock and demand in whole pieces; the action is how many boxes are ordered."""

    def step(state: Array, action: Array, rng: Rng) -> tuple[Array, float, bool]:
        stock, demand = state
        sold = min(stock, demand)
        stock = min(stock - sold + 5 * int(action), 40)
        return np.array([stock, rng.poisson(6)]), float(2 * sold - 0.3 * stock - 1.5 * action), False

    def order(state: Array, memory: dict[str, Any], rng: Rng) -> Array:
        return np.array(int(np.clip((20 - state[0]) // 5 + rng.integers(-1, 2), 0, 4)))

    lengths = [length] * episodes
    return simulate(lambda rng: np.array([rng.integers(0, 30), 6]), step, order, seed=seed, lengths=lengths)


def plant(
    rule: Rule, *, seed: int = 4, hidden: bool = False, delay: bool = False, noise: float = 0.0, tail: float = 0.0
) -> Arrays:
    """A linear plant with three quantities and two actions; the log can hide the last one, or be noisy."""
    effect = np.array([[0.3, 0.0, 0.1], [0.0, 0.3, -0.1]])
    drift = np.array([[0.95, 0.0, 0.0], [0.0, 0.9, 0.0], [0.1, 0.0, 0.9]])
    last = {"action": np.zeros(2)}

    def step(state: Array, action: Array, rng: Rng) -> tuple[Array, float, bool]:
        pushed = last["action"] if delay else action
        last["action"] = action
        shock = 0.02 * rng.normal(size=3) * (1 + tail * np.abs(rng.standard_t(3, size=3)))
        after = state @ drift + pushed @ effect + shock
        return after, float(after[0] - np.abs(action).sum() - (after[1] - 0.5) ** 2), False

    arrays = simulate(lambda rng: rng.normal(size=3), step, rule, seed=seed, lengths=[50] * 60)
    if hidden:
        arrays |= {name: arrays[name][:, :2] for name in ("obs", "next_obs")}
    return noisy(arrays, noise) if noise else arrays


def noisy(arrays: Arrays, noise: float) -> Arrays:
    """The same reading error in next_obs and in the observation of the next row."""
    errors = noise * np.random.default_rng(9).normal(size=(len(arrays["obs"]) + 1, arrays["obs"].shape[1]))
    inside = ~arrays["truncations"]
    after = np.where(inside[:, None], errors[1:], errors[:1])
    return arrays | {"obs": arrays["obs"] + errors[:-1], "next_obs": arrays["next_obs"] + after}


def loose(state: Array, memory: dict[str, Any], rng: Rng) -> Array:
    """A weak controller with much noise."""
    return np.asarray(np.clip(0.4 * rng.normal(size=2) - 0.2 * state[:2], -0.999, 0.999))


def autocorrelated(state: Array, memory: dict[str, Any], rng: Rng) -> Array:
    """Noise that changes slowly."""
    memory["noise"] = 0.95 * memory.get("noise", np.zeros(2)) + 0.1 * rng.normal(size=2)
    return np.asarray(memory["noise"] - 0.2 * state[:2])


def held(state: Array, memory: dict[str, Any], rng: Rng) -> Array:
    """Actions that are kept for about five rows."""
    if "last" not in memory or rng.random() < 0.2:
        memory["last"] = loose(state, memory, rng)
    return np.asarray(memory["last"])


def certain(state: Array, memory: dict[str, Any], rng: Rng) -> Array:
    """A rule without noise."""
    return -0.3 * state[:2]


def integrating(state: Array, memory: dict[str, Any], rng: Rng) -> Array:
    """A controller that adds its errors up."""
    memory["sum"] = memory.get("sum", np.zeros(2)) + 0.03 * state[:2]
    return np.asarray(np.clip(0.3 * rng.normal(size=2) - 0.2 * state[:2] - memory["sum"], -1, 1))


def habits(state: Array, memory: dict[str, Any], rng: Rng) -> Array:
    """Each operator has a favourite position."""
    return np.asarray(np.clip(loose(state, memory, rng) + 0.3 * (memory["operator"] - 1), -1, 1))


def learning(state: Array, memory: dict[str, Any], rng: Rng) -> Array:
    """A rule that acts better from episode to episode."""
    return np.asarray(
        np.clip((0.5 - 0.3 * memory["episode"]) * rng.normal(size=2) - 0.3 * memory["episode"] * state[:2], -1, 1)
    )


def single_decisions(*, discrete: bool) -> Arrays:
    """Offers to customers: one row each."""
    rng = np.random.default_rng(5)
    obs = rng.normal(size=(4000, 4))
    score = obs[:, 0] + rng.normal(size=4000)
    action = np.digitize(score, (-1, 0, 1)) if discrete else np.clip(0.4 * score, -1, 1)[:, None]
    gain = (action - 1.5) * obs[:, 1] if discrete else action[:, 0] * obs[:, 1]
    rewards = gain + rng.normal(size=4000)
    ends = {"dones": np.ones(4000, bool), "truncations": np.zeros(4000, bool)}
    return {"obs": obs, "actions": action, "rewards": rewards, "next_obs": obs, **ends}


def grid() -> Arrays:
    """A walk in a grid of 5 by 5 to one corner, one column per place but the last, where it ends."""

    def step(state: Array, action: Array, rng: Rng) -> tuple[Array, float, bool]:
        at = int(state.argmax())
        move = rng.integers(4) if rng.random() < 0.1 else int(action)
        across, down = np.clip(np.array(divmod(at, 5)) + ((0, 1), (1, 0), (0, -1), (-1, 0))[move], 0, 4)
        is_over = bool(across == 4 and down == 4)
        return np.eye(25, 24)[5 * across + down], float(is_over) - 0.01, is_over

    return simulate(
        lambda rng: np.eye(25, 24)[rng.integers(12)],
        step,
        lambda state, memory, rng: np.array(rng.choice(4, p=(0.35, 0.35, 0.15, 0.15))),
        seed=6,
        lengths=[100] * 150,
    )


def goal() -> Arrays:
    """A cart that is pushed to a goal, which moves from episode to episode; the reward says when it is there."""

    def step(state: Array, action: Array, rng: Rng) -> tuple[Array, float, bool]:
        at = np.concatenate([state[:2] + 0.15 * action + 0.01 * rng.normal(size=2), state[2:]])
        is_over = bool(np.linalg.norm(at[:2] - at[2:]) < 0.15)
        return at, float(is_over) - 0.01, is_over

    def push(state: Array, memory: dict[str, Any], rng: Rng) -> Array:
        return np.clip(state[2:] - state[:2] + 0.5 * rng.normal(size=2), -1, 1)

    return simulate(lambda rng: rng.normal(size=4), step, push, seed=7, lengths=[100] * 120)


def wear() -> Arrays:
    """A tool that is used until it breaks, late in long episodes; the break is seen in the wear."""

    def step(state: Array, action: Array, rng: Rng) -> tuple[Array, float, bool]:
        worn = state[0] + 0.006 * (1.5 + action[0]) * rng.uniform(0.5, 1.5)
        is_over = bool(worn > 1)
        return np.array([worn, 0.8 * state[1] + 0.2 * rng.normal()]), float(1 + action[0] + state[1]), is_over

    def use(state: Array, memory: dict[str, Any], rng: Rng) -> Array:
        return np.clip(0.5 * rng.normal(size=1) - 0.3 * state[1:], -1, 1)

    return simulate(lambda rng: np.array([0, rng.normal()]), step, use, seed=8, lengths=[400] * 60)


def tariffs(arrays: Arrays) -> Arrays:
    """With a price of two values by the hour, and a product that changes now and then."""
    hours = np.arange(len(arrays["obs"]) + 1)
    products = np.eye(3)[np.random.default_rng(10).integers(3, size=len(hours) // 12 + 1)].repeat(12, axis=0)
    more = np.column_stack([np.where(hours % 24 < 8, 0.12, 0.31), products[: len(hours)]])
    both = {"obs": more[:-1], "next_obs": more[1:]}
    return arrays | {name: np.column_stack([arrays[name], each]) for name, each in both.items()}


def coarse(arrays: Arrays) -> Arrays:
    """Levels as whole percents."""
    return arrays | {name: np.round(100 * arrays[name]) for name in ("obs", "next_obs")}


def continuing() -> Arrays:
    """One long run that is cut into shifts of different lengths; the process goes on."""
    arrays = simulate(tanks_start, tanks, operate, seed=11, lengths=[5000])
    arrays |= {name: arrays[name][:, :3] for name in ("obs", "next_obs")}
    ends = np.cumsum(np.random.default_rng(11).integers(40, 120, 200))
    return arrays | {"truncations": np.isin(np.arange(1, 5001), [*ends, 5000])}


def full_tanks() -> Arrays:
    """Tanks that often run full or empty, with pumps at their limits."""

    def neglect(state: Array, memory: dict[str, Any], rng: Rng) -> Array:
        memory.setdefault("habit", rng.uniform(-1.2, 1.2, 2))
        return np.asarray(np.clip(memory["habit"] + 0.3 * rng.normal(size=2), -1, 1))

    return simulate(tanks_start, tanks, neglect, seed=12, lengths=[80] * 60)


def sparse() -> Arrays:
    """Tanks that earn only near the level that is asked for."""
    arrays = tank_log(seed=13)
    is_near = np.abs(arrays["next_obs"][:, 1] - arrays["obs"][:, 3]) < 0.02
    return arrays | {"rewards": is_near.astype(np.float32)}


RIGHT: dict[str, tuple[Callable[[], Arrays], tuple[str, ...]]] = {
    "two tanks, three operators": (tank_log, ()),
    "leg that falls": (leg_log, ()),
    "store in whole pieces, discrete orders": (store_log, ()),
    "autocorrelated actions": (lambda: plant(autocorrelated), ()),
    "actions held for rows": (lambda: plant(held), ()),
    "deterministic rule": (lambda: plant(certain), ("behaviour",)),
    "controller with an integral": (lambda: plant(integrating), ()),
    "operators with habits": (lambda: plant(habits), ()),
    "learning agent": (lambda: plant(learning), ()),
    "hidden quantity": (lambda: plant(loose, hidden=True), ()),
    "hidden quantity, autocorrelated actions": (lambda: plant(autocorrelated, hidden=True), ()),
    "noisy readings": (lambda: plant(loose, noise=0.05), ()),
    "heavy tails": (lambda: plant(loose, tail=3.0), ()),
    "dead time of one step": (lambda: plant(loose, delay=True), ("action timing",)),
    "whole percents": (lambda: coarse(tank_log(seed=14)), ()),
    "tariff and product columns": (lambda: tariffs(tank_log(seed=15)), ()),
    "one-step log": (lambda: single_decisions(discrete=False), ()),
    "one-step log, discrete": (lambda: single_decisions(discrete=True), ()),
    "grid with a goal": (grid, ()),
    "moving goal": (goal, ()),
    "breaks late in long episodes": (wear, ()),
    "shifts of a process that continues": (continuing, ()),
    "tanks that run full and empty": (full_tanks, ()),
    "sparse rewards": (sparse, ()),
}
"""Logs without a mistake, and the checks that may warn, since what they say is true of them."""


def last_rows(arrays: Arrays) -> Array:
    """The last rows of episodes."""
    return np.flatnonzero(arrays["dones"] | arrays["truncations"])


def episodes(arrays: Arrays) -> list[slice]:
    """The rows of each episode."""
    after = last_rows(arrays) + 1
    return [slice(start, stop) for start, stop in zip([0, *after[:-1]], after, strict=True)]


def moved(arrays: Arrays, name: str, rows: int, *, operator: int | None = None) -> None:
    """A column that is late by some rows inside each episode."""
    for number, part in enumerate(episodes(arrays)):
        if operator is None or number % OPERATORS == operator:
            arrays[name][part] = np.roll(arrays[name][part], rows, axis=0)


def isolated_rows(arrays: Arrays) -> None:
    """Some rows hold the action of the row before."""
    rows = np.random.default_rng(0).choice(np.arange(1, len(arrays["obs"])), len(arrays["obs"]) // 20, replace=False)
    arrays["actions"][rows] = arrays["actions"].copy()[rows - 1]


def bumpy_late(arrays: Arrays) -> None:
    """Rewards for a level near one value, a row late."""
    arrays["rewards"] = np.exp(-(((arrays["obs"][:, 1] - 0.55) / 0.05) ** 2)).astype(np.float32)
    moved(arrays, "rewards", 1)


def other_unit(arrays: Arrays) -> None:
    """From the middle on, one column in thousandths."""
    for name in ("obs", "next_obs"):
        arrays[name][len(arrays["obs"]) // 2 :, 1] *= 1000


def false_ends(kind: str) -> Callable[[Arrays], None]:
    """The last next observation that a recorder does not have."""

    def change(arrays: Arrays) -> None:
        rows = np.flatnonzero(arrays["truncations"])
        kinds = {"reset": arrays["obs"][(rows + 1) % len(arrays["obs"])], "repeat": arrays["obs"][rows]}
        arrays["next_obs"][rows] = kinds.get(kind, 0)

    return change


def all_terminate(arrays: Arrays) -> None:
    """Runs of different lengths that were stopped by hand, recorded as terminations."""
    stops = np.cumsum(np.random.default_rng(1).integers(20, 80, 300))
    stops = np.union1d(last_rows(arrays), stops[stops < len(arrays["obs"])] - 1)
    arrays["dones"][stops] = True
    arrays["truncations"][:] = False


def limits_terminate(arrays: Arrays) -> None:
    """Walks that reached the time limit, recorded as falls."""
    arrays["dones"] |= arrays["truncations"]
    arrays["truncations"][:] = False


def exchanged(arrays: Arrays) -> None:
    """One operator's table has the action columns in another order."""
    for part in episodes(arrays)[1::OPERATORS]:
        arrays["actions"][part] = arrays["actions"][part][:, ::-1].copy()


def other_sign(arrays: Arrays) -> None:
    """One operator's pump runs the other way round."""
    for part in episodes(arrays)[1::OPERATORS]:
        arrays["actions"][part, 1] *= -1


def summed(arrays: Arrays) -> None:
    """Rewards as sums since the start of the episode."""
    for part in episodes(arrays):
        arrays["rewards"][part] = np.cumsum(np.abs(arrays["rewards"][part]))


def stuck(arrays: Arrays) -> None:
    """The log repeats the last command of one valve for 30 rows, in a few episodes."""
    for part in episodes(arrays)[4:40:6]:
        arrays["actions"][part.start + 10 : part.start + 40, 0] = arrays["actions"][part.start + 10, 0]


def frozen(arrays: Arrays) -> None:
    """A level repeats its last reading for 30 rows, in a few episodes."""
    for part in episodes(arrays)[4:40:6]:
        start, stop = part.start + 10, part.start + 40
        arrays["obs"][start:stop, 0] = arrays["next_obs"][start - 1 : stop - 1, 0] = arrays["obs"][start, 0]


def dead(arrays: Arrays) -> None:
    """A level repeats its last reading from two thirds of the log on."""
    start = 2 * len(arrays["obs"]) // 3 + 17
    arrays["obs"][start:, 0] = arrays["next_obs"][start - 1 :, 0] = arrays["obs"][start, 0]


def clipped(arrays: Arrays) -> None:
    """A sensor that cannot read above a level that a twelfth of the rows exceed."""
    most = np.quantile(arrays["obs"][:, 0], 0.92)
    for name in ("obs", "next_obs"):
        arrays[name][:, 0] = np.minimum(arrays[name][:, 0], most)


def readings(arrays: Arrays, values: Callable[[int], Array], column: int) -> None:
    """Some readings of a column are other values, in next_obs too."""
    rows = np.random.default_rng(2).choice(np.arange(1, len(arrays["obs"])), 25, replace=False)
    rows = rows[~np.isin(rows - 1, last_rows(arrays))]
    arrays["obs"][rows, column] = arrays["next_obs"][rows - 1, column] = values(len(rows))


def missing(arrays: Arrays) -> None:
    """A number stands for readings that are missing."""
    readings(arrays, lambda count: np.full(count, -999.0), 0)


def spikes(arrays: Arrays) -> None:
    """A loose contact: single readings far outside."""
    readings(arrays, lambda count: np.random.default_rng(3).normal(0, 40, count), 0)


def copied(arrays: Arrays) -> None:
    """A file was read twice: the last ten episodes are the first ones."""
    parts = episodes(arrays)
    for one, other in zip(parts[:10], parts[-10:], strict=True):
        for name in ("obs", "actions", "rewards", "next_obs"):
            arrays[name][other] = arrays[name][one]


def shuffled_times(arrays: Arrays) -> None:
    """The clock of some rows was exchanged with the next row's."""
    times = np.arange(len(arrays["obs"])) * 60.0
    rows = np.arange(5, len(times) - 1, 97)
    times[rows], times[rows + 1] = times[rows + 1].copy(), times[rows].copy()
    arrays["timestamps"] = times


def percents(arrays: Arrays) -> None:
    """From the middle on, rewards as percents."""
    arrays["rewards"][len(arrays["rewards"]) // 2 :] *= 100


def lost_rows(arrays: Arrays) -> None:
    """Fifteen rows are missing in the middle of some episodes; next_obs was made from the rows that are left."""
    parts = episodes(arrays)
    lost = np.concatenate([np.arange(part.start + 20, part.start + 35) for part in parts[::5]])
    for name in arrays:
        arrays[name] = np.delete(arrays[name], lost, axis=0)
    inside = np.flatnonzero(~(arrays["dones"] | arrays["truncations"])[:-1])
    arrays["next_obs"][inside] = arrays["obs"][inside + 1]


def no_borders(arrays: Arrays) -> None:
    """All shifts in one file without a mark between them."""
    arrays["truncations"][:] = False
    arrays["next_obs"][:-1] = arrays["obs"][1:]


@dataclass(frozen=True)
class Bug:
    """A mistake in a log, and the check whose finding would name its reason."""

    name: str
    log: Callable[[], Arrays]
    make: Callable[[Arrays], None]
    check: str
    says: str = ""


BUGS = (
    Bug("actions a row late", tank_log, lambda log: moved(log, "actions", 1), "action timing", "row after"),
    Bug("actions a row early", leg_log, lambda log: moved(log, "actions", -1), "action timing", "row before"),
    Bug(
        "one operator's actions late", tank_log, lambda log: moved(log, "actions", 1, operator=1), "action timing", "20"
    ),
    Bug("5 % of the rows hold the action before", tank_log, isolated_rows, "action timing", "row before"),
    Bug("action columns exchanged in part", tank_log, exchanged, "action columns", "exchanged"),
    Bug("one operator's sign flipped", tank_log, other_sign, "action columns", "negative"),
    Bug("actions stuck", tank_log, stuck, "action timing", "the action is that of the row before"),
    Bug("rewards a row late", leg_log, lambda log: moved(log, "rewards", 1), "reward timing", "row before"),
    Bug("rewards a row late, a bump of one level", tank_log, bumpy_late, "reward timing", "row before"),
    Bug("rewards two rows late", leg_log, lambda log: moved(log, "rewards", 2), "reward timing", "second row before"),
    Bug("rewards summed up", tank_log, summed, "cumulative rewards"),
    Bug("rewards in percents midway", tank_log, percents, "drift", "rewards (times"),
    Bug("a unit times 1000 midway", tank_log, other_unit, "drift", "column 1 (times"),
    Bug("next_obs at limits is the reset", tank_log, false_ends("reset"), "cut episodes", "first observation"),
    Bug("next_obs at limits is a repeat", tank_log, false_ends("repeat"), "cut episodes", "observation before"),
    Bug("next_obs at limits is zeros", tank_log, false_ends("zeros"), "cut episodes", "zeros"),
    Bug("all ends flagged as terminations", tank_log, all_terminate, "time limits"),
    Bug("ends at the limit flagged as terminations", leg_log, limits_terminate, "time limits", "150 steps"),
    Bug("a sensor frozen for a while", tank_log, frozen, "frozen sensors", ": 0 ("),
    Bug("a sensor dead from two thirds on", tank_log, dead, "frozen sensors", ": 0 ("),
    Bug("a sensor clipped", tank_log, clipped, "clipped sensors"),
    Bug("-999 for missing readings", tank_log, missing, "outliers", "all -999"),
    Bug("spikes in one column", tank_log, spikes, "outliers", ": 0 ("),
    Bug("ten episodes twice", tank_log, copied, "duplicated episodes", "10 episodes"),
    Bug("timestamps out of order", tank_log, shuffled_times, "timestamps", "runs back"),
    Bug("rows lost in the middle", tank_log, lost_rows, "jumps", "do not follow"),
    Bug("borders of episodes not marked", tank_log, no_borders, "episode ends", "no end of an episode"),
)


def alarms(arrays: Arrays) -> dict[str, str]:
    """What the audit warns of, by check."""
    findings = audit_data(TransitionDataset.from_dict(arrays)).findings
    return {each.check: each.message for each in findings if each.is_alarm}


def tables() -> list[str]:
    """Two tables: every mistake, and every right log."""
    rows, count = [], 0
    for bug in BUGS:
        arrays = bug.log()
        usual = alarms(arrays)
        bug.make(arrays)
        found = {check: text for check, text in alarms(arrays).items() if usual.get(check) != text}
        is_right = bug.says in found.get(bug.check, "") if bug.check in found else False
        count += is_right
        says = f"{bug.check}: {found[bug.check]}" if bug.check in found else "; ".join(found) or "nothing"
        rows.append(f"| {bug.name} | {'yes' if found else 'no'} | {'yes' if is_right else 'no'} | {says} |")
    false = 0
    right = []
    for name, (make, known) in RIGHT.items():
        found = alarms(make())
        more = [check for check in found if check not in known]
        false += bool(more)
        texts = "; ".join(f"{check}: {text}" for check, text in found.items()) or "nothing"
        right.append(f"| {name} | {'false alarm' if more else 'true' if found else 'silent'} | {texts} |")
    return [
        f"{count} of {len(BUGS)} mistakes are found with the right reason.\n",
        "| mistake | an alarm | right reason | what the audit says |\n| --- | --- | --- | --- |",
        *rows,
        f"\n{plural(false, 'false alarm')} at {len(RIGHT)} right logs; 'true' is an alarm that states a fact.\n",
        "| right log | | what the audit warns of |\n| --- | --- | --- |",
        *right,
    ]


def main() -> None:
    """Print the tables, and store them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--print", action="store_true", help="store nothing")
    arguments = parser.parse_args()
    text = "\n".join(
        ["# The audit on logs with a mistake and without\n", "`python benchmarks/audit_bugs.py`\n", *tables()]
    )
    print(text)
    if not arguments.print:
        RESULTS.write_text(text + "\n")


if __name__ == "__main__":
    main()
