"""Run directories, read and put together: runs that differ in their seed alone, and a table of what they came to."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from rl_training.binding import options_with
from rl_training.config import TrainConfig, load_config
from rl_training.experiment.metadata import read_metadata
from rl_training.experiment.statistics import bootstrap_interval, interquartile_mean
from rl_training.runtime.artifacts import read_json, read_metrics
from rl_training.runtime.checkpoint_schema import refusing_broken_state
from rl_training.runtime.finding import find_runs
from rl_training.types import CheckpointError, ConfigError, nearest

PREFERRED = ("normalized_score", "return_mean", "fqe_value")
"""Metrics that runs may be chosen by."""
HELD_OUT = ("action_mse", "action_agreement", "td_error")
"""Metrics that are shown where there is no other. They say what is broken, not what is good, so that nothing is chosen
by them unless a user names them."""
LOWER_IS_BETTER = ("td_error", "action_mse")
FEWEST_RUNS = 3
"""Fewer runs say nothing about how much runs differ, so there is no interval and no band."""
NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)")

Group: TypeAlias = tuple[str, str, str]
"""Algorithm, task, and the options that tell runs from others of this algorithm on this task."""


class Alarm(NamedTuple):
    """What a guard has found in a run."""

    global_step: int
    message: str
    action: str
    """What the run did: warn, or rollback."""


@dataclass(frozen=True)
class RunRecord:
    """One run's evaluations."""

    path: Path
    config: TrainConfig
    rows: list[dict[str, Any]]
    metadata: Mapping[str, Any]
    alarms: tuple[Alarm, ...] = ()
    """What guards have found."""

    @property
    def group(self) -> tuple[str, str]:
        """Algorithm, and environment or dataset; older runs have the name of the dataset in their own name only."""
        named = self.path.name.split("__")[1] if "__" in self.path.name else "data"
        return self.config.algo, self.config.env_id or str(self.metadata.get("subject", named))

    @property
    def data_return(self) -> float | None:
        """Mean return of the logged episodes, where the run has some."""
        data = self.metadata.get("data")
        found = data.get("return_mean") if isinstance(data, Mapping) else None
        return float(found) if isinstance(found, (int, float)) else None

    @property
    def acts_from(self) -> int | None:
        """The timestep from which on the run acts and counts environment steps; before it, updates. None: never."""
        if not any("env_steps" in row for row in self.rows):
            return None
        starts = [row["global_step"] - row["env_steps"] for row in self.rows if row.get("env_steps")]
        return int(starts[-1] if starts else self.config.algo_kwargs.get("offline_pretrain_updates", 0))

    def curve(self, metric: str) -> list[tuple[int, float]]:
        """Timestep and value at each evaluation; where one was made twice, the second counts."""
        values = {row["global_step"]: row[metric] for row in self.rows if row.get(metric) is not None}
        return sorted(values.items())


def read_runs(names: str | Path | Iterable[str | Path]) -> list[RunRecord]:
    """The runs that are meant: run directories, checkpoints, folders of runs, however deep, and patterns.

    A run that cannot be read is refused where it is named itself, and else left out with a warning.
    """
    names = [names] if isinstance(names, (str, Path)) else list(names)
    runs = find_runs(names)
    named = {path.parent.parent if path.is_file() else path for path in map(Path, names)}
    records = []
    for run in runs:
        try:
            records.append(_read_run(run))
        except (ConfigError, CheckpointError) as error:
            if run in named:
                raise
            warnings.warn(f"{run} is left out: {error}", stacklevel=2)
    if not records:
        raise ConfigError(f"none of the {len(runs)} runs there can be read")
    return records


def _read_run(run: Path) -> RunRecord:
    try:
        config, rows = load_config(run / "config.yaml"), read_metrics(run)
    except OSError as error:
        raise ConfigError(f"{str(run)!r} cannot be read: {error}") from None
    if not all({"kind", "global_step"} <= row.keys() for row in rows):
        raise ConfigError(f"{str(run / 'metrics.jsonl')!r} has a row without kind or global_step")
    evaluations = [row for row in rows if row["kind"] in ("eval", "validation", "callback")]
    if rows and (value := estimated_value(run)) is not None:
        evaluations.append({"kind": "estimate", "global_step": rows[-1]["global_step"], "fqe_value": value})
    return RunRecord(run, config, evaluations, read_metadata(run), tuple(_alarms(rows)))


