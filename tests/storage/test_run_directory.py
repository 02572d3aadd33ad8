"""What a run leaves on disk."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from typing_extensions import Self

from rl_training.config import TrainConfig, load_config
from rl_training.core.errors import ConfigError
from rl_training.runtime import train
from rl_training.storage import run_directory as artifacts
from rl_training.storage.metrics import MetricWindow
from rl_training.storage.run_directory import RunDirectory, read_metrics

MakeConfig = Callable[..., TrainConfig]


class _Noon(datetime):
    """A clock that stands still."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        return cls(2024, 5, 6, 12, 0, 0, tzinfo=tz)


def _metrics(**values: float) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(value) for name, value in values.items()}


def _create(tmp_path: Path, **options: Any) -> RunDirectory:
    config = TrainConfig(algo="bc", output_dir=str(tmp_path / "runs"), **options)
    return RunDirectory.create(config, subject="Task-v0", metadata={"data": {"rows": 3}})


def test_each_metric_is_averaged_over_the_updates_that_produced_it() -> None:
    window = MetricWindow()
    window.add(_metrics(critic_loss=1.0))
    window.add(_metrics(critic_loss=3.0, actor_loss=10.0))
    window.add(_metrics(critic_loss=5.0))
    window.add(_metrics(critic_loss=7.0, actor_loss=20.0))

    assert window.drain() == {"critic_loss": 4.0, "actor_loss": 15.0}


def test_a_window_starts_anew_after_it_was_drained() -> None:
    window = MetricWindow()
    window.add(_metrics(loss=1.0))
    window.drain()
    window.add(_metrics(loss=5.0))

    assert window.drain() == {"loss": 5.0}
    assert window.drain() == {}


def test_a_window_does_not_hold_on_to_tensors_that_change_later() -> None:
    window, metrics = MetricWindow(), _metrics(loss=1.0)
    window.add(metrics)
    metrics["loss"] += 100

    assert window.drain() == {"loss": 1.0}


def test_a_window_continues_from_a_saved_state() -> None:
    window, again = MetricWindow(), MetricWindow()
    window.add(_metrics(critic_loss=1.0))
    window.add(_metrics(critic_loss=3.0, actor_loss=4.0))
    again.load_state_dict(window.state_dict())
    # What happens to the first one afterwards must not reach the second.
    window.add(_metrics(critic_loss=100.0))

    again.add(_metrics(critic_loss=5.0))

    assert again.drain() == {"critic_loss": 3.0, "actor_loss": 4.0}


def test_a_run_directory_is_named_after_algorithm_task_seed_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "datetime", _Noon)

    run = _create(tmp_path, seed=7)
    run.close()

    assert run.path == tmp_path / "runs" / "bc__Task-v0__seed7__20240506-120000"
    assert sorted(item.name for item in run.path.iterdir()) == ["checkpoints", "config.yaml", "metadata.json"]


def test_runs_made_in_the_same_second_do_not_collide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "datetime", _Noon)

    names = [_create(tmp_path).path.name for _ in range(3)]

    first = "bc__Task-v0__seed0__20240506-120000"
    assert names == [first, f"{first}-2", f"{first}-3"]
    assert sorted(item.name for item in (tmp_path / "runs").iterdir()) == sorted(names)


@pytest.mark.parametrize("subject", ["mujoco/hopper", "mujoco:hopper", "mujoco hopper", "mujoco?hopper"])
def test_characters_that_some_file_system_refuses_are_not_in_the_name(tmp_path: Path, subject: str) -> None:
    config = TrainConfig(algo="bc", output_dir=str(tmp_path))

    run = RunDirectory.create(config, subject=subject, metadata={})

    assert run.path.parent == tmp_path
    assert "__mujoco-hopper__" in run.path.name


def test_a_config_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(yaml.YAMLError):
        _create(tmp_path, env_kwargs={"thing": object()})

    assert not (tmp_path / "runs").exists()


def test_an_output_folder_under_a_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")

    with pytest.raises(ConfigError, match=r"output_dir '.*runs' cannot be written: "):
        _create(tmp_path)


