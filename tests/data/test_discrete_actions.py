"""Logged discrete actions: what is read, what is refused, and how many there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gates  # registers the tasks
import numpy as np
import pytest

from rl_training import BC, DQN, estimate
from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError, DatasetError
from rl_training.core.spaces import DiscreteActions, SpaceSpec
from rl_training.data import TransitionDataset, concatenate_datasets, load_transition_dataset
from rl_training.data.dataset_audit import audit_data
from rl_training.data.files.formats import write_dataset
from rl_training.envs import check_env
from rl_training.runtime import collect, find_task, load_data, read_options

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


ACTIONS = np.arange(ROWS) % 2
MASKED = {"valid_actions": np.ones((ROWS, 2)), "next_valid_actions": np.eye(2)[ACTIONS], "next_obs": np.ones((ROWS, 4))}
"""Next masks that are not those of the next row."""


@pytest.mark.parametrize(
    ("actions", "says"),
    [
        (ACTIONS - 1, "row 0 is -1, expected 0 to 1"),
        (ACTIONS + 1, "row 1 is 2, expected 0 to 1"),
        (ACTIONS + 0.5, "the dataset has continuous actions, CartPole-v1 has 2 discrete actions"),
        (np.ones((ROWS, 3), dtype=int), "actions are integers of shape (12, 3); expected one discrete action per row"),
    ],
    ids=["negative", "too large", "fractional", "several"],
)
def test_what_is_no_action_of_the_task_is_refused(actions: Any, says: str) -> None:
    with pytest.raises(DatasetError) as caught:
        spaces(log(actions), env="CartPole-v1")
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "actions",
    [ACTIONS, ACTIONS[:, None], ACTIONS.astype(np.float32), np.eye(2, dtype=int)[ACTIONS], np.eye(2)[ACTIONS]],
    ids=["numbers", "a column", "whole floats", "one-hot", "one-hot floats"],
)
def test_discrete_actions_of_the_task_are_read_in_every_form(actions: Any) -> None:
    dataset, found = spaces(log(actions), env="CartPole-v1")
    assert found.action == DiscreteActions(2)
    assert dataset.actions.tolist() == ACTIONS.tolist()


def test_discrete_actions_that_were_never_logged_count_if_the_user_or_the_width_says_so() -> None:
    assert spaces(log(ACTIONS))[1].action == DiscreteActions(2)
    assert spaces(log(ACTIONS), num_actions=5)[1].action == DiscreteActions(5)
    dataset, found = spaces(log(np.eye(5, dtype=np.int64)[ACTIONS]))
    assert found.action == DiscreteActions(5)
    assert "actions are one-hot rows: read as 5 discrete actions" in dataset.notes
    model = BC(dataset=log(ACTIONS), num_actions=5, hidden_sizes=[4], batch_size=4)
    assert model.config.algo_kwargs["num_actions"] == 5


def test_whole_floats_with_masks_are_discrete_actions() -> None:
    data = TransitionDataset.from_dict(log(ACTIONS.astype(np.float64), valid_actions=np.ones((ROWS, 2))))
    assert data.is_discrete
    with pytest.raises(DatasetError, match="actions are continuous"):
        TransitionDataset.from_dict(log(ACTIONS + 0.5, valid_actions=np.ones((ROWS, 2))))


def test_masks_are_never_lost_in_a_mixture() -> None:
    plain, masked, wide = (
        TransitionDataset.from_dict(log(ACTIONS, **masks))
        for masks in ({}, {"valid_actions": np.ones((ROWS, 2))}, {"valid_actions": np.ones((ROWS, 3))})
    )
    with pytest.raises(DatasetError, match="0 and 1 cannot be mixed: only one of them has valid_actions"):
        concatenate_datasets([plain, masked])
    with pytest.raises(DatasetError, match="0 and 1 cannot be mixed: valid_actions have 2 and 3 columns"):
        concatenate_datasets([masked, wide])
    assert concatenate_datasets([masked, masked]).valid_actions.shape == (2 * ROWS, 2)


def test_discrete_actions_and_masks_survive_minari(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    masks = np.stack([ACTIONS == 0, np.ones(ROWS), ACTIONS == 1], axis=1)
    data = TransitionDataset.from_dict(log(ACTIONS * 2, valid_actions=masks))
    write_dataset(data, "test/actions-v0")
    again = load_transition_dataset(dataset_kind="minari", dataset_id="test/actions-v0")
    assert again.actions.dtype == data.actions.dtype
    assert again.actions.tolist() == data.actions.tolist()
    assert again.valid_actions.tolist() == data.valid_actions.tolist()


def test_a_policy_with_masks_and_a_task_without_do_not_fit_by_chance() -> None:
    masked, plain = SpaceSpec.vector(3, DiscreteActions(3)).with_mask(), SpaceSpec.vector(6, DiscreteActions(3))
    with pytest.raises(ConfigError, match="the policy needs action masks, and Acrobot-v1 provides none"):
        masked.check_env(plain, "Acrobot-v1")
    with pytest.raises(ConfigError, match="provides action masks, and the policy was trained without them"):
        plain.check_env(masked, "Gates-v0")


def test_an_observation_may_not_be_called_like_a_mask() -> None:
    with pytest.raises(ConfigError, match="has observations with a part 'valid_actions', the name of the action mask"):
        DQN(env=gates.MisnamedGates, total_timesteps=10).learn()


def test_a_gaussian_is_no_clone_of_discrete_actions(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="policy: stochastic applies to continuous actions only"):
        BC(dataset=log(ACTIONS), policy="stochastic", total_timesteps=10, output_dir=tmp_path).learn()
    assert not list(tmp_path.iterdir())


TABLE = {
    "x": np.arange(6.0),
    "choice": ["none", "syrup", "tablets"] * 2,
    "reward": np.ones(6),
    "end": [0, 0, 0, 0, 0, 1],
    **{f"can_{name}": np.ones(6) for name in ("none", "syrup", "tablets")},
    **{f"next_{name}": np.ones(6) for name in ("none", "syrup", "tablets")},
}
COLUMNS: dict[str, Any] = {
    "obs": ["x"],
    "actions": ["choice"],
    "reward": "reward",
    "terminated": "end",
    "episodes": "flags",
    "valid_actions": ["can_tablets", "can_none", "can_syrup"],
}


def table(columns: dict[str, Any], **changes: Any) -> TransitionDataset:
    pandas = pytest.importorskip("pandas")
    return TransitionDataset.from_table(pandas.DataFrame({**TABLE, **changes}), {**COLUMNS, **columns})


def test_columns_of_both_masks_are_matched_with_discrete_actions_by_name() -> None:
    after = ["next_tablets", "next_none", "next_syrup"]
    data = table({"fields": {"next_action_masks": after}}, next_none=[0, 1, 1, 1, 1, 1], can_syrup=[0, 1, 1, 1, 1, 1])
    assert data.valid_actions[0].tolist() == [1, 0, 1]
    assert data.next_valid_actions[0].tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("columns", "changes", "says"),
    [
        ({"choices": ["none", "syrup", "tablet"]}, {}, "no single column of valid_actions (can_tablets, can_none, can"),
        ({"choices": ["none", "none", "syrup"]}, {}, "choices: 'none' is there twice"),
        ({}, {"can_syrup": [1, 1, 3, 1, 1, 1]}, "must be 0 or 1, got 3: column 'can_syrup' in row 3"),
        ({}, {f"can_{name}": [1, 0, 1, 1, 1, 1] for name in ("none", "syrup", "tablets")}, "the first is row 2"),
    ],
    ids=["misspelt", "twice", "three", "none"],
)
def test_masks_of_a_table_are_refused_in_words_of_the_table(
    columns: dict[str, Any], changes: dict[str, Any], says: str
) -> None:
    with pytest.raises((ConfigError, DatasetError)) as caught:
        table(columns, **changes)
    assert says in str(caught.value)


def test_an_episode_without_masks_does_not_take_those_of_others_away() -> None:
    episode = {"observations": np.zeros((3, 1)), "actions": np.array([0, 1]), "rewards": np.zeros(2)}
    with pytest.raises(DatasetError, match="only one of the episodes 0 and 1 has valid_actions"):
        TransitionDataset.from_episodes([episode, {**episode, "valid_actions": np.ones((2, 2))}])


@pytest.mark.parametrize(
    ("arrays", "check", "verdict", "rows"),
    [
        (log(ACTIONS, valid_actions=np.ones((ROWS, 1))), "valid actions", "fail", 1),
        (log(ACTIONS - 1), "action bounds", "fail", 0),
        (log(ACTIONS, propensities=np.where(ACTIONS == 1, 0.0, 0.5)), "propensities", "warn", 1),
        (
            log(
                ACTIONS,
                valid_actions=np.ones((ROWS, 2)),
                next_valid_actions=np.eye(2)[ACTIONS],
                next_obs=np.ones((ROWS, 4)),
            ),
            "next masks",
            "fail",
            0,
        ),
    ],
    ids=["no column", "negative", "probability 0", "next masks"],
)
def test_the_audit_sees_what_is_wrong_with_discrete_actions(
    arrays: dict[str, Any], check: str, verdict: str, rows: int
) -> None:
    findings = {each.check: each for each in audit_data(TransitionDataset.from_dict(arrays)).findings}
    assert findings[check].verdict == verdict
    assert findings[check].rows[0] == rows


def test_rows_are_counted_before_some_are_held_out() -> None:
    arrays = {name: np.concatenate([value] * 10) for name, value in log(ACTIONS).items()}
    arrays["actions"][100] = 7
    with pytest.raises(DatasetError, match="that num_actions: 2 does not know: row 100 is 7, expected 0 to 1"):
        spaces(arrays, num_actions=2, validation_fraction=0.5)


def test_whole_floats_are_discrete_actions_if_the_user_says_how_many() -> None:
    assert spaces(log(ACTIONS.astype(np.float32)), num_actions=3)[1].action == DiscreteActions(3)
    with pytest.raises(ConfigError, match="num_actions does not go with actions that are no whole numbers"):
        spaces(log(ACTIONS + 0.5), num_actions=3)


@pytest.mark.parametrize("valid", [[1, 1, 0], [[1, 1, 0]] * 3, [[1, 1]] * 2])
def test_masks_of_another_shape_than_observations_are_refused(valid: Any) -> None:
    masked = SpaceSpec.vector(2, DiscreteActions(3)).with_mask()
    with pytest.raises(ConfigError, match=r"valid_actions must have shape \(2, 3\), got"):
        masked.with_valid([[0.0, 0.0]] * 2, valid)


def test_a_policy_that_does_what_is_not_possible_is_not_judged() -> None:
    arrays = {name: np.concatenate([value] * 10) for name, value in log(ACTIONS).items()}
    arrays["valid_actions"] = np.tile([1, 1, 0], (10 * ROWS, 1))
    found = estimate({"wrong": lambda obs: np.full(len(obs), 2)}, arrays, updates=10, members=2)["wrong"]
    assert found.value is None
    assert any(reason.startswith("100 % of its actions") for reason in found.reasons)


@pytest.mark.parametrize("env", ["Taxi-v4", "FrozenLake-v1", "CliffWalking-v1"])
def test_environments_that_look_actions_up_get_numbers(env: str, tmp_path: Path) -> None:
    collect(str(tmp_path / "log.npz"), env_id=env, steps=20)
    assert load_transition_dataset(tmp_path / "log.npz").is_discrete


def test_masks_in_one_place_only_are_a_mistake_of_the_environment() -> None:
    report = check_env(gates.ForgetfulGates, steps=20)
    assert "info from reset has an action mask and that from step has none" in report.mistakes


def test_data_for_an_algorithm_that_acts_says_how_to_learn_from_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"to learn from it, set algo_kwargs\.mode=offline"):
        read_options(TrainConfig(algo="dqn", algo_kwargs={"dataset_path": str(tmp_path / "log.npz")}))
