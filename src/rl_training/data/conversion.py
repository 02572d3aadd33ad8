"""Transitions from logs that hold something else: rows without what came next, or whole trajectories."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rl_training.types import DatasetError


@dataclass(frozen=True)
class Episode:
    """One trajectory of T steps: T + 1 observations, and T of everything else."""

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    terminations: Tensor
    truncations: Tensor

    def __len__(self) -> int:
        return len(self.rewards)


def add_next_actions(logged: dict[str, NDArray[Any]]) -> tuple[dict[str, NDArray[Any]], NDArray[np.bool_]]:
    """Take the next row's action as `next_actions`, unless they were logged; and the rows on which it may be used.

    A terminated row has none, but nothing depends on it there.
    """
    dones, truncations = logged["dones"], logged["truncations"]
    if "next_actions" in logged:
        return logged, np.ones_like(dones)
    follows = ~(dones | truncations)
    if follows.any():
        logged["next_actions"] = np.concatenate([logged["actions"][1:], logged["actions"][-1:]])
    return logged, follows | dones


def add_next_obs(
    logged: dict[str, NDArray[Any]], mask: NDArray[np.bool_]
) -> tuple[dict[str, NDArray[Any]], NDArray[np.bool_], NDArray[np.float32], int]:
    """Take the next row as `next_obs`; drop rows that end an episode without terminating, for they have none.

    A terminated row keeps its own observation as `next_obs`: nothing is bootstrapped from it. Returned are the fields
    and the mask of the rows kept, the reward of the dropped row after each of them, NaN where there is none, and the
    number of rows dropped.
    """
    obs, dones, truncations = logged["obs"], logged["dones"], logged["truncations"]
    logged["next_obs"] = np.concatenate([obs[1:], obs[-1:]])
    logged["next_obs"][dones] = obs[dones]
    kept = ~truncations
    if not kept.any():
        raise DatasetError("no row has a next observation: every row ends an episode, and 'next_obs' is missing")
    starts_anew = np.concatenate([[True], (dones | truncations)[:-1]])
    # The row before a dropped one is where its episode is cut from here on.
    before_dropped = np.concatenate([truncations[1:] & ~starts_anew[1:], [False]])
    tails = np.where(before_dropped, np.concatenate([logged["rewards"][1:], [np.nan]]), np.nan).astype(np.float32)
    logged["truncations"] = before_dropped
    return (
        {name: array[kept] for name, array in logged.items()},
        mask[kept],
        tails[kept],
        int(truncations.sum()),
    )


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
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def episode_rows(number: int, episode: Any) -> dict[str, NDArray[Any]]:
    """One trajectory as rows of transitions."""

    def get(*names: str) -> Any:
        for name in names:
            if isinstance(episode, Mapping) and name in episode:
                return np.asarray(episode[name])
            if not isinstance(episode, Mapping) and hasattr(episode, name):
                return np.asarray(getattr(episode, name))
        return None

    obs, actions, rewards = get("observations", "obs"), get("actions"), get("rewards")
    for name, value in (("observations", obs), ("actions", actions), ("rewards", rewards)):
        if value is None:
            raise DatasetError(f"episode {number} has no {name!r}")
    steps = len(rewards)
    if len(obs) != steps + 1 or len(actions) != steps or steps == 0:
        counts = f"{len(obs)} observations, {len(actions)} actions and {steps} rewards"
        raise DatasetError(
            f"episode {number} must have T + 1 observations for T >= 1 actions and rewards, got {counts}"
        )
    rows = {"obs": obs[:-1], "next_obs": obs[1:], "actions": actions, "rewards": rewards}
    for field_name, names in (
        ("dones", ("terminations", "terminated", "terminals", "dones")),
        ("truncations", ("truncations", "truncated", "timeouts")),
    ):
        flags = get(*names)
        flags = np.asarray(False) if flags is None else flags
        rows[field_name] = flags if flags.ndim else np.concatenate([np.zeros(steps - 1, bool), [bool(flags)]])
    if not (rows["dones"][-1] or rows["truncations"][-1]):
        rows["truncations"] = np.concatenate([rows["truncations"][:-1], [True]])
    return rows
