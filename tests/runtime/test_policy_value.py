"""The value of a policy during training: a metric to stop and to choose by, which changes nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import differences
from steering import away, steering_log, towards, true_value

from rl_training.core.errors import ConfigError
from rl_training.data import TransitionDataset, load_transition_dataset
from rl_training.ope import EvaluationLog, PolicyValue
from rl_training.runtime import TrainResult, assembly, load_policy, resume, train
from rl_training.runtime import run_data as datasets
from rl_training.selection import data_given, data_of_runs
from rl_training.storage import load_checkpoint, read_metrics


class _Fixed:
    """A policy by a function."""

    obs_mean = torch.zeros(1)

    def __init__(self, act: Any) -> None:
        self.function = act

    def act(self, obs: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.float32(self.function(obs.numpy())))


def _run(folder: Path, name: str, **options: Any) -> TrainResult:
    log = steering_log(40)
    kwargs = {"hidden_sizes": [8], "batch_size": 32, "eval_interval": 10, **options}
    config = {"algo": "td3_bc", "total_timesteps": 20, "log_interval": 10, "checkpoint_interval": 10}
    return train({**config, "run_name": name, "output_dir": str(folder), "algo_kwargs": kwargs}, dataset=log)


def _values(run: Path) -> list[float]:
    return [row["fqe_value"] for row in read_metrics(run) if "fqe_value" in row]


def test_it_is_near_the_value_of_running_the_policy() -> None:
    log = steering_log(60)
    value = PolicyValue(data_given(log, []).log)
    value.options = type(value.options)(gamma=0.9, members=0, kappa=3.0, hidden_sizes=(32,), learning_rate=3e-3)
    for policy in (towards, away):
        found = value.measure(_Fixed(policy))["fqe_value"]  # type: ignore[arg-type]
        assert found == pytest.approx(true_value(policy, log), abs=0.7)


def test_a_run_without_an_environment_keeps_the_best_by_it(tmp_path: Path) -> None:
    plain = _run(tmp_path, "plain")
    assert not (plain.run_dir / "checkpoints" / "best.pt").exists()
    found = _run(tmp_path, "valued", eval_fqe=True, reward_scale=0.1)
    values = _values(found.run_dir)
    assert len(values) == 2
    assert found.best_metrics["fqe_value"] == max(values)
    assert (found.run_dir / "checkpoints" / "best.pt").exists()
    # Rewards as logged, whatever the run learns from: a tenth of them would be worth more than -2.5.
    assert all(-25 < value < -2.5 for value in values), values


def test_it_changes_nothing_in_training_and_a_resumed_run_finds_the_same(tmp_path: Path) -> None:
    plain, found = _run(tmp_path, "plain"), _run(tmp_path, "valued", eval_fqe=True)
    trees = [load_checkpoint(each.checkpoint_path) for each in (plain, found)]
    for part in ("algorithm", "random"):
        assert not differences(trees[0][part], trees[1][part])
    before = _values(found.run_dir)
    resume(found.run_dir / "checkpoints" / "update_000000010.pt", dataset=steering_log(40))
    assert _values(found.run_dir) == before


def test_training_can_stop_by_it_if_it_is_reported(tmp_path: Path) -> None:
    rule = {"metric": "fqe_value", "threshold": -1000.0}
    with pytest.raises(ConfigError, match="is reported with eval_fqe: true only"):
        _run(tmp_path, "refused", early_stopping=rule)
    found = _run(tmp_path, "stopped", early_stopping=rule, eval_fqe=True)
    assert found.stop_reason is not None
    assert len(_values(found.run_dir)) == 1


@pytest.mark.parametrize("episodes", [40, 140], ids=["few held out", "enough held out"])
def test_the_data_of_a_run_is_loaded_once_and_judged_with_rewards_as_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, episodes: int
) -> None:
    np.savez(tmp_path / "log.npz", **steering_log(episodes))
    loads: list[Any] = []
    logs: list[EvaluationLog] = []

    def counted(*arguments: Any, **options: Any) -> TransitionDataset:
        loads.append(arguments)
        return load_transition_dataset(*arguments, **options)

    def noted(log: EvaluationLog) -> PolicyValue:
        logs.append(log)
        return PolicyValue(log)

    monkeypatch.setattr(datasets, "load_transition_dataset", counted)
    monkeypatch.setattr(assembly, "PolicyValue", noted)
    kwargs = {"dataset_path": str(tmp_path / "log.npz"), "hidden_sizes": [8], "eval_interval": 10, "eval_fqe": True}
    transforms = {"reward_scale": 2.0, "reward_clip_max": -0.1, "normalize_obs": True}
    config = {"algo": "td3_bc", "total_timesteps": 10, "output_dir": str(tmp_path)}
    found = train({**config, "algo_kwargs": {**kwargs, **transforms}})
    assert len(loads) == 1
    # What `estimate` reads for the run anew.
    again = data_of_runs([load_policy(found.checkpoint_path)]).log
    (log,) = logs
    assert log.spaces == again.spaces
    for name in ("obs", "actions", "rewards", "next_obs", "dones"):
        assert torch.equal(log.dataset.fields[name], again.dataset.fields[name]), name
    assert not log.dataset.reward_transforms
