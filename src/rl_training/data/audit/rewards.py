"""Checks: rewards, and whether they came late."""

from __future__ import annotations

import numpy as np

from rl_training.core.text import plural
from rl_training.data.audit.view import AuditFinding, Floats, Indices, View, check, found, passed, unchecked

BEYOND = 10.0
"""How many times the usual range an outlier lies outside it."""

CHANGING = 0.1
"""Share of steps at which sums of rewards change, at least."""

LEAK = 0.999
"""Correlation with one observation column from which it gives the reward away."""


@check(
    "constant reward",
    why="only how long episodes last can then say which action is better, and only if some terminate",
    advice="check the column; behaviour cloning (bc) needs no rewards",
    needs="rewards",
)
def constant_reward(view: View) -> AuditFinding:
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
def reward_outliers(view: View) -> AuditFinding:
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
    "cumulative rewards",
    why="a reward is what one step earns; sums count the first step as often as an episode has steps",
    advice="log differences, or name the column of single rewards",
    needs="episodes",
)
def cumulative_rewards(view: View) -> AuditFinding:
    """Rewards that only move away from 0 inside every episode, and begin anew in the next one."""
    if len(view.episodes) < 2 or len(view.inside) < LEAST_ROWS or not view.dataset.has_rewards:
        return unchecked("there are too few episodes or rows to tell")
    steps = np.diff(view.rewards.astype(np.float64))
    inside, between = steps[view.inside], steps[view.episodes[:-1, 1] - 1]
    for sign, way in ((1, "rise"), (-1, "fall")):
        # A negative distance to a goal rises too, but towards 0.
        away = (sign * view.rewards >= 0).all() and (sign * inside >= 0).all() and (sign * between < 0).all()
        if away and (inside != 0).mean() > CHANGING:
            return found(f"rewards never do anything but {way} inside an episode, and begin anew in the next one")
    return passed("found no sign of sums over an episode")


@check(
    "reward in observations",
    why="the policy sees its reward before it acts, which it will not when it is used",
    advice="leave the column out, unless the reward really is a measurement made before the action",
)
def reward_leak(view: View) -> AuditFinding:
    """An observation column that contains the reward before the action is chosen."""
    obs, rewards = view.obs[view.sample].astype(np.float64), view.rewards[view.sample].astype(np.float64)
    if rewards.std() == 0 or len(rewards) < 20:
        return unchecked("rewards do not vary enough to tell")
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = np.nan_to_num(np.corrcoef(obs, rewards, rowvar=False)[-1, :-1])
    column = int(np.abs(correlation).argmax())
    if abs(correlation[column]) < LEAK:
        return passed(f"no observation column gives the reward away (largest correlation {correlation[column]:.3f})")
    says = f"observation column {view.obs_names[column]} says what the reward will be"
    return found(f"{says} (correlation {correlation[column]:.4f})")


LEAST_ROWS = 200

MOST_COLUMNS = 150
"""Columns of observations that a fit looks at, and of actions."""

RIDGES = (1e-3, 1e-6, 1e-9)
"""Penalties of a fit: large for few rows, small for rewards that are an exact formula."""

ROWS_PER_FEATURE = 20

MOST_FEATURES = 280
"""Features of a fit that has kinks."""

MOST_KINKS = 9
"""Values of a column at which the slope of a fit may change."""

BLOCKS = 20

LESS = 0.8
"""Part of the squared error that a neighbouring row may leave, at most, to be the better explanation."""

NEARLY = 1.1
"""Times the least error up to which another row explains rewards nearly as well."""

CERTAIN = 6.0
"""By how many standard errors the fit must be better, over blocks of rows."""

LARGEST_REST = 0.9

SMALLEST_REST = 1e-10
"""Shares of the variance: above the first nothing is explained, below the second the rest is rounding."""


@check("reward timing", why="an action would be rewarded for what another one did")
def late_rewards(view: View) -> AuditFinding:
    """Rewards that the row before or after explains better than their own."""
    reach = 2 if len(middle_rows(view, 2)) >= LEAST_ROWS else 1
    rows = middle_rows(view, reach)
    if len(rows) < LEAST_ROWS or view.rewards[rows].std() == 0:
        return unchecked("there are too few rows inside episodes, or too few different rewards, to tell")
    rewards = view.rewards[rows].astype(np.float64)
    errors = {shift: _squared_errors(view, rows + shift, rewards) for shift in range(-reach, reach + 1)}
    left = {shift: float(each.mean()) for shift, each in errors.items()}
    # Of rows that explain rewards nearly as well, the nearest is meant: they share an observation.
    best = min((shift for shift in left if left[shift] <= NEARLY * min(left.values())), key=abs)
    is_better = left[best] < min(LARGEST_REST, LESS * left[0]) and left[0] > SMALLEST_REST
    if best == 0 or not is_better or certainty(errors[0], errors[best]) < CERTAIN:
        return passed("found no sign that rewards belong to the rows around them")
    which, advice = ("before", "late") if best < 0 else ("after", "early")
    far, move = ("row", "one row") if abs(best) == 1 else ("second row", "two rows")
    errors_text = f"{_typical(left[best])} of their standard deviation, from their own row by {_typical(left[0])}"
    message = f"rewards fit the {far} {which} better than their own: predicted from that row they are wrong by"
    mend = f"rewards seem to be logged {move} {advice}: move them by {move} inside each episode"
    return found(f"{message} {errors_text}", rows, advice=mend)


def _typical(rest: float) -> str:
    """The typical error, relative to the standard deviation, where this share of the variance is left."""
    error = float(np.sqrt(rest))
    return "less than 0.01%" if error < 1e-4 else f"{error:.2%}"


def middle_rows(view: View, reach: int = 1) -> Indices:
    """Sampled rows that have so many rows before and after them in their episode."""
    if not view.dataset.has_episodes:
        return np.array([], dtype=np.int64)
    some = view.sample[(view.sample >= reach) & (view.sample < view.rows - reach)]
    return np.asarray(some[~view.ends[some[:, None] + np.arange(-reach, reach)].any(axis=1)])


def certainty(own: Floats, other: Floats) -> float:
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
    kinks = min(min(len(rows) // ROWS_PER_FEATURE, MOST_FEATURES) // max(1, plain.shape[1]) - 2, MOST_KINKS)
    if kinks >= 3:
        places = np.quantile(plain, np.arange(1, kinks + 1) / (kinks + 1), axis=0)
        features += [np.maximum(plain - place, 0) for place in places]
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
