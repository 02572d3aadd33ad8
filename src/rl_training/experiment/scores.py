"""Last scores over seeds: of each task, of all tasks put together, and their performance profiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rl_training.experiment.report import FEWEST_RUNS, PREFERRED, Group, RunRecord, choose_metrics
from rl_training.experiment.statistics import (
    Numbers,
    Scores,
    interquartile_mean,
    score_profile,
    stratified_band,
    stratified_interval,
)

NORMALIZED = "normalized_score"
EVALUATIONS = (NORMALIZED, "return_mean")
"""Metrics that are scores in an environment."""
MOST_COMPARED = 6
"""Groups whose profiles stand in one figure, those with the highest scores."""


@dataclass(frozen=True)
class ScoreRow:
    """The last scores of the runs of a group."""

    group: Group
    metric: str
    env_id: str | None
    scores: list[float]


@dataclass(frozen=True)
class ScoreTable:
    """Scores that may stand in one figure: those of one task, or of all tasks put together."""

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
    """The last scores of every group, by metrics that runs may be chosen by, or that are asked for."""
    rows = []
    for group, metric, members in choose_metrics(records, metrics):
        scores = [curve[-1][1] for record in members if (curve := record.curve(metric))]
        if scores and (metric in metrics or metric in PREFERRED):
            rows.append(ScoreRow(group, metric, members[0].config.env_id, scores))
    return rows


def score_tables(rows: Sequence[ScoreRow]) -> list[ScoreTable]:
    """The scores of each task and metric by themselves; before them, of all tasks that can be put together."""
    tables: dict[tuple[str, str], ScoreTable] = {}
    for row in rows:
        task = row.group.task
        table = tables.setdefault((task, row.metric), ScoreTable(task, row.metric, (task,), {}))
        table.groups[row.group.name] = [row.scores]
    together, _ = put_together(rows)
    return [*([] if together is None else [together]), *tables.values()]


def put_together(rows: Sequence[ScoreRow]) -> tuple[ScoreTable | None, str]:
    """The scores of groups that have all tasks, as runs and tasks; without it, why not, if there are several tasks.

    Scores must be normalised, or of one environment, or their mean would be that of the task with the largest numbers.
    """
    tasks = list(dict.fromkeys(row.group.task for row in rows))
    if len(tasks) < 2:
        return None, ""
    apart, metrics = f"the {len(tasks)} tasks stand each for itself", sorted({row.metric for row in rows})
    if len(metrics) > 1:
        return None, f"{apart}: their runs report different metrics ({', '.join(metrics)})"
    one_env = len({row.env_id for row in rows}) == 1 and metrics[0] in EVALUATIONS
    if metrics[0] != NORMALIZED and not one_env:
        return None, f"{apart}: {metrics[0]} of different tasks cannot be put together, and not all have {NORMALIZED}"
    by_name: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        by_name.setdefault(row.group.name, {})[row.group.task] = row.scores
    whole = {name: [found[task] for task in tasks] for name, found in by_name.items() if len(found) == len(tasks)}
    if not whole:
        return None, f"{apart}: no combination has runs on all of them"
    left_out = [name for name in by_name if name not in whole]
    return (
        ScoreTable(f"all {len(tasks)} tasks", metrics[0], tuple(tasks), whole),
        f"not on all tasks: {'; '.join(left_out)}" if left_out else "",
    )


def summary_over_tasks(table: ScoreTable) -> list[dict[str, Any]]:
    """A row per group over all tasks: IQM of all runs, and its interval by runs resampled within their tasks."""
    return [
        {
            "name": name,
            "metric": table.metric,
            "tasks": len(tasks),
            "runs": sum(map(len, tasks)),
            "iqm": interquartile_mean(np.concatenate(tasks)),
            "interval": list(stratified_interval(tasks)) if has_interval(*tasks) else None,
        }
        for name, tasks in table.groups.items()
    ]


def has_interval(*samples: Scores) -> bool:
    """Whether there are runs enough of each kind to say how much runs differ."""
    return all(len(scores) >= FEWEST_RUNS for scores in samples)


def make_profile(
    tasks: Sequence[Sequence[float]], thresholds: Numbers
) -> tuple[Numbers, Numbers | None, Numbers | None]:
    """The share of runs above each threshold, and its band where there are runs enough."""
    rows = [score_profile(scores, thresholds) for scores in tasks]
    low, high = stratified_band(rows) if has_interval(*tasks) else (None, None)
    return np.concatenate(rows).mean(axis=0), low, high
