"""The command `pipeline`: from real tables to a report, from a YAML file, killed at every stage, and mistakes."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Command, call_main
from steering import steering_log

COLUMNS = ["--obs-columns", "x_*", "--action-columns", "u_*", "--reward-column", "r", "--episode-column", "run"]
TINY = ["--seeds", "0", "--members", "2", "--set", "algo_kwargs.hidden_sizes=[8]", "--set", "algo_kwargs.batch_size=32"]
QUICK = [*TINY, "--updates", "30", "--set", "fit_updates=60", "--gamma", "0.8", "--algos", "td3_bc"]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """The command, in a folder of its own with a log."""
    monkeypatch.chdir(tmp_path)
    np.savez("log.npz", **steering_log(100))
    return partial(call_main, monkeypatch, capsys)


def write_table(path: Path, log: dict[str, Any]) -> None:
    """A log as a table with one row per step."""
    ends = log["terminals"] | log["timeouts"]
    runs = np.concatenate([[0], np.cumsum(ends)[:-1]])
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["run", *(f"x_{number}" for number in range(log["observations"].shape[1])), "u_0", "r"])
        for run, obs, action, reward in zip(runs, log["observations"], log["actions"], log["rewards"], strict=True):
            table.writerow([run, *obs, *action, reward])


@pytest.mark.slow
def test_a_real_table_becomes_a_report_and_a_policy_that_passes_its_check(
    shared_data: Path, tmp_path: Path, command: Command
) -> None:
    with np.load(shared_data / "pendulum" / "pendulum_medium_sac.npz") as log:
        write_table(tmp_path / "pendulum.csv", dict(log))
    budget = [*TINY, "--updates", "30", "--set", "fit_updates=60"]
    answer = command("pipeline", "pendulum.csv", *COLUMNS, *budget, "--out", "result", "--workers", "2")
    assert answer.code == 0, answer.err
    assert "episodes: 30 for training, 10 for selection, 10 for the claim" in answer.out
    assert "try bc_best: clones the best 33% of the episodes, since others went worse" in answer.out
    # With so few updates nothing can be judged.
    assert re.search(
        r"No policy can be judged by this log over the next .* steps .*: FQE was stopped too early", answer.out
    )
    assert "Next: open result/report.html in a browser" in answer.out
    # Stages of less than a second are not listed.
    assert re.search(r"time +\d.* (minutes|seconds): .*training ", answer.out)
    page = (tmp_path / "result" / "report.html").read_text()
    assert "The clone of the logged behaviour is exported, marked as such." in page
    assert json.loads((tmp_path / "result" / "export" / "policy.json").read_text())["observation"]["names"] == [
        "x_0",
        "x_1",
        "x_2",
    ]
    check = [sys.executable, str(tmp_path / "result" / "export" / "check.py")]
    assert subprocess.run(check, capture_output=True, check=False).returncode == 0


@pytest.mark.slow
def test_single_decisions_from_a_table_are_judged_with_discount_0(
    shared_data: Path, tmp_path: Path, command: Command
) -> None:
    log = shared_data / "obd" / "men_random.csv.gz"
    flags = ["--obs-columns", "user-item_affinity_*,user_feature_0", "--one-hot", "user_feature_0"]
    flags += ["--action-columns", "item_id", "--reward-column", "click", "--episodes", "each_row"]
    flags += ["--propensity-column", "propensity_score"]
    answer = command("pipeline", log, *flags, *TINY, "--updates", "50", "--set", "fit_updates=200", "--out", "result")
    assert answer.code == 0, answer.err
    assert "episodes: 6,000 for training, 2,000 for selection, 2,000 for the claim" in answer.out
    assert "try dqn: learns the reward of every action, with discount 0" in answer.out
    result = json.loads((tmp_path / "result" / "result.json").read_text())
    assert result["selection"]["estimates"]["gamma"] == 0.0
    weighted = result["claim"]["weighted"]
    assert weighted["name"] == result["claim"]["name"]
    assert f"{weighted['name']}: Importance sampling" in answer.out
    # 46 clicks in 10,000 rows cannot tell policies apart.
    assert not result["beats_the_data"]
    assert (result["chosen"], result["is_clone"]) == ("bc_seed0", True)


@pytest.mark.slow
def test_an_environment_evaluates_the_runs_and_its_episodes_may_decide(
    shared_data: Path, tmp_path: Path, command: Command
) -> None:
    with np.load(shared_data / "pendulum" / "pendulum_medium_sac.npz") as log:
        write_table(tmp_path / "pendulum.csv", dict(log))
    # A discount of 0.5 needs few updates until a value can be judged.
    budget = [*TINY, "--updates", "30", "--set", "fit_updates=130", "--gamma", "0.5", "--algos", "bc_best"]
    env = ["--env", "Pendulum-v1", "--real-episodes", "3"]
    answer = command("pipeline", "pendulum.csv", *COLUMNS, *budget, *env, "--out", "result")
    assert answer.code == 0, answer.err
    assert "actions: as in Pendulum-v1" in answer.out
    assert "episode 1: bc" in answer.out
    assert "return in env" in answer.out
    result = json.loads((tmp_path / "result" / "result.json").read_text())
    assert 1 <= len(result["selection"]["pulls"]) <= 3
    assert all("return_mean" in run["metrics"] for run in result["runs"].values())
    assert result["selection"]["chosen"] == result["selection"]["pulls"][-1]["best"]


@pytest.mark.slow
def test_minutes_end_the_runs_and_are_accounted_for(command: Command, tmp_path: Path) -> None:
    budget = ["--seeds", "0", "--algos", "td3_bc", "--minutes", "0.75", "--gamma", "0.8", "--members", "2"]
    answer = command("pipeline", "log.npz", *budget, "--out", "result")
    assert answer.code == 0, answer.err
    run = json.loads((tmp_path / "result" / "runs" / "td3_bc_seed0" / "result.json").read_text())
    assert re.fullmatch(r"its \d+ seconds were over", run["stop_reason"])
    assert not run["interrupted"]
    spent = json.loads((tmp_path / "result" / "time.json").read_text())
    assert set(spent) == {"data", "plan", "training", "selection", "claim", "export", "report"}
    assert re.search(r"time +\d.* of 45 seconds: .*training ", answer.out)


def test_a_file_has_the_same_options_and_the_command_wins(command: Command, tmp_path: Path) -> None:
    Path("mine.yaml").write_text(
        "data: log.npz\nseeds: [0]\nminutes: 5\ngamma: 0.8\nmembers: 2\nfit_updates: 60\nalgorithms: [bc]\n"
        "algo_kwargs: {hidden_sizes: [8], batch_size: 32}\n"
    )
    answer = command("pipeline", "--config", "mine.yaml", "--out", "result", "--updates", "30", "--json")
    assert answer.code == 0, answer.err
    result = json.loads(answer.out)
    assert list(result["runs"]) == ["bc_seed0"]
    assert result["export"] == "export"
    again = command("pipeline", "--config", "mine.yaml", "--out", "result", "--updates", "30", "--quiet")
    assert again.code == 0, again.err
    assert "FQE was stopped too early" in again.out
    other = command("pipeline", "--config", "mine.yaml", "--out", "result", "--updates", "40")
    assert other.code == 2
    assert "holds a pipeline with other options (updates: 30, not 40): choose another folder" in other.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["log.npz"], "--out is required"),
        (["--out", "result"], "no data is named"),
        (["lag.npz", "--out", "result"], "'lag.npz' does not exist; did you mean 'log.npz'?"),
        (["log.npz", "--out", "result", "--algos", "td3bc"], "did you mean 'td3_bc'?"),
        (["log.npz", "--out", "result", "--workers", "many"], "--workers must be a number >= 1 or auto, got 'many'"),
        (["log.npz", "--out", "result", "--minutes", "1", "--updates", "5"], "minutes and updates both set"),
        (["--config", "none.yaml", "--out", "result"], "the pipeline's file 'none.yaml' does not exist"),
        (["log.npz", "--out", "log.npz"], "holds something other than a pipeline"),
        (["log.npz", "--out", "result", "--minutes", "0"], "minutes must be > 0, got 0"),
        (["log.npz", "--out", "result", "--updates", "0"], "updates must be >= 1, got 0"),
        (["log.npz", "--out", "result", "--real-episodes", "3"], "real_episodes need an environment"),
        (["log.npz", "--out", "result", "--env", "Pendulun-v1"], "Pendulun"),
    ],
)
def test_mistakes_end_with_a_message_and_leave_nothing(
    command: Command, tmp_path: Path, arguments: list[str], message: str
) -> None:
    answer = command("pipeline", *arguments)
    assert answer.code == 2
    assert message in answer.err
    assert not (tmp_path / "result").exists()


def start(out: str) -> subprocess.Popen[bytes]:
    arguments = ["pipeline", "log.npz", *QUICK, "--out", out, "--quiet"]
    return subprocess.Popen([sys.executable, "-m", "rl_training", *arguments], stdout=subprocess.DEVNULL)


MARKS = (
    "pipeline.yaml",
    "data/train.rlt",
    "data/split.json",
    "runs/bc_seed0/checkpoints/latest.pt",
    "runs/td3_bc_seed0/checkpoints/latest.pt",
    "selection.json",
    "claim.json",
    "export/policy.json",
    "report.html",
)


@pytest.mark.slow
def test_a_pipeline_killed_at_every_stage_ends_with_the_result_of_one_that_was_not(
    command: Command, tmp_path: Path
) -> None:
    assert start("straight").wait() == 0
    kills = 0
    for mark in MARKS:
        process = start("killed")
        while process.poll() is None and not (tmp_path / "killed" / mark).exists():
            time.sleep(0.01)
        kills += process.poll() is None
        process.kill()
        process.wait()
    assert kills >= 5
    assert start("killed").wait() == 0
    folders = [tmp_path / "straight", tmp_path / "killed"]
    results = [(folder / "result.json").read_text().replace(str(folder), "out") for folder in folders]
    assert results[0] == results[1]
