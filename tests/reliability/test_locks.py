"""No two processes write to one run directory."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from command_line import TINY, Command, call_main

from rl_training.config import TrainConfig, load_config
from rl_training.core.errors import ConfigError
from rl_training.runtime import Callback, TrainerState, resume, train
from rl_training.storage import RunLock, is_locked
from rl_training.storage.lock import NAME

HOLD = (
    "import sys, time; from pathlib import Path; from rl_training.storage.lock import RunLock; "
    "lock = RunLock(Path(sys.argv[1])); print('held', flush=True); time.sleep(3600)"
)
MakeConfig = Callable[..., TrainConfig]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return partial(call_main, monkeypatch, capsys)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("runs")
    return train(load_config("bc/pendulum", overrides=[*TINY, f"output_dir={output}", "run_name=nightly"])).run_dir


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "nightly"))


@pytest.fixture
def holder(run: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process, which has the lock of the run."""
    with subprocess.Popen([sys.executable, "-c", HOLD, str(run)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_run_in_use_is_refused_with_who_uses_it_until_that_process_is_killed(
    command: Command, run: Path, holder: subprocess.Popen[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    again = ["train", "bc/pendulum", *TINY, f"output_dir={run.parent}", "--run-name", "nightly", "--resume", "auto"]
    answers = [command("resume", run), command(*again), command("resume", run / "checkpoints" / "latest.pt")]

    for answer in answers:
        assert (answer.code, answer.out) == (2, "")
        assert f"{run} is in use by process {holder.pid} on {socket.gethostname()}, since " in answer.err
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before
    assert is_locked(run)

    holder.send_signal(signal.SIGKILL)
    holder.wait()

    assert (run / NAME).exists()
    assert not is_locked(run)
    assert command("resume", run, "--quiet").code == 0
    assert not (run / NAME).exists()


def test_a_run_that_is_under_way_is_locked_from_its_first_instant(tiny_config: MakeConfig) -> None:
    class Look(Callback):
        def on_train_start(self, state: TrainerState) -> None:
            assert is_locked(state.run_dir)
            assert json.loads((state.run_dir / NAME).read_text())["pid"] == os.getpid()
            with pytest.raises(ConfigError, match="is in use by another run of this program"):
                resume(state.run_dir)
            assert is_locked(state.run_dir)

    run = train(tiny_config("bc"), callbacks=[Look()]).run_dir

    assert not (run / NAME).exists()
    resume(run, callbacks=[Look()])


def test_a_lock_from_another_machine_is_taken_over_with_a_warning(run: Path) -> None:
    (run / NAME).write_text(json.dumps({"pid": 7, "host": "elsewhere", "since": "yesterday"}))

    with pytest.warns(UserWarning, match="process 7 on elsewhere has not ended this run properly"):
        lock = RunLock(run)

    assert json.loads((run / NAME).read_text())["host"] == socket.gethostname()
    lock.release()


def test_a_file_system_without_locks_is_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", refuse)

    with pytest.warns(UserWarning, match="No locks available: nothing keeps another process off this run"):
        RunLock(run)


def test_a_run_that_fails_gives_its_lock_back(run: Path) -> None:
    class Fail(Callback):
        def on_train_start(self, state: TrainerState) -> None:
            raise KeyError

    with pytest.raises(KeyError):
        resume(run, callbacks=[Fail()])
    with pytest.raises(ConfigError, match="a run keeps its seed"):
        resume(run, seed=3)

    assert not (run / NAME).exists()
    resume(run)
