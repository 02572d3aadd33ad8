"""Checks of what the data shows as a whole: returns, drift, how the behaviour acts, and whether it is enough."""

from __future__ import annotations

import numpy as np

from rl_training.core.spaces import DiscreteActions
from rl_training.core.text import plural
from rl_training.data.audit.view import SEED, AuditFinding, Floats, View, check, found, listed, passed, unchecked

FEW_EPISODES = 10
ROWS_PER_COLUMN = 100
DRIFT = 1.0
"""Shift of a column's mean between early and late episodes, in standard deviations, that counts as drift."""
NEAR_BEST = 0.1
"""Part of the range of returns below the best that counts as near it."""
OTHER_UNIT = 10.0
"""Factor between the ranges of a column in early and in late episodes that suggests another unit."""
MOST_COLUMNS = 500
"""Columns whose directions are counted."""
QUERIES = 1000
NEIGHBOURS = 10_000
FEW_ROWS = 100
"""Rows below which nothing is said about how far actions differ."""
NEARLY_DETERMINISTIC = 0.1
"""Spread of actions in similar states, relative to that of all actions, up to which a behaviour has little of it."""
RARE = 0.001
"""Share of rows below which an action is hardly in the data."""


@check(
    "drift",
    why="the process, a sensor or the behaviour has changed; a policy for the mixture may suit neither",
    advice="expected in replay data of a learning agent; else find out what changed, and train on what holds today",
)
def drift(view: View) -> AuditFinding:
    """Differences between the first and the last third of the episodes."""
    third = len(view.lengths) // 3 if view.dataset.has_episodes else 0
    if third < 4:
        return unchecked("there are too few episodes to compare early and late ones")
    early = view.obs[: view.episodes[third - 1, 1]].mean(axis=0, dtype=np.float64)
    late = view.obs[view.episodes[-third, 0] :].mean(axis=0, dtype=np.float64)
    shift = np.abs(late - early) / view.spread
    # Means of few episodes differ by chance: by how much is seen from the means of single episodes.
    sums = np.add.reduceat(view.obs, view.episodes[:, 0], axis=0, dtype=np.float64) / view.lengths[:, None]
    noise = np.sqrt(sums[:third].var(axis=0) / third + sums[-third:].var(axis=0) / third) / view.spread
    columns = np.flatnonzero((shift > DRIFT) & (shift > 5 * noise))
    returns = view.dataset.episode_returns().numpy(force=True).astype(np.float64)
    before, after = returns[:third], returns[-third:]
    chance = np.sqrt((before.var() + after.var()) / third)
    moved = abs(after.mean() - before.mean())
    has_moved = moved > DRIFT * returns.std() and moved > 5 * chance
    parts = [f"observation columns {view.obs_named(columns)}"] if len(columns) else []
    parts += [f"returns ({before.mean():.4g} before, {after.mean():.4g} after)"] if has_moved else []
    parts += _other_widths(view, third)
    if not parts:
        return passed("found no difference between early and late episodes")
    return found(f"the last third of the episodes differs from the first: {' and '.join(parts)}")


def _other_widths(view: View, third: int) -> list[str]:
    """Columns that vary far more, or far less, in late episodes than in early ones, as after a change of unit."""
    columns = {f"observation column {name}": view.obs[:, number] for number, name in enumerate(view.obs_names)}
    if not view.dataset.is_discrete:
        columns |= {f"action column {name}": view.actions[:, number] for number, name in enumerate(view.action_names)}
    changed = []
    for name, column in {**columns, "rewards": view.rewards}.items():
        values = column.astype(np.float64)
        mean, square = (np.add.reduceat(each, view.episodes[:, 0]) / view.lengths for each in (values, values**2))
        widths = np.sqrt(np.maximum(square - mean**2, 0))
        before, after = float(np.median(widths[:third])), float(np.median(widths[-third:]))
        if min(before, after) > 0 and not 1 / OTHER_UNIT <= after / before <= OTHER_UNIT:
            changed.append(f"{name} (times {after / before:.3g})")
    return [f"the range of {listed(changed)}"] if changed else []


@check(
    "returns",
    why="where no episode is better than another, only what happens inside them can tell good actions from bad ones",
    advice="check the rewards; add episodes that went better or worse",
)
def returns(view: View) -> AuditFinding:
    """Returns of episodes, their spread, and how many are near the best."""
    if not view.dataset.has_rewards:
        return passed("there are no rewards")
    if not view.dataset.has_episodes:
        return unchecked("episodes are not known")
    values = view.dataset.episode_returns().numpy(force=True)
    low, high = float(values.min()), float(values.max())
    text = f"mean return {values.mean():.4g}, standard deviation {values.std():.4g}, from {low:.4g} to {high:.4g}"
    share = float((values >= high - NEAR_BEST * (high - low)).mean())
    if low < high or len(values) < FEW_EPISODES:
        return passed(f"{text}; {share:.0%} of the episodes are near the best")
    return found(f"all {len(values)} episodes have the return {high:.4g}")


