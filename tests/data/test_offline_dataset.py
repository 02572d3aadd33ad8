"""Transitions as tensors: what is filled in, what is dropped, and what a dataset can be turned into."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.core.errors import DatasetError
from rl_training.data import TransitionDataset, concatenate_datasets

# Two episodes: three steps from 0 to 3 that end the task, and two from 10 to 12 that a time limit cuts.
OBS = [0, 1, 2, 10, 11]
NEXT_OBS = [1, 2, 3, 11, 12]
ACTIONS = [0.0, 0.1, 0.2, 0.3, 0.4]
REWARDS = [1, 2, 4, 8, 16]
TERMINALS = [0, 0, 1, 0, 0]
TIMEOUTS = [0, 0, 0, 0, 1]


def log(*without: str, **others: Any) -> dict[str, Any]:
    """The two episodes in D4RL's names."""
    arrays: dict[str, Any] = {
        "observations": np.array(OBS, dtype=np.float32)[:, None],
        "actions": np.array(ACTIONS, dtype=np.float32)[:, None],
        "rewards": np.array(REWARDS, dtype=np.float32),
        "next_observations": np.array(NEXT_OBS, dtype=np.float32)[:, None],
        "terminals": np.array(TERMINALS, dtype=bool),
        "timeouts": np.array(TIMEOUTS, dtype=bool),
    }
    return {name: value for name, value in (arrays | others).items() if name not in without}


def dataset(*without: str, **others: Any) -> TransitionDataset:
    return TransitionDataset.from_dict(log(*without, **others))


def of_returns(*returns: float, steps: int = 2) -> TransitionDataset:
    """Terminated episodes of given returns; an observation is the number of its episode."""
    rewards = np.zeros((len(returns), steps))
    rewards[:, 0] = returns
    ends = np.zeros((len(returns), steps))
    ends[:, -1] = 1
    numbers = np.repeat(np.arange(len(returns)), steps)[:, None]
    return TransitionDataset.from_dict(
        {
            "obs": numbers,
            "next_obs": numbers,
            "actions": np.zeros((len(numbers), 1)),
            "rewards": rewards.ravel(),
            "dones": ends.ravel(),
        }
    )


def numbers(tensor: Tensor | None) -> list[Any]:
    assert tensor is not None
    values: list[Any] = tensor.flatten().tolist()
    return values


def test_each_field_is_an_attribute() -> None:
    data = dataset()
    assert numbers(data.obs) == OBS
    assert numbers(data.next_obs) == NEXT_OBS
    assert numbers(data.actions) == pytest.approx(ACTIONS)
    assert numbers(data.rewards) == REWARDS
    assert numbers(data.dones) == TERMINALS
    assert numbers(data.truncations) == [bool(flag) for flag in TIMEOUTS]
    assert (len(data), data.obs_dim, data.action_dim, data.num_dropped) == (5, 1, 1, 0)


def test_truncated_episodes_still_bootstrap() -> None:
    data = dataset()
    assert float(data.dones[4]) == 0
    assert float(data.next_obs[4]) == 12


def test_fields_are_float32_and_flags_beside_them_boolean() -> None:
    data = dataset(rewards=np.array(REWARDS, dtype=np.float64)).with_returns_to_go(gamma=0.9)
    assert {value.dtype for value in data.fields.values()} == {torch.float32}
    assert data.truncations.dtype == torch.bool


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("returns_to_go", r"this dataset has no returns_to_go; call with_returns_to_go\(gamma=...\)"),
        ("rewrds", "has no attribute 'rewrds'"),
    ],
)
def test_a_field_that_is_not_there_is_an_attribute_error(name: str, message: str) -> None:
    with pytest.raises(AttributeError, match=message):
        getattr(dataset(), name)


@pytest.mark.parametrize("name", ["obs", "rewards", "truncations", "fields", "notes", "anything"])
def test_attributes_cannot_be_assigned(name: str) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(dataset(), name, torch.zeros(5))


def test_arrays_are_copied_unless_told_otherwise() -> None:
    arrays = log()
    copied = TransitionDataset.from_dict(arrays)
    shared = TransitionDataset.from_dict(arrays, copy=False)
    arrays["rewards"][0] = 99
    assert (float(copied.rewards[0]), float(shared.rewards[0])) == (1, 99)


