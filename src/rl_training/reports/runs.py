"""Records of run directories: their evaluations, and their points in a sweep."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from rl_training.config import TrainConfig, flatten, load_config
from rl_training.core.errors import CheckpointError, ConfigError
from rl_training.core.text import value_text
from rl_training.storage import (
    find_runs,
    first_mistake,
    is_finished,
    is_run,
    read_json,
    read_metrics,
    refusing_broken_state,
    run_of,
)


class RunAlarm(NamedTuple):
    """An alarm of a guard during a run."""

    global_step: int
    message: str
    action: str
    """The response of the run: warn, or rollback."""


@dataclass(frozen=True)
class RunRecord:
    """One run's evaluations."""

    path: Path
    config: TrainConfig
    rows: list[dict[str, Any]]
    metadata: Mapping[str, Any]
    alarms: tuple[RunAlarm, ...] = ()
    point: SweepPoint | None = None
    """Its point, if it is part of a sweep."""

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
        """The timestep from which the run acts and counts environment steps, not updates; None if it never acts."""
        if not any("env_steps" in row for row in self.rows):
            return None
        starts = [row["global_step"] - row["env_steps"] for row in self.rows if row.get("env_steps")]
        return int(starts[-1] if starts else self.config.algo_kwargs.get("offline_pretrain_updates", 0))

    def curve(self, metric: str) -> list[tuple[int, float]]:
        """Timestep and value at each evaluation; where one was made twice, the second counts."""
        values = {row["global_step"]: row[metric] for row in self.rows if row.get(metric) is not None}
        return sorted(values.items())


def read_runs(names: str | Path | Iterable[str | Path]) -> list[RunRecord]:
    """The runs that names stand for: run directories, checkpoints, folders of runs at any depth, and patterns.

    A run that cannot be read is refused if it is named itself, else left out with a warning.
    """
    names = [names] if isinstance(names, (str, Path)) else list(names)
    try:
        runs = find_runs(names)
    except CheckpointError as error:
        # How many failed, and the first of them.
        error.remarks += tuple(text for sweep in named_sweeps(names, ()) for text in undone_text(sweep)[:2])
        raise
    named = {run_of(path) if path.is_file() else path for path in map(Path, names)}
    sweeps = {folder: read_sweep_folder(folder) for folder in dict.fromkeys(run.parent for run in runs)}
    records = []
    for run in runs:
        sweep = sweeps[run.parent]
        if sweep is not None and run.name not in sweep.runs and _is_below(run.parent, names):
            warnings.warn(f"{run} is left out: it is not part of the sweep in {run.parent}", stacklevel=2)
            continue
        try:
            records.append(_read_run(run, None if sweep is None else sweep.runs.get(run.name)))
        except (ConfigError, CheckpointError) as error:
            if run in named:
                raise
            warnings.warn(f"{run} is left out: {error}", stacklevel=2)
    if not records:
        raise ConfigError(f"none of the {len(runs)} runs there can be read")
    return records


def named_sweeps(names: Iterable[str | Path], records: Iterable[RunRecord]) -> list[SweepFolder]:
    """The sweeps that the names include as a whole."""
    folders = [*map(Path, names), *(record.path.parent for record in records)]
    found = [read_sweep_folder(folder) for folder in dict.fromkeys(folders) if _is_below(folder, names)]
    return [sweep for sweep in found if sweep is not None]


def _is_below(folder: Path, names: Iterable[str | Path]) -> bool:
    places = [folder.resolve(), *folder.resolve().parents]
    return any(Path(name).is_dir() and Path(name).resolve() in places for name in names)


def _read_run(run: Path, point: SweepPoint | None) -> RunRecord:
    try:
        config, rows = load_config(run / "config.yaml"), read_metrics(run)
    except OSError as error:
        raise ConfigError(f"{str(run)!r} cannot be read: {error}") from None
    if not all({"kind", "global_step"} <= row.keys() for row in rows):
        raise ConfigError(f"{str(run / 'metrics.jsonl')!r} has a row without kind or global_step")
    evaluations = [row for row in rows if row["kind"] in ("eval", "validation", "callback")]
    if rows and (value := estimated_value(run)) is not None:
        evaluations.append({"kind": "estimate", "global_step": rows[-1]["global_step"], "fqe_value": value})
    return RunRecord(run, config, evaluations, read_metadata(run), tuple(_alarms(rows)), point)


def _alarms(rows: Sequence[Mapping[str, Any]]) -> Iterator[RunAlarm]:
    for row in rows:
        if row["kind"] == "guard" and row.get("message") is not None:
            noticed = row.get("noticed_at")
            step = noticed if isinstance(noticed, int) else row["global_step"]
            yield RunAlarm(step, str(row["message"]), str(row.get("action")))


def estimated_value(run: Path) -> float | None:
    """The value that `estimate` or `select` found for the latest policy of a run; None without one."""
    own, beside = read_json(run / "estimate.json"), read_json(run.parent / "selection.json")
    latest = (run / "checkpoints" / "latest.pt").resolve()
    with refusing_broken_state(f"estimate.json or selection.json of {run}"):
        policies = [*own.get("policies", []), *beside.get("candidates", [])]
        values = [
            each["value"] for each in policies if each["path"] is not None and Path(each["path"]).resolve() == latest
        ]
        return next((float(value) for value in values if value is not None), None)


class _Finding(BaseModel):
    verdict: str
    message: str
    advice: str


class _Audit(BaseModel):
    findings: list[_Finding]
    accepted: bool


