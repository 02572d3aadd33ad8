"""Worlds of `claims.py`: simulators whose truth is known, and logs of them, which the package sees alone.

A world is a process with a behaviour that made its log. The true value of a policy is computed from matrices where
there are some, else from rollouts. Both start where logged episodes start.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

Array = NDArray[Any]
Act = Callable[[Array], Any]
Rng = np.random.Generator

ROLLOUTS = 4000
"""Rollouts behind a true value."""
REMAINDER = 1e-3
"""The share of a discounted value that rollouts may leave out."""
FIELDS = ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts")


@dataclass(frozen=True)
class Truth:
    """The true value of a policy, and its difference from that of the behaviour that made the log."""

    value: float
    difference: float
    error: float = 0.0
    """The standard error of the difference, 0 where it is exact."""


class World:
    """A process, the behaviour that logged it, and policies that were made without the log.

    A state may have more columns than are observed. Random numbers of a step do not depend on the action, so that
    differences between policies are paired.
    """

    name = ""
    length = 20
    """Steps after which an episode is cut."""
    episodes = 60
    is_null = False
    """Whether actions change nothing."""
    num_actions: int | None = None
    """None where actions are continuous."""
    low, high = -2.0, 2.0
    """Bounds of continuous actions."""
    ends = False
    """Whether every episode ends by itself."""

    def start(self, count: int, rng: Rng) -> Array:
        """States (count, columns) in which episodes begin."""
        raise NotImplementedError

    def step(self, state: Array, action: Array, rng: Rng) -> tuple[Array, Array, Array]:
        """Next states, rewards, and which episodes have ended."""
        raise NotImplementedError

    def behave(self, state: Array, rng: Rng) -> Array:
        """The logged behaviour, which sees the whole state."""
        raise NotImplementedError

    def observe(self, state: Array) -> Array:
        """The observations of states."""
        return state.astype(np.float32)

    def policies(self) -> dict[str, Act]:
        """Policies that were made without the log."""
        raise NotImplementedError

    def log(self, seed: int) -> dict[str, Array]:
        """Logged episodes, one after the other."""
        rng = np.random.default_rng([seed, 1])
        state, columns = self.start(self.episodes, rng), []
        running = np.ones(self.episodes, dtype=bool)
        for step in range(self.length):
            action = self.behave(state, rng)
            after, reward, ended = self.step(state, action, rng)
            cut = np.full(self.episodes, step == self.length - 1) & ~ended
            columns.append((self.observe(state), action, reward, self.observe(after), ended, cut, running))
            state, running = after, running & ~ended
        *fields, kept = (np.stack(column, axis=1) for column in zip(*columns, strict=True))
        found = {name: field[kept] for name, field in zip(FIELDS, fields, strict=True)}
        return {name: each.astype(np.float32) if each.dtype == np.float64 else each for name, each in found.items()}

    def truth(self, policy: Act, gamma: float) -> Truth:
        """The true value, by rollouts with the same random numbers for policy and behaviour."""
        own, logged = self._returns(policy, gamma), self._behavior_returns(gamma)
        difference = np.zeros_like(own) if self.is_null else own - logged
        return Truth(float(own.mean()), float(difference.mean()), float(difference.std() / np.sqrt(len(own))))

    def _behavior_returns(self, gamma: float) -> Array:
        known: dict[float, Array] = self.__dict__.setdefault("_known", {})
        if gamma not in known:
            known[gamma] = self._returns(None, gamma)
        return known[gamma]

    def steps(self, gamma: float) -> int:
        """Steps that count. Without a discount, a task that does not end lasts as long as its logged episodes."""
        if gamma >= 1:
            return 1000 if self.ends else self.length
        return 1 if gamma == 0 else min(int(np.ceil(np.log(REMAINDER) / np.log(gamma))), 2000)

    def _returns(self, policy: Act | None, gamma: float) -> Array:
        rng, own = np.random.default_rng(12345), np.random.default_rng(54321)
        state, running = self.start(ROLLOUTS, rng), np.ones(ROLLOUTS, dtype=bool)
        total = np.zeros(ROLLOUTS)
        for step in range(self.steps(gamma)):
            action = self.behave(state, own) if policy is None else self._acted(policy, state, own)
            state, reward, ended = self.step(state, action, rng)
            total += gamma**step * reward * running
            running &= ~ended
        return total

    def _acted(self, policy: Act, state: Array, rng: Rng) -> Array:
        found: Array = np.asarray(policy(self.observe(state)))
        if self.num_actions is None:
            clipped: Array = np.clip(found.reshape(len(state), -1), self.low, self.high)
            return clipped
        if found.ndim == 2 and found.shape[1] == self.num_actions:
            return drawn(found, rng)
        return found.reshape(len(state)).astype(np.int64)


def drawn(chances: Array, rng: Rng) -> Array:
    """One number per row, drawn with the chances in it."""
    found: Array = (rng.random((len(chances), 1)) < chances.cumsum(1)).argmax(1)
    return found


class Tanks(World):
    """Two tanks below each other: a valve fills the first, and the level of the second is to be near a set point."""

    name, length, episodes = "two tanks", 20, 120
    low, high = 0.0, 1.0

    @override
    def start(self, count: int, rng: Rng) -> Array:
        levels = rng.uniform(0.3, 1.5, (count, 2))
        return np.concatenate([levels, rng.uniform(0.6, 1.4, (count, 1))], axis=1)

    @override
    def step(self, state: Array, action: Array, rng: Rng) -> tuple[Array, Array, Array]:
        first, second, wished = state.T
        noise, down = 0.01 * rng.normal(size=(2, len(state))), 0.3 * np.sqrt(first)
        after = np.clip(first + 0.6 * action[:, 0] - down + noise[0], 0, 3)
        below = np.clip(second + down - 0.25 * np.sqrt(second) + noise[1], 0, 3)
        return np.stack([after, below, wished], 1), -np.abs(below - wished), np.zeros(len(state), dtype=bool)

    @override
    def behave(self, state: Array, rng: Rng) -> Array:
        return np.clip(self.cautious(state) + 0.2 * rng.normal(size=(len(state), 1)), 0, 1)

    def cautious(self, obs: Array) -> Array:
        """The operator's habit, without its noise."""
        found: Array = np.clip(0.35 + 0.4 * (obs[:, 2:] - obs[:, 1:2]), 0, 1)
        return found

    def tuned(self, obs: Array) -> Array:
        """A controller that knows the plant."""
        first, second, wished = obs[:, :1], obs[:, 1:2], obs[:, 2:]
        rest = 0.25 * np.sqrt(wished) / 0.6
        found: Array = np.clip(rest + 1.5 * (wished - second) + 0.7 * ((0.25 / 0.3) ** 2 * wished - first), 0, 1)
        return found

    @override
    def policies(self) -> dict[str, Act]:
        return {
            "tuned": self.tuned,
            "a third tuned": lambda obs: 2 / 3 * self.cautious(obs) + 1 / 3 * self.tuned(obs),
            "cautious": self.cautious,
            "a little more": lambda obs: np.clip(self.cautious(obs) + 0.1, 0, 1),
            "reversed": lambda obs: np.clip(0.35 - 0.4 * (obs[:, 2:] - obs[:, 1:2]), 0, 1),
        }


