"""The check that rewards belong to their rows, by fitting them on their own row and on the rows around it."""

from __future__ import annotations

import numpy as np

from rl_training.data.audit.view import Finding, Floats, Indices, View, check, found, passed, unchecked

LEAST_ROWS = 200
MOST_COLUMNS = 150
"""Columns of observations that a fit looks at, and of actions."""
RIDGES = (1e-3, 1e-6, 1e-9)
"""Penalties of a fit: large for few rows, small for rewards that are an exact formula."""
ROWS_PER_FEATURE = 20
BLOCKS = 20
LESS = 0.8
"""Part of the squared error that a neighbouring row may leave, at most, to be the better explanation."""
CERTAIN = 6.0
"""By how many standard errors the fit must be better, over blocks of rows."""
LARGEST_REST = 0.9
SMALLEST_REST = 1e-10
"""Shares of the variance: above the first nothing is explained, below the second the rest is rounding."""


@check(
    "reward timing",
    why="an action would be rewarded for what another one did",
)
def late_rewards(view: View) -> Finding:
    """Rewards that the row before or after explains better than their own."""
    rows = _middle(view)
    if len(rows) < LEAST_ROWS or view.rewards[rows].std() == 0:
        return unchecked("there are too few rows inside episodes, or too few different rewards, to tell")
    rewards = view.rewards[rows].astype(np.float64)
    errors = {shift: _squared_errors(view, rows + shift, rewards) for shift in (-1, 0, 1)}
    left = {shift: float(each.mean()) for shift, each in errors.items()}
    best = min(left, key=left.__getitem__)
    is_better = left[best] < min(LARGEST_REST, LESS * left[0]) and left[0] > SMALLEST_REST
    if best == 0 or not is_better or _certainty(errors[0], errors[best]) < CERTAIN:
        return passed("rewards fit their own rows at least as well as the rows around them")
    which, advice = ("before", "late") if best < 0 else ("after", "early")
    return found(
        f"rewards fit the row {which} better than their own: predicted from that row they are wrong by "
        f"{_typical(left[best])} of their standard deviation, from their own row by {_typical(left[0])}",
        rows,
        advice=f"rewards seem to be logged one step {advice}: move them by one row inside each episode",
    )


def _typical(rest: float) -> str:
    """The typical error, relative to the standard deviation, where this share of the variance is left."""
    error = float(np.sqrt(rest))
    return "less than 0.01%" if error < 1e-4 else f"{error:.2%}"


def _middle(view: View) -> Indices:
    """Sampled rows that have a row before and a row after them in their episode."""
    if not view.dataset.has_episodes:
        return np.array([], dtype=np.int64)
    some = view.sample[(view.sample > 0) & (view.sample < view.rows - 1)]
    return some[~view.ends[some - 1] & ~view.ends[some]]


def _certainty(own: Floats, other: Floats) -> float:
    """How many standard errors above 0 the logarithm of the ratio of errors is; neighbouring rows count as one block.

    By ratios, since a few episodes may have errors a thousand times as large as all others.
    """
    block = np.arange(len(own)) * BLOCKS // len(own)
    floor = 1e-14 * len(own)
    ratios = np.log((np.bincount(block, own) + floor) / (np.bincount(block, other) + floor))
    return float(ratios.mean() / max(ratios.std(ddof=1) / np.sqrt(BLOCKS), 1e-9))


def _squared_errors(view: View, rows: Indices, rewards: Floats) -> Floats:
    """Squared errors of a fit on rows, for each half by what the other half taught, relative to the variance."""
    features = _features(view, rows)
    first = np.arange(len(rows)) < len(rows) // 2
    errors = np.zeros((len(RIDGES), len(rows)))
    for seen in (first, ~first):
        mean, count = rewards[seen].mean(), int(seen.sum())
        gram, product = features[seen].T @ features[seen], features[seen].T @ (rewards[seen] - mean)
        for number, ridge in enumerate(RIDGES):
            weights = np.linalg.solve(gram + ridge * count * np.eye(len(gram)), product)
            errors[number, ~seen] = rewards[~seen] - mean - features[~seen] @ weights
    squares = errors**2 / max(rewards.var(), 1e-12)
    return np.asarray(squares[squares.mean(axis=1).argmin()])


def _features(view: View, rows: Indices) -> Floats:
    """Observation, action and next observation of rows with their squares, and with kinks where rows are many."""
    actions = view.actions[rows]
    if view.dataset.is_discrete:
        actions = (actions == np.arange(min(int(view.actions.max()) + 1, 32))).astype(np.float32)
    obs, next_obs = (array[:, :MOST_COLUMNS][rows] for array in (view.obs, view.next_obs))
    parts = [actions[:, :MOST_COLUMNS], _angles(obs), _angles(next_obs), obs, next_obs]
    plain = np.concatenate(parts, axis=1).astype(np.float64)
    deviation = plain.std(axis=0)
    plain = (plain - plain.mean(axis=0))[:, deviation > 0] / deviation[deviation > 0]
    plain = np.clip(plain, -5, 5)
    features = [np.ones((len(rows), 1)), plain, plain**2 - 1]
    if len(rows) >= ROWS_PER_FEATURE * 5 * plain.shape[1]:
        features += [np.maximum(plain - quartile, 0) for quartile in np.quantile(plain, (0.25, 0.5, 0.75), axis=0)]
    return np.concatenate(features, axis=1)


def _angles(obs: Floats) -> Floats:
    """The angles whose cosine and sine two columns are: rewards depend on the angle itself more often than on these."""
    columns = np.flatnonzero((np.abs(obs) <= 1.001).all(axis=0) & (obs.std(axis=0) > 0))
    # A few rows tell nearly all pairs apart.
    few = obs[:: max(1, len(obs) // 50)][:, columns].astype(np.float64) ** 2
    is_close = np.asarray(np.abs(few[:, :, None] + few[:, None, :] - 1) < 1e-3).all(axis=0)
    angles = []
    for first, second in columns[np.argwhere(np.triu(is_close, 1))]:
        one, two = obs[:, first], obs[:, second]
        if np.abs(one**2 + two**2 - 1).max() < 1e-3:
            # Which of the two is the sine is not known.
            angles += [np.arctan2(one, two), np.arctan2(two, one)]
    return np.stack(angles, axis=1) if angles else np.zeros((len(obs), 0), np.float32)
