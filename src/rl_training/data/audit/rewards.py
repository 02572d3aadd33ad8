"""Checks of rewards: constant ones, outliers, ones that belong to another row, ones that observations give away."""

from __future__ import annotations

import numpy as np

from rl_training.data.audit.finding import Finding, Floats, Indices, View, found, passed, plural

BEYOND = 10.0
"""How many times the usual range an outlier lies outside it."""
LEAK = 0.999
"""Correlation with one observation column from which it gives the reward away."""
LEAST_ROWS = 200
RIDGE = 1e-3
MOST_FEATURES = 300
SMALL_REST = 1e-4
"""Share of the variance below which what is not explained is rounding."""


def constant_reward(view: View) -> Finding:
    """Rewards that never change."""
    name = "constant reward"
    rewards = view.rewards
    if not view.dataset.has_rewards:
        return passed(name, "there are no rewards")
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
        return passed(name, "there are too few rows to tell")
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
        return passed(name, "rewards do not vary enough to tell")
    correlation = _correlation(obs, rewards)
    column = int(np.abs(correlation).argmax())
    if abs(correlation[column]) < LEAK:
        return passed(
            name, f"no observation column gives the reward away (largest correlation {correlation[column]:.2f})"
        )
    return found(
        name,
        "warn",
        f"observation column {column} says what the reward will be (correlation {correlation[column]:.4f})",
        "the policy sees its reward before it acts, which it will not when it is used",
        "leave the column out, unless the reward really is a measurement made before the action",
    )


def _correlation(matrix: Floats, vector: Floats) -> Floats:
    """Correlation of each column with a vector; 0 for constant columns."""
    matrix, vector = matrix - matrix.mean(axis=0), vector - vector.mean()
    scale = np.linalg.norm(matrix, axis=0) * np.linalg.norm(vector)
    return np.where(scale > 0, vector @ matrix / np.where(scale > 0, scale, 1), 0.0)


def late_rewards(view: View) -> Finding:
    """Rewards that the row before or after explains better than their own."""
    name = "reward timing"
    rows = _middle(view)
    if len(rows) < LEAST_ROWS or view.rewards[rows].std() == 0:
        return passed(name, "there are too few rows inside episodes to tell")
    rewards = view.rewards[rows].astype(np.float64)
    left = {shift: _unexplained(view, rows + shift, rewards) for shift in (-1, 0, 1)}
    best = min(left, key=left.__getitem__)
    # Observations that change slowly explain rewards of other rows nearly as well, so a small rest counts by its ratio.
    much_less = left[best] < 0.25 * left[0] and left[0] > SMALL_REST
    is_clear = left[best] < 0.5 and (much_less or left[best] < min(0.5 * left[0], left[0] - 0.02))
    if best == 0 or not is_clear:
        return passed(name, "rewards fit their own rows at least as well as the rows around them")
    which, advice = ("before", "late") if best < 0 else ("after", "early")
    return found(
        name,
        "warn",
        f"rewards fit the row {which} better than their own: {left[best]:.2%} of their variance is not explained "
        f"there, {left[0]:.2%} at their own row",
        "an action would be rewarded for what another one did",
        f"rewards seem to be logged one step {advice}: move them by one row inside each episode",
        rows=rows,
    )


def _middle(view: View) -> Indices:
    """Sampled rows that have a row before and a row after them in their episode."""
    if not view.dataset.has_episodes:
        return np.array([], dtype=np.int64)
    some = view.sample[(view.sample > 0) & (view.sample < view.rows - 1)]
    return some[~view.ends[some - 1] & ~view.ends[some]]


def _unexplained(view: View, rows: Indices, rewards: Floats) -> float:
    """The share of the variance of rewards that a fit on rows leaves open, on the half that it has not seen."""
    features = _features(view, rows)
    half = len(rows) // 2
    parts = (np.arange(half), np.arange(half, len(rows)))
    shares = []
    for seen, new in (parts, parts[::-1]):
        mean = rewards[seen].mean()
        gram = features[seen].T @ features[seen] + RIDGE * len(seen) * np.eye(features.shape[1])
        weights = np.linalg.solve(gram, features[seen].T @ (rewards[seen] - mean))
        error = rewards[new] - mean - features[new] @ weights
        shares.append(float((error**2).mean() / max(rewards[new].var(), 1e-12)))
    return float(np.mean(shares))


def _features(view: View, rows: Indices) -> Floats:
    """Observation, action and next observation of rows, standardised, with their squares."""
    actions = view.actions[rows]
    if view.dataset.is_discrete:
        actions = (actions == np.arange(min(int(view.actions.max()) + 1, 32))).astype(np.float32)
    plain = np.concatenate([view.obs[rows], actions, view.next_obs[rows]], axis=1).astype(np.float64)
    deviation = plain.std(axis=0)
    plain = (plain - plain.mean(axis=0))[:, deviation > 0] / deviation[deviation > 0]
    plain = np.clip(plain[:, :MOST_FEATURES], -5, 5)
    return np.concatenate([np.ones((len(rows), 1)), plain, plain**2 - 1], axis=1)
