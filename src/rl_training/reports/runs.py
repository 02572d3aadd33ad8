"""Run directories, read: the evaluations of each run, and what it stands for in a sweep."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rl_training.config import TrainConfig, load_config
from rl_training.core.errors import CheckpointError, ConfigError
from rl_training.reports.metadata import read_metadata
from rl_training.reports.sweep_folder import SweepFolder, Swept, read_sweep_folder, undone_text
from rl_training.storage.checkpoint_schema import refusing_broken_state
from rl_training.storage.find import find_runs
from rl_training.storage.run_directory import read_json, read_metrics, run_of


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
    swept: Swept | None = None
    """What it stands for in a sweep, if it is part of one."""

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
    try:
        runs = find_runs(names)
    except CheckpointError as error:
        # How many failed, and the first of them.
        error.remarks += tuple(text for sweep in named_sweeps(names, ()) for text in undone_text(sweep)[:2])
        raise
    named = {run_of(path) if path.is_file() else path for path in map(Path, names)}
    sweeps = {folder: read_sweep_folder(folder) for folder in dict.fromkeys(run.parent for run in runs)}
    records = []
    for run in _of_sweeps(runs, sweeps, names):
        sweep = sweeps[run.parent]
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
    """The sweeps that are meant as a whole: by their folder, or by one that these runs were found in."""
    folders = [*map(Path, names), *(record.path.parent for record in records)]
    found = [read_sweep_folder(folder) for folder in dict.fromkeys(folders) if _is_below(folder, names)]
    return [sweep for sweep in found if sweep is not None]


def _is_below(folder: Path, names: Iterable[str | Path]) -> bool:
    places = [folder.resolve(), *folder.resolve().parents]
    return any(Path(name).is_dir() and Path(name).resolve() in places for name in names)


def _of_sweeps(
    runs: Sequence[Path], sweeps: Mapping[Path, SweepFolder | None], names: Sequence[str | Path]
) -> list[Path]:
    """The runs without those that lie in the folder of a sweep, are not part of it, and were not named themselves."""
    foreign = [
        run
        for run in runs
        if (sweep := sweeps[run.parent]) is not None and run.name not in sweep.runs and _is_below(run.parent, names)
    ]
    for run in foreign:
        warnings.warn(f"{run} is left out: it is not part of the sweep in {run.parent}", stacklevel=3)
    return [run for run in runs if run not in foreign]


def _read_run(run: Path, swept: Swept | None) -> RunRecord:
    try:
        config, rows = load_config(run / "config.yaml"), read_metrics(run)
    except OSError as error:
        raise ConfigError(f"{str(run)!r} cannot be read: {error}") from None
    if not all({"kind", "global_step"} <= row.keys() for row in rows):
        raise ConfigError(f"{str(run / 'metrics.jsonl')!r} has a row without kind or global_step")
    evaluations = [row for row in rows if row["kind"] in ("eval", "validation", "callback")]
    if rows and (value := estimated_value(run)) is not None:
        evaluations.append({"kind": "estimate", "global_step": rows[-1]["global_step"], "fqe_value": value})
    return RunRecord(run, config, evaluations, read_metadata(run), tuple(_alarms(rows)), swept)


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
