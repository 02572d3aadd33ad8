"""How long a step of a log takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rl_training.data.offline_dataset import TransitionDataset

MOST_EPISODES = 1000
MOST_STEPS = 1000
"""Episodes, and steps of each, that are looked at: data may be larger than memory."""


@dataclass(frozen=True)
class StepTimes:
    """Times between neighbouring rows of an episode, in the unit of the timestamps, which nothing says."""

    median: float
    low: float
    """5 % of the steps are shorter."""
    high: float
    """5 % of the steps are longer."""


def step_times(dataset: TransitionDataset) -> StepTimes | None:
    """How long steps take by the timestamps of a log; None where it has none, or no two rows of one episode."""
    if "timestamps" not in dataset.fields or not dataset.has_episodes:
        return None
    times, bounds = dataset.fields["timestamps"], dataset.episode_bounds().tolist()
    some = np.unique(np.linspace(0, len(bounds) - 1, MOST_EPISODES).round().astype(int))
    parts = [times[start : min(stop, start + MOST_STEPS + 1)] for start, stop in (bounds[place] for place in some)]
    steps = np.concatenate([np.diff(part.double().numpy(force=True)) for part in parts])
    if not len(steps) or not np.isfinite(steps).all():
        return None
    low, median, high = np.quantile(steps, [0.05, 0.5, 0.95])
    return StepTimes(float(median), float(low), float(high))
