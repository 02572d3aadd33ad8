"""Goals relabelled with what was achieved: which goals, how often, and what follows from them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from experience import assert_equal_batches, held, saved
from numpy.typing import NDArray
from torch import Tensor

from rl_training.core.batches import Batch, Transitions
from rl_training.core.errors import DatasetError
from rl_training.data import Hindsight, ReplayBuffer, TransitionDataset, hindsight_source
from rl_training.envs import goal_task, make_env


def at_goal(achieved: NDArray[Any], desired: NDArray[Any]) -> NDArray[np.bool_]:
    reached: NDArray[np.bool_] = np.abs(achieved - desired)[:, 0] < 0.5
    return reached


def reward(achieved: NDArray[Any], desired: NDArray[Any]) -> NDArray[Any]:
    return np.where(at_goal(achieved, desired), 0.0, -1.0)


def hindsight(capacity: int = 1000, **options: Any) -> ReplayBuffer:
    given: dict[str, Any] = {"obs_dim": 2, "action_dim": 1, "goal_dim": 1, "compute_reward": reward} | options
    how = {field.name: given.pop(field.name) for field in fields(Hindsight) if field.name in given}
    return ReplayBuffer(capacity=capacity, hindsight=Hindsight(**how), **given)


def add(buffer: ReplayBuffer, rows: Sequence[int], ends: str = "") -> None:
    """One row of each environment: row n achieves goal n + 1, is asked for goal -1, and has a reward that only it has.

    `ends` has a letter for each: T terminated, C cut, - neither.
    """
    numbers = np.asarray(rows, dtype=np.float32)
    asked = np.full_like(numbers, -1)
    letters = ends or "-" * len(rows)
    buffer.add(
        obs=np.stack([numbers, asked, numbers], 1),
        actions=numbers[:, None] / 8,
        rewards=-1 - numbers / 1024,
        next_obs=np.stack([numbers + 0.25, asked, numbers + 1], 1),
        terminations=[letter == "T" for letter in letters],
        truncations=[letter == "C" for letter in letters],
    )


def add_episode(buffer: ReplayBuffer, start: int, length: int, end: str = "C") -> None:
    for row in range(start, start + length):
        add(buffer, [row], end if row == start + length - 1 else "-")


def goals_of(batch: Batch) -> dict[int, set[int]]:
    """The goals that each row was drawn with."""
    found: dict[int, set[int]] = defaultdict(set)
    for row, goal in batch["obs"].int().tolist():
        found[row].add(goal)
    return dict(found)


def is_virtual(batch: Batch) -> Tensor:
    return batch["obs"][:, 1] != -1


def test_future_goals_are_uniform() -> None:
    buffer = hindsight(her_ratio=1.0)
    add_episode(buffer, 0, 5)
    batch = buffer.sample(20_000)
    goals = batch["obs"][batch["obs"][:, 0] == 0, 1]
    counts = torch.bincount(goals.long(), minlength=6)[1:].tolist()
    # About 4000 draws of row 0, 800 for each goal with a deviation of sqrt(4000 * 0.2 * 0.8) = 25; five are allowed.
    assert all(abs(count - len(goals) / 5) < 127 for count in counts)


def test_four_rows_in_five_are_relabelled_each_by_its_own_chance() -> None:
    buffer = hindsight(her_ratio=0.8)
    add_episode(buffer, 0, 50)
    counts = [int(is_virtual(buffer.sample(250)).sum()) for _ in range(40)]
    assert sum(counts) / 10_000 == pytest.approx(0.8, abs=0.02)
    # Not a fixed number: of 250 rows 200 with a deviation of sqrt(250 * 0.8 * 0.2) = 6.3.
    assert 3 < np.std(counts) < 12


def test_what_the_buffer_holds_stays_as_it_was() -> None:
    buffer = hindsight(her_ratio=1.0, compute_terminated=at_goal)
    add_episode(buffer, 0, 5)
    before = buffer.rows_from(0)
    buffer.sample(300)
    assert_equal_batches(buffer.rows_from(0), before)


def test_rewards_are_transformed_after_they_were_computed_anew() -> None:
    buffer = hindsight(her_ratio=0.5, transform=lambda rewards: 10 * rewards + 1)
    add_episode(buffer, 0, 4)
    batch = buffer.sample(500)
    virtual, row, goal = is_virtual(batch), *batch["obs"].unbind(1)
    raw = torch.where(virtual, torch.where(goal == row + 1, 0.0, -1.0), -1 - row / 1024)
    assert torch.equal(batch["rewards"], 10 * raw + 1)
    assert held(buffer, "rewards") == [-1 - row / 1024 for row in range(4)]


def test_sums_of_relabelled_rewards_end_where_the_task_ends_on_success() -> None:
    buffer = hindsight(40, her_ratio=0.7, n_step=3, gamma=0.5, compute_terminated=at_goal)
    lengths = {0: 6, 100: 1, 200: 2, 300: 5, 400: 9}
    for start, length in lengths.items():
        add_episode(buffer, start, length, "T" if start in (200, 300) else "C")
    batch = buffer.sample(2000)
    seen = set()
    for k, (row, goal) in enumerate(batch["obs"].int().tolist()):
        start = row // 100 * 100
        stop = start + lengths[start]
        total, discount, step = 0.0, 1.0, row
        while True:
            success = goal == step + 1
            stored = step == stop - 1 and start in (200, 300)
            done = success if goal != -1 else stored
            total += discount * (-1 - step / 1024 if goal == -1 else -1.0 + success)
            discount *= 0.5
            if done or step == stop - 1 or step == row + 2:
                break
            step += 1
        found = [float(batch[name][k].flatten()[0]) for name in ("rewards", "discounts", "dones", "next_obs")]
        assert found == [pytest.approx(total, abs=1e-6), discount, float(done), step + 0.25]
        assert batch["next_obs"][k, 1] == goal
        seen.add((row, goal))
    # Every row was drawn with every goal that it may have: the sum over rows of 1 + how many are left.
    assert len(seen) == sum(length + length * (length + 1) // 2 for length in lengths.values())


def test_before_the_first_episode_has_ended_there_is_nothing_to_draw() -> None:
    buffer = hindsight()
    add(buffer, [0])
    assert buffer.num_drawable == 0
    with pytest.raises(DatasetError, match="no row that can be drawn"):
        buffer.sample(1)
    add(buffer, [1], "C")
    assert buffer.num_drawable == 2


def test_goals_come_from_the_rows_that_are_kept_where_next_actions_are_needed() -> None:
    buffer = hindsight(her_ratio=1.0, needs=("next_actions",))
    add_episode(buffer, 0, 3, "C")
    add_episode(buffer, 100, 1, "C")
    add_episode(buffer, 200, 2, "T")
    batch = buffer.sample(500)
    assert goals_of(batch) == {0: {1, 2}, 1: {2}, 200: {201, 202}, 201: {202}}
    first = batch["obs"][:, 0] == 1
    assert (batch["next_actions"][first] == 2 / 8).all()


def test_metrics_are_of_the_batches_since_they_were_last_asked_for() -> None:
    buffer = hindsight(her_ratio=0.5)
    add_episode(buffer, 0, 4)
    virtual, rewards = 0, 0.0
    for _ in range(3):
        batch = buffer.sample(100)
        virtual += int(is_virtual(batch).sum())
        rewards += float(batch["rewards"][is_virtual(batch)].sum())
    assert buffer.metrics() == {
        "buffer_size": 4,
        "virtual_share": virtual / 300,
        "virtual_reward_mean": pytest.approx(rewards / virtual),
    }
    assert buffer.metrics() == {"buffer_size": 4, "virtual_share": 0, "virtual_reward_mean": 0}


def test_a_batch_is_drawn_without_reading_a_number_from_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = hindsight(10, her_ratio=0.5)
    for start in (0, 100, 200):
        add_episode(buffer, start, 4)
    buffer.sample(8)

    def refuse(_: torch.Tensor) -> NoReturn:
        raise AssertionError("a number was read")

    for name in ("__int__", "__float__", "__bool__", "__index__", "item", "tolist"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    # The first episode has lost its beginning.
    assert buffer.num_drawable == 8
    assert buffer.sample(8)["obs"].shape == (8, 2)


def test_stored_rewards_are_what_the_task_computes() -> None:
    env = make_env("PointGoal-v0", with_achieved=True)
    task = goal_task(env)
    how = Hindsight(task.goal_dim, task.compute_reward, her_ratio=0.5)
    buffer = ReplayBuffer(capacity=500, obs_dim=4, action_dim=2, hindsight=how)
    env.action_space.seed(0)
    obs, _ = env.reset(seed=0)
    for _ in range(400):
        # Towards the goal, with noise, so that both rewards come.
        action = np.clip(20 * (obs[2:4] - obs[:2]), -1, 1) + 0.3 * env.action_space.sample()
        next_obs, value, terminated, truncated, _ = env.step(action.clip(-1, 1))
        buffer.add(
            obs=obs[None],
            actions=action[None],
            rewards=[float(value)],
            next_obs=next_obs[None],
            terminations=[terminated],
            truncations=[truncated],
        )
        obs = env.reset()[0] if truncated else next_obs
    rows = buffer.rows_from(0)
    assert {-1.0, 0.0} == set(rows["rewards"].tolist())
    computed = task.compute_reward(rows["achieved_goals"].numpy(), rows["next_obs"][:, 2:].numpy())
    assert rows["rewards"].tolist() == computed.tolist()
    # The position is what is achieved: relabelled or not, the reward says whether it is at the goal.
    batch = buffer.sample(1000)
    computed = task.compute_reward(batch["next_obs"][:, :2].numpy(), batch["next_obs"][:, 2:].numpy())
    assert batch["rewards"].tolist() == computed.tolist()


def logged() -> TransitionDataset:
    """Two episodes as `add_episode` makes them, in a log."""
    rows = np.array([0, 1, 2, 3, 100, 101], dtype=np.float32)
    asked = np.full_like(rows, -1)
    return TransitionDataset.from_dict(
        {
            "observations": np.stack([rows, asked], 1),
            "actions": rows[:, None] / 8,
            "rewards": -1 - rows / 1024,
            "next_observations": np.stack([rows + 0.25, asked], 1),
            "terminals": np.zeros(6),
            "timeouts": np.isin(rows, [3, 101]),
            "achieved_goal": rows + 1,
        }
    )


PLAIN = Transitions()


def test_goals_of_a_log_are_relabelled_as_those_of_a_buffer() -> None:
    buffer = hindsight(her_ratio=0.5, seed=3, n_step=2, gamma=0.5)
    add_episode(buffer, 0, 4)
    add_episode(buffer, 100, 2)
    source = hindsight_source(logged().with_seed(3), PLAIN, Hindsight(1, reward, her_ratio=0.5), gamma=0.5, n_step=2)
    for _ in range(3):
        assert_equal_batches(source.sample(100), buffer.sample(100))
    assert source.metrics().items() <= buffer.metrics().items()


def test_rewards_of_a_log_are_transformed_once() -> None:
    data = logged().with_reward_transform(scale=10.0, shift=1.0)
    source = hindsight_source(
        data, PLAIN, Hindsight(1, reward, her_ratio=0.5), gamma=0.9, transform=lambda rewards: 10 * rewards + 1
    )
    batch = source.sample(500)
    virtual, row, goal = is_virtual(batch), *batch["obs"].unbind(1)
    raw = torch.where(virtual, torch.where(goal == row + 1, 0.0, -1.0), -1 - row / 1024)
    assert torch.equal(batch["rewards"], 10 * raw + 1)


def test_a_saved_source_of_a_log_continues_exactly() -> None:
    how = Hindsight(1, reward)
    first, second = (hindsight_source(logged().with_seed(seed), PLAIN, how, gamma=0.9) for seed in (1, 2))
    first.sample(8)
    second.load_state_dict(saved(first.state_dict()))
    assert_equal_batches(first.sample(20), second.sample(20))
    assert first.metrics() == second.metrics()


def test_a_log_without_achieved_goals_cannot_be_relabelled() -> None:
    data, how = logged(), Hindsight(1, reward)
    without = replace(data, fields={name: data.fields[name] for name in PLAIN.fields})
    with pytest.raises(DatasetError, match="needs achieved_goals in the data"):
        hindsight_source(without, PLAIN, how, gamma=0.9)
    with pytest.raises(DatasetError, match="achieved_goals has 1 columns, a goal of the environment 2"):
        hindsight_source(data, PLAIN, replace(how, goal_dim=2), gamma=0.9)
    with pytest.raises(DatasetError, match="cannot give all of obs, next_actions"):
        hindsight_source(data, Transitions(("obs", "next_actions")), how, gamma=0.9)


def test_a_buffer_becomes_a_log_that_can_be_relabelled() -> None:
    buffer = hindsight(her_ratio=1.0)
    add_episode(buffer, 0, 4)
    source = hindsight_source(buffer.to_dataset(), PLAIN, Hindsight(1, reward, her_ratio=1.0), gamma=0.9)
    assert goals_of(source.sample(500)) == goals_of(buffer.sample(500))
