"""Environments that continue elsewhere, bit by bit, from what was saved of them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv
from gymnasium.spaces import Box
from numpy.typing import NDArray

from rl_training.envs import make_env, make_vector_env
from rl_training.envs.snapshots import Snapshot

# Limits after which 300 steps see at least two ends of episodes, beside those in which a task terminates.
LIMITS = {
    "Pendulum-v1": 130,
    "MountainCarContinuous-v0": 140,
    "PointGoal-v0": 50,
    "HalfCheetah-v4": 120,
    "Hopper-v4": 20,
    "Ant-v5": 40,
}
STEPS = 300


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # MuJoCo writes a log where it is run.
    monkeypatch.chdir(tmp_path)


def saved(tree: Any) -> Any:
    """What comes back from a file."""
    file = io.BytesIO()
    torch.save(tree, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def actions(env: Any, count: int, *, seed: int) -> NDArray[np.float32]:
    drawn = np.random.default_rng(seed).uniform(-1, 1, (count, *env.action_space.shape))
    return drawn.astype(np.float32)


def play(env: gym.Env[Any, Any], moves: NDArray[np.float32]) -> list[tuple[bytes, float, bool, bool]]:
    """What each step led to, with new episodes where one is over."""
    results = []
    for move in moves:
        obs, reward, terminated, truncated, _ = env.step(move)
        results.append((obs.tobytes(), float(reward), bool(terminated), bool(truncated)))
        if terminated or truncated:
            obs, _ = env.reset()
            results.append((obs.tobytes(), 0.0, False, False))
    return results


@pytest.mark.parametrize("env_id", LIMITS)
def test_a_task_continues_in_another_environment_bit_by_bit(env_id: str) -> None:
    limit = {"max_episode_steps": LIMITS[env_id]}
    env, other = make_env(env_id, limit), make_env(env_id, limit)
    env.reset(seed=1)
    # Into the second episode, so that neither the seed nor the steps alone would tell where it is.
    play(env, actions(env, LIMITS[env_id] + 13, seed=2))
    other.reset(seed=3)
    play(other, actions(env, 5, seed=4))

    snapshot = saved(env.get_wrapper_attr("snapshot"))
    moves = actions(env, STEPS, seed=5)
    expected = play(env, moves)
    other.set_wrapper_attr("snapshot", snapshot)
    found = play(other, moves)

    assert found == expected
    assert sum(truncated for *_, truncated in expected) >= 2
    # What was saved is not what continues: it can be used again.
    other.set_wrapper_attr("snapshot", snapshot)
    assert play(other, moves) == expected


def test_a_snapshot_taken_at_the_beginning_of_an_episode_is_its_beginning() -> None:
    env, other = make_env("Ant-v5"), make_env("Ant-v5")
    env.reset(seed=1)
    other.reset(seed=2)
    play(other, actions(env, 30, seed=3))
    other.set_wrapper_attr("snapshot", env.get_wrapper_attr("snapshot"))
    moves = actions(env, 40, seed=4)
    assert play(other, moves) == play(env, moves)


def play_all(envs: Any, moves: NDArray[np.float32]) -> list[tuple[bytes, ...]]:
    """The same for several environments at a time, each reset when it is over."""
    results = []
    for move in moves:
        obs, rewards, terminations, truncations, _ = envs.step(move)
        results.append(tuple(values.tobytes() for values in (obs, rewards, terminations, truncations)))
        over = terminations | truncations
        if over.any():
            obs, _ = envs.reset(options={"reset_mask": over})
            results.append((obs.tobytes(),))
    return results


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("env_id", ["Pendulum-v1", "PointGoal-v0", "Hopper-v4"])
def test_several_environments_continue_together(env_id: str, kind: Literal["sync", "async"]) -> None:
    limit = {"max_episode_steps": LIMITS[env_id]}
    envs, others = (make_vector_env(env_id, limit, num_envs=2, kind=kind) for _ in range(2))
    try:
        envs.reset(seed=1)
        others.reset(seed=5)
        play_all(envs, actions(envs, 60, seed=2))
        snapshots = saved(list(envs.get_attr("snapshot")))
        moves = actions(envs, STEPS, seed=3)
        expected = play_all(envs, moves)
        others.set_attr("snapshot", snapshots)
        assert play_all(others, moves) == expected
    finally:
        envs.close()
        others.close()


def open_files() -> int:
    return len(list(Path("/dev/fd").iterdir()))


def test_what_comes_from_other_processes_does_not_hold_many_files_open() -> None:
    envs = make_vector_env("Ant-v5", num_envs=2, kind="async")
    try:
        envs.reset(seed=0)
        before = open_files()
        snapshots = envs.get_attr("snapshot")
        # Processes may often have no more than 1024 files: a tensor from another process keeps one of them.
        assert open_files() - before <= 8
        assert None not in snapshots
    finally:
        envs.close()


class _Dice(gym.Env[Any, Any]):
    """Shows what it throws, and remembers nothing but its random numbers."""

    observation_space = Box(0, 1, (1,), np.float32)
    action_space = Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.np_random.uniform(size=1).astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.np_random.uniform(size=1).astype(np.float32), 0.0, False, False, {}


class _Counter(_Dice):
    """Counts its steps, in numbers of several kinds, and says how to save them."""

    def __init__(self) -> None:
        self.steps, self.total = 0, np.float64(0)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, _, *rest = super().step(action)
        self.steps, self.total = self.steps + 1, self.total + np.float64(obs[0])
        return obs, float(self.steps + self.total), *rest

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "total": self.total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.total = state["steps"], np.float64(state["total"])


def test_a_task_that_can_save_itself_continues() -> None:
    env, other = Snapshot(_Counter()), Snapshot(_Counter())
    env.reset(seed=1)
    other.reset(seed=2)
    moves = np.zeros((9, 1), dtype=np.float32)
    play(env, moves)
    other.snapshot = saved(env.snapshot)
    assert play(other, moves) == play(env, moves)


class _Runner(HalfCheetahEnv):
    """A task that remembers something beside the simulation."""

    target = 1.0


@pytest.fixture
def runner() -> Iterator[gym.Env[Any, Any]]:
    env: gym.Env[Any, Any] = _Runner()
    yield env
    env.close()


def test_a_task_whose_state_is_not_known_has_none(runner: gym.Env[Any, Any]) -> None:
    for env in (_Dice(), runner):
        wrapped = Snapshot(env)
        wrapped.reset(seed=1)
        assert wrapped.snapshot is None


def test_a_task_that_was_never_reset_has_none() -> None:
    assert make_env("Pendulum-v1").get_wrapper_attr("snapshot") is None


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_environments_without_known_state_say_so_side_by_side(kind: Literal["sync", "async"]) -> None:
    gym.register("Dice-v0", entry_point=f"{__name__}:_Dice")
    envs = make_vector_env("Dice-v0", num_envs=2, kind=kind)
    try:
        envs.reset(seed=0)
        assert list(envs.get_attr("snapshot")) == [None, None]
    finally:
        envs.close()
        gym.registry.pop("Dice-v0")
