"""A log without a mistake, from which tests of the audit make logs with one."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.core.spaces import BoxActions
from rl_training.data import TransitionDataset
from rl_training.data.audit import CHECKS, AuditFinding, View, check_data

EPISODES, LENGTH = 30, 40
ROWS = EPISODES * LENGTH
BOUNDS = BoxActions((-1.0, -1.0), (1.0, 1.0))
Arrays = dict[str, NDArray[Any]]


def good_log(seed: int = 0, *, episodes: int = EPISODES, length: int = LENGTH) -> Arrays:
    """Three slow quantities that two actions push, episodes cut by time, and a clock."""
    rng = np.random.default_rng(seed)
    effect = np.array([[0.3, 0.0, 0.1], [0.0, 0.3, -0.1]])
    obs, next_obs, actions = [], [], []
    for _ in range(episodes):
        state = rng.normal(size=3)
        for _ in range(length):
            action = np.clip(0.4 * rng.normal(size=2) - 0.2 * state[:2], -0.999, 0.999)
            after = 0.95 * state + action @ effect + 0.01 * rng.normal(size=3)
            obs.append(state)
            actions.append(action)
            next_obs.append(after)
            state = after
    arrays: Arrays = {name: np.array(rows, np.float32) for name, rows in (("obs", obs), ("next_obs", next_obs))}
    arrays["actions"] = np.array(actions, np.float32)
    # What an action costs is seen in its own row only.
    arrays["rewards"] = (arrays["next_obs"][:, 0] - 3 * arrays["actions"][:, 1]).astype(np.float32)
    arrays["dones"] = np.zeros(episodes * length, dtype=bool)
    arrays["truncations"] = np.arange(1, episodes * length + 1) % length == 0
    arrays["timestamps"] = 1.7e9 + 0.5 * np.arange(episodes * length)
    return arrays


def findings(arrays: Arrays, **about: Any) -> dict[str, AuditFinding]:
    """What the audit says about arrays, by check."""
    view = View(TransitionDataset.from_dict(arrays), about.pop("bounds", BOUNDS), **about)
    return {finding.check: finding for finding in check_data(view, CHECKS)}
