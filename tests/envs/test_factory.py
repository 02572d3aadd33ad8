"""Environments as the package sees them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control.pendulum import PendulumEnv
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from rl_training.core.errors import ConfigError, MissingExtraError
from rl_training.core.spaces import BoxActions, Column, DiscreteActions, SpaceSpec
from rl_training.envs import make_env, make_native_env, make_vector_env, space_spec
from rl_training.envs.factory import describe_env
from rl_training.envs.guarded import CheckedEnv

VECTOR = Box(-1, 1, (2,), np.float32)


class _Recorder(gym.Env[Any, Any]):
    """Any spaces; remembers the actions it was given and shows the same observation throughout."""

    def __init__(self, observation_space: Space[Any], action_space: Space[Any], obs: Any = None) -> None:
        self.observation_space = observation_space
        self.action_space = action_space
        self.obs = observation_space.sample() if obs is None else obs
        self.received: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.received.append(action)
        return self.obs, 0.0, False, False, {}


def _make(**kwargs: Any) -> gym.Env[Any, Any]:
    return _Recorder(**kwargs)


@pytest.fixture
def register() -> Iterator[Callable[..., str]]:
    """Enter a recorder with these spaces into Gymnasium's registry for the length of the test."""
    name = "Recorder-v0"

    def enter(observation_space: Space[Any] = VECTOR, action_space: Space[Any] = VECTOR, obs: Any = None) -> str:
        kwargs = {"observation_space": observation_space, "action_space": action_space, "obs": obs}
        # Gymnasium's checker warns of exactly the oddities that these environments are made for.
        gym.register(name, entry_point=_make, kwargs=kwargs, disable_env_checker=True, order_enforce=False)
        return name

    yield enter
    gym.registry.pop(name, None)


def _stack(env: gym.Env[Any, Any]) -> list[type]:
    layers = [type(env)]
    while isinstance(env, gym.Wrapper):
        env = env.env
        layers.append(type(env))
    return layers


def test_actions_are_in_unit_range_inside_and_native_outside() -> None:
    scaled, native = make_env("Pendulum-v1"), make_native_env("Pendulum-v1")
    scaled.reset(seed=3)
    native.reset(seed=3)

    assert isinstance(scaled.action_space, Box)
    assert scaled.action_space.low.tolist() == [-1.0]
    assert scaled.action_space.high.tolist() == [1.0]
    seen = scaled.step(np.array([0.75], dtype=np.float32))
    expected = native.step(np.array([1.5], dtype=np.float32))
    np.testing.assert_array_equal(seen[0], expected[0])
    assert seen[1] == expected[1]


@pytest.mark.parametrize(
    ("inside", "outside"), [([-1, -1], [0, -3]), ([1, 1], [4, 1]), ([0, 0], [2, -1]), ([-0.5, 0.5], [1, 0])]
)
def test_bounds_that_are_not_symmetric_are_mapped_end_to_end(
    register: Callable[..., str], inside: list[float], outside: list[float]
) -> None:
    env = make_env(register(action_space=Box(np.array([0, -3], np.float32), np.array([4, 1], np.float32))))
    env.reset()

    env.step(np.asarray(inside, dtype=np.float32))

    recorder = env.unwrapped
    assert isinstance(recorder, _Recorder)
    np.testing.assert_allclose(recorder.received[0], outside, atol=1e-6)


def test_the_space_spec_is_in_native_units() -> None:
    assert space_spec(make_native_env("Pendulum-v1")) == SpaceSpec.vector(3, BoxActions((-2.0,), (2.0,)))


def test_a_space_spec_survives_being_stored_as_plain_values() -> None:
    spec = SpaceSpec.vector(3, BoxActions((-2.0, 0.0), (2.0, 1.0)))

    assert SpaceSpec.from_plain(spec.to_plain()) == spec


@pytest.mark.parametrize(
    "space",
    [
        Box(-5, 5, (3,), np.float64),
        Box(-5, 5, (2, 3), np.float32),
        Box(-5, 5, (2, 3), np.float64),
        Box(0, 9, (4,), np.int64),
    ],
    ids=["float64", "matrix", "float64 matrix", "integers"],
)
def test_observations_come_out_flat_and_float32(register: Callable[..., str], space: Box) -> None:
    obs = (np.arange(np.prod(space.shape)) % 5).reshape(space.shape).astype(space.dtype)

    env = make_env(register(space, obs=obs))

    first, _ = env.reset()
    second = env.step(np.zeros(2, dtype=np.float32))[0]
    assert env.observation_space.shape == (obs.size,)
    assert env.observation_space.dtype == np.float32
    for seen in (first, second):
        assert seen.dtype == np.float32
        np.testing.assert_array_equal(seen, obs.reshape(-1))


