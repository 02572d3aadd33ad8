"""Learning curves, ready to be drawn: a panel per task and metric, a line per algorithm and variant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from rl_training.reports.table import FEWEST_RUNS, RunRecord, choose_metrics

Numbers: TypeAlias = "NDArray[np.float64]"
UPDATES, STEPS, BOTH = "updates", "environment steps", "updates, then environment steps"
MIXED = "updates or environment steps, as each run counts"


@dataclass(frozen=True)
class Curve:
    """The evaluations of one run."""

    steps: Numbers
    values: Numbers

    def outside(self, first: float, last: float) -> list[Curve]:
        """The parts before and after a range, each joined to it."""
        low, high = np.interp([first, last], self.steps, self.values)
        before, after = self.steps < first, self.steps > last
        parts = [
            Curve(np.append(self.steps[before], first), np.append(self.values[before], low)),
            Curve(np.append(last, self.steps[after]), np.append(high, self.values[after])),
        ]
        return [part for part in parts if len(part.steps) > 1]


@dataclass(frozen=True)
class Line:
    """The runs of one algorithm and variant."""

    name: str
    curves: list[Curve]
    steps: Numbers
    """Where all runs have values: every timestep at which one of them was evaluated. Empty below three runs."""
    values: Numbers
    """A row per run, a column per timestep, interpolated between the run's own evaluations."""

    @property
    def has_mean(self) -> bool:
        """Whether there are runs enough, with timesteps in common, for a mean and a band."""
        return len(self.steps) > 0

    @property
    def is_point(self) -> bool:
        """Whether there is one timestep only."""
        return len(self.steps) == 1 or all(len(curve.steps) == 1 for curve in self.curves)

    @property
    def rests(self) -> list[Curve]:
        """What some runs have beyond the timesteps that all have; without a mean, the runs themselves."""
        if not self.has_mean:
            return self.curves
        return [part for curve in self.curves for part in curve.outside(self.steps[0], self.steps[-1])]


@dataclass(frozen=True)
class Panel:
    """All lines of one task and metric."""

    task: str
    metric: str
    lines: list[Line]
    axis: str
    """What its timesteps are."""
    acts_from: tuple[int, ...]
    """Where runs begin to act after updates on data alone."""
    data_return: float | None
    """Mean return of the data, where all runs have the same and the metric is a return."""

    @property
    def only_step(self) -> float | None:
        """The timestep of all evaluations, if there is one for all."""
        steps = {float(step) for line in self.lines for curve in line.curves for step in curve.steps}
        return steps.pop() if len(steps) == 1 else None


def make_panels(records: Sequence[RunRecord], *, metrics: Sequence[str] = (), smooth: int = 1) -> list[Panel]:
    """The panels of a picture, task by task; values are averages over `smooth` evaluations."""
    parts: dict[tuple[str, str], dict[str, list[RunRecord]]] = {}
    for group, metric, members in choose_metrics(records, metrics):
        having = [record for record in members if record.curve(metric)]
        if having:
            parts.setdefault((group.task, metric), {})[group.name] = having
    tasks = sorted({task for task, _ in parts})
    return [_panel(*key, parts[key], smooth) for task in tasks for key in parts if key[0] == task]


def _panel(task: str, metric: str, groups: dict[str, list[RunRecord]], smooth: int) -> Panel:
    lines = [
        make_line(name, [smoothed(record.curve(metric), smooth) for record in members])
        for name, members in groups.items()
    ]
    records = [record for members in groups.values() for record in members]
    starts = {record.acts_from for record in records}
    axes = {UPDATES if start is None else BOTH if start else STEPS for start in starts}
    returns = {record.data_return for record in records}
    return Panel(
        task,
        metric,
        lines,
        axis=axes.pop() if len(axes) == 1 else MIXED,
        acts_from=tuple(sorted(start for start in starts if start)),
        data_return=returns.pop() if metric == "return_mean" and len(returns) == 1 else None,
    )


def smoothed(curve: Sequence[tuple[int, float]], smooth: int) -> Curve:
    """A curve whose values are averages over the last `smooth` evaluations; the first have as many as there are."""
    steps, values = np.array(curve, dtype=np.float64).T
    means = [values[max(end - smooth, 0) : end].mean() for end in range(1, len(values) + 1)]
    return Curve(steps, np.array(means))


def make_line(name: str, curves: list[Curve]) -> Line:
    """Runs on the timesteps that lie within all of them, so that a value is interpolated but never extrapolated."""
    first, last = max(curve.steps[0] for curve in curves), min(curve.steps[-1] for curve in curves)
    steps = np.unique(np.concatenate([curve.steps for curve in curves]))
    steps = steps[(steps >= first) & (steps <= last)] if len(curves) >= FEWEST_RUNS else steps[:0]
    values = np.stack([np.interp(steps, curve.steps, curve.values) for curve in curves])
    return Line(name, curves, steps, values)
