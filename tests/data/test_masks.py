"""Action masks in data: which rows have them, what is refused, and how they become part of observations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.core.errors import DatasetError
from rl_training.data import TransitionDataset
from rl_training.data.infer_spaces import check_logged, with_all_valid, with_masks_first, without_masks_first
from rl_training.data.replay.samplers import with_n_step


def log(**changes: Any) -> dict[str, Any]:
    """Two episodes of three rows: one terminates, one is cut."""
    masks = np.array([[1, 0, 1], [1, 1, 0], [0, 1, 1], [1, 1, 1], [1, 0, 0], [0, 0, 1]], dtype=np.float32)
    rows: dict[str, Any] = {
        "obs": np.arange(6, dtype=np.float32)[:, None],
        "actions": np.array([0, 1, 2, 0, 0, 2]),
        "rewards": np.ones(6, dtype=np.float32),
        "terminals": np.array([0, 0, 1, 0, 0, 0], dtype=bool),
        "timeouts": np.array([0, 0, 0, 0, 0, 1], dtype=bool),
        "valid_actions": masks,
    }
    return rows | changes


def test_the_next_mask_is_that_of_the_next_row_and_leaves_all_after_the_end() -> None:
    data = TransitionDataset.from_dict(log())
    # The last row has neither a next observation nor a next mask.
    assert len(data) == 5
    assert data.next_valid_actions.tolist() == [[1, 1, 0], [0, 1, 1], [1, 1, 1], [1, 0, 0], [0, 0, 1]]


def test_a_row_without_a_next_mask_is_dropped_even_if_it_has_a_next_observation() -> None:
    data = TransitionDataset.from_dict(log(next_obs=np.arange(10, 16, dtype=np.float32)[:, None]))
    assert data.next_obs[:, 0].tolist() == [10, 11, 12, 13, 14]
    assert data.episode_ends.tolist() == [False, False, True, False, True]


def test_logged_next_masks_are_taken_but_mean_nothing_after_the_end() -> None:
    after = np.ones((6, 3))
    after[2], after[5] = 0, [1, 0, 0]
    data = TransitionDataset.from_dict(log(next_obs=np.ones((6, 1)), next_action_masks=after))
    assert len(data) == 6
    assert data.next_valid_actions[2].tolist() == [1, 1, 1]
    assert data.next_valid_actions[5].tolist() == [1, 0, 0]


@pytest.mark.parametrize("name", ["action_masks", "action_mask"])
def test_other_names_are_understood(name: str) -> None:
    rows = log()
    rows[name] = rows.pop("valid_actions").astype(bool)
    assert TransitionDataset.from_dict(rows).valid_actions.shape == (5, 3)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"valid_actions": np.zeros((6, 3))},
            r"mark no action as valid in 6 rows \(0, 1, 2, 3, 4, \.\.\.\)",
        ),
        ({"valid_actions": np.full((6, 3), 0.5)}, "valid_actions must be 0 or 1, got 0.5 in row 0, column 0"),
        ({"actions": np.ones((6, 2), dtype=np.float32)}, "actions are continuous"),
        ({"valid_actions": np.ones((5, 3))}, "valid_actions has 5 rows, obs has 6"),
        ({"next_valid_actions": np.ones((6, 2))}, "next_valid_actions has 2 columns, valid_actions has 3 columns"),
    ],
)
def test_masks_that_cannot_be_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(DatasetError, match=says):
        TransitionDataset.from_dict(log(**changes))


def test_next_masks_alone_are_refused() -> None:
    rows = log(next_valid_actions=np.ones((6, 3)))
    del rows["valid_actions"]
    with pytest.raises(DatasetError, match="next_valid_actions are there, but no valid_actions"):
        TransitionDataset.from_dict(rows)


def test_an_excluded_action_is_named_by_its_row_or_cut_out() -> None:
    data = TransitionDataset.from_dict(log(actions=np.array([0, 2, 2, 0, 0, 2])))
    with pytest.raises(DatasetError, match=r"in 1 of 5 rows valid_actions excludes the logged action \(rows 1\)"):
        check_logged(data)
    kept = check_logged(data, drop=True)
    assert kept.obs[:, 0].tolist() == [0, 2, 3, 4]
    assert kept.episode_bounds().tolist() == [[0, 1], [1, 2], [2, 4]]
    assert kept.next_action_mask is not None
    assert kept.next_action_mask.tolist() == [False, True, True, True]
    assert kept.num_dropped == data.num_dropped + 1


def test_an_excluded_action_is_named_by_its_row_in_the_log_where_others_were_dropped() -> None:
    # Rows 1 and 3 end episodes that were cut, and are dropped for lack of a next observation.
    cuts = np.array([0, 1, 0, 1, 0, 1], dtype=bool)
    rows = log(terminals=np.zeros(6, dtype=bool), timeouts=cuts, actions=np.array([0, 1, 2, 0, 1, 2]))
    with pytest.raises(DatasetError, match=r"in 1 of 3 rows valid_actions excludes the logged action \(rows 4\)"):
        check_logged(TransitionDataset.from_dict(rows))


def test_an_action_beyond_the_columns_is_named() -> None:
    data = TransitionDataset.from_dict(log(actions=np.array([0, 1, 2, 0, 3, 2])))
    with pytest.raises(
        DatasetError, match="valid_actions has 3 columns, one per action from 0 on, but row 4 has the act"
    ):
        check_logged(data)
    shifted = TransitionDataset.from_dict(log(actions=np.array([1, 2, 3, 1, 1, 3])))
    assert len(check_logged(shifted, first=1)) == 5


def test_a_mask_becomes_the_first_part_of_an_observation_and_comes_out_again() -> None:
    data = TransitionDataset.from_dict(log()).with_obs_statistics()
    joined = with_masks_first(data)
    assert joined.obs[1].tolist() == [1, 1, 0, 1]
    assert joined.next_obs[1].tolist() == [0, 1, 1, 2]
    assert joined.obs_mean is not None
    assert joined.obs_std is not None
    assert joined.obs_mean[:3].tolist() == [0, 0, 0]
    assert joined.obs_std[:3].tolist() == [1, 1, 1]
    again = without_masks_first(joined, 3)
    for name in ("obs", "next_obs", "valid_actions", "next_valid_actions"):
        assert torch.equal(again.fields[name], data.fields[name]), name


def test_mapped_data_is_joined_in_files(tmp_path: Path) -> None:
    from rl_training.data.files.mapped import read_mapped

    data = TransitionDataset.from_dict(log())
    data.save(tmp_path / "log.rlt")
    mapped = with_masks_first(read_mapped(tmp_path / "log.rlt"))
    assert torch.equal(mapped.obs, with_masks_first(data).obs)
    assert torch.equal(mapped.next_obs, with_masks_first(data).next_obs)


def test_several_steps_reach_the_mask_after_the_last_one() -> None:
    stepped = with_n_step(TransitionDataset.from_dict(log()), 2, 0.9)
    assert stepped.next_valid_actions.tolist() == [[0, 1, 1], [1, 1, 1], [1, 1, 1], [0, 0, 1], [0, 0, 1]]
    assert torch.equal(stepped.valid_actions, TransitionDataset.from_dict(log()).valid_actions)


def test_masks_that_exclude_nothing_can_be_added() -> None:
    rows = log()
    del rows["valid_actions"]
    data = with_all_valid(TransitionDataset.from_dict(rows), 3)
    assert bool(data.valid_actions.all() and data.next_valid_actions.all())


def test_an_episode_may_have_a_mask_for_every_observation() -> None:
    masks = np.array([[1, 0], [0, 1], [1, 1]])
    episode = {"observations": np.zeros((3, 1)), "actions": np.array([0, 1]), "rewards": np.zeros(2)}
    data = TransitionDataset.from_episodes([episode | {"action_masks": masks, "terminations": True}])
    assert data.valid_actions.tolist() == [[1, 0], [0, 1]]
    assert data.next_valid_actions.tolist() == [[0, 1], [1, 1]]
