"""The folder of a sweep, read: what each run stands for, and which runs are not done."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.config import flatten
from rl_training.core.errors import ConfigError
from rl_training.experiment.sweep import RESULTS
from rl_training.storage.find import is_finished, is_run
from rl_training.storage.run_directory import read_json

ALGORITHM = ("algo", "config")
"""Options whose value is a name by itself."""
TASK_OPTIONS = ("env_id", "env_kwargs", "dataset_path", "dataset_id", "dataset_kind", "dataset_mix")
"""Options that make another task: scores under one value are not those under another."""

MOST_NAMED = 10
"""Runs that are not done of which each has a line."""


@dataclass(frozen=True)
class Swept:
    """What a run of a sweep stands for."""

    folder: Path
    place: int
    """The place of its combination among those of the sweep."""
    values: Mapping[str, Any]
    """The options that vary, but the seed, by their names in a table; those that it was not given are left out."""
    columns: tuple[str, ...]
    """The names of all options that vary in the sweep."""

    @property
    def texts(self) -> tuple[tuple[str, str], ...]:
        """Its values as text."""
        return tuple((name, value_text(value)) for name, value in self.values.items())


@dataclass(frozen=True)
class Undone:
    """A run of a sweep that has not come to its end."""

    name: str
    status: str
    """failed, stopped before its end, or missing."""
    error: str | None
    has_begun: bool
    """Whether it has a run directory, and so perhaps evaluations."""

    @property
    def text(self) -> str:
        """What became of it."""
        said = self.status if self.error is None else f"{self.status}: {self.error}"
        return f"{said} (the evaluations that it made are counted)" if self.has_begun else said


@dataclass(frozen=True)
class SweepFolder:
    """A sweep, as its folder has it."""

    path: Path
    runs: Mapping[str, Swept]
    """By the names of their directories."""
    undone: tuple[Undone, ...]


def read_sweep_folder(path: Path) -> SweepFolder | None:
    """The sweep in a folder, or None where it holds no sweep."""
    if not (path / RESULTS).is_file():
        return None
    try:
        cells = [(str(each["name"]), _options_of(each["values"]), each) for each in read_json(path / RESULTS)["cells"]]
        undone = tuple(_undone(path, [each for _, _, each in cells]))
    except (KeyError, TypeError, AttributeError):
        raise ConfigError(f"{str(path / RESULTS)!r} is damaged: the same sweep again writes it anew") from None
    names = column_names([values for _, values, _ in cells])
    runs: dict[str, Swept] = {}
    places: dict[str, int] = {}
    for name, values, _ in cells:
        shown = {names[key]: value for key, value in values.items() if key in names}
        place = places.setdefault(json.dumps(shown, sort_keys=True), len(places))
        runs[name] = Swept(path, place, shown, tuple(names.values()))
    return SweepFolder(path, runs, undone)


def _options_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by dotted name, without the seed; a mapping in a mapping is as good as a dotted name."""
    return {name: value for name, value in flatten(values).items() if name != "seed"}


def column_names(points: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """By option that is not the same everywhere, its name in a table: the last part, if no other has the same."""
    keys = dict.fromkeys(key for point in points for key in point)
    varied = [key for key in keys if len({_mark(point, key) for point in points}) > 1]
    short = Counter(key.rpartition(".")[2] for key in varied)
    return {key: last if short[last := key.rpartition(".")[2]] == 1 else key for key in varied}


def _mark(point: Mapping[str, Any], key: str) -> str:
    return json.dumps(point[key], sort_keys=True) if key in point else ""


def is_task_option(name: str) -> bool:
    """Whether runs that differ in this option have different tasks."""
    return any(part in TASK_OPTIONS for part in name.split("."))


def value_text(value: Any) -> str:
    """A value as one writes it in YAML."""
    return value if isinstance(value, str) else json.dumps(value)


def _undone(path: Path, cells: Sequence[Mapping[str, Any]]) -> Iterator[Undone]:
    """The runs that have not ended, by what is in the folder now: a sweep that was killed tells nothing."""
    for each in cells:
        run = path / str(each["name"])
        if is_finished(run):
            continue
        has_begun = is_run(run)
        if each["status"] == "failed":
            yield Undone(run.name, "failed", one_line(str(each["error"])), has_begun)
        else:
            yield Undone(run.name, "stopped before its end" if has_begun else "missing", None, has_begun)


def one_line(error: str) -> str:
    """An error in one line: of a traceback the last one, which names the error."""
    lines = error.strip().splitlines() or ["unknown error"]
    return lines[-1] if lines[0].startswith("Traceback") else " ".join(map(str.strip, lines))


def undone_text(sweep: SweepFolder) -> list[str]:
    """Which runs of a sweep are not done, and why: a line about all of them, then one for each of the first."""
    if not sweep.undone:
        return []
    failed = sum(each.status == "failed" for each in sweep.undone)
    lines = [
        f"{len(sweep.undone)} of {len(sweep.runs)} runs of the sweep in {sweep.path} are not done, {failed} failed"
    ]
    lines += [f"{each.name}: {each.text}" for each in sweep.undone[:MOST_NAMED]]
    left = len(sweep.undone) - MOST_NAMED
    return [*lines, f"and {left} more: see {sweep.path / RESULTS}"] if left > 0 else lines
