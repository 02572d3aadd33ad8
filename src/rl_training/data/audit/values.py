"""Checks of single values and columns: what is no number, what says nothing, what is out of bounds."""

from __future__ import annotations

import numpy as np

from rl_training.core.spaces import BoxActions, DiscreteActions
from rl_training.core.text import plural
from rl_training.data.audit.view import FIRST, AuditFinding, View, check, found, listed, passed, unchecked
from rl_training.data.episode_keys import hash_rows
from rl_training.data.fields import MASKS

MOST_COLUMNS = 1000
"""Columns that are compared with each other."""
NEARLY = 0.9999
"""Correlation from which one column says what another says."""
AT_BOUND = 0.5
"""Share of rows at a bound from which actions count as stuck."""
FEW_VALUES = 32
FAR_AWAY, NEAR = 5.0, 0.5
"""How many times the usual width of its column an outlier is outside it, and the readings around it at most."""
FEWEST_OUTLIERS = 3
"""Times that a column goes there and back, at least."""
FROZEN = 20
"""Rows for which a frozen sensor stays the same, at least."""
FEW_EPISODES = 10
"""Episodes below which a failing sensor is not told from a thing that rests."""
MOST_FROZEN = 0.3
"""Share of episodes in which a frozen sensor stays the same, at most."""
JUMP = 3.0
"""How many times its usual change a frozen reading jumps at the end, at least."""
SELDOM = 0.01
"""Share of rows at which other readings of such a sensor repeat, at most."""
NARROW = 0.02
"""Share of the bounds that actions fill when they are probably in another unit."""


def finite(view: View) -> AuditFinding:
    """NaN and infinity."""
    bad = np.zeros(view.rows, dtype=bool)
    names = []
    for name in ("obs", "actions", "rewards", "next_obs"):
        values = view.column(name)
        wrong = ~np.isfinite(values).reshape(len(values), -1).all(axis=1)
        if wrong.any():
            names.append(name)
            bad |= wrong
    rows = np.flatnonzero(bad)
    if not len(rows):
        return AuditFinding("finite", "pass", "every number is finite")
    return not_finite(f"{plural(len(rows), 'row')} of {', '.join(names)} hold NaN or infinity", rows.tolist())


@check(
    "valid actions",
    why="either the mask or the action is wrong, and a policy would learn from what cannot have happened",
    advice="mend the data, or set invalid_actions: drop to leave such rows out",
    needs="valid_actions",
)
def valid_actions(view: View) -> AuditFinding:
    """Logged actions that their own mask excludes."""
    masks = view.column("valid_actions")
    numbers = view.column("actions") - (view.bounds.start if isinstance(view.bounds, DiscreteActions) else 0)
    outside = np.flatnonzero((numbers < 0) | (numbers >= masks.shape[1]))
    if len(outside):
        message = f"{plural(len(outside), 'row')} took an action for which valid_actions has no column"
        why = "there must be a column for every action, and actions are numbered as the columns are"
        advice = "mend the actions, or add the columns that are missing"
        return found(message, outside, verdict="fail", why=why, advice=advice)
    rows = np.flatnonzero(masks[np.arange(len(numbers)), numbers] == 0)
    if not len(rows):
        return passed("every logged action was valid")
    return found(f"{plural(len(rows), 'row')} took an action that valid_actions excludes there", rows, verdict="fail")


@check(
    "next masks",
    why="columns may be in another order, or rows missing: values of the next state would be those of other actions",
    advice="mend the columns, or leave next_valid_actions out: they are taken from the next row then",
    needs="next_valid_actions",
)
def masks_in_order(view: View) -> AuditFinding:
    """Next masks that are not those of the next row."""
    now, after = map(view.column, MASKS)
    rows = np.flatnonzero((after[:-1] != now[1:]).any(axis=1) & ~view.ends[:-1])
    if not len(rows):
        return passed("next_valid_actions are the valid_actions of the next row")
    message = f"in {plural(len(rows), 'row')} next_valid_actions are not the valid_actions of the next row"
    return found(message, rows, verdict="fail")


@check(
    "propensities",
    why="a logged action had some probability; importance weights by a probability of 0 are infinite",
    advice="mend the probabilities; importance sampling is refused until then",
    needs="behavior_log_probs",
)
def logged_probabilities(view: View) -> AuditFinding:
    """Logged actions that had no probability."""
    rows = np.flatnonzero(np.isneginf(view.column("behavior_log_probs")))
    if not len(rows):
        return passed("every logged action had a probability above 0")
    return found(f"{plural(len(rows), 'row')} hold an action that was taken with probability 0", rows)


