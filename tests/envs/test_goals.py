"""Tasks with goals: the one that comes with the package, how observations are flattened, what hindsight is told."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict
from gymnasium.utils.env_checker import check_env
from numpy.typing import NDArray

from rl_training.core.errors import ConfigError
from rl_training.envs import goal_task, make_env, make_native_env, make_vector_env
from rl_training.envs.goals import FlattenGoal, PointGoal, has_goal


class _Fetch(gym.Env[Any, Any]):
    """Goals of two rows and two columns, of double precision; ends on success, one goal at a time."""

    observation_space = Dict(
        {
            "achieved_goal": Box(-1, 1, (2, 2), np.float64),
            "desired_goal": Box(-2, 2, (2, 2), np.float64),
            "observation": Box(-np.inf, np.inf, (3,), np.float64),
            "battery": Box(0, 1, (1,), np.float64),
        }
    )
    action_space = Box(-1, 1, (1,), np.float32)

    def observe(self) -> dict[str, Any]:
        return {
            "achieved_goal": np.array([[4.0, 5.0], [6.0, 7.0]]),
            "desired_goal": np.array([[8.0, 9.0], [10.0, 11.0]]),
            "observation": np.array([1.0, 2.0, 3.0]),
            "battery": np.array([0.5]),
        }

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return -np.abs(achieved - desired).sum(-1)

    def compute_terminated(self, achieved: Any, desired: Any, info: Any) -> bool:
        assert achieved.ndim == 1
        return bool((achieved == desired).all())

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observe(), 0.0, False, False, {}


def move(env: gym.Env[Any, Any], action: Any) -> tuple[dict[str, NDArray[np.float32]], float, dict[str, Any]]:
    obs, reward, terminated, truncated, info = env.step(np.asarray(action, dtype=np.float32))
    assert (terminated, truncated) == (False, False)
    return obs, float(reward), info


def placed(position: Any, goal: Any) -> PointGoal:
    env = PointGoal()
    env.reset(seed=0)
    env.load_state_dict({"position": position, "goal": goal})
    return env


def test_the_task_follows_gymnasiums_rules() -> None:
    check_env(gym.make("PointGoal-v0").unwrapped, skip_render_check=True)


def test_an_observation_holds_the_point_and_the_goal() -> None:
    env = PointGoal()
    obs, info = env.reset(seed=3)
    assert env.observation_space.contains(obs)
    assert set(obs) == {"observation", "desired_goal", "achieved_goal"}
    np.testing.assert_array_equal(obs["observation"], obs["achieved_goal"])
    assert info == {"is_success": False}


def test_a_seed_decides_start_and_goal_which_fill_the_square() -> None:
    env = PointGoal()
    first, again = (env.reset(seed=7)[0] for _ in range(2))
    for name, value in first.items():
        np.testing.assert_array_equal(value, again[name])
    episodes = [env.reset()[0] for _ in range(400)]
    for name in ("observation", "desired_goal"):
        places = np.stack([obs[name] for obs in episodes])
        # Uniform in [-1, 1]: deviation 1 / sqrt(3) = 0.577, the mean within 0.577 / sqrt(400) = 0.029, four allowed.
        np.testing.assert_allclose(places.mean(0), 0, atol=0.12)
        np.testing.assert_allclose(places.std(0), 1 / np.sqrt(3), atol=0.06)


def test_a_move_is_a_twentieth_of_the_action_and_stays_in_the_square() -> None:
    env = placed([0.5, 0.98], [-1, -1])
    obs, _, _ = move(env, [-1, 0.2])
    np.testing.assert_allclose(obs["achieved_goal"], [0.45, 0.99], rtol=1e-6)
    obs, _, _ = move(env, [0, 1])
    np.testing.assert_allclose(obs["achieved_goal"], [0.45, 1.0], rtol=1e-6)
    # An action beyond its bounds counts as the bound.
    obs, _, _ = move(env, [7, 0])
    np.testing.assert_allclose(obs["achieved_goal"], [0.5, 1.0], rtol=1e-6)


def test_what_was_observed_does_not_change_with_the_next_step() -> None:
    env = placed([0, 0], [1, 1])
    before, _, _ = move(env, [0, 0])
    move(env, [1, 1])
    np.testing.assert_array_equal(before["achieved_goal"], [0, 0])


def test_the_reward_is_0_within_reach_of_the_goal_and_else_minus_1() -> None:
    env = placed([0, 0], [0.09, 0.0])
    # After the step 0.06 are left, then 0.01.
    _, reward, info = move(env, [0.6, 0])
    assert (reward, info) == (-1, {"is_success": False})
    _, reward, info = move(env, [1, 0])
    assert (reward, info) == (0, {"is_success": True})
    # Being there does not end it, and leaving costs again.
    _, reward, _ = move(env, [-1, 1])
    assert reward == -1


def test_rewards_are_computed_for_many_goals_at_a_time() -> None:
    achieved, desired = np.zeros((3, 2)), np.array([[0.03, 0.03], [0.04, 0.04], [0.0, -0.04]])
    # Distances 0.042, 0.057 and 0.04.
    assert PointGoal().compute_reward(achieved, desired, {}).tolist() == [0, -1, 0]


def test_the_reward_of_a_step_is_computed_from_what_it_achieved() -> None:
    env = gym.make("PointGoal-v0")
    env.action_space.seed(0)
    env.reset(seed=0)
    base: Any = env.unwrapped
    for _ in range(49):
        obs, reward, *_ = env.step(env.action_space.sample())
        assert reward == base.compute_reward(obs["achieved_goal"], obs["desired_goal"], {})


def test_nothing_but_the_time_limit_of_50_steps_ends_an_episode() -> None:
    env = gym.make("PointGoal-v0")
    env.reset(seed=0)
    ends = [env.step(np.zeros(2, dtype=np.float32))[2:4] for _ in range(50)]
    assert ends == [(False, False)] * 49 + [(False, True)]


def test_going_straight_to_the_goal_solves_the_task() -> None:
    env = make_env("PointGoal-v0")
    for seed in range(20):
        obs, _ = env.reset(seed=seed)
        for _ in range(50):
            # The farthest corner is 2 away on an axis: 40 steps.
            obs, reward, _, _, info = env.step(np.clip(20 * (obs[2:] - obs[:2]), -1, 1))
        assert (reward, info["is_success"]) == (0, True)


def test_the_state_of_the_task_comes_back() -> None:
    env, other = PointGoal(), PointGoal()
    env.reset(seed=1)
    move(env, [1, -1])
    other.reset(seed=2)
    other.load_state_dict(env.state_dict())
    for action in ([0.3, 0.1], [-1, 1]):
        (first, *rest), (second, *others) = move(env, action), move(other, action)
        assert rest == others
        for name, value in first.items():
            np.testing.assert_array_equal(value, second[name])


def test_flattening_puts_the_goal_desired_last_unless_the_goal_achieved_is_asked_for() -> None:
    seen = {False: [1, 2, 3, 8, 9, 10, 11], True: [1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7]}
    for with_achieved, expected in seen.items():
        env = FlattenGoal(_Fetch(), with_achieved=with_achieved)
        for obs in (env.reset()[0], env.step(np.zeros(1))[0]):
            assert obs.dtype == np.float32
            assert obs.tolist() == expected
        space: Any = env.observation_space
        assert (space.shape, space.dtype) == ((len(expected),), np.float32)
        bounds = [np.inf] * 3 + [2.0] * 4 + [1.0] * 4
        assert space.high.tolist() == bounds[: len(expected)]
        assert (-space.low).tolist() == bounds[: len(expected)]


@pytest.mark.parametrize(("with_achieved", "width"), [(False, 4), (True, 6)])
def test_environments_with_goals_are_flat(with_achieved: bool, width: int) -> None:
    native = make_native_env("PointGoal-v0", with_achieved=with_achieved)
    envs = make_vector_env("PointGoal-v0", num_envs=2, with_achieved=with_achieved)
    assert native.reset(seed=0)[0].shape == native.observation_space.shape == (width,)
    obs, _ = envs.reset(seed=[0, 1])
    assert obs.shape == (2, width)
    if with_achieved:
        np.testing.assert_array_equal(obs[:, :2], obs[:, 4:])
    envs.close()


def test_a_task_without_goals_has_none_to_exchange() -> None:
    with pytest.raises(ConfigError, match=r"Pendulum-v1 has no goals .* set replay: uniform"):
        make_env("Pendulum-v1", with_achieved=True)


def test_goals_are_told_by_their_names() -> None:
    assert has_goal(_Fetch())
    assert has_goal(gym.make("PointGoal-v0"))
    assert not has_goal(gym.make("Pendulum-v1"))
    half: Any = gym.Env()
    half.observation_space = Dict({name: Box(-1, 1, (1,)) for name in ("observation", "desired_goal")})
    assert not has_goal(half)


def test_hindsight_is_told_the_rewards_of_many_goals() -> None:
    task = goal_task(make_env("PointGoal-v0", with_achieved=True))
    assert task.goal_dim == 2
    assert task.compute_terminated is None
    achieved, desired = np.zeros((3, 2)), np.array([[0.04, 0.0], [0.2, 0.0], [0.0, 0.0]])
    assert task.compute_reward(achieved, desired).tolist() == [0, -1, 0]


def test_hindsight_is_told_the_raw_reward_of_the_task() -> None:
    task = goal_task(make_env("PointGoal-v0", {"wrappers": {"reward": {"scale": 10}}}))
    assert task.compute_reward(np.zeros((1, 2)), np.ones((1, 2))).tolist() == [-1]


def test_terminations_are_asked_for_one_goal_at_a_time() -> None:
    task = goal_task(FlattenGoal(_Fetch(), with_achieved=True))
    assert task.goal_dim == 4
    achieved, desired = np.zeros((3, 4)), np.array([[0] * 4, [0, 0, 0, 1], [0] * 4])
    assert task.compute_terminated is not None
    assert task.compute_terminated(achieved, desired).tolist() == [True, False, True]
    assert task.compute_terminated(achieved[:0], desired[:0]).shape == (0,)
    assert task.compute_reward(achieved, desired).tolist() == [0, -1, 0]
