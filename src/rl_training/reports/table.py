"""Groups of runs that differ in their seed alone, and a table of their scores."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError, nearest
from rl_training.core.options import options_with
from rl_training.core.statistics import bootstrap_interval, interquartile_mean
from rl_training.reports.runs import ALGORITHM, RunRecord, is_task_option

PREFERRED = ("normalized_score", "return_mean", "fqe_value")
"""Metrics that rank policies."""

HELD_OUT = ("action_mse", "action_agreement", "td_error")
"""Metrics shown in the absence of others. They show that a policy is broken, not that it is good, so they rank policies
only if the user names them."""

LOWER_IS_BETTER = ("td_error", "action_mse")

FEWEST_RUNS = 3
"""The fewest runs for an interval or a band."""

NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)")


class Group(NamedTuple):
    """The algorithm, task and options of runs that differ only in their seed."""

    algo: str
    task: str
    options: tuple[tuple[str, str], ...]
    """The options that differ from other groups of this algorithm and task; in a sweep, all that vary."""
    is_of_sweep: bool = False

    @property
    def variant(self) -> str:
        """The options other than algorithm and task, as text."""
        # In a sweep, the name and the task of a group contain some options already.
        known = [name for name, _ in self.options if self.is_of_sweep and (name in ALGORITHM or is_task_option(name))]
        return ", ".join(f"{name}={value}" for name, value in self.options if name not in known)

    @property
    def name(self) -> str:
        """Its name among the groups of its task: in a sweep, the values that vary."""
        if not self.is_of_sweep:
            return ", ".join(filter(None, (self.algo, self.variant)))
        subject = [value for name, value in self.options if name in ALGORITHM]
        return ", ".join(filter(None, (*subject, self.variant))) or self.algo


def summarize(records: Sequence[RunRecord], *, metrics: Sequence[str] = ()) -> list[dict[str, Any]]:
    """A row per algorithm, task, variant and metric: last and best score over seeds, IQM of the last and its interval.

    The runs of one sweep have a row per combination of the varying options, with its `values`.

    The interval is the 95 % bootstrap interval, or None with fewer than three runs. The best score of a metric that
    ranks no policies is None, unless the metric is named.
    """
    rows = []
    for group, name, members in choose_metrics(records, metrics):
        better = min if is_error(name) else max
        curves = [curve for record in members if (curve := record.curve(name))]
        if not curves:
            continue
        last = [curve[-1][1] for curve in curves]
        best = [better(value for _, value in curve) for curve in curves]
        is_choosable = name in metrics or name not in HELD_OUT
        rows.append(
            {
                "algo": group.algo,
                "task": group.task,
                "variant": group.variant,
                **({"values": dict(members[0].point.values)} if group.is_of_sweep and members[0].point else {}),
                "metric": name,
                "runs": len(curves),
                "last": sum(last) / len(last),
                "best": sum(best) / len(best) if is_choosable else None,
                "iqm": interquartile_mean(last),
                "interval": list(bootstrap_interval([last])) if len(last) >= FEWEST_RUNS else None,
            }
        )
    return rows


def is_error(metric: str) -> bool:
    """Whether less of a metric is better."""
    return metric in LOWER_IS_BETTER or metric.endswith("_loss")


def choose_metrics(
    records: Sequence[RunRecord], metrics: Sequence[str] = ()
) -> list[tuple[Group, str, list[RunRecord]]]:
    """Every group of runs with each metric to report: the named ones, else the most informative one of its task."""
    groups = group_runs(records)
    for name in metrics:
        check_metric(records, name)
    by_task: dict[str, list[RunRecord]] = {}
    for group, members in groups.items():
        by_task.setdefault(group.task, []).extend(members)
    return [
        (group, name, members)
        for group, members in groups.items()
        # Runs that are compared get the same metric, if they have one in common.
        for name in metrics or pick_metrics(by_task[group.task], members)
    ]


def group_runs(records: Sequence[RunRecord]) -> dict[Group, list[RunRecord]]:
    """Runs that differ only in their seed, by algorithm, task and the options that differ from other groups.

    Runs of one sweep are grouped by the options that vary, in the order of the sweep. Runs without an evaluation are
    left out.
    """
    evaluated = [record for record in records if record.rows]
    if not evaluated:
        raise ConfigError("none of these runs has an evaluation yet")
    if is_one_sweep(evaluated):
        return _sweep_groups(evaluated)
    groups: dict[Group, list[RunRecord]] = {}
    for subject in sorted({record.group for record in evaluated}):
        neighbours = [record for record in evaluated if record.group == subject]
        for record, values in zip(neighbours, options_that_differ([each.config for each in neighbours]), strict=True):
            groups.setdefault(Group(*subject, tuple(values.items())), []).append(record)
    order = sorted(groups, key=lambda group: (group.algo, group.task, by_number(group.variant)))
    return {group: groups[group] for group in order}


def is_one_sweep(records: Sequence[RunRecord]) -> bool:
    """Whether all runs are of one sweep."""
    folders = {None if record.point is None else record.point.folder for record in records}
    return len(folders) == 1 and None not in folders


def _sweep_groups(records: Sequence[RunRecord]) -> dict[Group, list[RunRecord]]:
    """The runs of a sweep by the options that vary, in the order of the sweep."""
    points = {record.path: record.point for record in records if record.point is not None}
    names = dict.fromkeys(name for each in points.values() for name in each.columns)
    apart = [name for name in names if is_task_option(name) and name != "env_id"]
    texts = {name: {dict(each.texts)[name] for each in points.values() if name in each.values} for name in apart}
    groups: dict[Group, list[RunRecord]] = {}
    for record in sorted(records, key=lambda record: points[record.path].place):
        found = dict(points[record.path].texts)
        more = [_task_text(name, found[name], texts[name]) for name in apart if name in found]
        task = ", ".join(dict.fromkeys([record.group[1], *more]))
        groups.setdefault(Group(record.config.algo, task, tuple(found.items()), True), []).append(record)
    return groups


def _task_text(name: str, value: str, others: set[str]) -> str:
    """An option as part of a task's name; a file without its folders, if that is unambiguous."""
    if name.rpartition(".")[2] == "dataset_path" and len({Path(each).stem for each in others}) == len(others):
        return Path(value).stem
    return value if name.rpartition(".")[2].startswith("dataset_") else f"{name}={value}"


