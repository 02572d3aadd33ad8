"""What held-out episodes say, checked against numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import transitions

from rl_training.algorithms import ALGORITHMS, Algorithm
from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError
from rl_training.core.spaces import BoxActions, SpaceSpec
from rl_training.data import TransitionDataset
from rl_training.diagnostics import held_out as diagnostics
from rl_training.diagnostics.held_out import diagnose
from rl_training.runtime import evaluate, predict, train
from rl_training.storage import read_metrics

MakeConfig = Callable[..., TrainConfig]


def _algorithm(name: str, **hyper: Any) -> Algorithm:
    """An algorithm whose actor does nothing, tanh(0), and whose two critics always say 2 and 1."""
    cls = ALGORITHMS[name]
    algorithm = cls.build(SpaceSpec.vector(1, BoxActions((-1.0,), (1.0,))), cls.hyper_class(hidden_sizes=(4,), **hyper))
    for parameter in algorithm.parameters():
        parameter.data.zero_()
    if name == "td3_bc":
        algorithm.model.critic.mlp.layers[-1].bias.data.copy_(torch.tensor([[2.0], [1.0]]))
    return algorithm


def _reading_algorithm() -> Algorithm:
    """The same, but the critics add the observation that they are shown, as long as it is not negative."""
    algorithm = _algorithm("td3_bc")
    for layer in algorithm.model.critic.mlp.layers:
        layer.weight.data[:, 0, 0] = 1
    return algorithm


def _dataset() -> TransitionDataset:
    """Two episodes of two steps; the first is cut, the second terminates."""
    return TransitionDataset.from_dict(
        {
            "obs": np.array([[10.0], [11.0], [20.0], [21.0]]),
            "next_obs": np.array([[11.0], [12.0], [21.0], [22.0]]),
            "actions": np.array([[0.5], [-0.5], [0.1], [-0.1]]),
            "rewards": np.array([1.0, 2.0, 3.0, 4.0]),
            "dones": np.array([0, 0, 0, 1]),
            "truncations": np.array([0, 1, 0, 0]),
        }
    )


@pytest.mark.parametrize("chunk", [1, 3, 8192], ids=["row by row", "uneven chunks", "at once"])
def test_constant_critics_have_the_errors_worked_out_by_hand(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(diagnostics, "CHUNK", chunk)

    report = diagnose(_algorithm("td3_bc", gamma=0.9), _dataset())

    # Targets are 1 + 0.9, 2 + 0.9 (a truncated episode bootstraps), 3 + 0.9 and 4 (a terminated one does not); Q is 1.
    assert report["td_error"] == pytest.approx((0.9**2 + 1.9**2 + 2.9**2 + 3.0**2) / 4)
    assert report["value_mean"] == pytest.approx(1.0)
    assert report["initial_value"] == pytest.approx(1.0)
    # On the same scale: 1 + 0.9 * 2 and 3 + 0.9 * 4.
    assert report["initial_return"] == pytest.approx((2.8 + 6.6) / 2)
    # The policy always does nothing.
    assert report["action_mse"] == pytest.approx((0.25 + 0.25 + 0.01 + 0.01) / 4)


def test_the_initial_value_is_that_of_the_first_observations_of_episodes() -> None:
    report = diagnose(_reading_algorithm(), _dataset())

    # The smaller of two critics is the observation plus 1.
    assert report["initial_value"] == pytest.approx((11 + 21) / 2)
    assert report["value_mean"] == pytest.approx((11 + 12 + 21 + 22) / 4)


def test_critics_are_shown_normalised_observations() -> None:
    algorithm = _reading_algorithm()
    algorithm.set_obs_statistics(torch.tensor([10.0]), torch.tensor([5.0]))

    report = diagnose(algorithm, _dataset())

    assert report["initial_value"] == pytest.approx(((0.0 + 1) + (2.0 + 1)) / 2)


def test_an_algorithm_without_critics_reports_losses_and_action_distance_only() -> None:
    report = diagnose(_algorithm("bc"), _dataset())

    assert report == pytest.approx({"actor_loss": 0.13, "bc_loss": 0.13, "action_mse": 0.13})


def test_diagnosing_draws_nothing_from_the_global_generator_and_repeats_itself() -> None:
    torch.manual_seed(3)
    # The losses of TD3+BC smooth the target action with noise.
    algorithm, before = _algorithm("td3_bc"), torch.get_rng_state()

    first, second = diagnose(algorithm, _dataset()), diagnose(algorithm, _dataset())

    assert first == second
    assert torch.equal(torch.get_rng_state(), before)


@pytest.fixture
def offline_config(tiny_config: MakeConfig, tmp_path: Path) -> MakeConfig:
    """A run on a file, without an environment."""
    path = tmp_path / "clinic.npz"
    arrays: dict[str, Any] = transitions()
    np.savez(path, **arrays)

    def make(algo: str, *overrides: str) -> TrainConfig:
        data = ("env_id=null", "algo_kwargs.dataset_kind=npz", f"algo_kwargs.dataset_path={path}")
        return tiny_config(algo, *data, "algo_kwargs.dataset_size=null", *overrides)

    return make


def test_a_run_without_an_environment_trains_saves_and_scores_held_out_episodes(offline_config: MakeConfig) -> None:
    result = train(offline_config("td3_bc"))

    assert "__clinic__seed0__" in result.run_dir.name
    rows = [row for row in read_metrics(result.run_dir) if row["kind"] == "validation"]
    assert [row["update_count"] for row in rows] == [10, 20]
    assert {"td_error", "initial_value", "value_mean", "action_mse", "critic_loss"} <= set(rows[0])
    assert result.metrics["td_error"] == rows[-1]["td_error"]
    assert not [row for row in read_metrics(result.run_dir) if row["kind"] == "eval"]
    assert predict(result.run_dir, np.zeros((2, 3))).shape == (2, 1)


def test_without_a_rule_for_the_best_there_is_no_best_checkpoint(offline_config: MakeConfig) -> None:
    plain = train(offline_config("td3_bc"))
    ruled = train(offline_config("td3_bc", "algo_kwargs.early_stopping={metric: td_error, mode: min, patience: 9}"))

    assert not (plain.run_dir / "checkpoints" / "best.pt").exists()
    assert (ruled.run_dir / "checkpoints" / "best.pt").exists()
    assert plain.best_metrics == {}
    assert "td_error" in ruled.best_metrics


def test_cloning_without_an_environment_reports_losses_and_action_distance_only(offline_config: MakeConfig) -> None:
    result = train(offline_config("bc", "algo_kwargs.best_fraction=null"))

    (row,) = [row for row in read_metrics(result.run_dir) if row["kind"] == "train"][-1:]
    assert set(result.metrics) - set(row) == {"action_mse"}
    assert {"actor_loss", "bc_loss"} <= set(result.metrics)


def test_a_run_with_an_environment_may_hold_out_episodes_too(tiny_config: MakeConfig) -> None:
    result = train(tiny_config("td3_bc", "algo_kwargs.validation_fraction=0.5"))

    assert {"return_mean", "td_error"} <= set(result.metrics)
    assert {row["kind"] for row in read_metrics(result.run_dir)} == {"train", "eval", "validation"}


def test_a_policy_without_an_environment_cannot_be_evaluated_in_one(offline_config: MakeConfig) -> None:
    result = train(offline_config("bc", "algo_kwargs.best_fraction=null", "total_timesteps=1"))

    with pytest.raises(ConfigError, match="the run has no env_id"):
        evaluate(result.run_dir)