class _Data(BaseModel):
    audit: _Audit | None = None
    notes: list[str] = []
    rows: int | None = None
    episodes: int | None = None
    return_mean: float | None = None
    return_std: float | None = None
    step_times: dict[str, float | None] | None = None


class _Metadata(BaseModel):
    """The parts of metadata.json that a report shows."""

    command: list[str] | None = None
    versions: dict[str, str] | None = None
    subject: str | None = None
    data: _Data | None = None


def read_metadata(run: Path) -> dict[str, Any]:
    """The metadata of a run; empty, with a warning, if it is not in the form that `train` writes."""
    path = run / "metadata.json"
    values = read_json(path)
    try:
        _Metadata.model_validate(values)
    except ValidationError as error:
        warnings.warn(f"{path} is left out: {first_mistake(error)}", stacklevel=2)
        return {}
    return values


RESULTS = "sweep.json"
"""The file with the points of a sweep and the outcome of its runs."""
ALGORITHM = ("algo", "config")
"""Options with values that need no name beside them."""

TASK_OPTIONS = ("env_id", "env_kwargs", "dataset_path", "dataset_id", "dataset_kind", "dataset_mix")
"""Options that define the task: scores of different tasks cannot be compared."""

MOST_NAMED = 10
"""The most runs that are not done with a line of their own."""


@dataclass(frozen=True)
class SweepPoint:
    """The option values of one sweep point."""

    folder: Path
    place: int
    """The place of its combination among those of the sweep."""
    values: Mapping[str, Any]
    """The varying options that the point sets, without the seed, by their names in a table."""
    columns: tuple[str, ...]
    """Names of all varying options of the sweep."""

    @property
    def texts(self) -> tuple[tuple[str, str], ...]:
        """Its values as text."""
        return tuple((name, value_text(value)) for name, value in self.values.items())


@dataclass(frozen=True)
class UnfinishedRun:
    """A run of a sweep that is not done."""

    name: str
    status: str
    """failed, stopped before its end, or missing."""
    error: str | None
    has_begun: bool
    """Whether it has a run directory, perhaps with evaluations."""

    @property
    def text(self) -> str:
        """Status and error."""
        status = self.status if self.error is None else f"{self.status}: {self.error}"
        return f"{status} (its evaluations so far are counted)" if self.has_begun else status


@dataclass(frozen=True)
class SweepFolder:
    """A sweep as read from its folder."""

    path: Path
    runs: Mapping[str, SweepPoint]
    """By the names of their directories."""
    undone: tuple[UnfinishedRun, ...]


def read_sweep_folder(path: Path) -> SweepFolder | None:
    """Read the sweep in a folder; None if it holds no sweep."""
    if not (path / RESULTS).is_file():
        return None
    try:
        points = [(str(each["name"]), _options_of(each["values"]), each) for each in read_json(path / RESULTS)["cells"]]
        undone = tuple(_undone(path, [each for _, _, each in points]))
    except (KeyError, TypeError, AttributeError):
        raise ConfigError(f"{str(path / RESULTS)!r} is damaged: run the same sweep again to rewrite it") from None
    names = column_names([values for _, values, _ in points])
    runs: dict[str, SweepPoint] = {}
    places: dict[str, int] = {}
    for name, values, _ in points:
        shown = {names[key]: value for key, value in values.items() if key in names}
        place = places.setdefault(json.dumps(shown, sort_keys=True), len(places))
        runs[name] = SweepPoint(path, place, shown, tuple(names.values()))
    return SweepFolder(path, runs, undone)


def _options_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by dotted name, without the seed, from dotted names or nested mappings."""
    return {name: value for name, value in flatten(values).items() if name != "seed"}


def column_names(points: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The name in a table of every varying option: its last part, if that is unique."""
    keys = dict.fromkeys(key for point in points for key in point)
    marks = {key: {json.dumps(each[key], sort_keys=True) if key in each else "" for each in points} for key in keys}
    varied = [key for key in keys if len(marks[key]) > 1]
    short = Counter(key.rpartition(".")[2] for key in varied)
    return {key: last if short[last := key.rpartition(".")[2]] == 1 else key for key in varied}


def is_task_option(name: str) -> bool:
    """Whether an option defines the task."""
    return any(part in TASK_OPTIONS for part in name.split("."))


def _undone(path: Path, points: Sequence[Mapping[str, Any]]) -> Iterator[UnfinishedRun]:
    """The runs that are not done. Their folders decide, because a killed sweep could not write their outcome."""
    for each in points:
        run = path / str(each["name"])
        if is_finished(run):
            continue
        has_begun, has_failed = is_run(run), each["status"] == "failed"
        status = "failed" if has_failed else "stopped before its end" if has_begun else "missing"
        yield UnfinishedRun(run.name, status, one_line(str(each["error"])) if has_failed else None, has_begun)


def one_line(error: str) -> str:
    """An error in one line; of a traceback, the last line."""
    lines = error.strip().splitlines() or ["unknown error"]
    return lines[-1] if lines[0].startswith("Traceback") else " ".join(map(str.strip, lines))


def undone_text(sweep: SweepFolder) -> list[str]:
    """Lines about the runs of a sweep that are not done: a count, then the first of them with their reasons."""
    if not sweep.undone:
        return []
    failed, left = sum(each.status == "failed" for each in sweep.undone), len(sweep.undone) - MOST_NAMED
    return [
        f"{len(sweep.undone)} of {len(sweep.runs)} runs of the sweep in {sweep.path} are not done, {failed} failed",
        *(f"{each.name}: {each.text}" for each in sweep.undone[:MOST_NAMED]),
        *([f"and {left} more: see {sweep.path / RESULTS}"] if left > 0 else []),
    ]
