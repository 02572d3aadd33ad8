"""Checks of rows that follow each other: next observations, time, and how episodes end."""

from __future__ import annotations

import numpy as np

from rl_training.core.text import plural
from rl_training.data.audit.borders import largest_degree, residuals
from rl_training.data.audit.view import AuditFinding, Floats, Indices, View, check, found, passed, unchecked
from rl_training.data.episode_keys import hash_rows
from rl_training.data.mapped_columns import chunks

TOLERANCE = 1e-3
"""Difference, in standard deviations of a column, above which two observations are not the same."""
FEW_BREAKS = 0.01
"""Share of rows up to which next observations that do not fit are single breaks."""
FALSE_ENDS = 0.2
"""Share of cut episodes whose last next_obs looks false, beyond the share of such rows inside episodes."""
JUMP = 3.0
"""How many times as long as a usual step a step to the start of the next episode is, at least, if it never happened."""
UNEVEN = 0.1
MANY_AT_LIMIT = 5.0
"""How many times as many terminations come at the largest length as at each of those just below it, at least."""
ALIKE = 0.95
"""Share of the squared error that is left, at least, where rows cannot be told apart."""
LEAST_ENDS = 20
LEAST_EPISODES = 4
"""Episodes of equal length that make a time limit plausible."""


@check(
    "order",
    why="returns, held-out episodes, next actions and most checks of this audit need rows in order",
    advice="sort the rows by episode and time before they are saved",
)
def order(view: View) -> AuditFinding:
    """Whether the rows are in the order of their episodes."""
    if view.dataset.is_ordered and not view.dataset.seems_shuffled:
        return passed("the rows of an episode stand together, in order")
    return found("no row continues the one before it: the rows seem shuffled, so episodes are not known")


@check(
    "next observations",
    why="every target of every value function is computed from next_obs; a shifted one teaches false consequences",
    advice="leave next_obs out (the next row of the episode is taken then), or set 'timeouts' where an episode was cut",
)
def next_observations(view: View) -> AuditFinding:
    """Whether the next observation is the observation of the next row, inside episodes."""
    rows = view.inside
    if not view.dataset.has_episodes or not len(rows):
        return unchecked("no row is followed by another of its episode")
    wrong = rows[_differ(view, rows)]
    if not len(wrong):
        return passed("next_obs is the obs of the next row, everywhere inside episodes")
    share = len(wrong) / len(rows)
    shift = _shift(view, wrong)
    message = f"in {plural(len(wrong), 'row')} ({share:.2%}) next_obs is not the obs of the next row"
    few = ": episodes probably end there without an end flag" if share <= FEW_BREAKS else ""
    message += f"; {shift}" if shift else few
    return found(message, wrong, verdict="fail" if shift or share > FEW_BREAKS else "warn")


