"""The command `report --html`: what it writes and prints, and mistakes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from command_line import Command, call_main
from steering import steering_log

FAST = ("--updates", "250", "--members", "3", "--gamma", "0.8", "--hidden-sizes", "16")


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """The command, in a folder of its own with a log and a run."""
    monkeypatch.chdir(tmp_path)
    np.savez("log.npz", **steering_log(40))
    command = partial(call_main, monkeypatch, capsys)
    options = ("--set", "algo_kwargs.hidden_sizes=[8]", "--total-timesteps", "20", "--out", "runs")
    assert command("train", "bc", "--data", "log.npz", "--run-name", "clone", *options).code == 0
    return command


def test_the_page_and_its_content_are_written_and_the_answer_is_printed(command: Command) -> None:
    answer = command("report", "runs", "--html", "report.html", "--title", "The tank")
    assert answer.code == 0, answer.err
    assert "How good these policies are has not been estimated from the log." in answer.out
    assert "rl-training estimate runs/clone" in answer.out
    assert "report in report.html, its content in report.json" in answer.out
    assert "<h1>The tank</h1>" in Path("report.html").read_text()
    content = json.loads(Path("report.json").read_text())
    assert "rl-training train bc --data log.npz --run-name clone" in content["limits"]["commands"][0]


def test_estimates_beside_the_run_are_found_and_json_prints_the_content(command: Command) -> None:
    assert command("estimate", "runs", *FAST, "--out", "all.json").code == 0
    answer = command("report", "runs", "--html", "report.html", "--json")
    content = json.loads(answer.out)
    assert content == json.loads(Path("report.json").read_text())
    # 2.5 is too little, whatever the numbers are.
    assert content["verdict"]["sentence"] == "This policy cannot be judged by this log."
    assert any("kappa 2.5" in reason for reason in content["verdict"]["refused"][0]["reasons"])
    assert content["limits"]["commands"][1].startswith("rl-training estimate runs/clone --split all --gamma 0.8")
    named = command("report", "runs", "--html", "named.html", "--estimates", "all.json", "--json")
    assert json.loads(named.out)["candidates"] == content["candidates"]


def test_the_command_that_the_report_names_makes_the_same_estimate(command: Command) -> None:
    command("estimate", "runs", *FAST)
    before = Path("runs/clone/estimate.json").read_text()
    answer = command("report", "runs", "--html", "report.html", "--json")
    again = json.loads(answer.out)["limits"]["commands"][1].split()
    Path("runs/clone/estimate.json").unlink()
    assert command(*again[1:]).code == 0
    assert Path("runs/clone/estimate.json").read_text() == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--html", "report.txt"), "--html 'report.txt': expected a file that ends with .html"),
        (("--html", "nowhere/r.html"), "--html 'nowhere/r.html': the folder 'nowhere' does not exist"),
        (("--html", "r.html", "--plot", "r.png"), "--html has curves of its own"),
        (("--html", "r.html", "--smooth", "3"), "--html has curves of its own"),
        (
            ("--html", "r.html", "--chosen", "clonee"),
            "'clonee' is none of the runs of the report; did you mean 'clone'?",
        ),
        (("--html", "r.html", "--bundle", "runs"), "'runs' is not an exported policy: it has no policy.json"),
        (
            ("--html", "r.html", "--estimates", "log.npz"),
            "'log.npz': policies is missing; expected what this version of rl-training estimate writes",
        ),
        (("--html", "r.html", "--selection", "gone.json"), "'gone.json' does not exist"),
        (("--html", "r.html", "--data", "gone.npz"), "gone.npz"),
        (("--chosen", "clone"), "--chosen, --estimates, --selection and --bundle go with --html"),
    ],
)
def test_mistakes_end_with_status_2_and_nothing_is_written(
    command: Command, arguments: tuple[str, ...], words: str
) -> None:
    answer = command("report", "runs", *arguments)
    assert answer.code == 2
    assert words in answer.err
    assert not list(Path().glob("*.html"))


def test_what_guards_have_found_is_in_the_terminal_and_on_the_page(command: Command) -> None:
    alarm = {"kind": "guard", "global_step": 20, "guard": "weights", "action": "warn", "message": "the weights explode"}
    over = {"kind": "guard", "global_step": 20, "guard": "weights", "action": "over"}
    with Path("runs/clone/metrics.jsonl").open("a") as file:
        file.write("".join(json.dumps(row) + "\n" for row in (alarm, over)))

    answer = command("report", "runs")

    assert answer.code == 0, answer.err
    assert answer.out.count("alarm in runs/clone, timestep 20: the weights explode\n") == 1
    assert command("report", "runs", "--html", "report.html").code == 0
    assert "<h3>Alarms</h3>" in Path("report.html").read_text()
    (found,) = json.loads(Path("report.json").read_text())["training"]["alarms"]
    assert found == {"run": "clone", "global_step": 20, "message": "the weights explode", "action": "warn"}