def not_finite(message: str, rows: list[int], count: int | None = None) -> AuditFinding:
    """The finding that some values are no numbers."""
    why = "one such value makes every loss NaN, and training cannot continue"
    advice = "find out what the sensor or the query returned there, and drop those episodes or fill the gaps"
    concerned = len(rows) if count is None else count
    return AuditFinding("finite", "fail", message, why, advice, concerned, tuple(rows[:FIRST]))


@check(
    "constant columns",
    why="a column that is constant says nothing, and anything can happen when it changes once the policy is in use",
    advice="check that the sensor was connected; leave the columns out if they are meant to be constant",
)
def constant_columns(view: View) -> AuditFinding:
    """Observation columns that never change."""
    constant = np.flatnonzero(view.low == view.high)
    if not len(constant):
        return passed("every observation column varies")
    return found(f"observation columns that never change: {view.obs_named(constant)}")


@check(
    "outliers",
    why="readings that never were stretch the scale of a column, and all others look alike beside them",
    advice="find out what the sensor or the query returned there, and fill such readings from the rows around them",
)
def outliers(view: View) -> AuditFinding:
    """Readings far outside the others of their observation column, that come and go from one row to the next."""
    names, rows = [], []
    for number in np.flatnonzero(view.low < view.high)[:MOST_COLUMNS]:
        column = view.obs[:, number]
        # A number that stands for a missing reading may be there very often, as the smallest or the largest one.
        others = column[(column > view.low[number]) & (column < view.high[number])]
        if len(others) < FEW_VALUES:
            continue
        low, high = np.quantile(view.thinned(others), (0.01, 0.99))
        away = np.maximum(low - column, column - high) / max(high - low, 1e-12)
        is_far, is_near = away > FAR_AWAY, away < NEAR
        comes, goes = is_far[1:] & is_near[:-1], is_far[:-1] & is_near[1:]
        if high > low and min(comes.sum(), goes.sum()) >= FEWEST_OUTLIERS:
            found_rows = np.flatnonzero(is_far)
            least, most = column[is_far].min(), column[is_far].max()
            values = f"all {least:g}, as if missing" if least == most else f"{least:.4g} to {most:.4g}"
            names.append(f"{view.obs_names[number]} ({plural(len(found_rows), 'row')}, {values})")
            rows.append(found_rows)
    if not names:
        return passed("found no readings that jump far outside their column and back")
    return found(f"readings far outside the others of their column: {listed(names)}", np.unique(np.concatenate(rows)))


@check(
    "frozen sensors",
    why="the last reading is repeated while the process moves; the policy would learn that nothing changes",
    advice="find out when the sensor was disconnected, and leave those rows out",
    needs="episodes",
)
def frozen_sensors(view: View) -> AuditFinding:
    """Observation columns that change at nearly every row, stay exactly as they are for many rows, and then jump."""
    if len(view.episodes) < FEW_EPISODES or len(view.inside) < 10 * FROZEN or view.is_tabular:
        return unchecked("there are too few episodes or different rows to tell")
    names, rows = [], []
    for number in np.flatnonzero(view.low < view.high)[:MOST_COLUMNS]:
        # By how much each row differs from the one before it; not a number where an episode starts.
        moved = np.full(view.rows + 1, np.nan)
        moved[view.inside + 1] = np.abs(view.obs[view.inside + 1, number] - view.obs[view.inside, number])
        edges = np.flatnonzero(np.diff(np.concatenate([[False], moved == 0, [False]]).astype(np.int8)))
        first, after = edges[::2], edges[1::2]
        seldom = (moved == 0).sum() - (after - first)[after - first >= FROZEN].sum() < SELDOM * len(view.inside)
        if not seldom or not (moved > 0).any():
            continue
        # A sensor that died stays the same over several episodes, up to the last row, and never did so before.
        dead = int(np.flatnonzero(np.diff(view.obs[:, number]))[-1]) + 1
        if dead < view.episodes[-2, 0] and (after - first)[first < dead].max(initial=0) < FROZEN:
            names.append(f"{view.obs_names[number]} (from row {dead} to the last one)")
            rows.append(np.array([dead]))
            continue
        # A thing at rest, such as a door, begins to move slowly. A sensor that works again reads something far away.
        jumps = moved[after] > JUMP * np.median(moved[moved > 0])
        is_frozen = (after - first >= FROZEN) & jumps
        episodes = np.unique(np.searchsorted(view.episodes[:, 1], first[is_frozen], side="right"))
        # Sensors seldom fail. Things that rest until they are struck do so in most episodes.
        if 0 < len(episodes) <= MOST_FROZEN * len(view.episodes):
            names.append(f"{view.obs_names[number]} ({plural(int((after - first)[is_frozen].sum()), 'row')})")
            rows.append(first[is_frozen])
    if not names:
        return passed("found no sign of sensors that repeat their last reading")
    message = f"observation columns that change all the time, and then stay the same for {FROZEN} rows or more"
    return found(f"{message}: {listed(names)}", np.unique(np.concatenate(rows)))


