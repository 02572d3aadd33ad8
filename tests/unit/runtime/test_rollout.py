"""Evaluation: the same episodes for every policy, however many environments run side by side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from torch import Tensor

from rl_training.runtime import EvaluationResult, evaluate_policy
from rl_training.runtime.rollout import EVAL_SEED

ID = "Walk-v0"


class _Walk(gym.Env[Any, Any]):
    """Ends after a number of steps that its seed decides; refuses to be stepped when it is over."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space = Box(-2, 2, (1,), np.float32)
    open = 0

    def __init__(self) -> None:
        type(self).open += 1
        self.left, self.place = 0, 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left, self.place = int(self.np_random.integers(1, 9)), float(self.np_random.normal())
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.left == 0:
            raise RuntimeError("stepped after the end of the episode")
        self.left -= 1
        self.place += float(action[0])
        # Some episodes terminate and some are cut: both are over.
        over = self.left == 0
        return self._obs(), self.place, over and self.place > 0, over and self.place <= 0, {}

    def close(self) -> None:
        type(self).open -= 1

    def _obs(self) -> Any:
        return np.array([self.place, self.left], dtype=np.float32)


def _make(**_: Any) -> gym.Env[Any, Any]:
    return _Walk()


@pytest.fixture(autouse=True)
def walk() -> Iterator[None]:
    gym.register(ID, entry_point=_make)
    _Walk.open = 0
    yield
    gym.registry.pop(ID)


def _act(obs: Tensor) -> Tensor:
    """Depends on the observation alone, so an episode is the same in any company."""
    return torch.tanh(obs[:, :1] - 0.3)


def _by_hand(seed: int) -> tuple[float, int]:
    """One episode without any of the package's code."""
    env = _Walk()
    obs, _ = env.reset(seed=seed)
    total, steps, over = 0.0, 0, False
    while not over:
        action = 2 * _act(torch.from_numpy(obs)[None])[0].numpy()
        obs, reward, terminated, truncated, _ = env.step(action)
        total, steps, over = total + reward, steps + 1, terminated or truncated
    return total, steps


@pytest.mark.parametrize("num_envs", [None, 1, 2, 3, 7, 20])
def test_returns_and_lengths_do_not_depend_on_how_many_environments_there_are(num_envs: int | None) -> None:
    result = evaluate_policy(_act, ID, {}, episodes=13, num_envs=num_envs)

    returns, lengths = zip(*(_by_hand(EVAL_SEED + episode) for episode in range(13)), strict=True)
    assert len(set(lengths)) > 3
    assert result.lengths == lengths
    assert result.returns == pytest.approx(returns, rel=1e-5)


def test_episodes_have_fixed_seeds_that_count_up() -> None:
    first = evaluate_policy(_act, ID, {}, episodes=5)
    again = evaluate_policy(_act, ID, {}, episodes=5)
    shifted = evaluate_policy(_act, ID, {}, episodes=4, seed=EVAL_SEED + 1)

    assert first == again
    assert shifted.returns == first.returns[1:]


def test_evaluation_draws_nothing_from_the_global_generator() -> None:
    def noisy(obs: Tensor) -> Tensor:
        return torch.rand(len(obs), 1)

    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = evaluate_policy(noisy, ID, {}, episodes=3)
    drawn = torch.rand(3)
    second = evaluate_policy(noisy, ID, {}, episodes=3)

    assert torch.equal(drawn, expected)
    # A stochastic policy is judged with the same noise each time.
    assert first == second


def test_actions_arrive_in_native_units() -> None:
    # Every step adds the action to the place: 2 in native units where the policy says 1.
    result = evaluate_policy(lambda obs: torch.ones(len(obs), 1), ID, {}, episodes=1)

    env = _Walk()
    start = float(env.reset(seed=EVAL_SEED)[0][0])
    steps = result.lengths[0]
    assert result.returns[0] == pytest.approx(steps * start + 2 * steps * (steps + 1) / 2, rel=1e-5)


def test_environments_are_closed_also_after_an_error() -> None:
    def broken(obs: Tensor) -> Tensor:
        raise ZeroDivisionError

    evaluate_policy(_act, ID, {}, episodes=2)
    with pytest.raises(ZeroDivisionError):
        evaluate_policy(broken, ID, {}, episodes=2)

    assert _Walk.open == 0


def test_no_more_environments_are_made_than_there_are_episodes() -> None:
    seen: list[int] = []

    def count(obs: Tensor) -> Tensor:
        seen.append(len(obs))
        return _act(obs)

    evaluate_policy(count, ID, {}, episodes=2, num_envs=8)

    assert set(seen) == {2}


def test_metrics_are_the_mean_and_spread_of_the_episodes() -> None:
    metrics = EvaluationResult("Pendulum-v1", (1.0, 2.0, 6.0), (10, 20, 60)).metrics()

    assert metrics == pytest.approx(
        # The spread is that of these episodes: sqrt((4 + 1 + 9) / 3).
        {
            "return_mean": 3.0,
            "return_std": (14 / 3) ** 0.5,
            "return_min": 1.0,
            "return_max": 6.0,
            "length_mean": 30.0,
        }
    )


def test_a_task_with_reference_returns_has_a_normalised_score() -> None:
    result = EvaluationResult("Hopper-v4", (3234.3, 3234.3), (1000, 1000))

    assert result.metrics()["normalized_score"] == pytest.approx(100.0)
    assert result.to_dict()["returns"] == [3234.3, 3234.3]
    assert result.to_dict()["lengths"] == [1000, 1000]