TANK_COLUMNS: dict[str, Any] = {
    "obs": ["level_1", "level_2", "wished"],
    "actions": ["valve"],
    "reward": "reward",
    "episode": "run",
    "missing": "forward_fill",
}


@dataclass(frozen=True)
class TankTable:
    """The log of the tanks as a table, with the mistakes that tables have."""

    dirty: bool = False
    late: float = 0.0
    """The share of rows whose action is that of the row before."""

    def write(self, world: Tanks, seed: int, path: Path) -> None:
        """Write the table."""
        rng, log = np.random.default_rng([seed, 2]), world.log(seed)
        rows = [list(row) for row in np.concatenate([log["observations"], log["actions"]], axis=1).tolist()]
        valves, count = log["actions"][:, 0].copy(), len(rows)
        late = (rng.random(count) < self.late) & (np.arange(count) % world.length > 0)
        valves[late] = np.roll(log["actions"][:, 0], 1)[late]
        names = ["run", "operator", *TANK_COLUMNS["obs"], "valve", "reward"]
        lines: list[list[Any]] = []
        for number, (row, valve, reward) in enumerate(zip(rows, valves.tolist(), log["rewards"].tolist(), strict=True)):
            cells: list[Any] = [number // world.length, "AB"[number // world.length % 2], *row[:3], valve, reward]
            if self.dirty:
                if rng.random() < 0.01 and number % world.length:
                    cells[2] = ""
                if rng.random() < 0.005:
                    cells[3] = -999
            lines += [cells] * (2 if self.dirty and rng.random() < 0.01 else 1)
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([names, *lines])


class Steering(World):
    """Keep a point near 0 by small steps; every reward has a large constant in it."""

    name, length, episodes = "steering with an offset", 29, 80
    offset = 10.0

    @override
    def start(self, count: int, rng: Rng) -> Array:
        return rng.uniform(-1, 1, (count, 1))

    @override
    def step(self, state: Array, action: Array, rng: Rng) -> tuple[Array, Array, Array]:
        reward = self.offset - state[:, 0] ** 2 + 0.05 * rng.normal(size=len(state))
        return np.clip(state + 0.1 * action, -1, 1), reward, np.zeros(len(state), dtype=bool)

    @override
    def behave(self, state: Array, rng: Rng) -> Array:
        return rng.uniform(-2, 2, (len(state), 1))

    @override
    def policies(self) -> dict[str, Act]:
        return {
            "towards": lambda obs: np.where(obs > 0, -2.0, 2.0),
            "slowly": lambda obs: -obs,
            "rest": np.zeros_like,
            "away": lambda obs: np.clip(10 * (np.where(obs > 0, 0.9, -0.9) - obs), -2, 2),
        }


class Drift(World):
    """A null world with continuous actions: what is observed drifts by itself, and rewards follow it."""

    name, length, is_null = "null, continuous", 6, True
    offset, scale = 0.0, 1.0

    @override
    def start(self, count: int, rng: Rng) -> Array:
        return rng.normal(size=(count, 2))

    @override
    def step(self, state: Array, action: Array, rng: Rng) -> tuple[Array, Array, Array]:
        after = 0.7 * state + 0.7 * rng.normal(size=state.shape)
        reward = self.offset + self.scale * (0.5 * state[:, 0] + rng.normal(size=len(state)))
        return after, reward, np.zeros(len(state), dtype=bool)

    @override
    def behave(self, state: Array, rng: Rng) -> Array:
        return np.clip(0.3 * state[:, :1] + 0.7 * rng.normal(size=(len(state), 1)), -2, 2)

    @override
    def policies(self) -> dict[str, Act]:
        return {
            "up": Constant(0.5),
            "habit": lambda obs: 0.3 * obs[:, :1],
            "against": lambda obs: -0.3 * obs[:, :1],
        }


class Offset(Drift):
    """The same with rewards that are nearly constant, and a mean return of 290."""

    name, length, offset, scale = "random rewards with an offset", 29, 10.0, 0.5


@dataclass(frozen=True)
class Constant:
    """A policy that always takes the same continuous action."""

    level: float

    def __call__(self, obs: Array) -> Array:
        """The actions."""
        return np.full((len(obs), 1), self.level, dtype=np.float32)


class Hidden(World):
    """A cause that is not logged drives actions and rewards. High actions go with high rewards, and lower them."""

    name, length, episodes = "hidden cause by step", 15, 100
    is_persistent = False

    @override
    def start(self, count: int, rng: Rng) -> Array:
        return rng.normal(size=(count, 2))

    @override
    def step(self, state: Array, action: Array, rng: Rng) -> tuple[Array, Array, Array]:
        seen, hidden = state.T
        noise = rng.normal(size=(3, len(state)))
        reward = 0.2 * seen + 2 * hidden - 0.5 * action[:, 0] + 0.1 * noise[0]
        after = np.stack([0.7 * seen + 0.7 * noise[1], hidden if self.is_persistent else noise[2]], 1)
        return after, reward, np.zeros(len(state), dtype=bool)

    @override
    def behave(self, state: Array, rng: Rng) -> Array:
        return np.clip(0.8 * state[:, 1:] + 0.3 * rng.normal(size=(len(state), 1)), -2, 2)

    @override
    def observe(self, state: Array) -> Array:
        return state[:, :1].astype(np.float32)

    @override
    def policies(self) -> dict[str, Act]:
        return {f"{level:+g}": Constant(level) for level in (-0.8, 0.0, 0.8)}


class Persistent(Hidden):
    """The same with one cause per episode."""

    name, is_persistent = "hidden cause by episode", True


class Linear(World):
    """A linear system with quadratic costs. Linear policies have exact values."""

    name, length, episodes = "linear-quadratic", 20, 100
    low, high = -15.0, 15.0
    noise = 0.1
    a, b = np.array([[1.0, 0.2], [0.0, 0.9]]), np.array([[0.0], [0.3]])
    q, r = np.diag([1.0, 0.1]), np.array([[0.1]])
    habit, spread = np.array([[0.8, 0.6]]), 0.4
    """The gain of the behaviour, and its noise."""

    @override
    def start(self, count: int, rng: Rng) -> Array:
        return rng.normal(size=(count, 2))

    @override
    def step(self, state: Array, action: Array, rng: Rng) -> tuple[Array, Array, Array]:
        cost = ((state @ self.q) * state).sum(1) + ((action @ self.r) * action).sum(1)
        after = state @ self.a.T + action @ self.b.T + self.noise * rng.normal(size=state.shape)
        return after, -cost, np.zeros(len(state), dtype=bool)

    @override
    def behave(self, state: Array, rng: Rng) -> Array:
        found: Array = -state @ self.habit.T + self.spread * rng.normal(size=(len(state), 1))
        return found

    def best_gain(self) -> Array:
        """The optimal gain, nearly without a discount."""
        costs = self.q
        for _ in range(500):
            gain = np.linalg.solve(self.r + self.b.T @ costs @ self.b, self.b.T @ costs @ self.a)
            costs = self.q + self.a.T @ costs @ (self.a - self.b @ gain)
        return gain

    @override
    def policies(self) -> dict[str, Act]:
        gains = {"optimal": self.best_gain(), "habit": self.habit, "weak": 0.4 * self.habit, "stiff": 2 * self.habit}
        return {name: Gain(gain) for name, gain in gains.items()}

    @override
    def truth(self, policy: Act, gamma: float) -> Truth:
        if not isinstance(policy, Gain) or gamma >= 1:
            return super().truth(policy, gamma)
        value = self.exact(policy.gain, 0.0, gamma)
        return Truth(value, value - self.exact(self.habit, self.spread, gamma))

    def exact(self, gain: Array, spread: float, gamma: float) -> float:
        """The value of a linear policy with noise, from starts with variance 1."""
        closed, cost = self.a - self.b @ gain, self.q + gain.T @ self.r @ gain
        flat = np.eye(4) - gamma * np.kron(closed.T, closed.T)
        costs = np.linalg.solve(flat, cost.ravel()).reshape(2, 2)
        shaken = self.noise**2 * np.eye(2) + spread**2 * self.b @ self.b.T
        paid = gamma * np.trace(costs @ shaken) + spread**2 * float(self.r[0, 0])
        return -float(np.trace(costs) + paid / (1 - gamma))


@dataclass(frozen=True)
class Gain:
    """A linear policy."""

    gain: Array

    def __call__(self, obs: Array) -> Array:
        """The actions."""
        found: Array = -obs @ self.gain.T
        return found


class OptimalLinear(Linear):
    """The linear system by its optimal policy. A second action does nothing, and is drawn at random."""

    name = "optimal behaviour, continuous"

    @cached_property
    def gain(self) -> Array:
        """The optimal gain."""
        return self.best_gain()

    @override
    def step(self, state: Array, action: Array, rng: Rng) -> tuple[Array, Array, Array]:
        return super().step(state, action[:, :1], rng)

    @override
    def behave(self, state: Array, rng: Rng) -> Array:
        return np.concatenate([-state @ self.gain.T, rng.normal(size=(len(state), 1))], axis=1)

    @override
    def policies(self) -> dict[str, Act]:
        return {
            "the same": lambda obs: np.concatenate([-obs @ self.gain.T, np.zeros((len(obs), 1))], axis=1),
            "weaker": lambda obs: np.concatenate([-0.8 * obs @ self.gain.T, np.zeros((len(obs), 1))], axis=1),
        }
