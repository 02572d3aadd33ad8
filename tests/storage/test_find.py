"""Finding runs by their names, by folders, and by patterns."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rl_training.core.errors import CheckpointError
from rl_training.storage.find import find_checkpoint, find_checkpoints, find_runs, find_unfinished


def _run(run_dir: Path, modified: int = 0, *, ended: bool = False, interrupted: bool = False) -> Path:
    latest = run_dir / "checkpoints" / "latest.pt"
    latest.parent.mkdir(parents=True)
    (run_dir / "config.yaml").touch()
    latest.touch()
    os.utime(latest, (modified, modified))
    if ended:
        (run_dir / "result.json").write_text(json.dumps({"interrupted": interrupted}))
    return run_dir


def test_a_run_directory_stands_for_its_latest_checkpoint(tmp_path: Path) -> None:
    run = _run(tmp_path / "run")
    latest = run / "checkpoints" / "latest.pt"

    assert find_checkpoint(run) == latest
    assert find_checkpoint(str(latest)) == latest


def test_a_folder_of_runs_stands_for_the_one_that_was_written_last_where_one_is_wanted(tmp_path: Path) -> None:
    # Neither the first nor the last by name.
    _, newest, _ = (_run(tmp_path / name, modified) for name, modified in {"a": 1, "b": 3, "c": 2}.items())

    assert find_checkpoint(tmp_path) == newest / "checkpoints" / "latest.pt"


def test_a_folder_stands_for_all_runs_in_it_however_deep(tmp_path: Path) -> None:
    runs = [_run(tmp_path / name) for name in ("a", "b/c", "b/d/e/f")]
    # What a run holds is not searched.
    _run(tmp_path / "a" / "copy")

    assert find_runs([tmp_path]) == runs
    assert find_checkpoints([tmp_path]) == [run / "checkpoints" / "latest.pt" for run in runs]


def test_a_pattern_stands_for_what_fits_it_and_nothing_is_found_twice(tmp_path: Path) -> None:
    first, second, _ = (_run(tmp_path / name) for name in ("sac_1", "sac_2", "td3_1"))
    (tmp_path / "sac_notes.txt").touch()

    assert find_runs([tmp_path / "sac_*", first, first / "checkpoints" / "latest.pt"]) == [first, second]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("run_3", "did you mean '{folder}/run_1'?"),
        ("nothing*", "expected a run directory, a checkpoint, a folder of runs, or a pattern that matches some"),
        ("empty", "holds no run: no folder in it has a config.yaml and checkpoints"),
    ],
)
def test_a_name_with_no_run_behind_it_says_what_was_expected(tmp_path: Path, name: str, words: str) -> None:
    _run(tmp_path / "run_1")
    (tmp_path / "empty").mkdir()

    with pytest.raises(CheckpointError) as caught:
        find_runs([tmp_path / name])

    assert words.format(folder=tmp_path) in str(caught.value)


def test_a_run_without_the_checkpoint_says_what_was_looked_for(tmp_path: Path) -> None:
    run = _run(tmp_path / "run")

    with pytest.raises(CheckpointError) as caught:
        find_checkpoint(run, name="best.pt")

    assert str(caught.value) == f"{str(run)!r} holds no checkpoint (looked for checkpoints/best.pt)"


def test_a_folder_stands_for_its_newest_unfinished_run_where_one_is_resumed(tmp_path: Path) -> None:
    _run(tmp_path / "killed", 1)
    interrupted = _run(tmp_path / "interrupted", 2, ended=True, interrupted=True)
    ended = _run(tmp_path / "ended", 3, ended=True)

    assert find_unfinished([tmp_path]) == interrupted
    # A run that is named is meant, ended or not.
    assert find_unfinished([ended]) == ended


def test_a_folder_of_ended_runs_has_nothing_to_resume(tmp_path: Path) -> None:
    _run(tmp_path / "a", ended=True)
    _run(tmp_path / "b", ended=True)

    with pytest.raises(CheckpointError, match="all 2 runs there have ended; name one of them to resume it"):
        find_unfinished([tmp_path])