@check(
    "duplicated columns",
    why="the same quantity twice weighs twice, and policies that rely on the difference of both act on noise",
    advice="leave one of each pair out",
)
def duplicate_columns(view: View) -> AuditFinding:
    """Observation columns that say what another column says."""
    obs = view.obs[:, :MOST_COLUMNS][view.sample].astype(np.float64)
    varying = np.flatnonzero(obs.std(axis=0) > 0)
    if len(varying) < 2 or len(obs) < 3:
        return unchecked("there are no two columns to compare")
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = np.triu(np.abs(np.corrcoef(obs[:, varying], rowvar=False)), 1)
    pairs = varying[np.argwhere(np.nan_to_num(correlation) > NEARLY)]
    if not len(pairs):
        return passed("no two observation columns say the same")
    exact = sum(bool((view.obs[:, first] == view.obs[:, second]).all()) for first, second in pairs[:MOST_COLUMNS])
    texts = ", ".join(f"{view.obs_names[first]} and {view.obs_names[second]}" for first, second in pairs[:4])
    kind = f"{exact} of them equal" if exact else "none of them exactly equal"
    return found(f"{plural(len(pairs), 'pair')} of observation columns say the same ({kind}): {texts}")


@check(
    "action bounds",
    why="actions are scaled by their bounds, so the policy would learn something it can never do",
    advice="state the true bounds (action_low, action_high), convert the unit, or set clip_actions: true",
)
def action_bounds(view: View) -> AuditFinding:
    """Actions that cannot be."""
    if view.bounds is None and view.dataset.is_discrete and (view.actions < 0).any():
        rows = np.flatnonzero((view.actions < 0).any(axis=1))
        why = "discrete actions are numbered from 0 on; a negative number often stands for a value that is missing"
        advice = "mend these rows, or leave them out"
        message = f"{plural(len(rows), 'row')} have a negative action"
        return found(message, rows, verdict="fail", why=why, advice=advice)
    if view.bounds is None:
        return unchecked("the bounds of actions are not known; an environment (--env) tells them")
    if isinstance(view.bounds, BoxActions):
        low, high = (np.asarray(values, dtype=np.float32) for values in (view.bounds.low, view.bounds.high))
        margin = 1e-5 * (high - low)
        wrong = ((view.actions < low - margin) | (view.actions > high + margin)).any(axis=1)
        limits = f"[{low.min():g}, {high.max():g}]"
    else:
        first, after = view.bounds.start, view.bounds.start + view.bounds.count
        wrong = ((view.actions < first) | (view.actions >= after)).any(axis=1)
        limits = f"{first} to {after - 1}"
    rows = np.flatnonzero(wrong)
    if not len(rows):
        return passed(f"every action is within {limits}")
    return found(f"{plural(len(rows), 'row')} have actions outside {limits}", rows, verdict="fail")


@check(
    "actions at bounds",
    why="the log hardly shows what lies between the bounds, so values there are guesses",
    advice="check whether commands were clipped before they were logged; prefer algorithms that stay near the log",
    needs="continuous actions",
)
def stuck_actions(view: View) -> AuditFinding:
    """Actions that are at a bound most of the time."""
    if isinstance(view.bounds, BoxActions):
        low, high = np.asarray(view.bounds.low), np.asarray(view.bounds.high)
    else:
        low, high = view.actions.min(axis=0), view.actions.max(axis=0)
    margin = 1e-4 * (high - low)
    at_bound = (view.actions <= low + margin) | (view.actions >= high - margin)
    at_bound &= low < high
    stuck = np.flatnonzero(at_bound.mean(axis=0) > AT_BOUND)
    if not len(stuck):
        return passed(f"at most {at_bound.mean(axis=0).max():.0%} of the rows have an action at a bound")
    rows = np.flatnonzero(at_bound[:, stuck].any(axis=1))
    return found(f"action columns that are at a bound more than half of the time: {view.actions_named(stuck)}", rows)