@pytest.mark.parametrize("convert", [torch.as_tensor, np.ndarray.tolist], ids=["tensors", "lists"])
def test_tensors_and_lists_are_read_like_arrays(convert: Callable[[NDArray[Any]], Any]) -> None:
    converted = TransitionDataset.from_dict({name: convert(value) for name, value in log().items()})
    assert converted.fingerprint() == dataset().fingerprint()


def test_errors_of_fields_reach_the_caller() -> None:
    with pytest.raises(DatasetError, match="rewards has 1 values that are not finite; the first is nan in row 1"):
        dataset(rewards=[1, np.nan, 4, 8, 16])


def test_a_missing_next_observation_is_the_next_row_of_the_episode() -> None:
    data = dataset("next_observations")
    # Rows 0 and 1 lead to rows 1 and 2. Row 2 terminated: its own observation stands in, never 10 of the next
    # episode. Row 3 leads to row 4, and row 4, cut, leads nowhere and is dropped.
    assert numbers(data.obs) == [0, 1, 2, 10]
    assert numbers(data.next_obs) == [1, 2, 2, 11]
    assert numbers(data.dones) == [0, 0, 1, 0]


def test_rows_without_a_successor_are_dropped_and_counted() -> None:
    data = dataset("next_observations")
    assert (len(data), data.num_dropped) == (4, 1)
    assert data.notes == ("dropped 1 rows without a next observation",)
    # The episode is now cut one row earlier.
    assert numbers(data.truncations) == [False, False, False, True]


def test_the_reward_of_a_dropped_row_counts_in_returns() -> None:
    data = dataset("next_observations")
    # On the row before the dropped one, and nowhere else.
    assert numbers(data.tail_rewards) == pytest.approx([np.nan, np.nan, np.nan, 16], nan_ok=True)
    assert numbers(data.episode_returns()) == [1 + 2 + 4, 8 + 16]
    # 4; 2 + 4/2; 1 + 4/2; and for the second episode 8 + 16/2.
    assert numbers(data.with_returns_to_go(gamma=0.5).returns_to_go) == [3, 4, 4, 16]


def test_the_reward_of_a_dropped_row_is_transformed_with_the_others() -> None:
    data = dataset("next_observations").with_reward_transform(scale=2, shift=1, clip_max=20)
    # 3 + 5 + 9; and 17 + 20, for 2 * 16 + 1 = 33 is clipped.
    assert numbers(data.episode_returns()) == [17, 37]
    assert numbers(data.with_returns_to_go(gamma=0.5).returns_to_go)[3] == 17 + 20 / 2


def test_the_reward_of_a_dropped_row_counts_beside_given_returns_to_go() -> None:
    data = dataset("next_observations", returns_to_go=np.zeros(5))
    assert numbers(data.episode_returns()) == [7, 24]


def test_a_shift_adds_nothing_to_episodes_that_lost_no_row() -> None:
    # The first part has all its rows and an action after each, the second lost the last row of its second episode.
    whole = dataset(next_actions=np.zeros((5, 1)))
    joined = concatenate_datasets([whole, dataset("next_observations")]).with_reward_transform(shift=1)
    # 7 + 3 and 24 + 2 steps, twice: the dropped row is one of the two.
    assert numbers(joined.episode_returns()) == [10, 26, 10, 26]


def test_an_episode_of_one_cut_row_disappears_with_its_row() -> None:
    data = dataset("next_observations", terminals=[0, 0, 0, 0, 0], timeouts=[0, 1, 1, 0, 1])
    # Episodes are rows 0-1, 2 and 3-4; without their last rows they are 0, nothing, and 3.
    assert numbers(data.obs) == [0, 10]
    assert data.num_dropped == 3
    assert numbers(data.episode_returns()) == [1 + 2, 8 + 16]


def test_a_dropped_row_leaves_a_terminated_episode_before_it_alone() -> None:
    data = dataset("next_observations", terminals=[0, 1, 0, 0, 0], timeouts=[0, 0, 1, 0, 1])
    # Episodes are rows 0-1, which terminated, 2 and 3-4; the reward 4 of row 2 belongs to neither of the others.
    assert numbers(data.obs) == [0, 1, 10]
    assert numbers(data.truncations) == [False, False, True]
    assert numbers(data.episode_returns()) == [1 + 2, 8 + 16]


def test_rows_that_all_end_an_episode_need_next_observations() -> None:
    with pytest.raises(DatasetError, match=r"no row has a next observation: .* 'next_obs' is missing"):
        dataset("next_observations", terminals=np.zeros(5), timeouts=np.ones(5))


