"""The command `select`: runs and checkpoints on their data, real episodes, what is stored, and mistakes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Command, call_main
from steering import Act, away, rest, steering_log, towards

from rl_training import BC
from rl_training.runtime import load_policy

FAST = ("--updates", "700", "--members", "4", "--gamma", "0.9", "--hidden-sizes", "16")


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """The command, in a folder of its own with a log."""
    monkeypatch.chdir(tmp_path)
    np.savez("log.npz", **steering_log(60))
    return partial(call_main, monkeypatch, capsys)


def train(name: str, policy: Act, **options: Any) -> None:
    """A clone of a policy."""
    log = steering_log(60, seed=2)
    np.savez(f"{name}.npz", **{**log, "actions": np.float32(policy(log["observations"]))})
    defaults: Any = {"total_timesteps": 600, "hidden_sizes": (16,), "learning_rate": 3e-3, "output_dir": "runs"}
    BC(run_name=name, log_interval=600, **{**defaults, "dataset_path": f"{name}.npz", **options}).learn()


def test_runs_are_ranked_and_the_selection_is_stored_beside_them(command: Command) -> None:
    train("good", towards)
    train("bad", away)
    # So many updates that the estimates come to rest.
    answer = command("select", "runs", "--data", "log.npz", *FAST, "--updates", "2000")
    assert answer.code == 0, answer.err
    assert answer.out.index("runs/good") < answer.out.index("runs/bad")
    assert "The selected policy is runs/good." in answer.out
    assert "On 30 episodes that were not used to select it, it is better than the data" in answer.out
    assert "over the next 10 steps (discount 0.9): probability " in answer.out
    assert "stored in runs/selection.json" in answer.out
    assert "Next: rl-training export runs/good --out policy" in answer.out
    stored = json.loads(Path("runs/selection.json").read_text())
    assert (stored["chosen"], stored["claim"]["verdict"]) == ("runs/good", "better than the data")


def test_every_checkpoint_of_a_run_is_a_candidate_if_asked_for(command: Command) -> None:
    train("run", towards, checkpoint_interval=300)
    answer = command("select", "runs/run", "--checkpoints", "all", "--data", "log.npz", *FAST, "--json")
    assert answer.code == 0, answer.err
    found = json.loads(answer.out)
    names = {each["name"] for each in found["candidates"]}
    assert names == {f"runs/run/policies/step_{step:09d}.pt" for step in (300, 600)}
    assert Path("runs/run/selection.json").is_file()
    assert load_policy(found["chosen"]).predict([0.5]).shape == (1,)


def test_real_episodes_are_shown_one_by_one_and_decide(command: Command) -> None:
    train("good", towards)
    train("still", rest)
    more = ("--data", "log.npz", *FAST, "--env", "steering:Steering-v0", "--out", "choice.json")
    answer = command("select", "runs", *more, "--episodes", "6")
    assert answer.code == 0, answer.err
    assert "episode 1: runs/good returned -" in answer.out
    assert "; best so far runs/good (-" in answer.out
    assert "The selected policy is runs/good after " in answer.out
    assert "as by the log." in answer.out
    stored = json.loads(Path("choice.json").read_text())
    assert 1 <= len(stored["pulls"]) <= 6
    assert sum(each["episodes"] for each in stored["candidates"]) == len(stored["pulls"])
    assert not Path("runs/selection.json").exists()


def test_real_episodes_choose_where_the_log_can_judge_nothing(command: Command) -> None:
    train("good", towards)
    train("bad", away)
    fast = ("--updates", "50", "--members", "2", "--gamma", "0.9", "--hidden-sizes", "16")
    more = ("--data", "log.npz", *fast, "--env", "steering:Steering-v0")
    assert "so none is selected" in command("select", "runs", *more[:-2]).out
    answer = command("select", "runs", *more, "--episodes", "20")
    assert "the log could judge none" in answer.out
    assert "The selected policy is runs/good by " in answer.out
    assert "it cannot be judged: FQE was stopped too early" in answer.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--checkpoints", "best"), "--checkpoints must be latest or all, got 'best'"),
        (("--env", "Pendulum-v1"), "--env is for real episodes"),
        (("--episodes", "5"), "runs/good has no env_id: name the environment of the episodes, with --env"),
        (("--out", "choice.txt"), "--out expects a file that ends with .json"),
        (("--split", "none"), "--split must be auto, held-out or all"),
    ],
)
def test_mistakes_get_one_message_and_status_2(command: Command, words: tuple[str, ...], message: str) -> None:
    train("good", towards, total_timesteps=1)
    answer = command("select", "runs", "--data", "log.npz", *words)
    assert answer.code == 2
    assert message in answer.err
    assert not Path("runs/selection.json").exists()
