"""A process killed without warning loses nothing."""

from __future__ import annotations

import gc
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import differences, rows_of, small, state_of

from rl_training.config import TrainConfig, load_config
from rl_training.runtime import resume, train
from rl_training.storage import load_checkpoint, read_metrics


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "rl_training", *arguments]


def _options(output: Path, updates: int, compile_option: str) -> list[str]:
    options = {
        "total_timesteps": updates,
        "output_dir": output,
        "eval_episodes": 1,
        "log_interval": 20,
        "checkpoint_interval": 50,
        "algo_kwargs.dataset_size": 400,
        "algo_kwargs.batch_size": 32,
        "algo_kwargs.eval_interval": 200,
        "algo_kwargs.hidden_sizes": "[32, 32]",
        "algo_kwargs.compile": compile_option,
    }
    return [f"{name}={value}" for name, value in options.items()]


def _train_command(*options: Any) -> list[str]:
    return _command("train", "--quiet", "--config", "td3_bc/pendulum", "--set", *_options(*options))


def _train(*options: Any) -> Path:
    """The same run, in this process."""
    return train(load_config("td3_bc/pendulum", overrides=_options(*options))).run_dir


def _kill_after(command: list[str], output: Path, updates: int, delay: float) -> None:
    """Start a process and kill it a moment after it has logged so many updates."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        while process.poll() is None and _updates_logged(output) < updates:
            _wait(process, 0.005)
        _wait(process, delay)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert process.returncode == -signal.SIGKILL, process.stderr.read().decode() if process.stderr else ""


def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return


def _updates_logged(output: Path) -> int:
    return max((row["update_count"] for run in output.glob("*__*") for row in read_metrics(run)), default=0)


@pytest.mark.parametrize(
    ("compile_option", "updates", "kills"),
    [
        ("never", 3000, 2),
        pytest.param("never", 6000, 5, marks=pytest.mark.slow),
        pytest.param("always", 6000, 5, marks=pytest.mark.slow),
    ],
)
def test_a_run_killed_several_times_ends_as_if_it_had_never_stopped(
    compile_option: str, updates: int, kills: int, tmp_path: Path
) -> None:
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    other = _train(straight, updates, compile_option)
    rng = random.Random(0)
    # Well before its end, so that it does not come to it before the kill, however busy the machine is.
    moments = sorted(rng.randrange(20, updates * 6 // 10, 20) for _ in range(kills))
    for number, moment in enumerate(moments):
        runs = sorted(killed.glob("*__*"))
        command = (
            _command("resume", "--quiet", str(runs[0])) if number else _train_command(killed, updates, compile_option)
        )
        _kill_after(command, killed, moment, rng.uniform(0, 0.05))
    (run,) = killed.glob("*__*")
    resume(run)
    ours, theirs = (load_checkpoint(folder / "checkpoints" / "latest.pt") for folder in (run, other))
    assert ours["trainer"]["state"] == theirs["trainer"]["state"]
    for key, value in theirs["algorithm"].items():
        assert (
            torch.equal(ours["algorithm"][key], value)
            if isinstance(value, torch.Tensor)
            else ours["algorithm"][key] == value
        ), key


KILLED_WHILE_GOING_BACK = """
import os, signal, sys
from rl_training.runtime import saving, train

