"""Probabilities of logged actions: their spellings, their scale, and every form of a dataset they are kept in."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from conftest import transitions
from numpy.typing import NDArray

from rl_training.core.errors import ConfigError, DatasetError
from rl_training.data import TransitionDataset, load_transition_dataset, write_dataset
from rl_training.data.convert import convert
from rl_training.data.fields import ALIASES

LOGS = np.linspace(-9, 3, 60, dtype=np.float32)


def logged(name: str = "behavior_log_probs", values: Any = LOGS) -> TransitionDataset:
    return TransitionDataset.from_dict({**transitions(), name: values})


def decisions(**probabilities: Any) -> TransitionDataset:
    """Five decisions between two actions."""
    rows: dict[str, Any] = {
        "obs": np.zeros((5, 1)),
        "next_obs": np.zeros((5, 1)),
        "actions": [0, 1, 1, 0, 1],
        "rewards": np.ones(5),
    }
    return TransitionDataset.from_dict({**rows, "terminals": np.ones(5), **probabilities})


@pytest.mark.parametrize("name", ["behavior_log_probs", *ALIASES["behavior_log_probs"]])
def test_every_spelling_is_the_same_field(name: str) -> None:
    assert torch.equal(logged(name).behavior_log_probs, torch.from_numpy(LOGS))


def test_probabilities_become_logarithms() -> None:
    data = decisions(propensities=[0.5, 0.25, 1.0, 1e-30, 0.1])

    assert data.behavior_log_probs.tolist() == pytest.approx(np.log([0.5, 0.25, 1.0, 1e-30, 0.1]).tolist(), rel=1e-6)
    assert "propensities" not in data.fields


def test_a_probability_of_zero_is_kept_as_it_is() -> None:
    data = decisions(propensities=[0.5, 0.0, 1.0, 1.0, 1.0])

    assert data.behavior_log_probs[1] == -math.inf


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"propensities": [0.5, 1.5, 1, 1, 1]}, r"a probability from 0 to 1, got 1\.5 in row 1"),
        ({"propensities": [0.5, -0.5, 1, 1, 1]}, r"a probability from 0 to 1, got -0\.5 in row 1"),
        ({"behavior_log_probs": [0, 0, math.nan, 0, 0]}, "behavior_log_probs has 1 values that are not finite.*row 2"),
        ({"behavior_log_probs": [0, 0, 0, math.inf, 0]}, "first is inf in row 3"),
        ({"behavior_log_probs": np.zeros(5), "propensities": np.ones(5)}, "say the same of the logged actions; keep"),
        ({"behavior_log_probs": np.zeros(4)}, "behavior_log_probs has 4 rows, obs has 5"),
        ({"action_log_probs": np.zeros(5), "behavior_log_probs": np.zeros(5)}, "two spellings"),
        ({"behaviour_log_probs": np.zeros(5)}, "did you mean 'behavior_log_probs'"),
    ],
)
def test_what_is_no_probability_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(DatasetError, match=said):
        decisions(**wrong)


def test_densities_of_continuous_actions_may_exceed_one() -> None:
    assert logged("propensities", np.full(60, 2.5)).behavior_log_probs[0] == pytest.approx(math.log(2.5))
    with pytest.raises(DatasetError, match=r"a density, which is not negative, got -1"):
        logged("propensities", np.full(60, -1.0))


def test_a_run_is_the_same_with_and_without_them() -> None:
    assert logged().fingerprint() == TransitionDataset.from_dict(transitions()).fingerprint()


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TransitionDataset:
    """Log-probabilities that float32 holds exactly, one of them of an impossible action."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return logged(values=np.append(LOGS[:-1], -np.inf))


@pytest.mark.parametrize("name", ["log.npz", "log.pt", "log.h5", "log.rlt", "mine/log-v0"])
def test_every_form_of_a_dataset_keeps_them(tmp_path: Path, kept: TransitionDataset, name: str) -> None:
    is_file = "." in name
    out = str(tmp_path / name) if is_file else name

    write_dataset(kept, out)

    again = load_transition_dataset(out) if is_file else load_transition_dataset(dataset_id=out)
    assert torch.equal(again.behavior_log_probs, kept.behavior_log_probs)
    assert again.fingerprint() == kept.fingerprint()


def test_a_table_keeps_them_to_the_last_digit(kept: TransitionDataset) -> None:
    pytest.importorskip("pyarrow")

    again = TransitionDataset.from_table(kept.to_arrow())

    assert torch.equal(again.behavior_log_probs, kept.behavior_log_probs)