def test_metadata_says_what_one_needs_to_do_it_again(tiny_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["rl-training", "train", "--config", "bc/pendulum"])

    run_dir = train(tiny_config("bc", "tags=[first, second]")).run_dir

    about = json.loads((run_dir / "metadata.json").read_text())
    assert about["command"] == ["rl-training", "train", "--config", "bc/pendulum"]
    assert about["python"] == ".".join(map(str, sys.version_info[:3]))
    assert about["versions"]["torch"] == torch.__version__
    assert {"rl-training", "numpy", "gymnasium"} <= set(about["versions"])
    assert datetime.fromisoformat(about["started"]).tzinfo is not None
    assert about["compiled"] is False
    assert about["threads"] == torch.get_num_threads()
    # 400 steps are two Pendulum episodes, of which the packaged config keeps the better half.
    assert (about["data"]["rows"], about["data"]["episodes"], about["data"]["rows_held_out"]) == (200, 1, 0)
    assert "kept the best 1 of 2 episodes" in about["data"]["notes"]
    assert about["data"]["return_max"] >= about["data"]["return_mean"]


def test_the_config_in_a_run_directory_has_every_option_written_out(tiny_config: MakeConfig) -> None:
    run_dir = train(tiny_config("bc", "tags=[first]")).run_dir

    config = load_config(run_dir / "config.yaml")

    assert config.tags == ("first",)
    assert config.algo_kwargs["learning_rate"] == 3e-4
    assert config.algo_kwargs["policy"] == "deterministic"
    assert config.algo_kwargs["hidden_sizes"] == [8, 8]


def test_the_result_of_a_run_is_on_disk_too(tiny_config: MakeConfig) -> None:
    result = train(tiny_config("td3_bc"))

    stored = json.loads((result.run_dir / "result.json").read_text())

    assert stored["update_count"] == stored["global_step"] == 20
    assert stored["metrics"] == result.metrics
    assert stored["best_metrics"] == result.best_metrics
    assert stored["best_step"] in (10, 20)
    assert stored["data_return"] == result.data_return
    assert stored["stop_reason"] is None


def test_rows_are_written_with_their_kind_and_numbers_that_are_none_as_null(tmp_path: Path) -> None:
    run = _create(tmp_path)

    run.write_metrics("train", {"global_step": 1, "loss": 0.5, "broken": float("nan"), "huge": float("inf")})
    run.write_metrics("eval", {"global_step": 1, "return_mean": 2.0})
    run.close()

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is not JSON")

    text = (run.path / "metrics.jsonl").read_text()
    for line in text.splitlines():
        assert set(json.loads(line, parse_constant=refuse)) >= {"run_id", "checksum"}
    assert read_metrics(run.path) == [
        {"kind": "train", "global_step": 1, "loss": 0.5, "broken": None, "huge": None},
        {"kind": "eval", "global_step": 1, "return_mean": 2.0},
    ]


def test_rewinding_drops_later_rows_and_a_torn_last_line(tmp_path: Path) -> None:
    rows = [{"kind": "train", "global_step": count} for count in (10, 20, 30)]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"kind": "train", "upda')
    run = RunDirectory(tmp_path)

    with pytest.warns(UserWarning, match="line 4 is torn: set aside"):
        run.rewind_metrics(20)

    assert path.read_text() == "".join(json.dumps(row) + "\n" for row in rows[:2])
    assert [item.name for item in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_torn_line_is_passed_over_when_metrics_are_read(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"global_step": 1}\n{"global_s')

    with pytest.warns(UserWarning, match="line 2 is torn: left out"):
        assert read_metrics(tmp_path) == [{"global_step": 1}]
    assert read_metrics(tmp_path / "nowhere") == []


def test_metrics_go_to_tensorboard_under_their_kind(tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = _create(tmp_path)
    for count in (10, 20):
        run.write_metrics("train", {"global_step": count, "loss": count / 2, "broken": float("nan")})
    run.close()

    events = reader.EventAccumulator(str(run.path / "tensorboard")).Reload()
    assert "train/broken" not in events.Tags()["scalars"]
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [(10, 5.0), (20, 10.0)]


def test_without_tensorboard_a_run_keeps_its_metrics_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    run = _create(tmp_path)

    run.write_metrics("train", {"global_step": 1, "loss": 0.5})
    run.close()

    assert read_metrics(run.path) == [{"kind": "train", "global_step": 1, "loss": 0.5}]
    assert not (run.path / "tensorboard").exists()
