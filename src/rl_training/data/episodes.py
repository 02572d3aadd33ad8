"""Trajectories, and lists of them as rows of transitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rl_training.core.errors import DatasetError
from rl_training.data.fields import ALIASES, BESIDE_STEPS, MASKS, as_array

SHUFFLED = 0.9
"""Share of rows that end an episode without termination from which they seem shuffled."""

SHUFFLED_HINT = "the rows seem shuffled; give next_actions as a field, or rows in episode order"


@dataclass(frozen=True)
class Episode:
    """One trajectory of T steps: T + 1 observations, and T of everything else."""

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    terminations: Tensor
    truncations: Tensor
    achieved_goals: Tensor | None = None
    """The goal achieved after each step, in a task with goals."""

    def __len__(self) -> int:
        return len(self.rewards)


def join_episodes(episodes: Iterable[Any]) -> dict[str, NDArray[Any]]:
    """Trajectories as rows of transitions, one after the other."""
    parts = [episode_rows(number, episode) for number, episode in enumerate(episodes)]
    if not parts:
        raise DatasetError("there are no episodes")
    for number, part in enumerate(parts):
        for name in ("obs", "actions"):
            if part[name].shape[1:] != parts[0][name].shape[1:]:
                shapes = f"{part[name].shape[1:]}, those of episode 0 {parts[0][name].shape[1:]}"
                raise DatasetError(f"the {name} of episode {number} have shape {shapes}")
        if ("valid_actions" in part) != ("valid_actions" in parts[0]):
            wrong = f"only one of the episodes 0 and {number} has valid_actions"
            raise DatasetError(f"{wrong}: give them to all, or to none")
    shared = [name for name in parts[0] if all(name in part for part in parts)]
    return {name: np.concatenate([part[name] for part in parts]) for name in shared}


def episode_rows(number: int, episode: Any) -> dict[str, NDArray[Any]]:
    """One trajectory as rows of transitions."""

    def get(*names: str) -> Any:
        for name in names:
            found = episode.get(name) if isinstance(episode, Mapping) else getattr(episode, name, None)
            if found is not None:
                return as_array(f"{name} of episode {number}", found)
        return None

    obs, actions, rewards = get("observations", "obs"), get("actions"), get("rewards")
    _check_steps(number, observations=obs, actions=actions)
    steps = len(actions)
    if len(obs) != steps + 1 or steps == 0 or (rewards is not None and rewards.shape[:1] != (steps,)):
        got = f"{len(obs)} observations, {steps} actions and {'no' if rewards is None else rewards.size} rewards"
        raise DatasetError(f"episode {number} must have T + 1 observations for T >= 1 actions and rewards, got {got}")
    rows = {"obs": obs[:-1], "next_obs": obs[1:], "actions": actions}
    rows |= {} if rewards is None else {"rewards": rewards}
    for field in ("dones", "truncations"):
        # `dones` comes last: beside `terminations` it may count truncations too.
        flags = get(*reversed(ALIASES[field]), field)
        flags = np.asarray(False) if flags is None else flags
        rows[field] = flags if flags.ndim else np.append(np.zeros(steps - 1, bool), bool(flags))
        if rows[field].shape != (steps,):
            raise DatasetError(f"{field} of episode {number} must be {steps} flags, got shape {rows[field].shape}")
    if not (rows["dones"][-1] or rows["truncations"][-1]):
        rows["truncations"] = np.append(rows["truncations"][:-1], True)
    return rows | _beside(get, getattr(episode, "infos", None) or {}, steps)


def _check_steps(number: int, **found: NDArray[Any] | None) -> None:
    for name in (name for name, value in found.items() if value is None):
        raise DatasetError(f"episode {number} has no {name!r}")
    for name in (name for name, value in found.items() if value is not None and not value.ndim):
        raise DatasetError(f"{name} of episode {number} must have a row per step, got a single number")


def _beside(get: Callable[..., Any], infos: Mapping[str, Any], steps: int) -> dict[str, NDArray[Any]]:
    """Optional fields of an episode; Minari keeps them in `infos`, which begin with the reset."""
    rows = {}
    for field in BESIDE_STEPS:
        names = (field, *(ALIASES[field] if field in MASKS else ()))
        found = get(*names)
        found = next((infos[name] for name in names if name in infos), None) if found is None else found
        if found is not None:
            array = as_array(field, found)
            if not array.ndim:
                raise DatasetError(f"{field} of an episode must have a row per step, got a single number")
            rows[field] = array[-steps:]
            if field == "valid_actions" and len(array) == steps + 1 and np.isfinite(array[0]).all():
                # One mask for every observation, as environments give them.
                rows |= {"valid_actions": array[:-1], "next_valid_actions": array[1:]}
    return rows
