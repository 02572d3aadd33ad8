"""The state of an environment as plain values, so that a run that was killed resumes as if nothing had happened."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.wrappers import TimeLimit

from rl_training.core.user_code import own_code_failed


class Snapshot(gym.Wrapper[Any, Any, Any, Any]):
    """Gives an environment the attribute `snapshot`, which can be read and set.

    It holds tensors and plain values. It is None for environments whose state cannot be saved. Gymnasium's classic
    control and MuJoCo can be, and every environment with `state_dict` and `load_state_dict`.
    """

    @property
    def snapshot(self) -> dict[str, Any] | None:
        """Task, time limits and random numbers."""
        try:
            state = _task_state(self.unwrapped)
        except (Exception, SystemExit) as error:
            raise own_code_failed(f"{type(self.unwrapped).__name__}: state_dict", error) from error
        if state is None:
            return None
        steps = [limit._elapsed_steps for limit in self._limits()]
        return {"task": state, "steps": steps, "random": dict(self.unwrapped.np_random.bit_generator.state)}

    @snapshot.setter
    def snapshot(self, state: dict[str, Any]) -> None:
        for limit, steps in zip(self._limits(), state["steps"], strict=True):
            limit._elapsed_steps = steps
        self.unwrapped.np_random.bit_generator.state = state["random"]
        try:
            _load_task_state(self.unwrapped, state["task"])
        except (Exception, SystemExit) as error:
            raise own_code_failed(f"{type(self.unwrapped).__name__}: load_state_dict", error) from error

    def _limits(self) -> list[Any]:
        found, env = [], self.env
        while isinstance(env, gym.Wrapper):
            if isinstance(env, TimeLimit):
                found.append(env)
            env = env.env
        return found


def _task_state(env: Any) -> dict[str, Any] | None:
    if hasattr(env, "state_dict") and hasattr(env, "load_state_dict"):
        return {name: _plain(value) for name, value in env.state_dict().items()}
    if _is_mujoco(env):
        return _mujoco_state(env.data)
    if type(env).__module__.startswith("gymnasium.envs.classic_control.") and getattr(env, "state", None) is not None:
        return {"state": _plain(np.asarray(env.state))}
    return None


def _load_task_state(env: Any, state: dict[str, Any]) -> None:
    values = {name: value.numpy() if isinstance(value, torch.Tensor) else value for name, value in state.items()}
    if hasattr(env, "load_state_dict"):
        env.load_state_dict(values)
    elif _is_mujoco(env):
        _load_mujoco(env, values)
    else:
        own = getattr(env, "state", None)
        if own is not None and np.shape(values["state"]) != np.shape(own):
            raise ValueError(f"expected a state of shape {np.shape(own)}, got {np.shape(values['state'])}")
        env.state = values["state"]


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    return value.item() if isinstance(value, np.generic) else value


def _is_mujoco(env: Any) -> bool:
    # A task made elsewhere may keep a part of its state, such as a goal, beside the simulation.
    return type(env).__module__.startswith("gymnasium.envs.mujoco.")


def _mujoco_state(data: Any) -> dict[str, Any]:
    """All arrays of a simulation, and its time: some tasks read quantities that belong to the state one step before.

    They make one tensor, since each tensor that comes from another process keeps a file open.
    """
    names = [name for name in dir(data) if not name.startswith("_")]
    arrays = {name: value for name in names if isinstance(value := getattr(data, name), np.ndarray)}
    kept = {name: value for name, value in arrays.items() if value.dtype.kind in "fi" and value.size}
    return {
        "shapes": {name: list(value.shape) for name, value in kept.items()},
        "values": torch.from_numpy(np.concatenate([value.ravel() for value in kept.values()], dtype=np.float64)),
        "time": float(data.time),
    }


def _load_mujoco(env: Any, state: dict[str, Any]) -> None:
    stops = np.cumsum([math.prod(shape) for shape in state["shapes"].values()])
    parts = np.split(state["values"], stops[:-1])
    values = {name: part.reshape(shape) for (name, shape), part in zip(state["shapes"].items(), parts, strict=True)}
    env.set_state(values["qpos"], values["qvel"])
    # Arrays of contacts are as long as there are contacts; they are computed anew by the next step.
    for name, value in values.items():
        own = getattr(env.data, name)
        if isinstance(own, np.ndarray) and own.shape == value.shape and own.flags.writeable:
            own[...] = value
    env.data.time = state["time"]
