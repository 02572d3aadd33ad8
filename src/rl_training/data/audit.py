"""Remarks on data that looks wrong."""

from __future__ import annotations

import numpy as np

from rl_training.data.offline_dataset import TransitionDataset


def audit(dataset: TransitionDataset) -> list[str]:
    """Remarks on data that looks wrong."""
    remarks = []
    if not dataset.has_episodes:
        remarks.append("no row continues the one before it: the rows seem shuffled, so episodes are not known")
    else:
        remarks += _time_limits(dataset)
    rewards = dataset.rewards.numpy(force=True)
    if rewards.min() == rewards.max():
        remarks.append(f"every reward is {rewards[0]:g}")
    return remarks


def _time_limits(dataset: TransitionDataset) -> list[str]:
    """Terminations that all come after the same number of steps."""
    bounds = dataset.episode_bounds()
    # The last episode may be cut short by the end of the recording, so it says nothing about a time limit.
    lengths = (bounds[:-1, 1] - bounds[:-1, 0]).tolist()
    dones = np.count_nonzero(dataset.dones.numpy(force=True))
    if len(bounds) <= 3 or len(set(lengths)) != 1 or lengths[0] == 1 or dones < len(bounds) - 1:
        return []
    return [
        f"every episode ends with dones after exactly {lengths[0]} steps, which looks like a time limit recorded as "
        "termination; name such ends 'timeouts' or 'truncations', or the values learned will be too small"
    ]