def options_that_differ(configs: Sequence[TrainConfig]) -> list[dict[str, str]]:
    """For each run, the options that differ between these runs, by name; 'None' for an option that it lacks."""
    options = [_options(config) for config in configs]
    names = dict.fromkeys(name for each in options for name in each)
    varied = [name for name in names if len({each.get(name) for each in options}) > 1]
    return [{name.removeprefix("algo_kwargs."): str(each.get(name)) for name in varied} for each in options]


def by_number(text: str) -> list[str | float]:
    """A sort key that puts bc_alpha=10 after bc_alpha=2.5."""
    # Parts alternate between text and number, so that text is compared with text and a number with a number.
    return [float(part) if place % 2 else part for place, part in enumerate(NUMBER.split(text))]


def _options(config: TrainConfig) -> dict[str, str]:
    """The options that decide what a run learns, by dotted name."""
    incidental = options_with("incidental", TrainConfig)
    values = {key: value for key, value in config.to_plain().items() if key not in incidental}
    kwargs = {f"algo_kwargs.{name}": value for name, value in values.pop("algo_kwargs").items()}
    return {key: str(value) for key, value in {**values, **kwargs}.items()}


def pick_metrics(*candidates: Sequence[RunRecord]) -> list[str]:
    """The most informative metric that all of these runs have, else all held-out measures that they have.

    Of several lists of runs, the first with a common metric decides.
    """
    for records in candidates:
        reported = [{name for row in record.rows for name in row} for record in records]
        common = set.intersection(*reported)
        found = [name for name in PREFERRED if name in common][:1] or [name for name in HELD_OUT if name in common]
        if found:
            return found
    raise ConfigError(f"the runs beside {candidates[-1][0].path} have no metric in common; name one with --metric")


def check_metric(records: Sequence[RunRecord], metric: str) -> None:
    """Refuse a metric that no run has."""
    rows = [row for record in records for row in record.rows]
    names = {name for row in rows for name, value in row.items() if isinstance(value, float)}
    if metric not in names:
        raise ConfigError(f"no run reports {metric!r}{nearest(metric, names) or f'; there are {sorted(names)}'}")
