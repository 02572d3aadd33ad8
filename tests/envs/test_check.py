"""Mistakes in environments: each is found, and its sentence says what to change."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary
from gymnasium.wrappers import TransformObservation

from rl_training.core.errors import ConfigError, UserCodeError
from rl_training.core.spaces import DiscreteActions, SpaceSpec
from rl_training.envs import check_env, try_out
from rl_training.envs.guarded import CheckedEnv

VECTOR = Box(-1, 1, (2,), np.float32)


class Good(gym.Env[Any, Any]):
    """Ten steps without a mistake; what derives from it makes one."""

    metadata = {"render_modes": ["rgb_array"]}
    observation_space: Any = VECTOR
    action_space: Any = Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        return self.observe(), self.reward(), *self.ends(), {}

    def observe(self) -> Any:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def reward(self) -> Any:
        return 1.0

    def ends(self) -> tuple[Any, Any]:
        return self.time == 10, False

    def state_dict(self) -> dict[str, Any]:
        return {"time": self.time}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.time = state["time"]


def _gives(**methods: Any) -> type[Good]:
    """A class with these methods or attributes instead of the good ones."""
    return type("Broken", (Good,), methods)


def _old_step(self: Any, action: Any) -> Any:
    return np.zeros(2, np.float32), 1.0, False, {}


def _crash(self: Any, action: Any) -> Any:
    raise KeyError("speed")


def _unseeded(self: Any, seed: int | None = None, options: Any = None) -> Any:
    self.time = 0
    return np.random.default_rng().uniform(-1, 1, 2).astype(np.float32), {}


def _without_options(self: Any, *, seed: int | None = None) -> Any:
    return Good.reset(self, seed=seed)


def _bare_reset(self: Any) -> Any:
    return Good.reset(self, seed=None)[0]


FATAL: dict[str, tuple[dict[str, Any], list[str]]] = {
    "old step": ({"step": _old_step}, ["step returns 4 values, as in the old Gym: return observation, reward, term"]),
    "step of three": ({"step": lambda self, a: (0, 1, 2)}, ["step returns 3 values: return observation, reward, term"]),
    "step of one": ({"step": lambda self, a: None}, ["step returns a NoneType: return observation, reward"]),
    "old reset": (
        {"reset": _bare_reset},
        [
            "reset does not take seed and options: write def reset(self, *,",
            "reset returns only the observation: return",
        ],
    ),
    "no options": ({"reset": _without_options}, ["reset does not take options: write def reset("]),
    "crash": ({"step": _crash}, ["step raised KeyError: 'speed' (test_check.py, line"]),
    "shape": (
        {"observe": lambda self: np.zeros(3, np.float32)},
        ["the observation from reset has shape (3,), its space (2,): make them agree"],
    ),
    "nan": (
        {"observe": lambda self: np.array([0, np.nan], np.float32)},
        ["the observation from reset is nan at [1]: observations must be finite"],
    ),
    "words": ({"observe": lambda self: np.array(["a", "b"])}, ["the observation from reset does not consist of numb"]),
    "reward array": (
        {"reward": lambda self: np.ones(1)},
        ["the reward is an array of shape (1,): it must be one numb"],
    ),
    "reward text": (
        {"reward": lambda self: "1"},
        ["the reward is a str: it must be one number, such as float(reward)"],
    ),
    "reward nan": ({"reward": lambda self: np.nan}, ["the reward is nan in step 1: rewards must be finite"]),
    "no info": (
        {"reset": lambda self, seed=None, options=None: (Good.reset(self, seed=seed)[0], None)},
        ["info from reset is a"],
    ),
    "end array": (
        {"ends": lambda self: (np.array([True]), False)},
        ["terminated is a ndarray, array([ True]): it must"],
    ),
    "unbounded": ({"action_space": Box(-np.inf, np.inf, (1,))}, ["has unbounded actions Box(-inf, inf, (1,)"]),
    "binary actions": ({"action_space": MultiBinary(2)}, ["has the action space MultiBinary(2); only"]),
    "text": ({"observation_space": gym.spaces.Text(3)}, ["has the observation space Text("]),
    "no space": ({"observation_space": None}, ["observation_space is missing: set it to a space of Gymnasium, such"]),
    "no dict": (
        {"observation_space": Dict({"a": VECTOR})},
        ["is a ndarray: its space is a Dict, so it must be a dict"],
    ),
    "keys": (
        {"observation_space": Dict({"a": VECTOR}), "observe": lambda self: {"b": np.zeros(2, np.float32)}},
        ["the observation from reset has the keys 'b', its space 'a': make them agree"],
    ),
}

HARMLESS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "float64": (
        {"observe": lambda self: np.zeros(2)},
        ["the observation from reset is float64, its space float32: return obs.astype(np.float32)"],
    ),
    "list": ({"observe": lambda self: [0.0, 0.0]}, ["the observation from reset is a list: return an array, such as"]),
    "outside": (
        {"observe": lambda self: np.array([0, 3], np.float32)},
        ["the observation from reset is 3 at [1], outside [-1, 1] of its space: clip it, or declare wider bounds"],
    ),
    "part": (
        {"observation_space": Dict({"a": VECTOR}), "observe": lambda self: {"a": np.zeros(2)}},
        ["'a' in the observation from reset is float64"],
    ),
    "end number": (
        {"ends": lambda self: (int(self.time == 10), False)},
        ["terminated is a int, 0: it must be True or"],
    ),
    "unseeded": ({"reset": _unseeded}, ["reset(seed=0) gives another observation each time: call super().reset(seed"]),
}


@pytest.fixture
def register() -> Iterator[Callable[..., str]]:
    """Enter a class into Gymnasium's registry for the length of the test."""
    name = "Checked-v0"

    def enter(make: Any, **options: Any) -> str:
        gym.register(name, entry_point=make, **options)
        return name

    yield enter
    gym.registry.pop(name, None)


