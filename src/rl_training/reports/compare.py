"""Last scores over seeds: of each task and of all tasks together, their profiles, and comparisons of groups."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.core.errors import ConfigError, nearest
from rl_training.core.statistics import (
    Numbers,
    Scores,
    bootstrap_band,
    bootstrap_improvement,
    bootstrap_interval,
    holm,
    improvement_over_tasks,
    interquartile_mean,
    rank_test,
    score_profile,
)
from rl_training.ope import Outcome, decide_outcomes, outcome_text
from rl_training.reports.runs import ALGORITHM, RunRecord, SweepFolder, named_sweeps, undone_text
from rl_training.reports.table import FEWEST_RUNS, PREFERRED, Group, choose_metrics, is_error, is_one_sweep

NORMALIZED = "normalized_score"

CLEAR = 0.9
"""The probability of improvement from which on the outcome of a task is clear."""

EVALUATIONS = (NORMALIZED, "return_mean")
"""Metrics that are scores in an environment."""

MOST_COMPARED = 6
"""Groups with profiles in one figure: those with the highest scores."""


@dataclass(frozen=True)
class ScoreRow:
    """The last scores of the runs of a group."""

    group: Group
    metric: str
    env_id: str | None
    scores: list[float]


@dataclass(frozen=True)
class ScoreTable:
    """Scores on one scale: those of one task, or of all tasks together."""

    task: str
    metric: str
    tasks: tuple[str, ...]
    groups: dict[str, list[list[float]]]
    """By name, the scores of each task."""

    def best(self, most: int = MOST_COMPARED) -> list[str]:
        """The names with the highest scores, highest first."""
        means = {name: interquartile_mean(np.concatenate(tasks)) for name, tasks in self.groups.items()}
        return sorted(means, key=lambda name: -means[name])[:most]


def score_rows(records: Sequence[RunRecord], metrics: Sequence[str] = ()) -> list[ScoreRow]:
    """The last scores of every group, by metrics that rank policies, or by those that the user names."""
    rows = []
    for group, metric, members in choose_metrics(records, metrics):
        scores = [curve[-1][1] for record in members if (curve := record.curve(metric))]
        if scores and (metric in metrics or metric in PREFERRED):
            rows.append(ScoreRow(group, metric, members[0].config.env_id, scores))
    return rows


def score_tables(rows: Sequence[ScoreRow]) -> list[ScoreTable]:
    """A table per task and metric; before them, a table of all tasks if their scores can be pooled."""
    tables: dict[tuple[str, str], ScoreTable] = {}
    for row in rows:
        task = row.group.task
        table = tables.setdefault((task, row.metric), ScoreTable(task, row.metric, (task,), {}))
        table.groups[row.group.name] = [row.scores]
    together, _ = pool_tasks(rows)
    return [*([] if together is None else [together]), *tables.values()]


def pool_tasks(rows: Sequence[ScoreRow]) -> tuple[ScoreTable | None, str]:
    """The scores of all groups that have runs on every task, or the reason why several tasks cannot be pooled.

    Scores must be normalised, or of one environment. Otherwise the task with the largest numbers would decide the mean.
    """
    tasks = list(dict.fromkeys(row.group.task for row in rows))
    if len(tasks) < 2:
        return None, ""
    apart, metrics = f"the {len(tasks)} tasks are not pooled", sorted({row.metric for row in rows})
    if len(metrics) > 1:
        return None, f"{apart}: their runs report different metrics ({', '.join(metrics)})"
    one_env = len({row.env_id for row in rows}) == 1 and metrics[0] in EVALUATIONS
    if metrics[0] != NORMALIZED and not one_env:
        return None, f"{apart}: {metrics[0]} differs in scale between tasks, and not all have {NORMALIZED}"
    by_name: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        by_name.setdefault(row.group.name, {})[row.group.task] = row.scores
    whole = {name: [found[task] for task in tasks] for name, found in by_name.items() if len(found) == len(tasks)}
    if not whole:
        return None, f"{apart}: no combination has runs on all of them"
    left_out = "; ".join(name for name in by_name if name not in whole)
    note = f"not on all tasks: {left_out}" if left_out else ""
    return ScoreTable(f"all {len(tasks)} tasks", metrics[0], tuple(tasks), whole), note


def summary_over_tasks(table: ScoreTable) -> list[dict[str, Any]]:
    """A row per group over all tasks: IQM of all runs, and its interval by runs resampled within their tasks."""
    return [
        {
            "name": name,
            "metric": table.metric,
            "tasks": len(tasks),
            "runs": sum(map(len, tasks)),
            "iqm": interquartile_mean(np.concatenate(tasks)),
            "interval": list(bootstrap_interval(tasks)) if has_interval(*tasks) else None,
        }
        for name, tasks in table.groups.items()
    ]


def has_interval(*samples: Scores) -> bool:
    """Whether each sample has enough runs for an interval."""
    return all(len(scores) >= FEWEST_RUNS for scores in samples)


def make_profile(
    tasks: Sequence[Sequence[float]], thresholds: Numbers
) -> tuple[Numbers, Numbers | None, Numbers | None]:
    """The share of runs above each threshold, and its band if there are enough runs."""
    rows = [score_profile(scores, thresholds) for scores in tasks]
    low, high = bootstrap_band(rows) if has_interval(*tasks) else (None, None)
    return np.concatenate(rows).mean(axis=0), low, high


@dataclass(frozen=True)
class Improvement:
    """The probability that a run of one group scores higher than a run of another."""

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
    p_values: tuple[float, float] | None = None
    """Rank tests of "the first is not better" and "it is not worse"; None where runs are too few for an interval."""
    comparisons: int = 1
    """The number of comparisons that the p-values are adjusted for."""
    verdict: Outcome = "not distinguishable"
    """The first group in comparison with the second."""

    @property
    def is_opposite(self) -> bool:
        """Whether the first clearly wins on one of two tasks and loses on the other, so that a mean says nothing."""
        is_known = len(self.tasks) == 2 and min(map(min, self.runs)) >= FEWEST_RUNS
        return is_known and min(self.by_task) < 1 - CLEAR and max(self.by_task) > CLEAR

    @property
    def p_value(self) -> float | None:
        """The smaller of the p-values."""
        return None if self.p_values is None else min(self.p_values)

    @property
    def meaning(self) -> str:
        """The verdict and its test, in a sentence."""
        if self.is_opposite:
            won, lost = self.tasks if self.by_task[0] > CLEAR else self.tasks[::-1]
            return f"opposite outcomes, so no mean: {self.first} scores higher on {won}, {self.second} on {lost}"
        if self.p_value is None:
            counts = " and ".join(map(str, min(self.runs, key=min)))
            test = f"{counts} runs are too few for an interval, for which {FEWEST_RUNS} of each are needed"
        else:
            adjusted = f", adjusted for {self.comparisons} comparisons" if self.comparisons > 1 else ""
            test = f"p = {self.p_value:.2g} by a test of ranks{adjusted}"
        return f"{test}: {self.first} is {outcome_text(self.verdict, self.second)}"

    def to_plain(self) -> dict[str, Any]:
        """Plain values."""
        names = ("first", "second", "metric", "probability", "interval", "p_value", "verdict", "meaning")
        tasks = zip(self.tasks, self.by_task, self.runs, strict=True)
        return {
            **{name: getattr(self, name) for name in names},
            **({"probability": None} if self.is_opposite else {}),
            "tasks": [{"task": task, "probability": value, "runs": list(counts)} for task, value, counts in tasks],
        }


def improvement(
    names: tuple[str, str], metric: str, tasks: Sequence[str], first: Sequence[Scores], second: Sequence[Scores]
) -> Improvement:
    """The probability of improvement by the scores of both on each task."""
    sign = -1.0 if is_error(metric) else 1.0
    ours, theirs = ([sign * np.asarray(scores, dtype=np.float64) for scores in each] for each in (first, second))
    pairs = list(zip(ours, theirs, strict=True))
    runs = tuple((len(a), len(b)) for a, b in pairs)
    by_task = tuple(improvement_over_tasks([a], [b]) for a, b in pairs)
    mean = improvement_over_tasks(ours, theirs)
    found = Improvement(*names, metric, tuple(tasks), runs, probability=mean, interval=None, by_task=by_task)
    if not has_interval(*ours, *theirs) or found.is_opposite:
        return found
    low, high = bootstrap_improvement(ours, theirs)
    # Where all runs of one score higher, resampling shows no chance.
    tested = replace(found, interval=(low, high) if low < high else None, p_values=rank_test(ours, theirs))
    return decide_together([tested])[0]


def decide_together(found: Sequence[Improvement]) -> list[Improvement]:
    """Comparisons that are reported together, with p-values and verdicts adjusted for their number after Holm."""
    tested = [each for each in found if each.p_values is not None]
    if not tested:
        return list(found)
    not_better, not_worse = np.array([each.p_values for each in tested]).T
    p_values = zip(holm(not_better).tolist(), holm(not_worse).tolist(), strict=True)
    decided = iter(
        replace(each, p_values=both, comparisons=len(tested), verdict=verdict)
        for each, both, verdict in zip(tested, p_values, decide_outcomes(not_better, not_worse), strict=True)
    )
    return [each if each.p_values is None else next(decided) for each in found]


def _of_rows(names: tuple[str, str], first: Sequence[ScoreRow], second: Sequence[ScoreRow]) -> Improvement:
    scores = ([row.scores for row in rows] for rows in (first, second))
    return improvement(names, first[0].metric, [row.group.task for row in first], *scores)


def compare_named(rows: Sequence[ScoreRow], first: str, second: str) -> list[Improvement]:
    """Compare by each metric the groups that two texts name, such as `algo=bc, batch_size=16`.

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
    return decide_together(found)


