"""Worlds of `claims.py` with discrete actions: random processes with exact values, single decisions, ICU-Sepsis."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from claims_worlds import Act, Array, Rng, Truth, World, drawn
from typing_extensions import override


class Tabular(World):
    """A random process with discrete actions: every value is exact. A state is observed as one 1 among zeros."""

    name, length, episodes, num_actions = "random MDP", 12, 120, 3
    size, stops, spread = 8, 0.04, 0.3
    """States, the chance that an episode ends at a step, and the noise of rewards."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng([seed, 3])
        self.build(rng)
        self.starts = rng.dirichlet(np.ones(self.size))

    def build(self, rng: Rng) -> None:
        """Draw what actions do, and the behaviour."""
        count = self.actions
        self.moves = rng.dirichlet(np.full(self.size, 0.3), size=(self.size, count))
        self.rewards = rng.normal(size=(self.size, count))
        self.habit = rng.dirichlet(np.full(count, 2.0), size=self.size)

    @property
    def actions(self) -> int:
        """The number of actions."""
        assert self.num_actions is not None
        return self.num_actions

    @override
    def start(self, count: int, rng: Rng) -> Array:
        return rng.choice(self.size, size=count, p=self.starts)

    @override
    def step(self, state: Array, action: Array, rng: Rng) -> tuple[Array, Array, Array]:
        reward = self.rewards[state, action] + self.spread * rng.normal(size=len(state))
        return drawn(self.moves[state, action], rng), reward, rng.random(len(state)) < self.stops

    @override
    def behave(self, state: Array, rng: Rng) -> Array:
        return drawn(self.habit[state], rng)

    @override
    def observe(self, state: Array) -> Array:
        return np.eye(self.size, dtype=np.float32)[state]

    @override
    def log(self, seed: int) -> dict[str, Array]:
        found = super().log(seed)
        chances = self.habit[found["observations"].argmax(1), found["actions"]]
        return {**found, "propensities": chances}

    @override
    def policies(self) -> dict[str, Act]:
        eye, best = np.eye(self.actions), self.optimal()
        tables = {
            "optimal": best,
            "half optimal": 0.5 * best + 0.5 * self.habit,
            "uniform": np.full_like(self.habit, 1 / self.actions),
            "likeliest": eye[self.habit.argmax(1)],
            "rarest": 0.7 * eye[self.habit.argmin(1)] + 0.3 * self.habit,
        }
        return {name: Table(table) for name, table in tables.items()}

    def optimal(self) -> Array:
        """The greedy policy of the optimal values at a discount of 0.95."""
        values = np.zeros(self.size)
        for _ in range(1000):
            scores = self.rewards + 0.95 * (1 - self.stops) * self.moves @ values
            values = scores.max(1)
        found: Array = np.eye(self.actions)[scores.argmax(1)]
        return found

    @override
    def truth(self, policy: Act, gamma: float) -> Truth:
        found = np.asarray(policy(np.eye(self.size, dtype=np.float32)))
        table = found if found.ndim == 2 else np.eye(self.actions)[found.reshape(-1).astype(int)]
        value = self.exact(table, gamma)
        return Truth(value, 0.0 if self.is_null else value - self.exact(self.habit, gamma))

    def exact(self, table: Array, gamma: float) -> float:
        """The value of a table of probabilities."""
        chain = gamma * (1 - self.stops) * np.einsum("sa,sat->st", table, self.moves)
        rewards = (table * self.rewards).sum(1)
        if gamma < 1 or self.stops:
            return float(self.starts @ np.linalg.solve(np.eye(self.size) - chain, rewards))
        values = np.zeros(self.size)
        for _ in range(self.length):
            values = rewards + chain @ values
        return float(self.starts @ values)


@dataclass(frozen=True)
class Table:
    """A policy that is a table of probabilities, of observations that are one 1 among zeros."""

    table: Array

    def __call__(self, obs: Array) -> Array:
        """The probabilities."""
        found: Array = self.table[obs.argmax(1)]
        return found


class NullTabular(Tabular):
    """A null world with discrete actions: neither moves nor rewards depend on them."""

    name, length, episodes, is_null = "null, tabular", 6, 60, True
    size, stops, spread = 12, 0.0, 1.0

    @override
    def build(self, rng: Rng) -> None:
        super().build(rng)
        self.moves = np.repeat(self.moves[:, :1], self.actions, axis=1)
        self.rewards = np.repeat(self.rewards[:, :1], self.actions, axis=1)
        self.habit = np.full_like(self.habit, 1 / self.actions)


