"""The check for borders of episodes that were not marked: steps that the usual course of things does not lead to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np

from rl_training.core.text import plural
from rl_training.data.audit.view import AuditFinding, Flags, Floats, Indices, View, check, found, passed, unchecked

FEW_VALUES = 10
"""Different values of a column up to which it is not looked at beside others that have more."""
MOST_COLUMNS = 200
"""Observation columns that are looked at."""
ROWS_PER_FEATURE = 10
RIDGE, RIDGE_OF_HALVES = 1e-6, 1e-4
ROUNDS = 3
"""Fits, each without the tenth of the rows that the fit before explains worst."""
CHUNK = 1 << 13
LEAST_ROWS = 20
LEAST_STEP = 0.05
"""The least that a border is off, in root mean square distances between two rows that are taken at random."""
LEAST_ALONE = 0.2
"""The same of fewer borders than several."""
FAR, ALONE = 6.0, 12.0
"""How many times the usual error a border is off, and how many times the errors of the rows around it."""
VERY_FAR, SEVERAL = 40.0, 3
"""Fewer rows than several may be collisions, unless they are off by even more."""
FAR_TO_START, ALONE_TO_START = 4.0, 1.5
"""The same where a step leads to where episodes start."""
NEAR_START = 0.4
"""Distance from a start, relative to that of other rows, up to which a row is near it."""
STARTING = 3
"""Rows at the start of an episode after which no border is looked for."""
FEW_NEAR = 0.05
"""Share of rows near a start up to which starts are a place of their own."""
MOST_STARTS = 200


@check(
    "jumps",
    why="a transition from the end of one episode to the start of the next never happened, and values flow through it",
    advice="look at these rows; set 'timeouts' on them if an episode ends there",
)
def jumps(view: View) -> AuditFinding:
    """Steps far from what the rows before them lead to, as between the end of one run and the start of the next."""
    if view.is_tabular or view.rows - view.dones.sum() < LEAST_ROWS or not view.dataset.has_episodes:
        return unchecked("there are too few different rows in order to know a usual step")
    borders = likely_borders(view)
    if not len(borders):
        return passed("found no step inside episodes that the usual course of things does not lead to")
    gaps = np.diff(borders)
    even = f", every {gaps[0]} rows" if len(gaps) > 1 and (gaps == gaps[0]).all() else ""
    which = "a likely border" if len(borders) == 1 else "likely borders"
    where = f"the observations after {plural(len(borders), 'row')}{even} do not follow from what came before"
    moved = np.median(np.abs(view.next_obs[borders] - view.obs[borders]) / view.spread, axis=0)
    where += f", most of all in {view.obs_named(np.argsort(-moved)[:3])}"
    return found(f"{where}: {which} between episodes, without an end flag", borders)


def unmarked_borders(view: View) -> AuditFinding:
    """Jumps in a log in which no episode ends: there they would be transitions that never happened."""
    if len(view.ends) == 0 or view.ends.sum() > 1:
        return AuditFinding("jumps", "not checked", "episodes are marked")
    return jumps(view)


def likely_borders(view: View) -> Indices:
    """Rows after which another episode seems to begin."""
    rows = np.flatnonzero(~view.dones)
    step = _Step.fit(view, rows)
    surprise, distance = step.measure(view, rows)
    around = _around(surprise)
    # Where episodes start, things may happen that happen nowhere else.
    is_start = np.isin(rows, view.episodes[:, :1] + np.arange(STARTING))
    is_large = (distance > LEAST_STEP) & ~is_start & ~view.ends[rows]
    is_far = is_large & (surprise > FAR) & (surprise > ALONE * around)
    if is_far.sum() < SEVERAL:
        is_far &= (surprise > VERY_FAR) & (distance > LEAST_ALONE)
    maybe = np.flatnonzero(is_large & (surprise > FAR_TO_START) & (surprise > ALONE_TO_START * around))
    borders, starts = rows[is_far], view.episodes[:, 0]
    # Borders that are found tell of more starts, and these of more borders.
    for _ in range(2):
        seen = view.obs[np.union1d(starts, borders + 1).clip(max=view.rows - 1)]
        borders = np.union1d(borders, rows[maybe[_leads_to_start(view, rows[maybe], seen)]])
    return borders[~_comes_back(view, borders)]


def _comes_back(view: View, rows: Indices) -> Flags:
    """Whether the row after next is near the row itself: then the one between them is a wrong reading."""
    here, later = view.obs[rows], view.next_obs[(rows + 1).clip(max=view.rows - 1)]
    away, left = (np.linalg.norm((obs - here) / view.spread, axis=1) for obs in (view.next_obs[rows], later))
    return np.asarray(left < 0.1 * away)


def _around(values: Floats) -> Floats:
    """The largest of the two values before and the two values after each: fast motion lasts for several steps."""
    padded = np.concatenate([np.zeros(2), values, np.zeros(2)])
    count = len(values)
    return np.asarray(np.stack([padded[:count], padded[1:-3], padded[3:-1], padded[4:]]).max(axis=0))


def _leads_to_start(view: View, rows: Indices, starts: Floats) -> Flags:
    """Whether rows lead from somewhere else to near one of the observations that episodes start with."""
    starts = starts[:: max(1, len(starts) // MOST_STARTS)]
    others = _nearest(view, view.obs[view.sample[:: max(1, len(view.sample) // 2000)]], starts)
    usual = np.median(others)
    if (others < NEAR_START * usual).mean() > FEW_NEAR:
        # Episodes start anywhere, so nothing follows from being near a start.
        return np.zeros(len(rows), dtype=bool)
    before, after = _nearest(view, view.obs[rows], starts), _nearest(view, view.next_obs[rows], starts)
    return np.asarray((after < NEAR_START * usual) & (before > 2 * after))


def _nearest(view: View, obs: Floats, starts: Floats) -> Floats:
    """Distance of observations from the nearest start, in standard deviations of the columns."""
    obs, starts = obs / view.spread, starts / view.spread
    squares = (obs**2).sum(axis=1)[:, None] + (starts**2).sum(axis=1) - 2 * obs @ starts.T
    return np.asarray(np.sqrt(np.maximum(squares, 0)).min(axis=1))


@dataclass(frozen=True)
class _Step:
    """The usual step: a polynomial of observation and action, and how its errors are spread."""

    columns: Indices
    mean: Floats
    deviation: Floats
    low: Floats
    high: Floats
    """The range of standardised observations."""
    degree: float
    weights: Floats
    axes: Floats
    """From errors to errors along their principal axes, in usual sizes: kinematics hold in every motion."""

    @classmethod
    def fit(cls, view: View, rows: Indices) -> _Step:
        """The usual step of rows, by the rows that it explains well: those at borders are not among these."""
        some = view.drawn(rows)
        columns = np.flatnonzero(view.low < view.high)
        # A tariff of two values jumps by right.
        varied = [number for number in columns if len(np.unique(view.obs[some, number])) > FEW_VALUES]
        columns = np.array(varied or columns, dtype=np.int64)
        columns = columns[:: -(-len(columns) // MOST_COLUMNS) or 1]
        plain = _inputs(view, some, columns)
        mean, deviation = plain.mean(axis=0), plain.std(axis=0)
        deviation = np.where(deviation > 0, deviation, 1.0)
        degree = largest_degree(len(some), plain.shape[1])
        features = polynomial((plain - mean) / deviation, degree).astype(np.float64)
        steps = _steps(view, some, columns, deviation)
        kept = np.ones(len(some), dtype=bool)
        for _ in range(ROUNDS):
            gram = features[kept].T @ features[kept]
            gram += RIDGE * kept.sum() * np.eye(len(gram))
            weights = np.linalg.solve(gram, features[kept].T @ steps[kept])
            errors = steps - features @ weights
            sizes = np.log1p(np.abs(errors) / usual_errors(errors)).mean(axis=1)
            kept = sizes <= np.quantile(sizes, 0.9)
        ends = (view.low[columns], view.high[columns])
        low, high = ((end - mean[: len(columns)]) / deviation[: len(columns)] for end in ends)
        return cls(columns, mean, deviation, low, high, degree, weights, _axes(errors, kept))

    def measure(self, view: View, rows: Indices) -> tuple[Floats, Floats]:
        """How many times the usual error rows are off, and how far that is, in distances between any two rows."""
        surprise, distance = np.zeros(len(rows)), np.zeros(len(rows))
        for start in range(0, len(rows), CHUNK):
            part = slice(start, start + CHUNK)
            plain = (_inputs(view, rows[part], self.columns) - self.mean) / self.deviation
            here = plain[:, : len(self.columns)]
            expected = here + polynomial(plain, self.degree) @ self.weights.astype(np.float32)
            # A speed limit, say, is in the data, but not in the polynomial.
            expected = np.clip(expected, self.low, self.high)
            errors = _steps(view, rows[part], self.columns, self.deviation) - (expected - here)
            # By logarithms: a single column that is far off is a collision or a bad sensor, not another episode.
            surprise[part] = np.expm1(np.log1p(np.abs(errors @ self.axes)).mean(axis=1))
            distance[part] = np.linalg.norm(errors, axis=1) / np.sqrt(2 * len(self.columns))
        return surprise, distance


def _inputs(view: View, rows: Indices, columns: Indices) -> Floats:
    actions = view.actions[rows]
    if view.dataset.is_discrete:
        actions = actions == np.arange(1, min(int(view.actions.max()) + 1, 32))
    obs = view.obs[np.ix_(rows, columns)]
    return np.concatenate([obs, actions[:, :MOST_COLUMNS]], axis=1).astype(np.float64)


def _steps(view: View, rows: Indices, columns: Indices, deviation: Floats) -> Floats:
    moved = view.next_obs[np.ix_(rows, columns)] - view.obs[np.ix_(rows, columns)]
    return np.asarray(moved / deviation[: len(columns)], dtype=np.float64)


def largest_degree(rows: int, columns: int) -> float:
    """The largest degree for which there are rows enough; 1.5 is a quadratic polynomial without mixed terms."""
    counts = {3: math.comb(columns + 3, 3), 2: math.comb(columns + 2, 2), 1.5: 2 * columns + 1, 1: columns + 1}
    largest: dict[float, int] = {3: 100, 2: 500}
    few = {degree: count for degree, count in counts.items() if count <= largest.get(degree, count)}
    return next((degree for degree, count in few.items() if count * ROWS_PER_FEATURE <= rows), 0)


def polynomial(plain: Floats, degree: float) -> Floats:
    """Monomials of standardised inputs up to a degree, in single precision: there may be millions of rows."""
    # One input after the other in memory, which makes products of whole columns fast.
    inputs = np.ascontiguousarray(np.clip(plain, -5, 5).T, dtype=np.float32)
    parts = [np.ones((1, len(plain)), np.float32), *([inputs] if degree >= 1 else [])]
    if degree == 1.5:
        parts.append(inputs**2)
    for order in range(2, int(degree) + 1):
        factors = np.array(list(combinations_with_replacement(range(len(inputs)), order))).T
        product = inputs[factors[0]]
        for factor in factors[1:]:
            product *= inputs[factor]
        parts.append(product)
    return np.concatenate(parts).T


def residuals(inputs: Floats, targets: Floats, degree: float) -> Floats:
    """Errors of a polynomial fit on rows, for each half by what the other half taught."""
    features = polynomial(scaled(inputs, like=inputs), degree).astype(np.float64)
    first, errors = np.arange(len(inputs)) < len(inputs) // 2, np.zeros_like(targets)
    for seen in (first, ~first):
        errors[~seen] = targets[~seen] - features[~seen] @ fit(features[seen], targets[seen])
    return errors


def scaled(values: Floats, *, like: Floats) -> Floats:
    """Values in standard deviations from the mean of others."""
    deviation = like.std(axis=0)
    return np.asarray((values - like.mean(axis=0)) / np.where(deviation > 0, deviation, 1))


def fit(features: Floats, targets: Floats) -> Floats:
    """Weights of a ridge regression."""
    gram = features.T @ features
    return np.asarray(np.linalg.solve(gram + RIDGE_OF_HALVES * len(features) * np.eye(len(gram)), features.T @ targets))


def usual_errors(errors: Floats) -> Floats:
    """The standard deviation of each column, by its median, which a few large errors do not move."""
    return np.asarray(np.median(np.abs(errors), axis=0) / 0.6745 + 1e-9)


def _axes(errors: Floats, kept: Flags) -> Floats:
    """The principal axes of errors, each divided by the usual error along it."""
    scaled = errors / usual_errors(errors)
    clipped = np.clip(scaled[kept], -10, 10)
    _, vectors = np.linalg.eigh(clipped.T @ clipped / len(clipped))
    return np.asarray(vectors / usual_errors(errors)[:, None] / (usual_errors(scaled @ vectors) + 1e-6))
