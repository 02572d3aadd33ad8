"""Checks of rewards: constant ones, outliers, and ones that observations give away."""

from __future__ import annotations

import numpy as np

from rl_training.core.text import plural
from rl_training.data.audit.view import Finding, Floats, View, check, found, passed, unchecked

BEYOND = 10.0
"""How many times the usual range an outlier lies outside it."""
LEAK = 0.999
"""Correlation with one observation column from which it gives the reward away."""


@check(
    "constant reward",
    why="only how long episodes last can then say which action is better, and only if some terminate",
    advice="check the column; behaviour cloning (bc) needs no rewards",
    needs="rewards",
)
def constant_reward(view: View) -> Finding:
    """Rewards that never change."""
    rewards = view.rewards
    if rewards.min() < rewards.max():
        return passed(f"rewards lie in [{rewards.min():.4g}, {rewards.max():.4g}]")
    return found(f"every reward is {rewards[0]:g}")


@check(
    "reward outliers",
    why="squared errors of values are dominated by such rows",
    advice="check whether they are sensor faults; if they are meant, clip rewards (reward_clip_min, reward_clip_max)",
)
def reward_outliers(view: View) -> Finding:
    """Rewards far outside the range of nearly all others."""
    ordered = np.sort(view.rewards.astype(np.float64))
    some = max(1, len(ordered) // 1000)
    if len(ordered) < 10 * some + 10:
        return unchecked("there are too few rows to tell")
    low, high = ordered[some], ordered[-1 - some]
    # Rewards that are nearly always the same are sparse, and the others are what they are about.
    if low == high:
        return passed(f"nearly every reward is {low:g}")
    margin = BEYOND * (high - low)
    rows = np.flatnonzero((view.rewards < low - margin) | (view.rewards > high + margin))
    if not len(rows):
        return passed(f"no reward is far outside [{low:.4g}, {high:.4g}]")
    first = view.rewards[rows[0]]
    return found(f"{plural(len(rows), 'reward')} far outside [{low:.4g}, {high:.4g}], the first is {first:.4g}", rows)


@check(
    "reward in observations",
    why="the policy sees its reward before it acts, which it will not when it is used",
    advice="leave the column out, unless the reward really is a measurement made before the action",
)
def reward_leak(view: View) -> Finding:
    """An observation column that contains the reward before the action is chosen."""
    obs, rewards = view.obs[view.sample].astype(np.float64), view.rewards[view.sample].astype(np.float64)
    if rewards.std() == 0 or len(rewards) < 20:
        return unchecked("rewards do not vary enough to tell")
    correlation = _correlation(obs, rewards)
    column = int(np.abs(correlation).argmax())
    if abs(correlation[column]) < LEAK:
        return passed(f"no observation column gives the reward away (largest correlation {correlation[column]:.3f})")
    return found(
        f"observation column {view.obs_names[column]} says what the reward will be"
        f" (correlation {correlation[column]:.4f})"
    )


def _correlation(matrix: Floats, vector: Floats) -> Floats:
    """Correlation of each column with a vector; 0 for constant columns."""
    matrix, vector = matrix - matrix.mean(axis=0), vector - vector.mean()
    scale = np.linalg.norm(matrix, axis=0) * np.linalg.norm(vector)
    return np.where(scale > 0, vector @ matrix / np.where(scale > 0, scale, 1), 0.0)