def test_next_actions_are_filled_inside_episodes_and_marked_where_there_is_none() -> None:
    data = dataset()
    # Inside: the action of the next row. Row 2 terminated: any value will do. Row 4 was cut: none was recorded.
    assert numbers(data.next_action_mask) == [True, True, True, True, False]
    assert numbers(data.next_actions)[:2] == pytest.approx([0.1, 0.2])
    assert float(data.next_actions[3]) == pytest.approx(0.4)


def test_a_dropped_row_still_gives_the_action_of_the_row_before() -> None:
    data = dataset("next_observations")
    assert numbers(data.next_action_mask) == [True, True, True, True]
    assert float(data.next_actions[3]) == pytest.approx(0.4)


def test_given_next_actions_are_kept_and_hold_for_every_row() -> None:
    given = [[5.0], [6.0], [7.0], [8.0], [9.0]]
    data = dataset(next_actions=given)
    assert data.next_actions.tolist() == given
    assert numbers(data.next_action_mask) == [True] * 5


def test_shuffled_rows_have_no_next_actions() -> None:
    order = [3, 0, 4, 2, 1]
    data = TransitionDataset.from_dict({name: value[order] for name, value in log("timeouts").items()})
    assert not data.has_episodes
    with pytest.raises(DatasetError, match="has no next_actions: the rows seem shuffled; give next_actions as a field"):
        data.requiring("next_actions")


def test_requiring_next_actions_drops_rows_without_one_and_says_so() -> None:
    data = dataset().requiring("obs", "next_actions")
    # The terminated row 2 stays: nothing is bootstrapped from it, so its next action is not needed.
    assert numbers(data.obs) == [0, 1, 2, 10]
    assert data.notes == ("dropped 1 rows without a next action",)


def test_a_mixture_has_next_actions_but_for_the_rows_without_one() -> None:
    # Rows of a mixture are in no order, but what follows each was found before; row 4 was cut.
    data = dataset().take(torch.tensor([4, 0, 3, 1, 2])).requiring("obs", "next_actions")
    assert numbers(data.obs) == [0, 10, 1, 2]
    assert data.notes == ("dropped 1 rows without a next action",)


def test_rows_that_follow_each_other_by_chance_are_no_episodes() -> None:
    obs = np.arange(41.0)[:, None]
    order = [7, 8, *np.random.default_rng(0).permutation([k for k in range(0, 40, 2) if k != 8])]
    rows = {"obs": obs[order], "next_obs": obs[np.asarray(order) + 1], "actions": np.zeros((len(order), 1))}
    flat = {"rewards": np.zeros(len(order)), "dones": np.zeros(len(order))}
    data = TransitionDataset.from_dict(rows | flat)
    assert bool(data.next_action_mask is not None and data.next_action_mask.any())
    assert not data.has_episodes
    with pytest.raises(DatasetError, match="rows have no next action: the rows seem shuffled"):
        data.requiring("next_actions")


def test_requiring_other_fields_drops_no_row() -> None:
    data = dataset().requiring("obs", "actions")
    assert (len(data), data.notes) == (5, ())
    assert set(data.sample(2)) == {"obs", "actions"}


def test_requiring_a_field_that_is_not_there_fails() -> None:
    with pytest.raises(DatasetError, match="no returns_to_go"):
        dataset().requiring("obs", "returns_to_go")


def trajectory(**others: Any) -> dict[str, Any]:
    """The second of the two episodes, with T + 1 observations."""
    return {
        "observations": np.array([[10.0], [11.0], [12.0]]),
        "actions": np.array([[0.3], [0.4]]),
        "rewards": np.array([8.0, 16.0]),
        "terminations": np.array([False, False]),
        "truncations": np.array([False, True]),
    } | others


FIRST = trajectory(
    observations=np.array([[0.0], [1.0], [2.0], [3.0]]),
    actions=np.array([[0.0], [0.1], [0.2]]),
    rewards=np.array([1.0, 2.0, 4.0]),
    terminations=np.array([False, False, True]),
    truncations=np.array([False, False, False]),
)


def test_trajectories_with_a_final_observation_lose_no_row() -> None:
    assert TransitionDataset.from_episodes([FIRST, trajectory()]).fingerprint() == dataset().fingerprint()