def _check_words(found: tuple[str, ...], words: list[str]) -> None:
    assert len(found) == len(words), found
    for text, word in zip(found, words, strict=True):
        assert word in text


@pytest.mark.parametrize("limit", [None, 50], ids=["no limit", "limit"])
@pytest.mark.parametrize("name", [*FATAL, *HARMLESS])
def test_each_mistake_is_found_once_with_what_to_change(
    name: str, limit: int | None, register: Callable[..., str]
) -> None:
    methods, words = (FATAL | HARMLESS)[name]

    report = check_env(register(_gives(**methods), max_episode_steps=limit), steps=30)

    _check_words(report.mistakes, words)


@pytest.mark.parametrize("name", FATAL)
def test_what_would_stop_a_run_is_refused_before_it(name: str, register: Callable[..., str]) -> None:
    methods, words = FATAL[name]

    with pytest.raises(ConfigError) as caught:
        try_out(register(_gives(**methods), max_episode_steps=50), {})

    _check_words(caught.value.problems, words)
    assert str(caught.value).startswith("Checked-v0 cannot be used (rl-training env check Checked-v0 says more)")


@pytest.mark.parametrize("name", HARMLESS)
def test_what_a_run_can_live_with_does_not_stop_it(name: str, register: Callable[..., str]) -> None:
    assert try_out(register(_gives(**HARMLESS[name][0])), {}).spaces.obs_dim == 2


def test_all_that_is_wrong_is_named_at_once(register: Callable[..., str]) -> None:
    wrong = _gives(reset=_bare_reset, step=_old_step, action_space=Box(-np.inf, np.inf, (1,)))

    with pytest.raises(ConfigError) as caught:
        try_out(register(wrong), {})

    assert len(caught.value.problems) == 4


def test_a_good_environment_has_no_mistakes(register: Callable[..., str]) -> None:
    report = check_env(register(_gives(action_space=Discrete(3)), max_episode_steps=7), steps=30)

    assert (report.mistakes, report.notes) == ((), ())
    assert len(report.passed) == 5
    assert report.spaces == SpaceSpec.vector(2, DiscreteActions(3))
    assert (report.time_limit, report.steps) == (7, 30)
    assert (report.lengths, report.returns) == ((7,) * 4, (7.0,) * 4)


def test_what_is_no_mistake_is_noted(register: Callable[..., str]) -> None:
    no_state = property(attrgetter("no_such_attribute"))
    endless = _gives(metadata={"render_modes": []}, ends=lambda self: (False, False), state_dict=no_state)

    report = check_env(register(endless), steps=30)

    assert report.mistakes == ()
    _check_words(
        report.notes,
        [
            "no episode ended within 30 steps and there is no time limit: register",
            "there is no render mode 'rgb_array'",
            "its state cannot be saved: a resumed run begins new episodes",
        ],
    )


def test_objects_and_their_wrappers_are_checked_as_they_are() -> None:
    fixed = TransformObservation(_gives(observe=lambda self: np.zeros(2))(), lambda obs: obs.astype(np.float32), VECTOR)
    known = set(gym.registry)

    assert check_env(fixed, steps=20).mistakes == ()
    assert check_env(partial(Good), steps=20).mistakes == ()
    assert set(gym.registry) == known


def test_trying_out_takes_a_few_steps_of_one_instance_and_leaves_generators_alone(
    register: Callable[..., str],
) -> None:
    calls: list[str] = []

    def made(self: Any) -> None:
        calls.append("made")

    def step(self: Any, action: Any) -> Any:
        calls.append("step")
        random.random()
        np.random.normal()  # noqa: NPY002
        return Good.step(self, action)

    env_id = register(_gives(__init__=made, step=step))
    np.random.seed(0)  # noqa: NPY002
    random.seed(0)
    expected = random.Random(0).random(), np.random.RandomState(0).normal()

    try_out(env_id, {})

    assert calls == ["made", "step", "step", "step"]
    assert (random.random(), np.random.normal()) == expected  # noqa: NPY002


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (object, "Checked-v0 is no Gymnasium environment: derive its class from gymnasium.Env"),
        (
            lambda: dict[str, int]()["speed"],
            "Checked-v0 cannot be made: it raised KeyError: 'speed' (test_check.py, line",
        ),
    ],
)
def test_what_cannot_be_made_is_an_error(make: Any, words: str, register: Callable[..., str]) -> None:
    with pytest.raises(ConfigError) as caught:
        check_env(register(make))

    assert str(caught.value).startswith(words)


def test_an_installed_environment_that_raises_is_named_by_its_own_line() -> None:
    env = CheckedEnv(gym.make("Pendulum-v1").unwrapped, "Pendulum-v1")
    with pytest.raises(UserCodeError, match=r"raised AttributeError.* \(pendulum.py, line \d+\)"):
        env.step(np.zeros(1, np.float32))  # before any reset