saving.drop_policies = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
train(sys.argv[1])
"""


@pytest.mark.filterwarnings("ignore:timestep")
def test_a_run_killed_while_it_goes_back_to_a_checkpoint_ends_as_if_it_had_not_been(
    tiny_config: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    growing = ("algo_kwargs.learning_rate=16", "algo_kwargs.guard_weight_growth=200")
    off = [f"algo_kwargs.guard_{name}=null" for name in ("saturation", "action_spread", "value_slack")]
    config = tiny_config("td3_bc", "algo_kwargs.on_divergence=rollback", *growing, *off)
    straight = train(config).run_dir
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    killed = subprocess.run([sys.executable, "-c", KILLED_WHILE_GOING_BACK, tmp_path / "config.yaml"], check=False)
    assert killed.returncode == -signal.SIGKILL
    (other,) = set(Path(config.output_dir).iterdir()) - {straight}

    resume(other)

    ours, theirs = (load_checkpoint(run / "checkpoints" / "latest.pt") for run in (straight, other))
    assert len(ours["trainer"]["guards"]["rollbacks"]) == 1
    assert not differences(ours["algorithm"], theirs["algorithm"])
    assert not differences(ours["trainer"], theirs["trainer"])


def test_a_run_killed_before_its_first_checkpoint_starts_over(tmp_path: Path) -> None:
    run = _train(tmp_path, 60, "never")
    finished = load_checkpoint(run / "checkpoints" / "latest.pt")
    for checkpoint in (run / "checkpoints").iterdir():
        checkpoint.unlink()
    with pytest.warns(UserWarning, match="is empty: the run starts over"):
        resume(run)
    again = load_checkpoint(run / "checkpoints" / "latest.pt")
    assert again["trainer"]["state"] == finished["trainer"]["state"]
    assert torch.equal(again["random"]["torch"], finished["random"]["torch"])


def test_an_interrupt_saves_the_run_which_then_continues(tmp_path: Path) -> None:
    with subprocess.Popen(_train_command(tmp_path, 4000, "never"), stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and _updates_logged(tmp_path) < 40:
            try:
                process.wait(timeout=0.005)
            except subprocess.TimeoutExpired:
                continue
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=300)
    (run,) = tmp_path.glob("*__*")
    assert process.returncode == 130
    assert f"resume with: rl-training resume {run}" in errors
    assert "Traceback" not in errors
    resume(run)
    state = load_checkpoint(run / "checkpoints" / "latest.pt")["trainer"]["state"]
    assert state["update_count"] == 4000


OTHER: dict[str, Any] = {"total_timesteps": 30, "algo_kwargs": {"batch_size": 8}}
"""Options with which the run goes back."""


class Killed(BaseException):
    """What no code is prepared for."""


class Killer:
    """Ends everything before the operation of this number that changes a file; after that, no other succeeds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
        self.left = number
        for owner, name in ((Path, "replace"), (Path, "unlink"), (os, "link"), (Path, "write_bytes")):
            monkeypatch.setattr(owner, name, self.counted(getattr(owner, name)))

    def counted(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise Killed
            return operation(*arguments, **options)

        return call


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(small(tmp_path_factory.mktemp("runs"), "keep_checkpoints=all")).run_dir


def go_back(run: Path) -> None:
    resume(run / "checkpoints" / "update_000000020.pt", **OTHER)


def everything(run: Path) -> dict[str, Any]:
    """What a run has come to, on which all its files must agree."""
    config = load_config(run / "config.yaml")
    latest = load_checkpoint(run / "checkpoints" / "latest.pt")
    assert TrainConfig(**latest["config"]) == config
    best = run / "checkpoints" / "best.pt"
    return {
        **state_of(run),
        "config": config.to_plain(),
        "rows": rows_of(run),
        "files": sorted(path.name for folder in ("checkpoints", "policies") for path in (run / folder).iterdir()),
        "best": load_checkpoint(best)["trainer"]["branches"] if best.exists() else None,
        "best_step": latest["trainer"]["state"]["best_step"],
    }


@pytest.mark.parametrize("stride", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_a_kill_at_any_operation_of_resume_leaves_one_of_two_runs(stride: int, ended: Path, tmp_path: Path) -> None:
    before, asked = everything(ended), tmp_path / "asked"
    shutil.copytree(ended, asked)
    go_back(asked)
    after, number = everything(asked), 0
    outcomes: list[str] = []
    while "whole" not in outcomes[-1:]:
        run = tmp_path / str(number)
        shutil.copytree(ended, run)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(import_module("rl_training.runtime.train"), "_run", lambda _: None)
            Killer(patched, number)
            try:
                go_back(run)
            except Killed:
                outcome = ""
            else:
                outcome = "whole"
        gc.collect()
        assert rows_of(run) in (before["rows"], [row for row in before["rows"] if row["global_step"] <= 20])
        resume(run)
        found = everything(run)
        is_old = differences(found, before) == []
        assert is_old or differences(found, after) == [], number
        outcomes.append(outcome or ("old" if is_old else "new"))
        number += stride

    assert outcomes == sorted(outcomes, key=["old", "new", "whole"].index)
    assert {"old", "new"} <= set(outcomes)


def test_going_back_with_other_options_leaves_nothing_of_the_branch_that_was_left(ended: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(ended, tmp_path / "run"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(import_module("rl_training.runtime.train"), "_run", lambda _: None)
        resume(run / "checkpoints" / "update_000000010.pt", **OTHER)

    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == [
        "latest.pt",
        "update_000000000.pt",
        "update_000000010.pt",
    ]
    assert not (run / "result.json").exists()
    resume(run)
    best = load_checkpoint(run / "checkpoints" / "best.pt")["trainer"]
    assert best["branches"] == [10]
    assert best["state"]["global_step"] in (20, 30)


def test_a_longer_run_keeps_its_best_checkpoint(ended: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(ended, tmp_path / "run"))
    before = (run / "checkpoints" / "best.pt").read_bytes()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(import_module("rl_training.runtime.train"), "_run", lambda _: None)
        resume(run, total_timesteps=60)

    assert (run / "checkpoints" / "best.pt").read_bytes() == before