@pytest.mark.parametrize(
    "episode",
    [
        pytest.param(trajectory(terminations=False, truncations=True), id="single flags"),
        pytest.param(SimpleNamespace(**trajectory()), id="attributes"),
        pytest.param(
            {
                "obs": trajectory()["observations"],
                "actions": trajectory()["actions"],
                "rewards": trajectory()["rewards"],
                "terminals": trajectory()["terminations"],
                "timeouts": trajectory()["truncations"],
            },
            id="other names",
        ),
        # Nothing says how it ended, so it was cut, and is not joined to the episode that follows.
        pytest.param(trajectory(terminations=False, truncations=False), id="an end that is not marked"),
    ],
)
def test_trajectories_come_in_several_forms(episode: Any) -> None:
    data = TransitionDataset.from_episodes([episode, FIRST])
    assert numbers(data.obs) == [10, 11, 0, 1, 2]
    assert numbers(data.next_obs) == [11, 12, 1, 2, 3]
    assert numbers(data.dones) == [0, 0, 0, 0, 1]
    assert numbers(data.truncations) == [False, True, False, False, False]


@pytest.mark.parametrize(
    ("episodes", "message"),
    [
        ([], "there are no episodes"),
        (
            [FIRST, trajectory(observations=np.zeros((2, 1)))],
            r"episode 1 must have T \+ 1 observations for T >= 1 actions and rewards, got 2 observations, 2 actions "
            "and 2 rewards",
        ),
        ([{"obs": np.zeros((1, 1)), "actions": np.zeros((0, 1)), "rewards": np.zeros(0)}], "episode 0 must have T"),
        ([FIRST, {"observations": 0}], "episode 1 has no 'actions'"),
        (
            [FIRST, trajectory(observations=np.zeros((3, 2)))],
            r"the obs of episode 1 have shape \(2,\), those of episode 0 \(1,\)",
        ),
    ],
)
def test_trajectories_that_cannot_be_are_refused_by_number(episodes: list[Any], message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        TransitionDataset.from_episodes(episodes)


def test_episodes_are_given_back_with_their_final_observations() -> None:
    data = dataset()
    first, second = data.episodes()
    assert (len(first), len(second)) == (3, 2)
    assert numbers(first.observations) == [0, 1, 2, 3]
    assert numbers(second.observations) == [10, 11, 12]
    assert numbers(second.rewards) == [8, 16]
    assert numbers(first.terminations) == [False, False, True]
    assert numbers(second.truncations) == [False, True]
    assert data.episode_bounds().tolist() == [[0, 3], [3, 5]]
    assert numbers(data.episode_returns()) == [7, 24]


@pytest.mark.parametrize(
    ("flags", "known"),
    [
        ({"terminals": [0, 0, 0, 0, 1], "timeouts": [0, 0, 0, 0, 0]}, True),
        # Every row is an episode of one step: decisions without consequences, all the same episodes.
        ({"terminals": [1, 1, 1, 1, 1], "timeouts": [0, 0, 0, 0, 0]}, True),
        ({"terminals": [0, 1, 0, 0, 0], "timeouts": [1, 0, 1, 1, 1]}, False),
    ],
)
def test_episodes_are_known_where_rows_follow_each_other(flags: dict[str, Any], known: bool) -> None:
    assert dataset(**flags).has_episodes is known


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        ({"scale": 2.0}, [2, 4, 8, 16, 32]),
        ({"shift": -3.0}, [-2, -1, 1, 5, 13]),
        # Shift is added to the scaled reward.
        ({"scale": 2.0, "shift": -3.0}, [-1, 1, 5, 13, 29]),
        ({"clip_min": 2.0}, [2, 2, 4, 8, 16]),
        # Bounds hold after scale and shift.
        ({"scale": 2.0, "shift": -3.0, "clip_min": 0.0, "clip_max": 6.0}, [0, 1, 5, 6, 6]),
        # The sign is taken after scale and shift, before the bounds.
        ({"shift": -4.0, "sign": True, "clip_max": 0.5}, [-1, -1, 0, 0.5, 0.5]),
    ],
)
def test_rewards_are_scaled_shifted_signed_and_clipped_in_this_order(
    transform: dict[str, Any], expected: list[float]
) -> None:
    assert numbers(dataset().with_reward_transform(**transform).rewards) == expected


def test_a_transformed_dataset_leaves_the_first_as_it_was_and_shares_the_rest() -> None:
    before = dataset()
    after = before.with_reward_transform(scale=2)
    assert numbers(before.rewards) == REWARDS
    assert after.obs.data_ptr() == before.obs.data_ptr()


