"""Runs put together: those that differ in their seed alone, and a table of what they came to."""

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
"""Metrics that runs may be chosen by."""

HELD_OUT = ("action_mse", "action_agreement", "td_error")
"""Metrics that are shown where there is no other. They say what is broken, not what is good, so that nothing is chosen
by them unless a user names them."""

LOWER_IS_BETTER = ("td_error", "action_mse")

FEWEST_RUNS = 3
"""Fewer runs say nothing about how much runs differ, so there is no interval and no band."""

NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)")


class Group(NamedTuple):
    """What runs have in common that differ only in their seed."""

    algo: str
    task: str
    options: tuple[tuple[str, str], ...]
    """The options that tell it from other groups: of this algorithm on this task, or in a sweep all that vary."""
    is_swept: bool = False

    @property
    def variant(self) -> str:
        """The options beside algorithm and task, as text."""
        return ", ".join(f"{name}={value}" for name, value in self.options if not self._is_said(name))

    @property
    def name(self) -> str:
        """What tells it from others on its task: in a sweep, what varied."""
        if not self.is_swept:
            return ", ".join(filter(None, (self.algo, self.variant)))
        subject = [value for name, value in self.options if name in ALGORITHM]
        return ", ".join(filter(None, (*subject, self.variant))) or self.algo

    def _is_said(self, name: str) -> bool:
        return self.is_swept and (name in ALGORITHM or is_task_option(name))


def summarize(records: Sequence[RunRecord], *, metrics: Sequence[str] = ()) -> list[dict[str, Any]]:
    """A row per algorithm, task, variant and metric: last and best score over seeds, IQM of the last and its interval.

    The runs of one sweep have a row per combination of what varied, with its `values`.

    The interval is the 95 % bootstrap interval, and None where there are fewer than three runs. There is no best score,
    but None, of metrics that nothing is to be chosen by, unless they are asked for.
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
                **({"values": dict(members[0].swept.values)} if group.is_swept and members[0].swept else {}),
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
    """Every group of runs with each metric to report: those that are asked for, else the most telling of its task."""
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
    """Runs that differ only in their seed, under algorithm, task and the options that tell them from their neighbours.

    Where all are of one sweep, what varied in it tells them apart, in its order. Runs without an evaluation are left
    out.
    """
    evaluated = [record for record in records if record.rows]
    if not evaluated:
        raise ConfigError("none of these runs has an evaluation yet")
    groups: dict[Group, list[RunRecord]] = {}
    if is_one_sweep(evaluated):
        return _swept_groups(evaluated)
    for subject in sorted({record.group for record in evaluated}):
        neighbours = [record for record in evaluated if record.group == subject]
        for record, values in zip(neighbours, options_that_differ([each.config for each in neighbours]), strict=True):
            groups.setdefault(Group(*subject, tuple(values.items())), []).append(record)
    order = sorted(groups, key=lambda group: (group.algo, group.task, by_number(group.variant)))
    return {group: groups[group] for group in order}


def is_one_sweep(records: Sequence[RunRecord]) -> bool:
    """Whether all runs are of one sweep."""
    folders = {None if record.swept is None else record.swept.folder for record in records}
    return len(folders) == 1 and None not in folders


def _swept_groups(records: Sequence[RunRecord]) -> dict[Group, list[RunRecord]]:
    """The runs of a sweep by what varied, in the order of the sweep."""
    swept = {record.path: record.swept for record in records if record.swept is not None}
    names = dict.fromkeys(name for each in swept.values() for name in each.columns)
    apart = [name for name in names if is_task_option(name) and name != "env_id"]
    texts = {name: {dict(each.texts)[name] for each in swept.values() if name in each.values} for name in apart}
    groups: dict[Group, list[RunRecord]] = {}
    for record in sorted(records, key=lambda record: swept[record.path].place):
        found = dict(swept[record.path].texts)
        more = [_task_text(name, found[name], texts[name]) for name in apart if name in found]
        task = ", ".join(dict.fromkeys([record.group[1], *more]))
        groups.setdefault(Group(record.config.algo, task, tuple(found.items()), True), []).append(record)
    return groups


def _task_text(name: str, value: str, others: set[str]) -> str:
    """An option that makes another task, as part of the task's name; a file without its folders, if that is enough."""
    if name.rpartition(".")[2] == "dataset_path" and len({Path(each).stem for each in others}) == len(others):
        return Path(value).stem
    return value if name.rpartition(".")[2].startswith("dataset_") else f"{name}={value}"


def options_that_differ(configs: Sequence[TrainConfig]) -> list[dict[str, str]]:
    """For each run, the options that are not the same for all of these runs, by name; 'None' where it has none."""
    options = [_options(config) for config in configs]
    names = dict.fromkeys(name for each in options for name in each)
    varied = [name for name in names if len({each.get(name) for each in options}) > 1]
    return [{name.removeprefix("algo_kwargs."): str(each.get(name)) for name in varied} for each in options]


def by_number(text: str) -> list[str | float]:
    """A key to sort by, such that bc_alpha=10 comes after bc_alpha=2.5."""
    # Parts alternate between text and number, so that text is compared with text and a number with a number.
    return [float(part) if place % 2 else part for place, part in enumerate(NUMBER.split(text))]


def _options(config: TrainConfig) -> dict[str, str]:
    """Every option of a run but those that make no difference to what it learns, by dotted name."""
    incidental = options_with("incidental", TrainConfig)
    values = {key: value for key, value in config.to_plain().items() if key not in incidental}
    kwargs = values.pop("algo_kwargs")
    return {key: str(value) for key, value in {**values, **{f"algo_kwargs.{k}": v for k, v in kwargs.items()}}.items()}


def pick_metrics(*candidates: Sequence[RunRecord]) -> list[str]:
    """The most telling metric that all of these runs have, or else all held-out measures that they have.

    Of several lists of runs, the first that have one in common decide.
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
    names = {
        name for record in records for row in record.rows for name, value in row.items() if isinstance(value, float)
    }
    if metric not in names:
        raise ConfigError(f"no run reports {metric!r}{nearest(metric, names) or f'; there are {sorted(names)}'}")
