"""The command `export` and the runs that it takes: on data, on a table, with goals, and from experience."""

from __future__ import annotations

import hashlib
import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import TINY, Command, call_main
from conftest import transitions
from exported import make_saved, translations_are_read_once  # noqa: F401 - used by all tests of this file

import rl_training
from rl_training.config import TrainConfig
from rl_training.core.errors import DatasetError
from rl_training.core.spaces import Column, SpaceSpec
from rl_training.policies.export.description import describe
from rl_training.policies.export.graph import PolicyGraph
from rl_training.policies.export.log import find_log
from rl_training.runtime import load_policy, train

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")
pytest.importorskip("onnxscript")

MakeConfig = Callable[..., TrainConfig]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return lambda *arguments: call_main(monkeypatch, capsys, *arguments)


@pytest.fixture
def run(tmp_path: Path, command: Command) -> Path:
    """A run on random data of Pendulum: two episodes of 200 steps."""
    sets = [word for override in (*TINY, f"output_dir={tmp_path / 'runs'}") for word in ("--set", override)]
    command("train", "--config", "td3_bc/pendulum", "--quiet", *sets)
    return next((tmp_path / "runs").iterdir())


def test_the_command_says_what_it_wrote_how_it_compares_and_what_to_do_next(
    run: Path, tmp_path: Path, command: Command
) -> None:
    answer = command("export", run, "--out", tmp_path / "out", "--quiet")
    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert lines[0] == f"{tmp_path / 'out'}: the policy of td3_bc after 20 timesteps"
    arrays = ("policy.onnx", "policy_numpy.npz", "vectors.npz")
    for name in (*arrays, "check.py", "policy.json", "policy_numpy.py", "report.html"):
        assert any(line.startswith(name) for line in lines)
    assert "largest differences from the package on the test vectors: action " in answer.out
    assert "µs in onnxruntime" in answer.out
    assert "novelty was calibrated on 1 held-out episode:" in answer.out
    assert lines[-1] == f"Next: python {tmp_path / 'out' / 'check.py'}"
    again = command("export", run, "--out", tmp_path / "out")
    assert again.code == 2
    assert "exists already; choose another name or delete it" in again.err


def test_the_report_is_part_of_the_bundle_and_names_no_folder_of_this_machine(
    run: Path, tmp_path: Path, command: Command
) -> None:
    answer = command("export", run, "--out", tmp_path / "out", "--json")
    about = json.loads(answer.out)
    assert about["report"] == {"available": True, "why_not": None}
    page = (tmp_path / "out" / "report.html").read_bytes()
    assert about["sha256"]["report.html"] == hashlib.sha256(page).hexdigest()
    text = page.decode()
    assert str(tmp_path) not in text
    assert "has not been estimated from the log" in text
    # The page describes the folder that it lies in, by its name and the sums of the other files.
    assert "<dd>out</dd>" in text
    assert about["sha256"]["policy.onnx"] in text
    # Pendulum says its dt.
    assert "<dt>time between actions</dt><dd>0.05</dd>" in text
    assert about["control_interval"]["median"] == pytest.approx(0.05)
    assert about["control_interval"]["from"] == "dt of the environment"
    assert about["control_interval"]["unit"] is None
    assert check_folder(tmp_path / "out") == []
    (tmp_path / "out" / "report.html").write_bytes(page + b" ")
    assert check_folder(tmp_path / "out")[0].startswith("report.html is not the file that was exported")


def check_folder(folder: Path) -> list[str]:
    """What the check of an exported folder finds wrong with it."""
    problems: list[str] = runpy.run_path(str(folder / "check.py"))["check"](folder)[0]
    return problems


