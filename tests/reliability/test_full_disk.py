"""Disks that are full or read-only, and run directories that go away while a run is under way."""

from __future__ import annotations

import errno
import io
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Answer, Command, call_main
from conftest import transitions
from small_runs import differences, rows_of, small, state_of

from rl_training.core.errors import StorageError
from rl_training.data import TransitionDataset
from rl_training.runtime import Callback, TrainerState, loop, resume, train
from rl_training.storage import load_checkpoint


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return partial(call_main, monkeypatch, capsys)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of half a megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mounting, capture_output=True, check=False).returncode:
        pytest.skip("this process may not mount a small disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


class FullFile(io.FileIO):
    """A file on a disk that has room for some more bytes."""

    room = 0

    def write(self, data: Any) -> int:
        FullFile.room -= len(memoryview(data).cast("B"))
        if FullFile.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)


def fill(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """Let the disk have room for so many more bytes of checkpoints."""
    original, FullFile.room = Path.open, room

    def opened(self: Path, mode: str = "r", *rest: Any, **options: Any) -> Any:
        is_checkpoint = mode == "wb" and self.name.endswith(".pt.tmp")
        return FullFile(self, "wb") if is_checkpoint else original(self, mode, *rest, **options)

    monkeypatch.setattr(Path, "open", opened)


def temporary_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob(".*") if path.name != ".lock"]


def check_sentence(answer: Answer, path: Path) -> None:
    assert (answer.code, answer.out) == (2, "")
    (sentence,) = answer.err.splitlines()
    assert sentence.startswith(f"error: {path}")


def test_a_run_on_a_full_disk_ends_with_a_sentence_and_continues_once_there_is_room(
    disk: Path, tmp_path: Path, command: Command
) -> None:
    options = ("keep_checkpoints=all", "checkpoint_interval=2", "run_name=a")
    straight = train(small(tmp_path / "straight", *options)).run_dir
    config = tmp_path / "config.yaml"
    config.write_text(small(disk, *options).to_yaml())

    with pytest.warns(UserWarning, match=r"are free, and the next checkpoint needs .*: make room"):
        answer = command("train", config, "--quiet")

    run = disk / "a"
    check_sentence(answer, run)
    assert "cannot be written, the disk is full" in answer.err
    assert f"make room; then resume with: rl-training resume {run}" in answer.err
    assert temporary_files(disk) == []
    reached = load_checkpoint(run / "checkpoints" / "latest.pt")["trainer"]["state"]["global_step"]
    assert 0 < reached < 40

    room = tmp_path / "room"
    shutil.copytree(run, room)
    assert command("resume", room, "--quiet").code == 0
    assert differences(state_of(room), state_of(straight)) == []
    assert rows_of(room) == rows_of(straight)


@pytest.mark.parametrize("room", [0, 20_000, 100_000], ids=["none", "half", "some"])
def test_an_error_inside_torch_is_told_as_a_full_disk(
    room: int, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train(small(tmp_path)).run_dir
    before = (run / "checkpoints" / "latest.pt").read_bytes()
    fill(monkeypatch, room)

    answer = command("resume", run, "total_timesteps=60", "--quiet")

    check_sentence(answer, run)
    assert "cannot be written, the disk is full: it needs" in answer.err
    assert temporary_files(run) == []
    monkeypatch.undo()
    latest = (run / "checkpoints" / "latest.pt").read_bytes()
    assert (latest == before) == (room < 100_000)
    assert resume(run, total_timesteps=60).metrics["global_step"] == 60


@pytest.mark.parametrize("ending", [".npz", ".pt", ".hdf5", ".parquet", ".rlt"])
def test_a_dataset_for_which_there_is_no_room_leaves_nothing(ending: str, disk: Path) -> None:
    arrays = transitions(20_000, episode=100)
    arrays["rewards"] = np.random.default_rng(0).normal(size=20_000).astype(np.float32)
    dataset = TransitionDataset.from_dict(arrays)

    with pytest.raises(StorageError, match=rf"{disk}/log{ending}.* cannot be written, the disk is full: .* are free"):
        dataset.save(disk / f"log{ending}")

    assert list(disk.iterdir()) == []


class Disturb(Callback):
    """Does something to the run directory in the middle of the run."""

    def __init__(self, act: Callable[[Path], object]) -> None:
        self.act = act

    def on_update_end(self, state: TrainerState, metrics: object) -> None:
        if state.global_step == 10:
            self.act(state.run_dir)


def moved(run: Path) -> None:
    run.rename(run.with_name("elsewhere"))


def replaced(run: Path) -> None:
    moved(run)
    (run / "checkpoints").mkdir(parents=True)


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (shutil.rmtree, "was deleted while the run was under way: nothing more can be saved there"),
        (moved, "was moved to {elsewhere} while the run was under way; resume with: rl-training resume {elsewhere}"),
        (replaced, "was moved to {elsewhere} while the run was under way; resume with: rl-training resume {elsewhere}"),
    ],
    ids=["deleted", "moved", "replaced"],
)
def test_a_run_whose_directory_goes_away_ends_with_a_sentence(
    act: Callable[[Path], object],
    words: str,
    tmp_path: Path,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config, elsewhere = tmp_path / "config.yaml", tmp_path / "runs" / "elsewhere"
    config.write_text(small(tmp_path / "runs", "run_name=a").to_yaml())

    def disturbed(session: Any) -> Any:
        session.callbacks = [Disturb(act)]
        return loop.train_session(session)

    with monkeypatch.context() as patched:
        patched.setattr(import_module("rl_training.runtime.train"), "train_session", disturbed)
        answer = command("train", config, "--quiet")

    check_sentence(answer, tmp_path / "runs" / "a")
    assert words.format(elsewhere=elsewhere) in answer.err
    assert not [path for path in (tmp_path / "runs" / "a").rglob("*") if path.is_file()]
    if act is not shutil.rmtree:
        assert resume(elsewhere).metrics["global_step"] == 40


def test_a_read_only_run_directory_is_named(tmp_path: Path, disk: Path, command: Command) -> None:
    shutil.copytree(train(small(tmp_path, "algo_kwargs.hidden_sizes=[4, 4]")).run_dir, disk / "a")
    shutil.rmtree(disk / "a" / "tensorboard", ignore_errors=True)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)

    resumed = command("resume", disk / "a")
    trained = command("train", "bc/pendulum", "--out", disk, "total_timesteps=10")

    check_sentence(resumed, disk / "a")
    assert "cannot be written: Read-only file system" in resumed.err
    assert f"output_dir '{disk}' cannot be written: Read-only file system" in trained.err
    assert trained.code == 2


def test_a_disk_that_becomes_read_only_ends_a_run_with_a_sentence(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train(small(tmp_path)).run_dir
    original = Path.open

    def opened(self: Path, mode: str = "r", *rest: Any, **options: Any) -> Any:
        if self.name == "metrics.jsonl" and mode == "ab":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))
        return original(self, mode, *rest, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", opened)
        answer = command("resume", run, "total_timesteps=60", "--quiet")

    check_sentence(answer, run / "metrics.jsonl")
    assert "cannot be written: Read-only file system" in answer.err
