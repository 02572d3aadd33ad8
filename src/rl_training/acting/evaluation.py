"""Evaluation: a policy in a vector environment, episode by episode, on raw reward."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Required, TypedDict

from rl_training.acting.policy import Policy
from rl_training.core.seeds import forked
from rl_training.data import LONGEST_EPISODE, endless_episode
from rl_training.envs import make_vector_env, space_spec

EVAL_SEED = 10_000
"""Episode k of an evaluation starts from seed EVAL_SEED + k, so every policy is evaluated on the same episodes."""


class Acting(TypedDict, total=False):
    """Options of acting in episodes: the first seed, and whether actions are deterministic."""

    seed: int
    deterministic: bool


class EpisodeOptions(Acting, total=False):
    """Options of episodes of a saved policy: also an environment instead of the run's own, and its arguments."""

    env: Any
    env_kwargs: Mapping[str, Any] | None


class Episodes(Acting, total=False):
    """Options of episodes in a given environment: also their number and longest length."""

    episodes: Required[int]
    max_steps: int | None


EVALUATION_METRICS = (
    *("return_mean", "return_std", "return_min", "return_max"),
    *("length_mean", "success_rate", "normalized_score"),
)
"""All metrics of evaluations in an environment."""


@dataclass(frozen=True)
class EvaluationResult:
    """Raw environment returns and lengths, episode by episode, in the order of their seeds."""

    env_id: str
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    successes: tuple[bool, ...] | None = None
    """Whether each episode was successful, if the task reports it."""
    notes: tuple[str, ...] = ()
    """Remarks about these numbers."""

    def metrics(self) -> dict[str, float]:
        """Mean and standard deviation of returns, the share of successes and the D4RL score where the task has them."""
        summary = {
            "return_mean": float(np.mean(self.returns)),
            "return_std": float(np.std(self.returns)),
            "return_min": min(self.returns),
            "return_max": max(self.returns),
            "length_mean": float(np.mean(self.lengths)),
        }
        if self.successes is not None:
            summary["success_rate"] = float(np.mean(self.successes))
        score = normalized_score(self.env_id, summary["return_mean"])
        return summary if score is None else {**summary, "normalized_score": score}

    def to_dict(self) -> dict[str, Any]:
        """The metrics, and the returns and lengths they come from."""
        episodes: dict[str, Any] = {"returns": list(self.returns), "lengths": list(self.lengths)}
        if self.successes is not None:
            episodes["successes"] = list(self.successes)
        if self.notes:
            episodes["notes"] = list(self.notes)
        return {**self.metrics(), **episodes}


def evaluate_policy(
    policy: Policy | Callable[[Tensor], Tensor],
    env_id: str,
    env_kwargs: Mapping[str, Any],
    *,
    episodes: int,
    num_envs: int | None = None,
    seed: int = EVAL_SEED,
    device: torch.device | str = "cpu",
    deterministic: bool = True,
    max_steps: int | None = LONGEST_EPISODE,
    watch: Callable[[Any], None] = lambda envs: None,
) -> EvaluationResult:
    """Run episodes with fixed seeds in a vector environment, on raw reward; draws nothing from training's generator.

    A function in place of a policy gives actions as networks do: in [-1, 1], or discrete actions from 0. It gets
    observations on `device`, while a policy has a device of its own. If not `deterministic`, a policy samples its
    actions.
    `watch` is called with the vector environment before every step, and when an episode has ended.
    An episode of more than `max_steps` is an error.
    """
    count, is_native = min(num_envs or 10, episodes), isinstance(policy, Policy)
    device = policy.obs_mean.device if isinstance(policy, Policy) else device
    envs = make_vector_env(env_id, env_kwargs, num_envs=count, raw_rewards=True, native=is_native)
    returns, lengths = np.zeros(episodes), np.zeros(episodes, dtype=int)
    successes: Any = np.full(episodes, None)
    notes: tuple[str, ...] = ()
    running = np.arange(count)
    started = count
    try:
        if isinstance(policy, Policy):
            policy, notes = _fitted(policy, envs, env_id, deterministic=deterministic)
        with forked(seed, device), torch.no_grad():
            obs, _ = envs.reset(seed=[seed + int(k) for k in running])
            while (running >= 0).any():
                watch(envs)
                actions = policy(torch.as_tensor(obs, dtype=torch.float32, device=device)).cpu().numpy()
                obs, rewards, terminated, truncated, infos = envs.step(actions)
                active, over = running >= 0, terminated | truncated
                returns[running[active]] += rewards[active]
                lengths[running[active]] += 1
                if max_steps is not None and (endless := active & ~over & (lengths[running] >= max_steps)).any():
                    which = int(running[endless][0])
                    episode = f"episode {which + 1} (seed {seed + which})"
                    raise endless_episode(env_id, episode, max_steps, or_else="raise eval_max_steps")
                if over.any():
                    watch(envs)
                    successes[running[active & over]] = read_successes(infos, count)[active & over]
                    # Idle environments are reset too, so that stepping them stays allowed.
                    # Each environment that ended its episode gets the next one, or -1 if there is none left.
                    for slot in np.flatnonzero(over & active):
                        running[slot] = started if started < episodes else -1
                        started += int(running[slot] >= 0)
                    seeds: list[int | None] = [seed + max(int(k), 0) for k in running]
                    obs, _ = envs.reset(seed=seeds, options={"reset_mask": over})
    finally:
        envs.close()
    known = None if None in successes else tuple(map(bool, successes))
    return EvaluationResult(env_id, tuple(map(float, returns)), tuple(map(int, lengths)), known, notes)