def test_a_table_may_have_probabilities_or_their_logarithms(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "log.csv"
    path.write_text("x,item,click,p,log_p\n1,0,1,0.25,-1.5\n2,1,0,0.5,-0.5\n")
    columns = {"obs": ["x"], "actions": ["item"], "reward": "click", "episodes": "each_row"}

    by_probability = load_transition_dataset(path, dataset_columns={**columns, "propensity": "p"})
    by_logarithm = load_transition_dataset(path, dataset_columns={**columns, "behavior_log_prob": "log_p"})

    assert by_probability.behavior_log_probs.exp().tolist() == [0.25, 0.5]
    assert by_logarithm.behavior_log_probs.tolist() == [-1.5, -0.5]
    with pytest.raises(ConfigError, match="propensity and behavior_log_prob say the same; give one"):
        load_transition_dataset(path, dataset_columns={**columns, "propensity": "p", "behavior_log_prob": "log_p"})


@pytest.mark.parametrize("ending", ["npz", "pt", "h5", "rlt"])
def test_those_in_a_group_of_d4rls_files_are_found_and_converted(tmp_path: Path, ending: str) -> None:
    with h5py.File(tmp_path / "d4rl.hdf5", "w") as file:
        for name, array in transitions().items():
            file[name] = array
        file["infos/action_log_probs"] = LOGS
        file["infos/qpos"] = np.zeros((60, 2))
    out = str(tmp_path / f"out.{ending}")

    left_out = convert(str(tmp_path / "d4rl.hdf5"), out).left_out

    assert "infos/action_log_probs" not in left_out
    for data in (load_transition_dataset(tmp_path / "d4rl.hdf5"), load_transition_dataset(out)):
        assert torch.equal(data.behavior_log_probs, torch.from_numpy(LOGS))
        assert "infos/qpos" not in data.fields


def test_they_follow_their_rows(tmp_path: Path) -> None:
    data = logged()
    arrays = transitions()
    arrays.pop("next_observations")

    # Without next observations the last row of each of three episodes is dropped.
    short = TransitionDataset.from_dict({**arrays, "behavior_log_probs": LOGS})

    assert short.behavior_log_probs.tolist() == np.delete(LOGS, [19, 39, 59]).tolist()
    assert data.take_episodes([2]).behavior_log_probs.tolist() == LOGS[40:].tolist()
    assert data.with_action_bounds([-2.0] * data.action_dim, [2.0] * data.action_dim).behavior_log_probs[0] == LOGS[0]


def d4rl_log_density(policy: dict[str, NDArray[Any]], obs: NDArray[Any], actions: NDArray[Any]) -> NDArray[Any]:
    """Log-density of actions in [-1, 1] under a tanh-Gaussian policy with two hidden layers."""
    hidden = obs
    for k in range(2):
        hidden = np.maximum(hidden @ policy[f"W{k}"].T.astype(float) + policy[f"b{k}"], 0)
    mean = hidden @ policy["W2"].T.astype(float) + policy["b2"]
    log_std = np.clip(hidden @ policy["log_std_W"].T.astype(float) + policy["log_std_b"], -20, 2)
    normal = -0.5 * ((np.arctanh(actions) - mean) / np.exp(log_std)) ** 2 - log_std - 0.5 * math.log(2 * math.pi)
    density: NDArray[Any] = (normal - np.log1p(-(actions**2))).sum(axis=1)
    return density


@pytest.mark.parametrize("task", ["halfcheetah", "hopper", "ant"])
def test_those_of_d4rl_are_densities_of_actions_in_minus_one_to_one(shared_data: Path, task: str) -> None:
    data = load_transition_dataset(shared_data / "d4rl" / "mujoco" / f"{task}_medium-v2.hdf5")
    with np.load(shared_data / "policies" / f"d4rl-{task}-medium-v2.npz") as arrays:
        policy = {name: arrays[name] for name in arrays if arrays[name].dtype.kind == "f"}

    found = d4rl_log_density(policy, data.obs.double().numpy(), data.actions.double().numpy())

    assert data.behavior_log_probs.numpy() == pytest.approx(found, abs=1e-4)


@pytest.mark.parametrize("name", ["medium", "expert"])
def test_those_of_the_pendulum_files_are_densities_of_actions_in_minus_one_to_one(shared_data: Path, name: str) -> None:
    data = load_transition_dataset(shared_data / "pendulum" / f"pendulum_{name}_sac.npz")

    # The mean of one over the density is the width of the range: 2 in [-1, 1], and 4 in torques from -2 to 2.
    width = (-data.behavior_log_probs.double()).exp().mean()
    assert data.actions.abs().max() > 1
    assert 1.6 < width < 2.4
