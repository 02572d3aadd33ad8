"""Keys of logged episodes, which tell whether a policy was trained on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.offline_dataset import TransitionDataset

PROBES = (*range(8), *(2**power - 1 for power in range(4, 31)))
"""Steps of each episode whose observations make its key, as far as it has them."""
MOST_KEYS = 2**16
"""Keys that a policy remembers: of more episodes, those with the smallest keys, a random part of them."""
DISTINCT = 0.95
"""The share of distinct keys below which episodes repeat so often that equal ones may be different ones."""

Keys = NDArray[np.uint64]


def hash_rows(columns: Sequence[NDArray[Any]]) -> Keys:
    """One number for each row; different rows have different numbers, but for rare chance."""
    generator = np.random.default_rng(0)
    total = np.zeros(len(columns[0]), dtype=np.uint64)
    for column in columns:
        matrix = np.ascontiguousarray(column, dtype=np.float32).reshape(len(column), -1)
        # -0 and 0 are the same number.
        bits = (matrix + np.float32(0)).view(np.uint32)
        for number in range(bits.shape[1]):
            weight = generator.integers(1, 2**63, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
            total += bits[:, number].astype(np.uint64) * weight
            total ^= total >> np.uint64(29)
    return total


def episode_keys(dataset: TransitionDataset) -> Keys:
    """One number for each episode, by some of its observations.

    Whatever file or table an episode comes from, its key is the same. Rewards and actions have no part in it, since
    options may change them, nor has the last row, which tables lack.
    """
    bounds = dataset.episode_bounds().numpy(force=True)
    lengths = np.maximum(bounds[:, 1] - bounds[:, 0] - 1, 1)
    keys = np.zeros(len(bounds), dtype=np.uint64)
    for step in (each for each in PROBES if each < lengths.max()):
        has_step = lengths > step
        found = hash_rows([dataset.obs[bounds[has_step, 0] + step].numpy(force=True)])
        keys[has_step] = keys[has_step] * np.uint64(0x9E3779B97F4A7C15) + found
    return keys


def remembered(keys: Keys, held_out: Keys) -> Keys:
    """The keys that a policy remembers of the episodes that trained it: all but the held-out ones, sorted."""
    values, counts = np.unique(keys, return_counts=True)
    np.subtract.at(counts, np.searchsorted(values, held_out), 1)
    return values[counts > 0][:MOST_KEYS]


def unseen_episodes(keys: Keys, trained_on: Sequence[Keys]) -> NDArray[np.bool_] | None:
    """Which episodes trained none of some policies, by the keys that the policies remember.

    None if some of them seem to have trained one, but equal episodes are so frequent that this may be chance.
    """
    seen, would_be_known = np.zeros(len(keys), dtype=bool), np.ones(len(keys), dtype=bool)
    for known in trained_on:
        seen |= np.isin(keys, known)
        if len(known) == MOST_KEYS:
            would_be_known &= keys <= known[-1]
    if not seen.any():
        return ~seen
    return None if len(np.unique(keys)) < DISTINCT * len(keys) else would_be_known & ~seen
