"""ICU-Sepsis: a table of 716 states, fitted to records of intensive care, in which every value can be computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from rl_training.ope.importance import Trajectories
from rl_training.ope.weights import WeightVerdict, check_weights, diagnose

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

RUNNING = 713
"""States from here on are ends; 714 is survival, which earns 1."""
SURVIVED = 714
STATES, ACTIONS = 716, 25


class OneHotStates(nn.Module):
    """An encoder of the numbers of states as one 1 among zeros: with a linear network behind it, a table."""

    def __init__(self, obs_dim: int) -> None:
        super().__init__()
        self.output_size = STATES

    def forward(self, obs: Tensor) -> Tensor:
        # Encoders are tried on numbers that are none of states.
        return functional.one_hot(obs[..., 0].long().clamp(0, STATES - 1), STATES).to(obs.dtype)


@dataclass
class Log:
    """Episodes one after the other."""

    states: Ints
    actions: Ints
    next_states: Ints
    rewards: Floats
    lengths: Ints


class Sepsis:
    """The task, its exact values, and logs of the clinicians."""

    def __init__(self, path: Path) -> None:
        with np.load(path) as arrays:
            self.transitions: Floats = arrays["tx_mat"][:RUNNING]
            self.starts: Floats = arrays["d_0"][:RUNNING]
            self.clinicians: Floats = arrays["expert_policy"][:RUNNING]
            self.centers: NDArray[np.float32] = arrays["state_cluster_centers"].astype(np.float32)
            assert np.unique(arrays["r_mat"][:RUNNING, :, SURVIVED]).tolist() == [1]
        # One increasing list for all state-action pairs: pair p covers (p, p + 1].
        chances = self.transitions.reshape(RUNNING * ACTIONS, -1).cumsum(axis=1)
        self.cumulative = (chances + np.arange(len(chances))[:, None]).ravel()

    def chain(self, scores: Floats) -> Floats:
        """Sums over actions of scores times transitions: (running states, all states)."""
        chain: Floats = np.einsum("sa,sat->st", scores, self.transitions, optimize=True)
        return chain

    def values(self, policy: Floats, gamma: float) -> Floats:
        chain = self.chain(policy)
        values: Floats = np.linalg.solve(np.eye(RUNNING) - gamma * chain[:, :RUNNING], chain[:, SURVIVED]).astype(float)
        return values

    def action_values(self, policy: Floats, gamma: float) -> Floats:
        v = self.values(policy, gamma)
        q: Floats = self.transitions[:, :, SURVIVED] + gamma * self.transitions[:, :, :RUNNING] @ v
        return q

    def value(self, policy: Floats, gamma: float) -> float:
        return float(self.starts @ self.values(policy, gamma))

    def tilted(self, eta: float) -> Floats:
        """The clinicians, leaning to what is good by their own values."""
        scores = self.clinicians * np.exp(eta * self.action_values(self.clinicians, 1.0))
        policy: Floats = scores / scores.sum(axis=1, keepdims=True)
        return policy

    def greedy(self) -> Floats:
        """The best by the clinicians' values, among what they ever do."""
        q = self.action_values(self.clinicians, 1.0)
        policy: Floats = np.eye(ACTIONS)[np.where(self.clinicians > 0, q, -1).argmax(axis=1)]
        return policy

    def variance(self, policy: Floats) -> tuple[float, float, float]:
        """Mean squared weight of an episode, variance of its weighted return, and the spectral radius behind both."""
        squares = np.divide(policy**2, self.clinicians, out=np.zeros_like(policy), where=self.clinicians > 0)
        chain = self.chain(squares)
        radius = float(np.abs(np.linalg.eigvals(chain[:, :RUNNING])).max())
        if radius >= 1:
            return np.inf, np.inf, radius
        solved = np.linalg.solve(np.eye(RUNNING) - chain[:, :RUNNING], chain[:, RUNNING:])
        ends = self.starts @ solved
        return float(ends.sum()), float(ends[SURVIVED - RUNNING] - self.value(policy, 1.0) ** 2), radius

    def sample(self, episodes: int, rng: np.random.Generator) -> Log:
        cumulated = self.clinicians.cumsum(axis=1)
        state = rng.choice(RUNNING, size=episodes, p=self.starts / self.starts.sum())
        number, steps = np.arange(episodes), []
        while len(state):
            action = (rng.uniform(size=(len(state), 1)) * cumulated[state, -1:] < cumulated[state]).argmax(axis=1)
            pair = state * ACTIONS + action
            draws = pair + rng.uniform(size=len(state)) * (1 - 1e-9)
            after = np.searchsorted(self.cumulative, draws, side="right") - pair * self.transitions.shape[2]
            steps.append(np.stack([number, state, action, after]))
            number, state = number[after < RUNNING], after[after < RUNNING]
        rows = np.concatenate(steps, axis=1)
        rows = rows[:, np.argsort(rows[0], kind="stable")]
        return Log(rows[1], rows[2], rows[3], (rows[3] == SURVIVED).astype(float), np.bincount(rows[0]))

    def weighted(self, log: Log, policy: Floats) -> Trajectories:
        with np.errstate(divide="ignore"):
            log_probs = np.log(policy[log.states, log.actions])
        return Trajectories.from_rows(
            log.rewards, log_probs, np.log(self.clinicians[log.states, log.actions]), log.lengths
        )

    def judge(self, log: Log, policy: Floats) -> WeightVerdict:
        never = np.where(self.clinicians > 0, 0.0, policy)[log.states].sum(axis=1)
        return check_weights(diagnose(self.weighted(log, policy).weights, unsupported=float(never.mean())))

    def arrays(self, log: Log) -> dict[str, Any]:
        """A log as a dataset. A state is observed as the 47 numbers of the centre of its cluster of patients."""
        ends = np.zeros(len(log.states), dtype=bool)
        ends[np.cumsum(log.lengths) - 1] = True
        return {
            "observations": self.centers[log.states],
            "actions": log.actions,
            "rewards": log.rewards,
            "next_observations": self.centers[log.next_states],
            "terminals": ends,
            "propensities": self.clinicians[log.states, log.actions],
        }

    def function(self, policy: Floats) -> Callable[[NDArray[np.float32]], Floats]:
        """A policy as a function from observations to the probabilities of actions; anything where all is over."""
        numbers = {center.tobytes(): state for state, center in enumerate(self.centers[:RUNNING])}
        answers = np.concatenate([policy, np.full((1, ACTIONS), 1 / ACTIONS)])

        def act(obs: NDArray[np.float32]) -> Floats:
            found: Floats = answers[[numbers.get(row.tobytes(), RUNNING) for row in np.ascontiguousarray(obs)]]
            return found

        return act
