"""Logged choices: what is read, what is refused, and how many choices there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gates  # registers the tasks
import numpy as np
import pytest

from rl_training import BC, DQN
from rl_training.config import TrainConfig
from rl_training.data import TransitionDataset, concatenate_datasets, load_transition_dataset
from rl_training.data.writers import write_dataset
from rl_training.runtime.datasets import find_task, load_data
from rl_training.runtime.options import read_options
from rl_training.spaces import DiscreteActions, SpaceSpec
from rl_training.types import ConfigError, DatasetError

ROWS = 12


def log(actions: Any, **more: Any) -> dict[str, Any]:
    """One terminated episode with these actions."""
    return {
        "obs": np.arange(ROWS, dtype=np.float32)[:, None] * np.ones(4, dtype=np.float32),
        "actions": np.asarray(actions),
        "rewards": np.ones(ROWS, dtype=np.float32),
        "terminals": np.arange(ROWS) == ROWS - 1,
        **more,
    }


def spaces(arrays: dict[str, Any], *, env: str | None = None, **options: Any) -> tuple[TransitionDataset, SpaceSpec]:
    """The data of a run as networks see it, and its spaces."""
    kwargs = {"validation_fraction": 0.0, **options}
    config, bound = read_options(TrainConfig(algo="bc", env_id=env, algo_kwargs=kwargs))
    data = load_data(config, bound, find_task(config), TransitionDataset.from_dict(arrays))
    return data.dataset, data.spaces


CHOICES = np.arange(ROWS) % 2


@pytest.mark.parametrize(
    ("actions", "says"),
    [
        (CHOICES - 1, "row 0 is -1, expected 0 to 1"),
        (CHOICES + 1, "row 1 is 2, expected 0 to 1"),
        (CHOICES + 0.5, "the dataset has continuous actions, CartPole-v1 has 2 choices"),
        (np.ones((ROWS, 3), dtype=int), "actions are integers of shape (12, 3); expected one choice per row"),
    ],
    ids=["negative", "too large", "fractional", "several"],
)
def test_what_is_no_choice_of_the_task_is_refused(actions: Any, says: str) -> None:
    with pytest.raises(DatasetError) as caught:
        spaces(log(actions), env="CartPole-v1")
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "actions",
    [CHOICES, CHOICES[:, None], CHOICES.astype(np.float32), np.eye(2, dtype=int)[CHOICES], np.eye(2)[CHOICES]],
    ids=["numbers", "a column", "whole floats", "one-hot", "one-hot floats"],
)
def test_choices_of_the_task_are_read_in_every_form(actions: Any) -> None:
    dataset, found = spaces(log(actions), env="CartPole-v1")
    assert found.action == DiscreteActions(2)
    assert dataset.actions.tolist() == CHOICES.tolist()


def test_choices_that_were_never_logged_count_if_the_user_or_the_width_says_so() -> None:
    assert spaces(log(CHOICES))[1].action == DiscreteActions(2)
    assert spaces(log(CHOICES), num_actions=5)[1].action == DiscreteActions(5)
    dataset, found = spaces(log(np.eye(5, dtype=np.int64)[CHOICES]))
    assert found.action == DiscreteActions(5)
    assert "actions are one-hot rows: read as 5 choices" in dataset.notes
    model = BC(dataset=log(CHOICES), num_actions=5, hidden_sizes=[4], batch_size=4)
    assert model.config.algo_kwargs["num_actions"] == 5


def test_whole_floats_with_masks_are_choices() -> None:
    data = TransitionDataset.from_dict(log(CHOICES.astype(np.float64), valid_actions=np.ones((ROWS, 2))))
    assert data.is_discrete
    with pytest.raises(DatasetError, match="the actions are no choices"):
        TransitionDataset.from_dict(log(CHOICES + 0.5, valid_actions=np.ones((ROWS, 2))))


def test_masks_are_never_lost_in_a_mixture() -> None:
    plain, masked, wide = (
        TransitionDataset.from_dict(log(CHOICES, **masks))
        for masks in ({}, {"valid_actions": np.ones((ROWS, 2))}, {"valid_actions": np.ones((ROWS, 3))})
    )
    with pytest.raises(DatasetError, match="0 and 1 cannot be mixed: only one of them has valid_actions"):
        concatenate_datasets([plain, masked])
    with pytest.raises(DatasetError, match="0 and 1 cannot be mixed: valid_actions have 2 and 3 columns"):
        concatenate_datasets([masked, wide])
    assert concatenate_datasets([masked, masked]).valid_actions.shape == (2 * ROWS, 2)


def test_choices_and_masks_survive_minari(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    masks = np.stack([CHOICES == 0, np.ones(ROWS), CHOICES == 1], axis=1)
    data = TransitionDataset.from_dict(log(CHOICES * 2, valid_actions=masks))
    write_dataset(data, "test/choices-v0")
    again = load_transition_dataset(dataset_kind="minari", dataset_id="test/choices-v0")
    assert again.actions.dtype == data.actions.dtype
    assert again.actions.tolist() == data.actions.tolist()
    assert again.valid_actions.tolist() == data.valid_actions.tolist()


def test_a_policy_with_masks_and_a_task_without_do_not_fit_by_chance() -> None:
    masked, plain = SpaceSpec.vector(3, DiscreteActions(3)).with_mask(), SpaceSpec.vector(6, DiscreteActions(3))
    with pytest.raises(ConfigError, match="the policy chooses among valid_actions, and Acrobot-v1 does not say"):
        masked.check_env(plain, "Acrobot-v1")
    with pytest.raises(ConfigError, match="says which actions are possible, and the policy was trained without masks"):
        plain.check_env(masked, "Gates-v0")


def test_an_observation_may_not_be_called_like_a_mask() -> None:
    with pytest.raises(ConfigError, match="has observations with a part 'valid_actions', which stands for a mask"):
        DQN(env=gates.MisnamedGates, total_timesteps=10).learn()


def test_a_gaussian_is_no_clone_of_choices(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="policy: stochastic is a Gaussian"):
        BC(dataset=log(CHOICES), policy="stochastic", total_timesteps=10, output_dir=tmp_path).learn()
    assert not list(tmp_path.iterdir())