def test_the_control_interval_is_that_of_the_timestamps(tmp_path: Path) -> None:
    rows = transitions(200)
    rng = np.random.default_rng(0)
    rows["timestamps"] = 1.7e9 + np.cumsum(rng.choice([0.1, 0.2], p=[0.8, 0.2], size=200))
    options: dict[str, Any] = {"hidden_sizes": (8, 8), "batch_size": 16, "total_timesteps": 20}
    rl_training.BC(dataset=rows, output_dir=str(tmp_path / "runs"), **options).learn(progress=False)
    saved = load_policy(tmp_path / "runs")
    found = describe(saved, PolicyGraph(saved.policy, None), None, "")["control_interval"]
    numbers = [found[name] for name in ("median", "quantile_0.05", "quantile_0.95")]
    assert numbers == pytest.approx([0.1, 0.1, 0.2], abs=1e-6)
    assert (found["unit"], found["from"]) == (None, "timestamps of the log, in their unit")


def test_the_best_checkpoint_is_exported_without_novelty_and_report_if_asked(
    run: Path, tmp_path: Path, command: Command
) -> None:
    (run / "estimate.json").write_text(json.dumps({"value": -137.0, "anything": [1, 2]}))
    answer = command("export", run, "--out", tmp_path / "out", "--best", "--no-novelty", "--no-report", "--json")
    about = json.loads(answer.out)
    assert "report" not in about
    assert not (tmp_path / "out" / "report.html").exists()
    stored = json.loads((tmp_path / "out" / "policy.json").read_text())
    assert about["policy"]["checkpoint"] == stored["policy"]["checkpoint"] == "best.pt"
    assert about["policy"]["run"] == run.name
    assert stored["novelty"] == {"available": False, "why_not": "it was left out when the policy was exported"}
    assert stored["estimates"] == {"value": -137.0, "anything": [1, 2]}
    assert list(stored["outputs"]) == ["action"]
    assert str(tmp_path) not in (tmp_path / "out" / "policy.json").read_text()
    session = onnxruntime.InferenceSession(str(tmp_path / "out" / "policy.onnx"))
    assert [output.name for output in session.get_outputs()] == ["action"]


def test_data_that_is_not_there_any_more_is_an_error_that_says_what_to_do(tmp_path: Path, command: Command) -> None:
    np.savez(tmp_path / "log.npz", **transitions(200))  # type: ignore[arg-type]
    sets = [*TINY, "algo_kwargs.dataset_path=log.npz", "algo_kwargs.dataset_kind=npz", "algo_kwargs.dataset_size=null"]
    sets = [each for each in sets if "dataset_size=400" not in each] + [
        "env_id=null",
        f"output_dir={tmp_path / 'runs'}",
    ]
    sets = [each.replace("=log.npz", f"={tmp_path / 'log.npz'}") for each in sets]
    made = command("train", "--config", "td3_bc/pendulum", "--quiet", *(w for each in sets for w in ("--set", each)))
    assert made.code == 0, made.err
    run = next((tmp_path / "runs").iterdir())
    (tmp_path / "log.npz").unlink()
    answer = command("export", run, "--out", tmp_path / "out")
    assert answer.code == 2
    assert "novelty needs the data of the run, which cannot be read: dataset_path" in answer.err
    assert "pass --no-novelty" in answer.err
    np.savez(tmp_path / "log.npz", **transitions(200, seed=1))  # type: ignore[arg-type]
    answer = command("export", run, "--out", tmp_path / "out")
    assert answer.code == 2
    assert "the data is not what the policy was trained on" in answer.err
    assert not (tmp_path / "out").exists()


def test_a_trained_object_exports_with_the_data_that_it_was_given(tmp_path: Path) -> None:
    rows = transitions(400)
    options: dict[str, Any] = {"hidden_sizes": (8, 8), "batch_size": 16, "total_timesteps": 20}
    model = rl_training.TD3BC(dataset=rows, output_dir=str(tmp_path / "runs"), **options)
    model.learn(progress=False)
    result = model.export(tmp_path / "out")
    assert result.about["novelty"]["held_out_episodes"] == 9
    with pytest.raises(DatasetError, match="novelty needs the data of the run"):
        load_policy(tmp_path / "runs").export(tmp_path / "other")