def _differ(view: View, rows: Indices) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Whether next_obs of rows is something else than obs of the rows after them."""
    parts = []
    for part in chunks(len(rows)):
        some = rows[part]
        after = view.obs[some + 1]
        margin = TOLERANCE * view.spread.astype(np.float32) + 1e-5 * np.abs(after)
        parts.append((np.abs(view.next_obs[some] - after) > margin).any(axis=1))
    return np.concatenate(parts)


def _shift(view: View, wrong: Indices) -> str:
    """By how many rows next_obs is shifted, where that explains the rows."""
    if view.is_tabular:
        return ""
    hashes = hash_rows([view.obs])
    sorted_rows = np.argsort(hashes, kind="stable")
    some = view.thinned(wrong)
    wanted = hash_rows([view.next_obs[some]])
    places = np.searchsorted(hashes, wanted, sorter=sorted_rows).clip(max=view.rows - 1)
    there = sorted_rows[places]
    is_there = hashes[there] == wanted
    if is_there.mean() < 0.5:
        return ""
    shifts = there[is_there] - some[is_there] - 1
    typical = int(np.median(shifts))
    if typical and (shifts == typical).mean() > 0.9:
        return f"it is the obs of {_rows_away(typical + 1)}, in nearly all of them"
    episode = np.searchsorted(view.episodes[:, 1], some[is_there], side="right")
    grows = len(np.unique(episode)) > 2 and shifts.std() > 0
    if grows and np.corrcoef(episode, shifts)[0, 1] > 0.9:
        return f"the shift grows from {shifts[0]} to {shifts[-1]} rows, by about one per episode"
    return ""


def _rows_away(distance: int) -> str:
    if distance == 0:
        return "the same row"
    return f"the row {plural(abs(distance), 'row')} {'later' if distance > 0 else 'earlier'}"


@check(
    "cut episodes",
    why="an episode that is cut continues: its value is taken from its last next_obs, which is that of another state",
    advice="log the observation that the last action led to (final_observation); or drop the last row of such episodes",
    needs="episodes",
)
def cut_episodes(view: View) -> AuditFinding:
    """Last next observations of cut episodes that are zeros, a repetition, or the start of another episode."""
    last = view.episodes[:-1, 1] - 1
    rows = last[~view.dones[last]]
    if len(rows) < LEAST_EPISODES or view.is_tabular:
        return unchecked("there are too few cut episodes with different observations to tell")
    inside = view.drawn(view.inside)
    usual = np.median(_step_sizes(view, inside)) if len(inside) else 0.0
    # A process that continues after a cut takes a usual step to where the next episode starts.
    is_start = (view.next_obs[rows] == view.obs[rows + 1]).all(axis=1) & (_step_sizes(view, rows) > JUMP * usual)
    kinds = {
        "zeros": tuple(~view.next_obs[some].any(axis=1) & view.obs[some].any(axis=1) for some in (rows, inside)),
        "the observation before the last action": (_step_sizes(view, rows) == 0, _step_sizes(view, inside) == 0),
        "the first observation of the next episode": (is_start, np.zeros(1, dtype=bool)),
    }
    # The same is usual inside episodes where a process rests, or is measured coarsely.
    beyond = {kind: wrong.mean() - (there.mean() if len(there) else 0) for kind, (wrong, there) in kinds.items()}
    kind = max(beyond, key=beyond.__getitem__)
    wrong = kinds[kind][0]
    if beyond[kind] < FALSE_ENDS:
        return passed("found no sign that the last next_obs of cut episodes is of another state")
    return found(f"in {wrong.sum():,} of {len(rows):,} cut episodes the last next_obs is {kind}", rows[wrong])


def _step_sizes(view: View, rows: Indices) -> Floats:
    """Distances from obs to next_obs, in standard deviations of the columns."""
    return np.asarray(np.linalg.norm((view.next_obs[rows] - view.obs[rows]) / view.spread, axis=1))


@check(
    "timestamps",
    why="the rows are not in the order in which things happened, so next observations are wrong",
    advice="sort the rows by episode and time; look for clocks that were set, and for episodes that were joined",
    needs="timestamps",
)
def timestamps(view: View) -> AuditFinding:
    """Time that runs back or stands still, inside episodes."""
    times = view.column("timestamps").astype(np.float64)
    rows = view.inside[np.diff(times)[view.inside] <= 0] + 1
    if not len(rows):
        return passed("time runs forward in every episode")
    return found(f"time runs back or stands still at {plural(len(rows), 'row')}", rows, verdict="fail")


@check(
    "control intervals",
    why="the same action has another effect when it lasts longer, and discounting counts steps, not time",
    advice="resample the log to even steps, end episodes at gaps, or make the duration an observation",
    needs="timestamps",
)
def intervals(view: View) -> AuditFinding:
    """Steps of unequal duration."""
    if not len(view.inside):
        return unchecked("the data has no timestamps")
    steps = np.diff(view.column("timestamps").astype(np.float64))[view.inside]
    usual = float(np.median(steps))
    rows = view.inside[np.abs(steps - usual) > UNEVEN * abs(usual)] + 1
    if len(rows) <= 0.01 * len(steps):
        return passed(f"a step takes {usual:g}, nearly always")
    uneven = f"{plural(len(rows), 'step')} take more than {UNEVEN:.0%} longer or shorter than the usual {usual:g}"
    return found(uneven, rows)


@check("end flags")
def end_flags(view: View) -> AuditFinding:
    """End flags that contradict each other, as they were logged."""
    conflict = view.dataset.origin.end_conflict
    if conflict is None:
        return passed("no two end flags contradict each other")
    count = plural(conflict.count, "row")
    if conflict.kind == "both":
        message = f"termination and truncation are both set in {count}; they count as terminations"
        why = "after a termination there is no future, after a truncation there is one: the values differ"
        advice = "set the termination only where the task itself ended, even if the time was up as well"
    else:
        message = f"termination is set in {count} before the last row of an episode; it is ignored there"
        why, advice = "a task that continues has not terminated", "set the termination on the last row only"
    return found(message, conflict.rows, why=why, advice=advice, count=conflict.count)


@check(
    "episode ends",
    why="if these are several runs, transitions from one to the next were invented, and no episode can be held out",
    advice="set 'timeouts' on the last row of each run, or 'terminals' where the task ended",
    needs="episodes",
)
def open_episodes(view: View) -> AuditFinding:
    """A log in which no episode ends."""
    episodes, terminated = len(view.lengths), int(view.dones.sum())
    counts = f"{plural(episodes, 'episode')}, {terminated:,} terminated, {episodes - terminated:,} cut"
    if view.dataset.num_dropped:
        counts += f"; {plural(view.dataset.num_dropped, 'last row')} without a next observation were dropped"
    ignored = view.dataset.origin.ignored
    names = [name for name in ignored if any(part in name.lower() for part in ("run", "episode", "traj"))]
    hint = f"; {', '.join(map(repr, names))} in the file is not used" if names else ""
    if episodes > 1 or terminated:
        return passed(counts + hint)
    return found(f"no end of an episode is marked: all {view.rows:,} rows are one episode{hint}", [view.rows - 1])


@check(
    "time limits",
    why="after a termination nothing is worth anything, so the values learned will be too small",
    advice="name such ends 'timeouts' or 'truncations', unless the task is really over then",
    needs="episodes",
)
def time_limits(view: View) -> AuditFinding:
    """Terminations that come at the largest length, as a time limit makes them, or that nothing tells from cuts."""
    last = view.episodes[:, 1] - 1
    terminated = view.dones[last]
    longest = int(view.lengths.max())
    at_limit = terminated & (view.lengths == longest)
    count, total = int(at_limit.sum()), int(terminated.sum())
    # Of lengths that vary, about as many are exactly the largest as are each of those below it.
    width = max(1, longest // 10)
    usual = (terminated & (view.lengths >= longest - width)).sum() - count
    is_cut = (~terminated & (view.lengths == longest)).any()
    if count < LEAST_EPISODES or longest == 1 or is_cut or count < MANY_AT_LIMIT * usual / width:
        if terminated[:-1].all() and _look_like_the_rows_before(view, last[terminated & (view.lengths > 1)]):
            says = "every episode terminates, and nothing was found in its last row that the rows before do not have"
            return found(f"{says}: such ends look like cuts recorded as terminations", last[terminated])
        return passed("found no sign that terminations are time limits or cuts" if total else "no episode terminates")
    which = "every episode ends with dones" if count == total else f"{count} of {total} terminated episodes end"
    looks = "which looks like a time limit recorded as termination"
    return found(f"{which} after exactly {longest} steps, {looks}", last[at_limit])


def _look_like_the_rows_before(view: View, last: Indices) -> bool:
    """Whether nothing tells these rows, and where they led, from the rows before them."""
    if len(last) < LEAST_ENDS or view.is_tabular:
        return False
    rows = np.stack([last, last - 1], axis=1).reshape(-1)
    inputs = np.column_stack([view.next_obs[rows], view.actions[rows], view.rewards[rows]]).astype(np.float64)
    inputs = inputs[:, inputs.min(axis=0) < inputs.max(axis=0)]
    degree = min(largest_degree(len(rows), inputs.shape[1]), 2)
    is_last = np.where(np.arange(len(rows)) % 2, -1.0, 1.0)[:, None]
    return degree > 1 and float((residuals(inputs, is_last, degree) ** 2).mean()) > ALIKE
