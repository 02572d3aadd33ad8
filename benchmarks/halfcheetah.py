"""Data of HalfCheetah's sizes, and updates on it as the training loop makes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rl_training.algorithms import Algorithm
from rl_training.core.spaces import BoxActions, DiscreteActions, SpaceSpec
from rl_training.data import TransitionDataset, source_for
from rl_training.storage import MetricWindow

OBS_DIM, ACTION_DIM, ROWS, EPISODE = 17, 6, 100_000, 1000
SPACES = SpaceSpec.vector(OBS_DIM, BoxActions((-1.0,) * ACTION_DIM, (1.0,) * ACTION_DIM))
DISCRETE = SpaceSpec.vector(OBS_DIM, DiscreteActions(ACTION_DIM))


def make_arrays(*, discrete: bool = False) -> dict[str, Any]:
    """Random transitions in D4RL's names; with discrete actions, as many as an action has numbers."""
    rng = np.random.default_rng(0)
    shape = (ROWS, ACTION_DIM)
    obs = rng.normal(size=(ROWS + 1, OBS_DIM)).astype(np.float32)
    return {
        "observations": obs[:-1],
        "next_observations": obs[1:],
        "actions": rng.integers(ACTION_DIM, size=ROWS)
        if discrete
        else rng.uniform(-1, 1, size=shape).astype(np.float32),
        "rewards": rng.normal(size=ROWS).astype(np.float32),
        "terminals": np.zeros(ROWS, dtype=bool),
        "timeouts": np.arange(1, ROWS + 1) % EPISODE == 0,
    }


def updates(algorithm: Algorithm, dataset: TransitionDataset, batch: int) -> Callable[[], None]:
    """One update on a fresh batch, with its metrics, as the training loop makes it."""
    window = MetricWindow()
    if "returns_to_go" in algorithm.needs:
        dataset = dataset.with_returns_to_go(algorithm.hyper.gamma)
    source, _ = source_for(algorithm, dataset)

    def update() -> None:
        window.add(algorithm.update(source.sample(batch)).metrics)

    return update