def _fitted(
    policy: Policy, envs: Any, env_id: str, *, deterministic: bool
) -> tuple[Callable[[Tensor], Tensor], tuple[str, ...]]:
    """A policy's actions as these environments take them, and notes about differences."""
    spaces = space_spec(envs.envs[0])
    differ = policy.spaces.check_env(spaces, env_id)
    act = partial(policy.act, deterministic=deterministic)
    if differ is None:
        return act, ()
    return lambda obs: spaces.action.confine(act(obs)), (f"{differ}: {spaces.action.kept}",)


def read_successes(infos: Mapping[str, Any], count: int) -> Any:
    """Success as each environment reports it, by either of the names in use; None if it does not."""
    for name in ("is_success", "success"):
        if name in infos:
            return np.where(infos[f"_{name}"], infos[name], None)
    return np.full(count, None)


# Random and expert returns, from the reference scores that D4RL publishes with its tasks.
REFERENCE_RETURNS: dict[str, tuple[float, float]] = {
    "halfcheetah": (-280.178953, 12135.0),
    "hopper": (-20.272305, 3234.3),
    "walker2d": (1.629008, 4592.3),
    "ant": (-325.6, 3879.7),
    "antmaze": (0.0, 1.0),
    "pen": (96.262799, 3076.8331017826877),
    "door": (-56.512833, 2880.5693087298737),
    "hammer": (-274.856578, 12794.134825156867),
    "relocate": (-6.425911, 4233.877797728884),
    "maze2d-open-v0": (0.01, 20.66),
    "maze2d-umaze-v1": (23.85, 161.86),
    "maze2d-medium-v1": (13.13, 277.39),
    "maze2d-large-v1": (6.7, 273.99),
    "maze2d-open-dense-v0": (11.17817, 27.166538620695782),
    "maze2d-umaze-dense-v1": (68.537689, 193.66285642381482),
    "maze2d-medium-dense-v1": (44.264742, 297.4552547777125),
    "maze2d-large-dense-v1": (30.569041, 303.4857382709002),
    "kitchen": (0.0, 4.0),
}


def reference_returns(task: str) -> tuple[float, float] | None:
    """Random and expert returns of a D4RL task, or of its Gymnasium environment; None if there are none."""
    name = task.lower()
    # Hopper-v4, hopper-medium-v2, AdroitHandDoor-v1: the score depends on the family.
    family = re.split(r"[-_]", name.removeprefix("adroithand"))[0]
    return REFERENCE_RETURNS.get(name, REFERENCE_RETURNS.get(family))


def normalized_score(task: str, value: float) -> float | None:
    """The score of a return on a task, or None where the task has no reference returns."""
    if (reference := reference_returns(task)) is None:
        return None
    random, expert = reference
    return 100 * (value - random) / (expert - random)
