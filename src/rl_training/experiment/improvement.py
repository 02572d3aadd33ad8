"""How probably a run of one group scores higher than one of another, and whether they can be told apart."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rl_training.experiment.report import FEWEST_RUNS, Group, is_error
from rl_training.experiment.scores import NORMALIZED, ScoreRow, has_interval
from rl_training.experiment.statistics import Scores, improvement_over_tasks, stratified_improvement
from rl_training.experiment.sweep_folder import ALGORITHM
from rl_training.types import ConfigError, nearest

EVEN = 0.5
"""The probability of improvement where neither is better."""
LEVEL = 0.05
"""Differences that chance makes more often than this are not called differences."""


@dataclass(frozen=True)
class Improvement:
    """How probably a run of one group scores higher than one of another."""

    first: str
    second: str
    metric: str
    tasks: tuple[str, ...]
    runs: tuple[tuple[int, int], ...]
    """The numbers of runs of both, by task."""
    probability: float
    interval: tuple[float, float] | None
    by_task: tuple[float, ...]
    """The probability on each task, whose mean it is."""

    @property
    def verdict(self) -> str:
        """Which is better: first, second, or neither that one could tell."""
        if self.interval is None or self.by_chance > LEVEL or self.interval[0] <= EVEN <= self.interval[1]:
            return "cannot be distinguished"
        return "first is better" if self.probability > EVEN else "second is better"

    @property
    def by_chance(self) -> float:
        """How often chance alone would put all runs of one above all of the other, on all tasks."""
        return 2 * math.prod(1 / math.comb(sum(counts), counts[0]) for counts in self.runs)

    @property
    def meaning(self) -> str:
        """What follows from the numbers, in words."""
        counts = " and ".join(map(str, min(self.runs, key=min)))
        if self.interval is None:
            few = f"{counts} runs are too few for an interval, for which {FEWEST_RUNS} of each are needed"
            return f"{few}: they cannot be distinguished"
        if self.interval[0] <= EVEN <= self.interval[1]:
            return "the interval includes 1/2: they cannot be distinguished"
        if self.by_chance > LEVEL:
            return (
                f"the interval excludes 1/2, but with {counts} runs chance alone separates them completely in "
                f"{100 * self.by_chance:.0f} % of cases: they cannot be distinguished by so few"
            )
        better = self.first if self.probability > EVEN else self.second
        return f"the interval excludes 1/2: {better} is better"

    def to_plain(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "first": self.first,
            "second": self.second,
            "metric": self.metric,
            "probability": self.probability,
            "interval": None if self.interval is None else list(self.interval),
            "verdict": self.verdict,
            "meaning": self.meaning,
            "tasks": [
                {"task": task, "probability": probability, "runs": list(counts)}
                for task, probability, counts in zip(self.tasks, self.by_task, self.runs, strict=True)
            ],
        }


def improvement(
    names: tuple[str, str], metric: str, tasks: Sequence[str], first: Sequence[Scores], second: Sequence[Scores]
) -> Improvement:
    """The probability of improvement by the scores of both on each task."""
    sign = -1.0 if is_error(metric) else 1.0
    ours, theirs = ([sign * np.asarray(scores, dtype=np.float64) for scores in each] for each in (first, second))
    return Improvement(
        *names,
        metric=metric,
        tasks=tuple(tasks),
        runs=tuple((len(a), len(b)) for a, b in zip(ours, theirs, strict=True)),
        probability=improvement_over_tasks(ours, theirs),
        interval=stratified_improvement(ours, theirs) if has_interval(*ours, *theirs) else None,
        by_task=tuple(improvement_over_tasks([a], [b]) for a, b in zip(ours, theirs, strict=True)),
    )


def _of_rows(names: tuple[str, str], first: Sequence[ScoreRow], second: Sequence[ScoreRow]) -> Improvement:
    scores = ([row.scores for row in rows] for rows in (first, second))
    return improvement(names, first[0].metric, [row.group.task for row in first], *scores)


def compare(rows: Sequence[ScoreRow], first: str, second: str) -> list[Improvement]:
    """The groups that two texts stand for, compared by each metric; a text is such as `algo=bc, batch_size=16`.

    Where a text leaves out the task, tasks that both have are compared one by one, and the mean counts.
    """
    if not rows:
        raise ConfigError("these runs have no score to compare by; name a metric with --metric")
    found = []
    for metric in dict.fromkeys(row.metric for row in rows):
        own = [row for row in rows if row.metric == metric]
        chosen = [_single(_select(own, text), text) for text in (first, second)]
        if {row.group for row in chosen[0]} & {row.group for row in chosen[1]}:
            raise ConfigError(f"--compare: {first!r} and {second!r} stand for the same runs")
        if (pairs := _paired(*chosen)) is None:
            why = f"have no task in common, and {metric} of different tasks cannot be compared"
            raise ConfigError(f"--compare: {first!r} and {second!r} {why}")
        found.append(_of_rows((first, second), *pairs))
    return found


def compare_two(rows: Sequence[ScoreRow]) -> list[Improvement]:
    """The comparison that goes without saying: of two groups, or of two on the same tasks, where there are no more."""
    found = []
    for metric in dict.fromkeys(row.metric for row in rows):
        own = [row for row in rows if row.metric == metric]
        by_name = {name: [row for row in own if row.group.name == name] for name in (row.group.name for row in own)}
        if len(by_name) == 1 and len(own) == 2:
            by_name = {row.group.task: [row] for row in own}
        if len(by_name) == 2:
            (first, ours), (second, theirs) = by_name.items()
            if (pairs := _paired(ours, theirs)) is not None:
                found.append(_of_rows((first, second), *pairs))
    return found


def _select(rows: Sequence[ScoreRow], text: str) -> list[ScoreRow]:
    """The rows that a text stands for: options with their values, and the name of an algorithm by itself."""
    chosen, known = list(rows), list(dict.fromkeys(name for row in rows for name in _options(row.group)))
    # A comma inside a value, such as that of a list, is followed by neither.
    for part in re.split(r",\s*(?=[\w.]+\s*=|[^=\]]+$)", text.strip()):
        name, is_pair, value = (each.strip() for each in part.partition("="))
        if is_pair and name not in known:
            raise ConfigError(f"--compare {text!r}: no option {name!r} varies{nearest(name, known) or _there(known)}")
        wanted, names = (value, [name]) if is_pair else (name, ["algo", *ALGORITHM])
        values = [found for row in chosen for each in names if (found := _options(row.group).get(each)) is not None]
        chosen = [row for row in chosen if any(_is_same(_options(row.group).get(each), wanted) for each in names)]
        if not chosen:
            raise ConfigError(f"--compare {text!r}: no runs with {part}{nearest(wanted, values) or _there(values)}")
    return chosen


def _options(group: Group) -> dict[str, str]:
    """Everything by which a group can be named."""
    return {"algo": group.algo, "task": group.task, **dict(group.options)}


def _there(names: Iterable[str]) -> str:
    return f"; there are {', '.join(dict.fromkeys(names))}"


def _is_same(found: str | None, wanted: str) -> bool:
    if found is None or found.casefold() == wanted.casefold():
        return found is not None
    try:
        return float(found) == float(wanted)
    except ValueError:
        return False


def _single(rows: list[ScoreRow], text: str) -> list[ScoreRow]:
    """The rows, if they differ in nothing but their task."""
    names = list(dict.fromkeys(row.group.name for row in rows))
    if len(names) > 1:
        raise ConfigError(f"--compare {text!r} stands for {len(names)} combinations, name one: {'; '.join(names)}")
    return rows


def _paired(
    first: Sequence[ScoreRow], second: Sequence[ScoreRow]
) -> tuple[Sequence[ScoreRow], Sequence[ScoreRow]] | None:
    """The rows of both on tasks that both have; of one row each, the two, if their scores mean the same."""
    ours, theirs = {row.group.task: row for row in first}, {row.group.task: row for row in second}
    common = [task for task in ours if task in theirs]
    if common:
        return [ours[task] for task in common], [theirs[task] for task in common]
    envs = {row.env_id for row in (*first, *second)}
    is_one_scale = first[0].metric == NORMALIZED or (len(envs) == 1 and None not in envs)
    return (first, second) if len(first) == len(second) == 1 and is_one_scale else None