@pytest.mark.parametrize("kind", ["continuous", "discrete"])
def test_a_table_gives_names_to_numbers_and_discrete_actions(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("pyarrow")
    valve = ["0.5", "0.25"] if kind == "continuous" else ["shut", "open"]
    lines = [f"{k // 10},{k % 10},{k % 7}.5,{'abc'[k % 3]},{valve[k % 2]},{k % 3}" for k in range(200)]
    (tmp_path / "plant.csv").write_text("\n".join(["run,t,temp,mode,valve,load", *lines]) + "\n")
    columns = {
        "obs": ["temp", "mode", "load"],
        "actions": ["valve"],
        "one_hot": ["mode"],
        "episode": "run",
        "step": "t",
    }
    options: dict[str, Any] = {"hidden_sizes": (8, 8), "batch_size": 16, "dataset_columns": columns}
    model = rl_training.BC(
        dataset_path=str(tmp_path / "plant.csv"), output_dir=str(tmp_path), total_timesteps=20, **options
    )
    model.learn(progress=False)
    about = model.export(tmp_path / "out").about
    assert about["observation"]["names"] == ["temp", "mode=a", "mode=b", "mode=c", "load"]
    assert about["action"]["names"] == ["valve"]
    assert about["action"].get("choices") == (None if kind == "continuous" else ["open", "shut"])
    assert about["novelty"]["held_out_episodes"] == 9


def test_a_dictionary_of_observations_is_explained() -> None:
    saved = make_saved("td3_bc")
    parts = {"observation": Column((3,)), "desired_goal": Column((2, 1))}
    saved.policy.spaces = SpaceSpec(parts, saved.spaces.action)
    about = describe(saved, PolicyGraph(saved.policy, None), None, "")["observation"]
    assert [(part["name"], part["from"], part["to"]) for part in about["parts"]] == [
        ("observation", 0, 3),
        ("desired_goal", 3, 5),
    ]
    assert "joined in the order of `parts`" in about["how"]


def test_experience_in_the_replay_buffer_is_the_log_of_a_run_without_data(tiny_config: MakeConfig) -> None:
    result = train(tiny_config("sac", "total_timesteps=100", "num_envs=2"))
    saved = load_policy(result.checkpoint_path)
    log, why_not = find_log(saved)
    assert log is not None, why_not
    # Two environments, episodes of five steps each.
    assert len(log.obs) == 100
    assert np.unique(log.episodes, return_counts=True)[1].tolist() == [5] * 20
    stored = torch.cat([torch.load(file)["rows"]["obs"] for file in sorted((result.run_dir / "replay").iterdir())])
    assert torch.equal(log.obs[:5], stored[0:10:2])
    assert log.actions.abs().max() <= 1


def test_without_episodes_to_hold_out_the_policy_is_exported_without_novelty(
    tiny_config: MakeConfig, tmp_path: Path
) -> None:
    saved = load_policy(train(tiny_config("ppo")).checkpoint_path)
    result = saved.export(tmp_path / "out")
    assert "no replay buffer lies beside the checkpoint" in result.about["novelty"]["why_not"]
    assert result.about["observation"]["training"] is None
    saved = load_policy(
        train(tiny_config("td3_bc", "algo_kwargs.dataset_size=100", "env_kwargs.max_episode_steps=200")).checkpoint_path
    )
    log, why_not = find_log(saved)
    assert log is None
    assert why_not == "novelty is calibrated on held-out episodes and needs at least 2, got 1"


def test_mixed_rows_are_calibrated_on_the_episodes_that_training_held_out(
    tiny_config: MakeConfig, tmp_path: Path
) -> None:
    for number in range(2):
        np.savez(tmp_path / f"part{number}.npz", **transitions(400, seed=number))  # type: ignore[arg-type]
    parts = ", ".join(f"{{dataset_path: {tmp_path / f'part{number}.npz'}, ratio: 1}}" for number in range(2))
    mix = [f"algo_kwargs.dataset_mix=[{parts}]", "algo_kwargs.dataset_size=300", "algo_kwargs.dataset_kind=null"]
    for fraction, held_out in ((0.2, 8), (0.0, None)):
        config = tiny_config("td3_bc", *mix, "env_id=null", f"algo_kwargs.validation_fraction={fraction}")
        log, why_not = find_log(load_policy(train(config).checkpoint_path))
        assert (None if log is None else len(log.held_out)) == held_out
        assert bool(why_not) == (held_out is None)
