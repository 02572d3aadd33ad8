"""Is the variance of importance weights infinite? Where states repeat, a log can tell before rare episodes come.

The mean squared weight of episodes grows by the matrix

    M[s, s'] = sum_a pi(a | s)^2 / b(a | s) * P(s' | s, a)

from step to step. If its spectral radius is 1 or more and episodes have no fixed length, the variance is infinite. It
can be so through a chain of states of which no logged episode has seen enough to show it in its weight.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rl_training.experiment.episode_estimates import Floats

Numbers = NDArray[np.int64]
POOLED = 10.0
"""As many rows of the state count for where a pair leads as the pair was logged itself: few rows cannot tell."""
ROUNDS = 200
LAST = 50
"""Rounds over which growth is averaged, since it may alternate."""


def number_states(obs: NDArray[np.float32], next_obs: NDArray[np.float32]) -> tuple[Numbers, Numbers]:
    """Equal observations get equal numbers; -1 for next observations from which nothing was logged."""
    distinct, numbers = np.unique(np.concatenate([obs, next_obs]), axis=0, return_inverse=True)
    states, after = numbers.reshape(-1)[: len(obs)], numbers.reshape(-1)[len(obs) :]
    is_logged = np.zeros(len(distinct), dtype=bool)
    is_logged[states] = True
    order = np.cumsum(is_logged) - 1
    return order[states], np.where(is_logged[after], order[after], -1)


def second_moment_radius(
    states: Numbers, actions: Numbers, next_states: Numbers, probabilities: Floats, behavior: Floats
) -> float:
    """The spectral radius of M, by logged rows; `next_states` are -1 where the episode has ended.

    `probabilities` and `behavior` are those of the logged actions. Actions that were never logged are left out, so that
    the radius is rather too small.
    """
    width = int(actions.max()) + 1
    found, pair = np.unique(states * width + actions, return_inverse=True)
    pair = pair.reshape(-1)
    owner, rows = found // width, np.bincount(pair)
    with np.errstate(divide="ignore", invalid="ignore"):
        squares = np.where(probabilities > 0, probabilities**2 / behavior, 0.0)
    squares = np.bincount(pair, squares) / rows
    per_state = np.bincount(states)
    vector: Floats = np.ones(len(per_state))
    growths: list[float] = []
    for _ in range(ROUNDS):
        reached = np.where(next_states >= 0, vector[next_states], 0.0)
        own, pooled = np.bincount(pair, reached), np.bincount(states, reached) / per_state
        means = (own + POOLED * pooled[owner]) / (rows + POOLED)
        vector = np.bincount(owner, squares * means).astype(np.float64)
        growth = float(vector.max())
        if not 0 < growth < np.inf:
            return growth
        vector, growths = vector / growth, [*growths, growth]
    return float(np.exp(np.log(growths[-LAST:]).mean()))
