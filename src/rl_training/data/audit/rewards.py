"""Checks of rewards: constant ones, outliers, and ones that observations give away."""

from __future__ import annotations

import numpy as np

from rl_training.data.audit.finding import Finding, Floats, View, found, passed, plural, unchecked

BEYOND = 10.0
"""How many times the usual range an outlier lies outside it."""
LEAK = 0.999
"""Correlation with one observation column from which it gives the reward away."""


def constant_reward(view: View) -> Finding:
    """Rewards that never change."""
    name = "constant reward"
    rewards = view.rewards
    if not view.dataset.has_rewards:
        return unchecked(name, "there are no rewards")
    if rewards.min() < rewards.max():
        return passed(name, f"rewards lie in [{rewards.min():.4g}, {rewards.max():.4g}]")
    return found(
        name,
        "warn",
        f"every reward is {rewards[0]:g}",
        "only how long episodes last can then say which action is better, and only if some terminate",
        "check the column; behaviour cloning (bc) needs no rewards",
    )


def reward_outliers(view: View) -> Finding:
    """Rewards far outside the range of nearly all others."""
    name = "reward outliers"
    ordered = np.sort(view.rewards.astype(np.float64))
    some = max(1, len(ordered) // 1000)
    if len(ordered) < 10 * some + 10:
        return unchecked(name, "there are too few rows to tell")
    low, high = ordered[some], ordered[-1 - some]
    # Rewards that are nearly always the same are sparse, and the others are what they are about.
    if low == high:
        return passed(name, f"nearly every reward is {low:g}")
    margin = BEYOND * (high - low)
    rows = np.flatnonzero((view.rewards < low - margin) | (view.rewards > high + margin))
    if not len(rows):
        return passed(name, f"no reward is far outside [{low:.4g}, {high:.4g}]")
    first = view.rewards[rows[0]]
    return found(
        name,
        "warn",
        f"{plural(len(rows), 'reward')} far outside [{low:.4g}, {high:.4g}], the first is {first:.4g}",
        "squared errors of values are dominated by such rows",
        "check whether they are sensor faults; if they are meant, clip rewards (reward_clip_min, reward_clip_max)",
        rows=rows,
    )


def reward_leak(view: View) -> Finding:
    """An observation column that contains the reward before the action is chosen."""
    name = "reward in observations"
    obs, rewards = view.obs[view.sample].astype(np.float64), view.rewards[view.sample].astype(np.float64)
    if rewards.std() == 0 or len(rewards) < 20:
        return unchecked(name, "rewards do not vary enough to tell")
    correlation = _correlation(obs, rewards)
    column = int(np.abs(correlation).argmax())
    if abs(correlation[column]) < LEAK:
        return passed(
            name, f"no observation column gives the reward away (largest correlation {correlation[column]:.3f})"
        )
    return found(
        name,
        "warn",
        f"observation column {view.obs_names[column]} says what the reward will be"
        f" (correlation {correlation[column]:.4f})",
        "the policy sees its reward before it acts, which it will not when it is used",
        "leave the column out, unless the reward really is a measurement made before the action",
    )


def _correlation(matrix: Floats, vector: Floats) -> Floats:
    """Correlation of each column with a vector; 0 for constant columns."""
    matrix, vector = matrix - matrix.mean(axis=0), vector - vector.mean()
    scale = np.linalg.norm(matrix, axis=0) * np.linalg.norm(vector)
    return np.where(scale > 0, vector @ matrix / np.where(scale > 0, scale, 1), 0.0)
