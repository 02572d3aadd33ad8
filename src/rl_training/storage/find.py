"""Runs and checkpoints by name: a run, a checkpoint, a folder or a pattern to directories and files."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rl_training.core.errors import CheckpointError, nearest
from rl_training.storage.run_directory import read_json, run_of


def is_run(path: Path) -> bool:
    """Whether a folder is a run directory."""
    return (path / "config.yaml").is_file() and (path / "checkpoints").is_dir()


def find_runs(names: Iterable[str | Path]) -> list[Path]:
    """The run directories that are named: each itself, all in a folder, however deep, or all that match a pattern."""
    found = [run for name in names for path in _expand(name) for run in _runs_at(path)]
    return list(dict.fromkeys(found))


def find_checkpoints(names: Iterable[str | Path], *, name: str = "latest.pt", with_missing: bool = False) -> list[Path]:
    """The checkpoints that are named: files, and the one of this name of every run that `find_runs` finds.

    Of several runs in a folder some may lack it. They are left out, or part of the answer `with_missing`.
    """
    files = []
    for path in (path for given in names for path in _expand(given)):
        there = [path] if path.is_file() else [run / "checkpoints" / name for run in _runs_at(path)]
        found = [file for file in there if file.is_file()]
        if not found:
            others = sorted(each for file in there for each in file.parent.glob("*_0*.pt"))
            beside = f"; there is {others[-1]}" if others else ""
            raise CheckpointError(f"{str(path)!r} holds no checkpoint (looked for {Path('checkpoints', name)}){beside}")
        files += there if with_missing else found
    return list(dict.fromkeys(files))


def find_checkpoint(path: str | Path, *, name: str = "latest.pt") -> Path:
    """The checkpoint that is named; of several, the newest."""
    return max(find_checkpoints([path], name=name), key=lambda file: file.stat().st_mtime)


def find_unfinished(names: Iterable[str | Path]) -> Path:
    """The newest run that has not ended, or the run or checkpoint itself where only one is named."""
    paths = [path for name in names for path in _expand(name)]
    if len(paths) == 1 and (paths[0].is_file() or is_run(paths[0])):
        return paths[0]
    runs = find_runs(paths)
    open_runs = [run for run in runs if not is_finished(run)]
    if not open_runs:
        raise CheckpointError(f"all {len(runs)} runs there have ended; name one of them to resume it")
    return max(open_runs, key=_last_saved)


def policy_name(path: str | Path) -> str:
    """A checkpoint or policy file as a user would name it: the latest checkpoint by its run."""
    return str(run_of(path) if Path(path).parts[-2:] == ("checkpoints", "latest.pt") else path)


def is_finished(run: Path) -> bool:
    """Whether a run has ended; one that was interrupted or killed has not."""
    result = read_json(run / "result.json")
    return bool(result) and not result.get("interrupted", False)


def _last_saved(run: Path) -> float:
    latest = run / "checkpoints" / "latest.pt"
    return (latest if latest.is_file() else run).stat().st_mtime


def _expand(name: str | Path) -> Sequence[Path]:
    """The paths behind a name, which may be a pattern with `*`, `?` or `[]`."""
    if Path(name).exists():
        return [Path(name)]
    # Path.glob takes no pattern that begins at the root.
    matches = sorted(map(Path, glob.glob(str(name), recursive=True)))  # noqa: PTH207
    # Beside runs, a pattern such as runs/* matches files that are not meant.
    matches = [path for path in matches if path.is_dir() or path.suffix == ".pt"]
    if not matches:
        parent = Path(name).parent
        beside = [str(parent / each.name) for each in parent.iterdir()] if parent.is_dir() else []
        expected = "expected a run directory, a checkpoint, a folder of runs, or a pattern that matches some"
        raise CheckpointError(f"{str(name)!r} does not exist{nearest(str(name), beside)}; {expected}")
    return matches


def _runs_at(path: Path) -> list[Path]:
    """A run directory itself, or all in a folder, in the order of their names."""
    if path.is_file() and is_run(run_of(path)):
        return [run_of(path)]
    found = [path] if is_run(path) else list(_runs_below(path))
    if not found:
        raise CheckpointError(f"{str(path)!r} holds no run: no folder in it has a config.yaml and checkpoints")
    return found


def _runs_below(path: Path) -> Iterator[Path]:
    for folder, folders, _ in os.walk(path):
        # A run that is being made has a hidden name.
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if is_run(Path(folder)):
            # There are no runs inside a run.
            folders.clear()
            yield Path(folder)
