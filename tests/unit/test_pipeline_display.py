"""The overview of a pipeline, without a terminal and on one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rl_training.cli import console as consoles
from rl_training.cli import pipeline_display
from rl_training.cli.pipeline import print_result
from rl_training.cli.pipeline_display import PipelineDisplay, bar_text
from rl_training.experiment import SeedProgress
from rl_training.experiment.pipeline import PipelineResult
from rl_training.experiment.pipeline_plan import Plan

RUNS = ("bc_seed0", "iql_seed0")
PLAN = Plan(RUNS, RUNS, (), gamma=0.9, members=10, fits=3, fit_updates=50, updates=100)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the display sees."""
    now = [0.0]
    clock = type("Clock", (), {"monotonic": staticmethod(lambda: now[0])})
    monkeypatch.setattr(pipeline_display, "time", clock)
    monkeypatch.setattr(consoles, "time", clock)
    return now


def test_lines_say_where_it_is_and_not_too_often(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with PipelineDisplay(quiet=False) as display:
        display.on_stage("training")
        display.on_runs(["bc_seed0", "iql_seed0"], PLAN)
        for step, now in ((0, 0.0), (10, 1.0), (50, 11.0)):
            clock[0] = now
            display.on_run(SeedProgress(0, "running", "bc_seed0", step, 100))
        display.on_run(SeedProgress(0, "done", "bc_seed0", 100, 100))
        display.on_run(SeedProgress(0, "failed", "iql_seed0", error="Traceback\nno number any more"))
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "3/7  training",
        f"bc_seed0  running  {bar_text(0, 100)}  0 of 100 updates",
        f"bc_seed0  running  {bar_text(50, 100)}  50 of 100 updates  0:00:11 left",
        f"bc_seed0  done  {bar_text(1, 1)}  100 updates",
        "iql_seed0  failed  no number any more",
    ]


def test_a_run_that_its_time_ends_shows_the_time_it_has(clock: list[float]) -> None:
    display = PipelineDisplay(quiet=True)
    display.on_runs(["bc_seed0"], PLAN)
    display.on_run(SeedProgress(0, "running", "bc_seed0", 0, 1_000_000, seconds=40.0))
    clock[0] = 10.0
    display.on_run(SeedProgress(0, "running", "bc_seed0", 1234, 1_000_000, seconds=40.0))
    assert display.cells("bc_seed0") == ["bc_seed0", "running", bar_text(1, 4), "1,234 updates", "0:00:30 left"]


def test_the_time_left_is_that_of_all_fits(clock: list[float]) -> None:
    display = PipelineDisplay(quiet=True)
    display.on_stage("selection")
    display.on_fits(3)
    display.on_fit("the logged behaviour", 0, 50)
    clock[0] = 10.0
    display.on_fit("the logged behaviour", 50, 50)
    display.on_fit("bc_seed0", 0, 50)
    assert display.fit_text() == f"fit 2 of 3, bc_seed0  {bar_text(0, 50)}  0 of 50 updates  0:00:20 left"


def test_a_terminal_shows_all_runs_at_once() -> None:
    display = PipelineDisplay(quiet=True)
    display.on_stage("training")
    display.on_runs(["bc_seed0", "iql_seed0"], PLAN)
    display.on_run(SeedProgress(0, "running", "bc_seed0", 25, 100))
    console = Console(width=100)
    with console.capture() as shown:
        console.print(display.table())
    first, second, third = shown.get().splitlines()
    assert first.split() == ["3/7", "training"]
    assert second.split()[:2] == ["bc_seed0", "running"]
    assert "25 of 100 updates" in second
    assert third.split() == ["iql_seed0", "waiting"]


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
        tmp_path, "It is.", "iql_seed0", False, True, "claim episodes", {}, (), {"iql_seed0": run, "bc_seed0": run},
        selection, claim, {"training": 50.0, "report": 0.1}, 1.0,
    )  # fmt: skip
    print_result(result, "out")
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "* iql_seed0 1,234 -1 -9 to 1 better than the data -7.5" in lines
    assert "iql_seed0, on claim episodes -1 -9 to 1 better than the data" in lines
    assert "* not distinguishable from each other; iql_seed0 was chosen: the highest value" in lines
    assert "iql_seed0: By weights: refused, one episode has it all." in lines
    assert "time 50 seconds of 60 seconds: training 50 seconds" in lines
