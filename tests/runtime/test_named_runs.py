"""Runs by name: one command for a job that may be started again."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from command_line import TINY, Command, call_main

from rl_training.core.errors import ConfigError
from rl_training.runtime import read_options, train
from rl_training.runtime.train import find_same, train_or_resume
from rl_training.storage import link_checkpoint, load_checkpoint


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return partial(call_main, monkeypatch, capsys)


def _arguments(output: Path, *more: str) -> list[str]:
    return ["train", "bc/pendulum", *TINY, "--out", str(output), "--run-name", "nightly", *more]


def _updates(run_dir: Path) -> int:
    count: int = load_checkpoint(run_dir / "checkpoints" / "latest.pt")["trainer"]["state"]["update_count"]
    return count


def test_a_run_has_the_name_it_is_given_and_no_other_run_gets_it(command: Command, tmp_path: Path) -> None:
    first, second = (command(*_arguments(tmp_path, "--quiet")) for _ in range(2))

    assert first.code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["nightly"]
    assert (second.code, second.out) == (2, "")
    assert f"there is a run 'nightly' in {str(tmp_path)!r} already: --resume auto continues it" in second.err


def test_the_same_command_starts_a_run_and_continues_it(command: Command, tmp_path: Path) -> None:
    started = command(*_arguments(tmp_path, "--resume", "auto", "--quiet"))
    longer = command(*_arguments(tmp_path, "--resume", "auto", "--quiet", "total_timesteps=30"))
    again = command(*_arguments(tmp_path, "--resume", "auto", "total_timesteps=30"))

    assert started.code == longer.code == again.code == 0
    assert _updates(tmp_path / "nightly") == 30
    assert "all 30 updates are done" in again.out


def test_a_run_with_other_options_is_not_gone_on_with(command: Command, tmp_path: Path) -> None:
    command(*_arguments(tmp_path, "--quiet"))

    answer = command(*_arguments(tmp_path, "--resume", "auto", "algo_kwargs.batch_size=8", "seed=3"))

    assert (answer.code, answer.out) == (2, "")
    assert "has other options (seed: 0, not 3; batch_size: 16, not 8): choose another run_name" in answer.err
    assert _updates(tmp_path / "nightly") == 20


def test_seeds_of_a_named_run_have_names_and_are_gone_on_with(command: Command, tmp_path: Path) -> None:
    first = command(*_arguments(tmp_path, "--seeds", "0,1", "--quiet"))
    again = command(*_arguments(tmp_path, "--seeds", "0,1", "--resume", "auto", "total_timesteps=30", "--json"))

    assert first.code == again.code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["nightly__seed0", "nightly__seed1"]
    assert [result["global_step"] for result in json.loads(again.out)] == [30, 30]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "bc/pendulum", "--resume", "auto"], "--resume auto needs --run-name"),
        (["train", "bc/pendulum", "--resume", "runs/x"], "--resume expects auto, got 'runs/x'; rl-training resume"),
        (["train", "bc/pendulum", "--run-name", "a/b"], "run_name must consist of letters, digits and . _ + -"),
    ],
)
def test_mistakes_are_answered_in_a_sentence(command: Command, arguments: list[str], words: str) -> None:
    answer = command(*arguments)

    assert (answer.code, answer.out) == (2, "")
    assert words in answer.err


def test_a_name_is_needed_in_python_too() -> None:
    with pytest.raises(ConfigError, match="run_name is required"):
        train_or_resume("bc/pendulum")


def test_seeds_given_again_run_what_is_missing_and_continue_what_is_half_done(command: Command, tmp_path: Path) -> None:
    arguments = ["train", "bc/pendulum", *TINY, "--out", str(tmp_path)]
    first = command(*arguments, "--seeds", "0,1", "--json")
    done, half = (Path(result["run_dir"]) for result in json.loads(first.out))
    files = {path: path.stat().st_mtime_ns for path in done.rglob("*")}
    # As a kill after the first half would have left it.
    (half / "result.json").unlink()
    link_checkpoint(half / "checkpoints" / "update_000000010.pt", "latest.pt")

    again = command(*arguments, "--seeds", "0-2", "--json")

    results = json.loads(again.out)
    assert (first.code, again.code) == (0, 0)
    assert [Path(result["run_dir"]) for result in results[:2]] == [done, half]
    assert [(result["status"], result["global_step"]) for result in results] == [("done", 20)] * 3
    assert results[0] == json.loads(first.out)[0]
    assert {path: path.stat().st_mtime_ns for path in done.rglob("*")} == files
    assert len(list(tmp_path.iterdir())) == 3


def test_seeds_with_other_options_are_runs_of_their_own(tmp_path: Path) -> None:
    config, options = read_options("bc/pendulum", overrides=[*TINY, f"output_dir={tmp_path}"])
    run = train((config, options)).run_dir

    assert find_same(config, options) == run
    for other in ("seed=1", "total_timesteps=30", "algo_kwargs.batch_size=8", "run_name=a"):
        assert find_same(*read_options("bc/pendulum", overrides=[*TINY, f"output_dir={tmp_path}", other])) is None


def test_a_run_on_a_table_is_known_again_by_the_patterns_of_its_columns(command: Command, tmp_path: Path) -> None:
    rows = [f"{run},{step / 10},{step % 3},{step % 5},1" for run in range(10) for step in range(12)]
    (tmp_path / "log.csv").write_text("\n".join(["run,x_0,x_1,a_0,r", *rows]))
    columns = ["--obs-columns", "x_*", "--action-columns", "a_*", "--reward-column", "r", "--episode-column", "run"]
    arguments = ["train", "bc", "--data", tmp_path / "log.csv", *columns, "--out", tmp_path / "runs", "--quiet"]
    more = ["total_timesteps=5", "algo_kwargs.hidden_sizes=[8]", "--accept-audit", "--run-name", "a"]

    answers = [command(*arguments, *more, "--resume", "auto") for _ in range(2)]
    other = command(*("x_0" if each == "x_*" else each for each in arguments), *more, "--resume", "auto")

    assert [answer.code for answer in answers] == [0, 0]
    assert "has other options (dataset_columns: " in other.err