def _alarms(rows: Sequence[Mapping[str, Any]]) -> Iterator[Alarm]:
    for row in rows:
        if row["kind"] == "guard" and row.get("message") is not None:
            noticed = row.get("noticed_at")
            step = noticed if isinstance(noticed, int) else row["global_step"]
            yield Alarm(step, str(row["message"]), str(row.get("action")))


def estimated_value(run: Path) -> float | None:
    """What `estimate` or `select` found for the latest policy of a run; None where they have not judged it."""
    own, beside = read_json(run / "estimate.json"), read_json(run.parent / "selection.json")
    latest = (run / "checkpoints" / "latest.pt").resolve()
    with refusing_broken_state(f"estimate.json or selection.json of {run}"):
        judged = [*own.get("policies", []), *beside.get("candidates", [])]
        values = [
            each["value"] for each in judged if each["path"] is not None and Path(each["path"]).resolve() == latest
        ]
        return next((float(value) for value in values if value is not None), None)


def summarize(records: Sequence[RunRecord], *, metrics: Sequence[str] = ()) -> list[dict[str, Any]]:
    """A row per algorithm, task, variant and metric: last and best score over seeds, IQM of the last and its interval.

    The interval is the 95 % bootstrap interval, and None where there are fewer than three runs. There is no best score,
    but None, of metrics that nothing is to be chosen by, unless they are asked for.
    """
    rows = []
    for (algo, task, variant), name, members in choose_metrics(records, metrics):
        better = min if name in LOWER_IS_BETTER or name.endswith("_loss") else max
        curves = [curve for record in members if (curve := record.curve(name))]
        if not curves:
            continue
        last = [curve[-1][1] for curve in curves]
        best = [better(value for _, value in curve) for curve in curves]
        is_choosable = name in metrics or name not in HELD_OUT
        rows.append(
            {
                "algo": algo,
                "task": task,
                "variant": variant,
                "metric": name,
                "runs": len(curves),
                "last": sum(last) / len(last),
                "best": sum(best) / len(best) if is_choosable else None,
                "iqm": interquartile_mean(last),
                "interval": list(bootstrap_interval(last)) if len(last) >= FEWEST_RUNS else None,
            }
        )
    return rows


def choose_metrics(
    records: Sequence[RunRecord], metrics: Sequence[str] = ()
) -> list[tuple[Group, str, list[RunRecord]]]:
    """Every group of runs with each metric to report: those that are asked for, else the most telling of its task."""
    groups = group_runs(records)
    for name in metrics:
        check_metric(records, name)
    by_task: dict[str, list[RunRecord]] = {}
    for (_, task, _), members in groups.items():
        by_task.setdefault(task, []).extend(members)
    return [
        (group, name, members)
        for group, members in groups.items()
        # Runs that are compared get the same metric, if they have one in common.
        for name in metrics or pick_metrics(by_task[group[1]], members)
    ]


def group_runs(records: Sequence[RunRecord]) -> dict[Group, list[RunRecord]]:
    """Runs that differ only in their seed, under algorithm, task and the options that tell them from their neighbours.

    Runs without an evaluation are left out.
    """
    evaluated = [record for record in records if record.rows]
    if not evaluated:
        raise ConfigError("none of these runs has an evaluation yet")
    groups: dict[Group, list[RunRecord]] = {}
    for subject in sorted({record.group for record in evaluated}):
        neighbours = [record for record in evaluated if record.group == subject]
        for record, values in zip(neighbours, options_that_differ([each.config for each in neighbours]), strict=True):
            variant = ", ".join(f"{name}={value}" for name, value in values.items())
            groups.setdefault((*subject, variant), []).append(record)
    return {group: groups[group] for group in sorted(groups, key=lambda group: (*group[:2], by_number(group[2])))}


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