class OptimalTabular(Tabular):
    """A random MDP by its optimal policy. Every action is there twice, and which of the two is taken is chance."""

    name, num_actions = "optimal behaviour, discrete", 6

    @override
    def build(self, rng: Rng) -> None:
        super().build(rng)
        half = self.actions // 2
        self.moves = np.tile(self.moves[:, :half], (1, 2, 1))
        self.rewards = np.tile(self.rewards[:, :half], (1, 2))
        best = np.eye(half)[self.optimal()[:, :half].argmax(1)]
        self.habit = np.tile(best, (1, 2)) / 2

    @override
    def policies(self) -> dict[str, Act]:
        half = self.actions // 2
        first = np.concatenate([2 * self.habit[:, :half], np.zeros((self.size, half))], axis=1)
        return {
            "the first of both": Table(first),
            "the second of both": Table(np.roll(first, half, axis=1)),
            "a tenth at random": Table(0.9 * self.habit + 0.1 / self.actions),
        }


class Bandit(World):
    """A null world of single decisions, as a table: what was shown changes nothing about what was bought."""

    name, length, episodes, is_null, num_actions, ends = "null, single decisions", 1, 300, True, 4, True

    @override
    def start(self, count: int, rng: Rng) -> Array:
        return rng.normal(size=(count, 3))

    @override
    def step(self, state: Array, action: Array, rng: Rng) -> tuple[Array, Array, Array]:
        reward = 0.5 * state[:, 0] + rng.normal(size=len(state))
        return state, reward, np.ones(len(state), dtype=bool)

    @override
    def behave(self, state: Array, rng: Rng) -> Array:
        return rng.integers(4, size=len(state))

    @override
    def policies(self) -> dict[str, Act]:
        return {
            "always 2": lambda obs: np.full(len(obs), 2),
            "by sign": lambda obs: (obs[:, 0] > 0).astype(int),
            "uniform": lambda obs: np.full((len(obs), 4), 0.25),
        }

    def write(self, seed: int, path: Path) -> None:
        """Write the log as a table."""
        log = self.log(seed)
        columns = [*log["observations"].T.tolist(), log["actions"].tolist(), log["rewards"].tolist()]
        with path.open("w", newline="", encoding="utf-8") as file:
            rows = zip(*columns, strict=True)
            csv.writer(file).writerows([["x_1", "x_2", "x_3", "shown", "bought"], *rows])


BANDIT_COLUMNS: dict[str, Any] = {"obs": ["x_*"], "actions": ["shown"], "reward": "bought", "episodes": "each_row"}


class IntensiveCare(World):
    """ICU-Sepsis: a fitted model of intensive care, exact, with a discount of 1 and a reward for survival."""

    name, episodes, num_actions, ends = "ICU-Sepsis", 400, 25, True

    @staticmethod
    def data() -> Path:
        """The file of the model; it is not part of the project."""
        folder = os.environ.get("RL_TRAINING_DATA", str(Path(__file__).parents[2] / "shared" / "data"))
        return Path(folder) / "icu_sepsis" / "dynamics.npz"

    def __init__(self) -> None:
        # The task is that of the tests.
        sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
        from sepsis import Sepsis

        self.task = Sepsis(self.data())
        self.tables = {
            "clinicians": self.task.clinicians,
            **{f"tilt {eta}": self.task.tilted(eta) for eta in (5, 20, 50)},
            "greedy": self.task.greedy(),
        }

    @override
    def log(self, seed: int) -> dict[str, Array]:
        return self.task.arrays(self.task.sample(self.episodes, np.random.default_rng([seed, 1])))

    @override
    def policies(self) -> dict[str, Act]:
        return {name: self.task.function(table) for name, table in self.tables.items()}

    @override
    def truth(self, policy: Act, gamma: float) -> Truth:
        found = np.asarray(policy(self.task.centers[: len(self.task.starts)]))
        table = found if found.ndim == 2 else np.eye(25)[found.reshape(-1).astype(int)]
        value = self.task.value(table, gamma)
        return Truth(value, value - self.task.value(self.task.clinicians, gamma))


def greedy_by_counts(log: Mapping[str, Array], actions: int) -> Act:
    """In every state, or region of observations, the action with the highest mean logged return from there on."""
    episode = np.r_[0, np.cumsum((log["terminals"] | log["timeouts"])[:-1])]
    togo = np.zeros(len(episode))
    for row in reversed(range(len(episode))):
        follows = row + 1 < len(episode) and episode[row + 1] == episode[row]
        togo[row] = log["rewards"][row] + (togo[row + 1] if follows else 0.0)
    places = place_of(log["observations"])
    total = np.zeros((int(places.max()) + 1, actions))
    counts = np.zeros_like(total)
    np.add.at(total, (places, log["actions"]), togo)
    np.add.at(counts, (places, log["actions"]), 1)
    best = np.where(counts > 0, total / np.maximum(counts, 1), -np.inf).argmax(1)
    return lambda obs: best[np.minimum(place_of(obs), len(best) - 1)]


def place_of(obs: Array) -> Array:
    """The number of the state that a 1 among zeros stands for, else of the region by the signs of all columns."""
    if set(np.unique(obs)) <= {0.0, 1.0} and bool((obs.sum(1) == 1).all()):
        return np.asarray(obs.argmax(1))
    return np.asarray((obs > 0) @ (1 << np.arange(obs.shape[1])))
