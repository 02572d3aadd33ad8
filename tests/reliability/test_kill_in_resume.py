"""A process that is killed inside `resume` leaves either the run as it was or the run that was asked for."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from small_runs import differences
from test_damaged_runs import rows_of, small, state_of

from rl_training.config import TrainConfig, load_config
from rl_training.runtime import resume, train
from rl_training.storage.checkpoint import load_checkpoint

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