def test_returns_to_go_are_discounted_sums_to_the_end_of_the_episode() -> None:
    # 4; 2 + 4/2; 1 + 4/2; and 16; 8 + 16/2.
    assert numbers(dataset().with_returns_to_go(gamma=0.5).returns_to_go) == [3, 4, 4, 16, 16]


def test_other_rewards_drop_the_returns_of_the_old_ones() -> None:
    data = dataset().with_returns_to_go(gamma=0.5).with_reward_transform(scale=2)
    with pytest.raises(AttributeError, match="no returns_to_go"):
        _ = data.returns_to_go


def test_action_bounds_become_minus_one_and_one() -> None:
    actions = np.array([[-2, 0], [2, 4], [0, 2], [1, 1], [3, 5]])
    data = dataset(actions=actions.astype(np.float32)).with_action_bounds([-2, 0], [2, 4])
    # a / 2 and (a - 2) / 2; what lies outside the bounds is mapped by the same line.
    expected = [[-1, -1], [1, 1], [0, 0], [0.5, -0.5], [1.5, 1.5]]
    assert data.actions.tolist() == expected
    assert data.next_actions[:2].tolist() == expected[1:3]


def test_bounds_of_one_change_nothing() -> None:
    data = dataset()
    assert data.with_action_bounds([-1], [1]).actions.data_ptr() == data.actions.data_ptr()


@pytest.mark.parametrize(
    ("low", "high", "message"),
    [
        ([-1, -1], [1, 1], r"must have 1 numbers each, got \[-1, -1\] and \[1, 1\]"),
        (1, -1, "low < high, got 1 and -1"),
        ([1], [1], r"low < high, got \[1\] and \[1\]"),
        ([-np.inf], [np.inf], "must be finite"),
        ([np.nan], [1], "must be finite"),
    ],
)
def test_action_bounds_that_cannot_be_are_refused(low: Any, high: Any, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        dataset().with_action_bounds(low, high)


def test_statistics_of_observations_leave_the_observations_alone() -> None:
    data = of_returns(0, 0).with_obs_statistics(epsilon=0.25)
    # Observations 0, 0, 1, 1: mean 1/2, deviation 1/2.
    assert numbers(data.obs_mean) == [0.5]
    assert numbers(data.obs_std) == [0.75]
    assert numbers(data.obs) == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("fraction", "sizes"),
    [
        (0.3, (7, 3)),
        # Neither part is ever empty.
        (0.01, (9, 1)),
        (0.99, (1, 9)),
    ],
)
def test_a_split_takes_whole_episodes(fraction: float, sizes: tuple[int, int]) -> None:
    parts = of_returns(*range(10)).split(fraction, seed=1)
    returns = [set(numbers(part.episode_returns())) for part in parts]
    assert tuple(map(len, returns)) == sizes
    assert returns[0] | returns[1] == set(range(10))


def test_a_split_is_decided_by_its_seed() -> None:
    data = of_returns(*range(20))
    held_out = [numbers(data.split(0.5, seed=seed)[1].episode_returns()) for seed in (0, 0, 1)]
    assert held_out[0] == held_out[1] != held_out[2]


@pytest.mark.parametrize("fraction", [0, 1, -0.5, 2])
def test_a_split_needs_a_fraction(fraction: float) -> None:
    with pytest.raises(DatasetError, match=f"fraction must be > 0 and < 1, got {fraction}"):
        dataset().split(fraction)


def test_one_episode_cannot_be_split() -> None:
    with pytest.raises(DatasetError, match="needs at least 2 of them, got 1"):
        of_returns(1).split(0.5)


@pytest.mark.parametrize(
    ("returns", "fraction", "kept"),
    [
        # 0.34 of 3 is one episode.
        ([3, 1, 2], 0.34, [3]),
        # Two of four, in the order in which they were logged.
        ([1, 3, 0, 2], 0.5, [3, 2]),
        ([1, 3], 0.01, [3]),
        ([1, 3], 1.0, [1, 3]),
        # In floating point 0.29 * 100 is a little less than 29.
        (list(range(100)), 0.29, list(range(71, 100))),
    ],
)
def test_the_best_episodes_are_those_of_highest_return(
    returns: list[float], fraction: float, kept: list[float]
) -> None:
    best = of_returns(*returns).best_episodes(fraction)
    assert numbers(best.episode_returns()) == kept
    assert best.notes == (f"kept the best {len(kept)} of {len(returns)} episodes",)