@check(
    "quantised actions",
    why="a policy with continuous actions will ask for values in between, of which the log knows nothing",
    advice="if actions are discrete, store them as integers and use an algorithm for discrete actions",
    needs="continuous actions",
)
def quantised_actions(view: View) -> AuditFinding:
    """Continuous actions that take a few values only."""
    some = view.actions[view.sample]
    counts = np.array([len(np.unique(column)) for column in some.T])
    few = np.flatnonzero((counts > 1) & (counts <= FEW_VALUES) & (10 * counts <= len(some)))
    if not len(few):
        return passed("actions take many values")
    return found(f"action columns that take at most {counts[few].max()} different values: {view.actions_named(few)}")


@check(
    "action scale",
    why="all columns are brought to [-1, 1] by their bounds; a column in another unit becomes nearly constant there",
    advice="convert the column to the unit of its bounds, or state the bounds it really has",
    needs="continuous actions",
)
def action_scale(view: View) -> AuditFinding:
    """Actions in a unit that does not fit their bounds, or each other."""
    low, high = view.actions.min(axis=0), view.actions.max(axis=0)
    width = (high - low).astype(np.float64)
    constant = np.flatnonzero(width == 0)
    message = ""
    if len(constant):
        message = f"action columns that never change: {view.actions_named(constant)}"
    elif isinstance(view.bounds, BoxActions):
        full = np.asarray(view.bounds.high, dtype=np.float64) - np.asarray(view.bounds.low)
        narrow = np.flatnonzero(width < NARROW * full)
        if len(narrow):
            message = f"the actions of columns {view.actions_named(narrow)} fill less than {NARROW:.0%} of their bounds"
        elif (low >= 0).all() and (np.asarray(view.bounds.low) < 0).all() and view.rows >= 100:
            message = f"actions lie in [{low.min():.3g}, {high.max():.3g}], though their bounds reach below 0"
    elif width.max() > 1000 * width.min():
        names = [view.action_names[int(k)] for k in (width.argmax(), width.argmin())]
        message = f"the range of action column {names[0]} is more than 1000 times that of {names[1]}"
    if not message:
        return passed(f"logged actions lie in [{low.min():.3g}, {high.max():.3g}]")
    return found(message)


@check(
    "duplicated transitions",
    why="copies weigh more than other rows, and held-out rows are not new if training has seen their copies",
    advice="check whether files or shards were joined twice, and drop the copies",
)
def duplicate_rows(view: View) -> AuditFinding:
    """Transitions that are there more than once."""
    if view.is_tabular:
        return unchecked("observations repeat, as in a table of states: equal rows are expected")
    hashes = hash_rows([view.obs, view.actions, view.rewards, view.next_obs])
    order = np.argsort(hashes, kind="stable")
    same = hashes[order[1:]] == hashes[order[:-1]]
    rows = np.sort(order[1:][same])
    if len(rows) <= 0.001 * view.rows:
        few = f"only {plural(len(rows), 'transition')} are copies of earlier ones"
        return passed(few if len(rows) else "no transition is a copy of another")
    return found(f"{plural(len(rows), 'transition')} ({len(rows) / view.rows:.1%}) are copies of earlier ones", rows)


@check(
    "duplicated episodes",
    why="the data is smaller than it looks, and held-out episodes may be copies of those that are trained on",
    advice="drop the copies; a simulator that was seeded alike each time, or a file that was read twice, makes them",
    needs="episodes",
)
def duplicate_episodes(view: View) -> AuditFinding:
    """Episodes that are there more than once."""
    hashes = hash_rows([view.obs, view.actions, view.rewards])
    seen: dict[bytes, int] = {}
    rows = []
    for start, stop in view.episodes.tolist():
        # Short episodes of states from a table are equal by chance.
        if stop - start < (20 if view.is_tabular else 2):
            continue
        if seen.setdefault(hashes[start:stop].tobytes(), start) != start:
            rows.append(start)
    if not rows:
        return passed("no episode is a copy of another")
    return found(f"{plural(len(rows), 'episode')} are copies of earlier ones, row by row", rows)
