"""Signals and readers that go away: commands end in order, with the status that shells know."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from small_runs import blank_state

from rl_training.data import collect_dataset, write_dataset
from rl_training.envs import make_native_env
from rl_training.runtime import ProgressCallback
from rl_training.storage import load_checkpoint

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals are those of POSIX")

PATIENCE = 300
"""Seconds after which something hangs, however busy the machine is."""
LONG = (
    "total_timesteps=1000000",
    "log_interval=5",
    "checkpoint_interval=1000000",
    "algo_kwargs.eval_interval=null",
    "algo_kwargs.dataset_size=400",
    "algo_kwargs.batch_size=8",
    "algo_kwargs.hidden_sizes=[8, 8]",
    "algo_kwargs.compile=never",
)
"""Overrides that make a run of small updates that does not end by itself."""


@contextmanager
def command(*arguments: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A command in a process group of its own, which is gone after the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "rl_training", *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def train(folder: Path, *more: str) -> Any:
    return command("train", "-c", "td3_bc/pendulum", "--quiet", *LONG, f"output_dir={folder}", *more, folder=folder)


def wait(process: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def logging_runs(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("*/metrics.jsonl"))


def saved_updates(run: Path) -> int:
    state = load_checkpoint(run / "checkpoints" / "latest.pt")["trainer"]["state"]
    return int(state["update_count"])


def test_a_second_interrupt_ends_a_run_at_once(tmp_path: Path) -> None:
    (tmp_path / "slow_env.py").write_text(
        "import pathlib, signal, time\n"
        "import gymnasium as gym\n"
        "from gymnasium.envs.classic_control import PendulumEnv\n\n\n"
        "class Slow(PendulumEnv):\n"
        "    def step(self, action):\n"
        "        if pathlib.Path('slow').exists():\n"
        "            pathlib.Path('waits').touch()\n"
        "            while True:\n"
        "                if signal.getsignal(signal.SIGINT) is signal.default_int_handler:\n"
        "                    pathlib.Path('warned').touch()\n"
        "                time.sleep(0.01)\n"
        "        return super().step(action)\n\n\n"
        "gym.register('Slow-v0', Slow, max_episode_steps=20)\n"
    )
    with train(tmp_path, "env_id=slow_env:Slow-v0", "algo_kwargs.eval_interval=20") as process:
        wait(process, lambda: bool(logging_runs(tmp_path)))
        (tmp_path / "slow").touch()
        wait(process, (tmp_path / "waits").exists)
        process.send_signal(signal.SIGINT)
        # The first is noted for when the step is over; from then on, the next one is answered as Python does.
        wait(process, (tmp_path / "warned").exists)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
    (run,) = logging_runs(tmp_path)
    assert (process.returncode, errors) == (130, "")
    # What was there before is whole.
    assert saved_updates(run) == 0


def test_a_killed_worker_is_named_and_the_others_continue_until_all_are_told_to_end(tmp_path: Path) -> None:
    with train(tmp_path, "--seeds", "0-1", "--workers", "2") as leader:
        wait(leader, lambda: len(logging_runs(tmp_path)) == 2)
        # The first child is the resource tracker of multiprocessing.
        children = Path(f"/proc/{leader.pid}/task/{leader.pid}/children").read_text().split()
        os.kill(int(children[1]), signal.SIGKILL)
        wait(leader, lambda: not Path(f"/proc/{children[1]}").exists())
        size = (logging_runs(tmp_path)[1] / "metrics.jsonl").stat().st_size
        wait(leader, lambda: (logging_runs(tmp_path)[1] / "metrics.jsonl").stat().st_size > size)
        # Supervisors tell every process; the leader tells its workers as well.
        os.killpg(leader.pid, signal.SIGTERM)
        _, errors = leader.communicate(timeout=PATIENCE)
    killed, told = logging_runs(tmp_path)
    assert leader.returncode == 143
    assert "Traceback" not in errors
    assert "seed 0: the process was killed (SIGKILL), as systems do when memory runs out" in errors
    assert f"resume it with: rl-training resume {killed}" in errors
    assert f"resume seed 1 with: rl-training resume {told}" in errors
    assert (saved_updates(killed), saved_updates(told) >= 5) == (0, True)


@pytest.mark.slow
def test_workers_whose_leader_was_killed_save_their_runs(tmp_path: Path) -> None:
    with train(tmp_path, "--seeds", "0") as leader:
        wait(leader, lambda: bool(logging_runs(tmp_path)))
        worker = Path(f"/proc/{leader.pid}/task/{leader.pid}/children").read_text().split()[1]
        leader.kill()
        # The pipes close when the worker has ended as well.
        _, errors = leader.communicate(timeout=PATIENCE)
    assert errors == ""
    assert saved_updates(logging_runs(tmp_path)[0]) >= 5
    assert not Path(f"/proc/{worker}/cmdline").exists() or not Path(f"/proc/{worker}/cmdline").read_text()


def test_collecting_that_is_told_to_end_leaves_nothing(tmp_path: Path) -> None:
    where = ("--env", "started:Noticed-v0", "--out", "log.npz")
    collecting = ("data", "collect", "--random", "--steps", "100000000", *where)
    (tmp_path / "started.py").write_text(
        "import pathlib\n"
        "import gymnasium as gym\n"
        "from gymnasium.envs.classic_control import PendulumEnv\n\n\n"
        "class Noticed(PendulumEnv):\n"
        "    def step(self, action):\n"
        "        pathlib.Path('steps').touch()\n"
        "        return super().step(action)\n\n\n"
        "gym.register('Noticed-v0', Noticed, max_episode_steps=20)\n"
    )
    with command(*collecting, folder=tmp_path) as process:
        wait(process, (tmp_path / "steps").exists)
        process.terminate()
        assert (process.communicate(timeout=PATIENCE), process.returncode) == (("", ""), 143)
    assert {path.name for path in tmp_path.iterdir()} <= {"started.py", "steps", "__pycache__"}


def _write_and_die(write: Callable[..., object], *args: object, **named: object) -> None:
    write(*args, **named)
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_minari_dataset_has_its_name_only_when_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    dataset = collect_dataset(lambda: make_native_env("Pendulum-v1"), episodes=1)
    write = minari.create_dataset_from_buffers
    process = os.fork()
    if process == 0:
        with suppress(BaseException):
            minari.create_dataset_from_buffers = lambda *args, **named: _write_and_die(write, *args, **named)
            write_dataset(dataset, "mine/pendulum-v0")
        os._exit(1)
    assert os.waitpid(process, 0)[1] == signal.SIGKILL
    assert list(minari.list_local_datasets()) == []

    write_dataset(dataset, "mine/pendulum-v0")

    assert list(minari.list_local_datasets()) == ["mine/pendulum-v0"]
    assert minari.load_dataset("mine/pendulum-v0").total_steps == len(dataset)
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["namespace_metadata.json", "pendulum-v0"]


@pytest.mark.parametrize(
    "arguments", [["list"], ["list", "--json"], ["config", "explain", "td3_bc"], ["--help"]], ids=" ".join
)
def test_a_command_whose_reader_goes_away_ends_without_a_word(arguments: list[str], tmp_path: Path) -> None:
    with command(*arguments, folder=tmp_path) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        errors = process.stderr.read()
        assert (process.wait(timeout=PATIENCE), errors) == (1, "")
        process.stdout = None


def test_a_run_whose_output_pipe_is_closed_is_interrupted() -> None:
    class Closed(StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    state, progress = blank_state(), ProgressCallback()
    progress.console.file = Closed()

    progress.on_eval_end(state, {"return_mean": 1.0})
    progress.on_train_end(state)

    assert (state.interrupted, state.stop_reason) == (True, "its output pipe was closed")