def test_the_number_of_a_state_is_seen_as_one_1_among_zeros() -> None:
    env = make_env("FrozenLake-v1", {"is_slippery": False})
    obs, _ = env.reset(seed=0)
    np.testing.assert_array_equal(obs, np.eye(16, dtype=np.float32)[0])
    assert obs.dtype == np.float32
    np.testing.assert_array_equal(env.step(2)[0], np.eye(16, dtype=np.float32)[1])
    assert space_spec(env) == SpaceSpec.vector(16, DiscreteActions(4))


def test_an_environment_that_says_what_is_possible_has_a_mask_before_its_observations() -> None:
    env = make_env("Taxi-v4")
    obs, info = env.reset(seed=0)
    spaces = space_spec(env)
    assert (list(spaces.obs), spaces.obs_dim, spaces.feature_dim) == (["valid_actions", "obs"], 506, 500)
    np.testing.assert_array_equal(obs[:6], info["action_mask"])


def test_an_environment_that_needs_nothing_gets_only_the_guard() -> None:
    assert _stack(make_native_env("Pendulum-v1")) == [CheckedEnv, *_stack(gym.make("Pendulum-v1"))]


def test_arguments_reach_the_environment() -> None:
    assert make_env("Pendulum-v1", {"g": 1.5}).unwrapped.g == 1.5  # type: ignore[attr-defined]  # of Pendulum