def compare_two(rows: Sequence[ScoreRow]) -> list[Improvement]:
    """Compare by each metric, if there are exactly two groups, or one group on exactly two tasks."""
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
    return decide_together(found)


def _select(rows: Sequence[ScoreRow], text: str) -> list[ScoreRow]:
    """The rows that a text names by options with their values, or by an algorithm alone."""
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
    """The options by which a group can be named."""
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
    """The rows on common tasks; without any, the only row of each if both have one scale; else None."""
    ours, theirs = {row.group.task: row for row in first}, {row.group.task: row for row in second}
    if common := [task for task in ours if task in theirs]:
        return [ours[task] for task in common], [theirs[task] for task in common]
    envs = {row.env_id for row in (*first, *second)}
    is_one_scale = first[0].metric == NORMALIZED or (len(envs) == 1 and None not in envs)
    return (first, second) if len(first) == len(second) == 1 and is_one_scale else None


@dataclass(frozen=True)
class Findings:
    """Facts below a table of runs: unfinished runs, scores over all tasks, comparisons."""

    sweeps: Sequence[SweepFolder]
    """The sweeps in the table."""
    over_tasks: Sequence[dict[str, Any]]
    """A row per combination over all tasks, if there are several and they can be pooled."""
    note: str
    """Why the tasks are not pooled, or which combinations are left out."""
    improvements: Sequence[Improvement]

    @property
    def undone_lines(self) -> list[str]:
        """Lines about runs that are not done."""
        return [line for sweep in self.sweeps for line in undone_text(sweep)]

    def to_plain(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "not_done": [{"sweep": str(sweep.path), **asdict(each)} for sweep in self.sweeps for each in sweep.undone],
            "over_tasks": list(self.over_tasks),
            "note": self.note,
            "improvements": [each.to_plain() for each in self.improvements],
        }


def sweep_findings(
    names: Sequence[str | Path],
    records: Sequence[RunRecord],
    *,
    metrics: Sequence[str] = (),
    compare: tuple[str, str] | None = None,
) -> Findings | None:
    """The findings on these runs, found by these names; None without a sweep and without a comparison.

    A sweep with exactly two combinations is compared even if `compare` is None.
    """
    sweeps, is_sweep = named_sweeps(names, records), is_one_sweep(records)
    if not sweeps and not is_sweep and compare is None:
        return None
    rows = score_rows(records, metrics)
    together, note = pool_tasks(rows) if is_sweep else (None, "")
    improvements = compare_named(rows, *compare) if compare is not None else compare_two(rows) if is_sweep else []
    return Findings(sweeps, [] if together is None else summary_over_tasks(together), note, improvements)