@pytest.mark.parametrize(
    "ask",
    [
        lambda data: list(data.episodes()),
        lambda data: data.episode_returns(),
        lambda data: data.with_returns_to_go(gamma=0.9),
        lambda data: data.split(0.5),
        lambda data: data.best_episodes(0.5),
    ],
    ids=["episodes", "episode_returns", "returns_to_go", "split", "best_episodes"],
)
def test_rows_taken_out_of_order_have_no_episodes(ask: Callable[[TransitionDataset], Any]) -> None:
    taken = dataset().take(torch.tensor([4, 0, 1]))
    assert numbers(taken.obs) == [11, 0, 1]
    with pytest.raises(DatasetError, match=r"a mixed or filtered dataset has no .* not in episode order"):
        ask(taken)


def test_every_tensor_moves_to_the_device() -> None:
    whole = dataset("next_observations").with_obs_statistics()
    data = TransitionDataset(
        fields=whole.fields,
        truncations=whole.truncations,
        next_action_mask=whole.next_action_mask,
        tail_rewards=whole.tail_rewards,
        raw_returns=whole.episode_returns(),
        obs_mean=whole.obs_mean,
        obs_std=whole.obs_std,
        validation=dataset(),
    ).to("meta")
    assert data.validation is not None
    tensors = [value for value in vars(data).values() if isinstance(value, Tensor)]
    assert len(tensors) == 6
    tensors += [*data.fields.values(), *data.validation.fields.values()]
    assert {tensor.device.type for tensor in (*tensors, data.validation.truncations)} == {"meta"}
    assert data.device.type == "meta"


def test_a_batch_holds_rows_of_every_field() -> None:
    batch = dataset().sample(64)
    assert set(batch) == {"obs", "actions", "rewards", "next_obs", "dones", "next_actions"}
    rows = {row: (NEXT_OBS[k], REWARDS[k], TERMINALS[k], pytest.approx(ACTIONS[k])) for k, row in enumerate(OBS)}
    drawn = zip(*(numbers(batch[name]) for name in ("obs", "next_obs", "rewards", "dones", "actions")), strict=True)
    seen = set()
    for row, *values in drawn:
        assert tuple(values) == rows[row]
        seen.add(row)
    # 64 draws miss one of five rows with probability 5 * 0.8**64, three in a million.
    assert seen == set(OBS)


def test_samples_are_decided_by_the_seed() -> None:
    draws = [numbers(TransitionDataset.from_dict(log(), seed=seed).sample(32)["obs"]) for seed in (3, 3, 4)]
    assert draws[0] == draws[1] != draws[2]


def test_a_seed_starts_the_stream_of_samples_anew() -> None:
    data = dataset()
    first = numbers(data.sample(32)["obs"])
    assert numbers(data.sample(32)["obs"]) != first
    assert numbers(data.with_seed(0).sample(32)["obs"]) == first


def test_drawing_from_a_derived_dataset_does_not_advance_the_first() -> None:
    expected = [numbers(batch["obs"]) for data in [dataset()] for batch in (data.sample(32), data.sample(32))]
    data = dataset()
    drawn = numbers(data.sample(32)["obs"])
    data.with_notes("a remark").sample(32)
    assert [drawn, numbers(data.sample(32)["obs"])] == expected


def test_equal_contents_have_equal_fingerprints() -> None:
    assert dataset().fingerprint() == dataset().with_notes("a remark").with_seed(5).fingerprint()


@pytest.mark.parametrize("name", ["observations", "actions", "rewards", "next_observations", "terminals", "timeouts"])
def test_a_change_in_any_field_changes_the_fingerprint(name: str) -> None:
    changed = log()[name].copy()
    changed[0] = 1 - changed[0] if changed.dtype != bool else ~changed[0]
    assert dataset(**{name: changed}).fingerprint() != dataset().fingerprint()


def test_one_number_bounds_every_dimension() -> None:
    data = dataset()
    both = [data.with_action_bounds(-4, 4), data.with_action_bounds([-4], [4])]
    assert torch.equal(both[0].actions, both[1].actions)


def test_a_dataset_can_be_pickled_and_copied() -> None:
    data = dataset()
    for again in (pickle.loads(pickle.dumps(data)), copy.deepcopy(data)):  # noqa: S301 - our own bytes
        assert torch.equal(again.obs, data.obs)
        assert again.fingerprint() == data.fingerprint()


def test_a_dataset_shows_its_size_and_fields_and_not_its_numbers() -> None:
    text = repr(dataset())
    assert "rows, fields" in text
    assert "tensor" not in text