@pytest.mark.parametrize(
    ("spaces", "words"),
    [
        ({"action_space": MultiBinary(3)}, "has the action space MultiBinary(3); only Box vectors"),
        (
            {"action_space": MultiDiscrete([100, 101])},
            "there are 10,100 combinations, and each is an action",
        ),
        ({"action_space": MultiDiscrete(np.array([[2, 2]]))}, "the parts of a MultiDiscrete action must be a vector"),
        ({"action_space": Box(-1, 1, (2, 2))}, "only Box vectors (continuous actions), Discrete and MultiDiscrete"),
        ({"action_space": Box(-np.inf, np.inf, (2,))}, "has unbounded actions"),
        ({"observation_space": Dict({"goal": MultiDiscrete([3])})}, "has the observation space Dict('goal'"),
        ({"observation_space": Box(0, 255, (8, 8, 3), np.uint8)}, "has the observation space Box(0, 255, (8, 8, 3)"),
        ({"observation_space": Box(0, 1, (8, 8, 3))}, "has observations of shape (8, 8, 3): they look like images"),
    ],
    ids=[
        "flags",
        "many actions",
        "matrix of actions",
        "matrix of actions",
        "unbounded",
        "mapping",
        "picture",
        "picture of numbers",
    ],
)
def test_spaces_that_are_not_supported_are_refused_by_name(
    register: Callable[..., str], spaces: dict[str, Space[Any]], words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        make_env(register(**spaces))

    assert str(caught.value).startswith("Recorder-v0 ")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("Pendulun-v1", "unknown env_id 'Pendulun-v1'; did you mean 'Pendulum-v1'?"),
        ("Pendulum-v99", "unknown env_id 'Pendulum-v99'; did you mean 'Pendulum-v1'?"),
        ("nowhere/Thing-v0", "unknown env_id 'nowhere/Thing-v0' (Namespace nowhere not found"),
        ("no_such_module:Thing-v0", "env_id 'no_such_module:Thing-v0': No module named 'no_such_module'"),
    ],
)
def test_an_unknown_environment_is_answered_with_the_nearest_one_or_the_cause(env_id: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_env(env_id)

    assert str(caught.value).startswith(words)


def test_an_argument_that_the_environment_does_not_take_is_named() -> None:
    with pytest.raises(ConfigError, match=r"env_kwargs: .*'gravity'"):
        make_env("Pendulum-v1", {"gravity": 1})


@pytest.mark.parametrize(
    ("wrappers", "words"),
    [
        ({"rewards": {}}, "env_kwargs.wrappers: unknown wrapper 'rewards'; did you mean 'reward'?"),
        (["reward"], "env_kwargs.wrappers must be a mapping, got ['reward']"),
        ({"reward": "clip_1"}, "env_kwargs.wrappers.reward must be a mapping such as {preset: clip_1}, got 'clip_1'"),
        ({"reward": {"scal": 2}}, "env_kwargs.wrappers.reward: unknown option 'scal'; did you mean 'scale'?"),
    ],
)
def test_wrong_wrappers_are_refused_with_their_place(wrappers: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_env("Pendulum-v1", {"wrappers": wrappers})

    assert str(caught.value) == words


def test_a_missing_simulator_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise gym.error.DependencyNotInstalled("MuJoCo is not installed, run `pip install mujoco`")

    monkeypatch.setattr(gym, "make", fail)

    with pytest.raises(MissingExtraError, match=r"env_id 'Hopper-v4' needs .*pip install 'rl-training\[mujoco\]'"):
        make_env("Hopper-v4")


def test_old_versions_of_tasks_are_made_without_a_warning() -> None:
    pytest.importorskip("mujoco")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = make_env("Hopper-v4")

    assert env.observation_space.shape == (11,)


def test_vector_environments_wait_to_be_reset() -> None:
    envs = make_vector_env("Pendulum-v1", num_envs=3)
    obs, _ = envs.reset(seed=[4, 4, 5])

    assert envs.num_envs == 3
    assert envs.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    assert obs.dtype == np.float32
    np.testing.assert_array_equal(obs[0], obs[1])
    assert (obs[0] != obs[2]).any()


def test_a_space_spec_needs_vectors_or_discrete_actions(register: Callable[..., str]) -> None:
    with pytest.raises(TypeError, match="use make_native_env"):
        space_spec(gym.make(register(action_space=MultiDiscrete([2, 2]))))


def test_several_actions_at_once_are_numbered_as_one(register: Callable[..., str]) -> None:
    env = make_env(register(action_space=MultiDiscrete([5, 3], start=[1, 0])))
    spaces = space_spec(env)
    assert spaces.action == DiscreteActions(15, parts=(5, 3))
    assert SpaceSpec.from_plain(spaces.to_plain()) == spaces
    assert spaces.action.describe() == "15 discrete actions (5 x 3) from 0 to 14"
    assert not spaces.action.can_act_in(DiscreteActions(15))
    env.reset(seed=0)
    for action in range(15):
        env.step(action)
        np.testing.assert_array_equal(env.unwrapped.received[-1], [1 + action // 3, action % 3])  # type: ignore[attr-defined]


def test_discrete_actions_are_numbered_from_0_for_networks_and_from_their_start_for_the_environment(
    register: Callable[..., str],
) -> None:
    env_id = register(action_space=Discrete(3, start=5))
    assert space_spec(make_native_env(env_id)).action == DiscreteActions(3, start=5)
    env = make_env(env_id)
    assert env.action_space == Discrete(3)
    env.reset()
    env.step(2)
    assert isinstance(env.unwrapped, _Recorder)
    assert env.unwrapped.received == [7]


def test_the_parts_of_a_mapping_are_known_in_the_order_in_which_they_are_encoded(
    register: Callable[..., str],
) -> None:
    space = Dict({"speed": Box(-1, 1, (1,)), "place": Box(-1, 1, (2, 2))})
    env = make_native_env(register(space, obs={"speed": np.full(1, 5.0), "place": np.arange(4.0).reshape(2, 2)}))
    spec = space_spec(env)
    assert dict(spec.obs) == {name: Column(space[name].shape or ()) for name in space}
    obs = {"place": np.arange(4.0).reshape(2, 2), "speed": np.full(1, 5.0)}
    np.testing.assert_array_equal(spec.encode(obs), env.reset()[0])
    batch = {name: np.stack([value, value]) for name, value in obs.items()}
    np.testing.assert_array_equal(spec.encode(batch), [env.reset()[0]] * 2)


def test_the_original_observation_is_not_changed_in_place(register: Callable[..., str]) -> None:
    obs: NDArray[np.float64] = np.ones((2, 2))
    env = make_env(register(Box(-5, 5, (2, 2), np.float64), obs=obs))

    seen, _ = env.reset()
    seen += 1

    np.testing.assert_array_equal(obs, np.ones((2, 2)))


@pytest.mark.parametrize(
    ("dt", "expected"), [(0.05, 0.05), (2, 2.0), (np.float32(0.5), 0.5), (None, None), (0.0, None), ("1", None)]
)
def test_an_environment_may_say_how_long_its_steps_take(dt: Any, expected: float | None) -> None:
    env = gym.make("Pendulum-v1")
    env.unwrapped.dt = dt  # type: ignore[attr-defined]
    assert describe_env(env)["dt"] == expected


def test_a_dt_that_cannot_be_read_is_not_known() -> None:
    class Broken(PendulumEnv):
        @property
        def dt(self) -> float:
            raise RuntimeError

        @dt.setter
        def dt(self, value: float) -> None:
            pass

    assert describe_env(Broken())["dt"] is None