@check(
    "behaviour",
    why="one action per state: values of other actions are extrapolated",
    advice="stay near the log (bc, or a large penalty), or collect data with some variation in the actions",
)
def determinism(view: View) -> AuditFinding:
    """Differences between actions in nearly the same situation."""
    ratio = action_spread(view)
    if ratio is None:
        return unchecked("there are too few different actions to tell")
    if ratio > NEARLY_DETERMINISTIC:
        return passed(f"in similar states actions still differ, by {min(ratio, 1):.0%} of what any two rows do")
    differs = f"in similar states actions differ by only {ratio:.1%} of what any two rows do"
    return found(f"{differs}: the behaviour is nearly deterministic")


def action_spread(view: View) -> float | None:
    """Mean difference of actions between nearest observations, relative to that between any two rows.

    None where there are too few different actions to tell.
    """
    if view.rows < FEW_ROWS or (view.actions == view.actions[0]).all():
        return None
    generator = np.random.default_rng(SEED)
    some = generator.permutation(view.sample)[:NEIGHBOURS]
    scale = view.spread.astype(np.float32)
    points, actions = view.obs[some] / scale, view.actions[some]
    queries = points[:QUERIES]
    squares = (points**2).sum(axis=1)
    distance: Floats = squares[None, :] - 2 * queries @ points.T
    distance[np.arange(len(queries)), np.arange(len(queries))] = np.inf
    nearest = distance.argmin(axis=1)
    near = _differences(view, actions[: len(queries)], actions[nearest])
    other = _differences(view, actions[: len(queries)], generator.permutation(actions)[: len(queries)])
    return float(near / other) if other > 0 else 1.0


def _differences(view: View, first: Floats, second: Floats) -> float:
    if view.dataset.is_discrete:
        return float((first != second).mean())
    deviation = view.actions[view.sample].std(axis=0)
    return float((np.abs(first - second) / np.where(deviation > 0, deviation, 1)).mean())


@check(
    "coverage",
    why="what such an action leads to is unknown, and its values are guesses",
    advice="leave these actions out, or collect data in which they are taken",
)
def coverage(view: View) -> AuditFinding:
    """The share of possible actions, or of directions, that the data covers."""
    if not view.dataset.is_discrete:
        parts = [array[:, :MOST_COLUMNS][view.sample] for array in (view.obs, view.actions)]
        both = np.concatenate(parts, axis=1).astype(np.float64)
        deviation = both.std(axis=0)
        varying = (both[:, deviation > 0] - both[:, deviation > 0].mean(axis=0)) / deviation[deviation > 0]
        variances = np.linalg.eigvalsh(varying.T @ varying) if varying.size else np.ones(1)
        directions = float(variances.sum() ** 2 / (variances**2).sum())
        what = f"the {both.shape[1]} columns of observations and actions"
        return passed(f"{what} vary in about {directions:.0f} independent ways")
    actions = view.column("actions")
    start, known = 0, int(actions.max()) + 1
    if isinstance(view.bounds, DiscreteActions):
        start, known = view.bounds.start, view.bounds.count
    counts = np.bincount(actions[(actions >= start) & (actions < start + known)] - start, minlength=known)
    rare = start + np.flatnonzero(counts < max(2, RARE * view.rows))
    if not len(rare):
        return passed(f"every one of {known} actions was taken at least {counts.min():,} times")
    rows = np.flatnonzero(np.isin(actions, rare))
    return found(f"{plural(len(rare), 'action')} of {known} were hardly ever taken: {listed(rare)}", rows)


@check(
    "trajectories",
    why="rows of one episode resemble each other, so there is less to learn from than the number of rows suggests",
    advice="collect more episodes; do not trust differences between policies that this data suggests",
    needs="episodes",
)
def trajectories(view: View) -> AuditFinding:
    """The number of independent trajectories, if long ones count by their share of rows."""
    effective = float(view.lengths.sum() ** 2 / (view.lengths.astype(np.float64) ** 2).sum())
    shortest, longest = int(view.lengths.min()), int(view.lengths.max())
    text = f"{plural(len(view.lengths), 'episode')} of {shortest:,}"
    if shortest < longest:
        text += f" to {longest:,} rows; weighted by length they count as {effective:.1f}"
    else:
        text += " rows each" if longest > 1 else " row each"
    if effective >= FEW_EPISODES:
        return passed(text)
    return found(f"{text}: few independent episodes")


@check(
    "enough data",
    why="networks of the usual size learn so few rows by heart and know nothing between them",
    advice="collect more, leave columns out, use small networks, and watch the held-out losses",
)
def enough(view: View) -> AuditFinding:
    """Whether there are enough rows for the number of columns."""
    columns = view.obs.shape[1] + view.actions.shape[1]
    needed = ROWS_PER_COLUMN * columns
    if view.rows >= needed:
        return passed(f"{view.rows:,} rows for {columns} columns")
    sizes = f"{view.rows:,} rows for {columns} columns of observations and actions"
    return found(f"{sizes}: fewer than {ROWS_PER_COLUMN} rows for each column")
