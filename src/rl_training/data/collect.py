"""Collecting a dataset: a policy acts in one environment, step by step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np

from rl_training.core.errors import ConfigError, UserCodeError
from rl_training.data.offline_dataset import TransitionDataset

LONGEST_EPISODE = 100_000
"""Steps after which an episode is taken for one that never ends, where nothing else is said."""


def endless_episode(env_id: str, episode: str, steps: int, *, or_else: str) -> UserCodeError:
    """The error for an episode that does not end, with another way out than a time limit."""
    limit = "give it a time limit (max_episode_steps in gym.register, or env_kwargs.max_episode_steps=1000)"
    return UserCodeError(f"{episode} of {env_id} has not ended after {steps} steps: {limit}, or {or_else}")


def collect_dataset(
    env: Callable[[], Any],
    *,
    act: Callable[[Any], Any] | None = None,
    size: int | None = None,
    episodes: int | None = None,
    seed: int = 0,
) -> TransitionDataset:
    """`size` transitions or whole `episodes` of a policy, by default of one that draws every action uniformly.

    `env` makes the environment. `act` maps an observation to an action in native units. Equal seeds give equal data.
    """
    if (size is None) == (episodes is None):
        raise ConfigError("give either size or episodes")
    rows: dict[str, list[Any]] = {}
    with closing(env()) as instance:
        instance.action_space.seed(seed)
        # Copied here and below, since environments may write into the arrays they gave before.
        obs = np.array(instance.reset(seed=seed)[0])
        # Hindsight on logged data needs what each step achieved, in a task with goals.
        has_goals = _has(instance, "achieved_goal")
        # Observations may begin with a mask of the valid actions.
        has_mask = _has(instance, "prepended_mask_dim")
        num_actions = instance.get_wrapper_attr("prepended_mask_dim") if has_mask else 0
        ended, length = 0, 0
        while len(rows.get("obs", ())) != size and ended != episodes:
            action = np.array(_random_action(instance, obs, num_actions) if act is None else act(obs))
            # Environments may look a discrete action up by its number, which an array is not.
            seen, reward, terminated, truncated, _ = instance.step(action if action.ndim else action.item())
            next_obs = np.array(seen)
            values = {"obs": obs, "actions": action, "rewards": reward, "next_obs": next_obs, "dones": terminated}
            achieved = {"achieved_goals": instance.get_wrapper_attr("achieved_goal")} if has_goals else {}
            for name, value in {**values, "truncations": truncated, **achieved}.items():
                rows.setdefault(name, []).append(value)
            over = terminated or truncated
            ended += over
            length = 0 if over else length + 1
            if episodes is not None and length >= LONGEST_EPISODE:
                way_out = "ask for steps instead of episodes"
                raise endless_episode(instance.spec.id, f"episode {ended + 1}", length, or_else=way_out)
            obs = np.array(instance.reset()[0]) if over else next_obs
    arrays = {name: np.asarray(values) for name, values in rows.items()}
    if num_actions:
        for mask, seen in (("valid_actions", "obs"), ("next_valid_actions", "next_obs")):
            arrays[mask], arrays[seen] = np.split(arrays[seen], [num_actions], axis=1)
    return TransitionDataset.from_dict(arrays, copy=False)


def _has(env: Any, name: str) -> bool:
    return hasattr(env, "has_wrapper_attr") and bool(env.has_wrapper_attr(name))


def _random_action(env: Any, obs: Any, masked: int) -> Any:
    """A uniform random action. Only valid ones are drawn if observations begin with a mask of this many actions."""
    return env.action_space.sample(mask=obs[:masked].astype(np.int8)) if masked else env.action_space.sample()
