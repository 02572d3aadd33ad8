"""The display of runs and fits, without a terminal and on one; and what a pipeline prints at its end."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl_training.cli.display import progress
from rl_training.cli.display.progress import TITLES, ProgressDisplay
from rl_training.cli.pipeline import print_result
from rl_training.experiment import SeedProgress
from rl_training.pipeline import PipelineResult
from rl_training.pipeline.run import STAGES

Lines = Callable[[], list[str]]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the display sees."""
    now = [0.0]
    monkeypatch.setattr(progress, "time", type("Clock", (), {"monotonic": staticmethod(lambda: now[0])}))
    return now


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Lines:
    """The lines that were printed since the last call."""
    return lambda: [line.strip() for line in capsys.readouterr().out.splitlines()]


def test_all_stages_have_titles() -> None:
    assert tuple(TITLES) == STAGES


def test_lines_say_where_it_is_and_not_too_often(clock: list[float], lines: Lines) -> None:
    with ProgressDisplay(quiet=False) as display:
        display.on_stage("training")
        display.on_runs(2, ["bc_seed0", "iql_seed0"])
        for step, now in ((0, 0.0), (10, 1.0), (30, 5.0), (50, 11.0)):
            clock[0] = now
            display.on_run(SeedProgress(0, "running", "bc_seed0", step, 100))
        display.on_run(SeedProgress(0, "done", "bc_seed0", 100, 100))
        display.on_run(SeedProgress(0, "failed", "iql_seed0", error="Traceback\nno number any more"))
    assert lines() == [
        "3/7  training",
        "bc_seed0  0 of 100 steps",
        "runs  1 running, 1 waiting",
        "bc_seed0  50 of 100 steps  0:00:13 left",
        "runs  1 running, 1 waiting  0:00:38 left",
        "bc_seed0  done  100 steps",
        "iql_seed0  failed  no number any more",
        "1 done, 1 failed",
    ]


def test_a_run_that_its_time_ends_shows_the_time_it_has(clock: list[float], lines: Lines) -> None:
    display = ProgressDisplay(quiet=False)
    display.on_runs(1, ["bc_seed0"])
    clock[0] = 100.0
    for step, passed in ((0, 0.0), (600, 5.0), (1234, 10.0)):
        clock[0] = 100.0 + passed
        display.on_run(SeedProgress(0, "running", "bc_seed0", step, 1_000_000, seconds=40.0))
    assert lines() == ["bc_seed0  0 steps", "bc_seed0  1,234 steps  0:00:30 left"]


def test_the_time_left_is_that_of_all_fits(clock: list[float], lines: Lines) -> None:
    display = ProgressDisplay(quiet=False)
    display.on_fits(3)
    for name, done, now in (("the behaviour", 0, 0), ("the behaviour", 25, 5), ("the behaviour", 50, 9), ("bc", 0, 10)):
        clock[0] = now
        display.on_fit(name, done, 50)
    assert lines() == [
        "fits  1 of 3: the behaviour, 0 of 50 updates",
        "fits  2 of 3: bc, 0 of 50 updates  0:00:16 left",
    ]


def test_the_best_run_so_far_and_those_of_earlier_calls_are_counted(clock: list[float], lines: Lines) -> None:
    with ProgressDisplay(quiet=False) as display:
        display.on_runs(3, scores=["normalized_score", "return_mean"])
        display.on_run(SeedProgress(0, "done", "a", 10, 10, {"return_mean": -20.0, "return_std": 1.0}))
        display.on_run(SeedProgress(0, "interrupted", "b", 5, 10, {"return_mean": -9.0, "return_std": 2.0}))
    assert lines() == [
        "runs  1 done, 2 waiting  best so far -20.0 (a)",
        "b  interrupted  5 steps  return -9.0 ± 2.0",
        "1 done, 1 interrupted, 1 waiting; best so far -9 (b)",
    ]


def test_a_terminal_shows_all_runs_at_once(
    clock: list[float], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    display = ProgressDisplay(quiet=False)
    display.on_runs(2, ["bc_seed0", "iql_seed0"])
    display.on_run(SeedProgress(0, "running", "bc_seed0", 25, 100))
    assert capsys.readouterr().out == ""
    display.console.print(display.bars.get_renderable())
    shown = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()]
    assert [line.lstrip("━╸╺ ") for line in shown] == [
        "runs  1 running, 1 waiting",
        "bc_seed0  25 of 100 steps",
        "iql_seed0  waiting",
    ]


def candidate(name: str, rank: int, *, is_best: bool) -> dict[str, Any]:
    about = {"name": name, "rank": rank, "value": -float(rank), "interval": [-9.0, 1.0], "reasons": []}
    return {**about, "verdict": "better than the data", "is_among_the_best": is_best}


def test_the_result_marks_those_as_good_as_the_best_and_says_which_was_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranked = [candidate("iql_seed0", 1, is_best=True), candidate("bc_seed0", 2, is_best=True)]
    weighted = {"recommended": None, "reasons": ["one episode has it all"]}
    claim = {**ranked[0], "weighted": weighted}
    run = {"updates": 1234, "metrics": {"return_mean": -7.5}, "error": None}
    selection = {"candidates": ranked, "best": ["iql_seed0", "bc_seed0"], "chosen": "iql_seed0", "pulls": []}
    selection |= {"estimates": {"logged_return": -8.0, "logged_value": -4.0, "gamma": 0.9}}
    result = PipelineResult(
        "It is.", "iql_seed0", False, True, "claim episodes", 0.9, tmp_path, {}, (),
        {"iql_seed0": run, "bc_seed0": run}, selection, claim, {"training": 50.0, "report": 0.1}, 1.0,
    )  # fmt: skip
    print_result(result, "out")
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "* iql_seed0 1,234 -1 -9 to 1 better than the data -7.5" in lines
    assert "iql_seed0, on claim episodes -1 -9 to 1 better than the data" in lines
    assert "* not distinguishable from each other; iql_seed0 was selected: the highest value" in lines
    assert "iql_seed0: Importance sampling: refused, one episode has it all." in lines
    assert "time 50 seconds of 60 seconds: training 50 seconds" in lines
