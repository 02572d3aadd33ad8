"""Policies in environments: the only place that steps them, and that knows how they are reset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.algorithms import Algorithm
from rl_training.data import ReplayBuffer
from rl_training.envs import AutoresetMode, make_vector_env
from rl_training.runtime.randomness import forked
from rl_training.runtime.scores import normalized_score

EVAL_SEED = 10_000
"""Episode k of an evaluation starts from seed EVAL_SEED + k, so every policy is judged on the same episodes."""


@dataclass(frozen=True)
class EvaluationResult:
    """Raw environment returns and lengths, episode by episode, in the order of their seeds."""

    env_id: str
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    successes: tuple[bool, ...] | None = None
    """Whether each episode ended in success, where the task says so."""

    def metrics(self) -> dict[str, float]:
        """Mean and spread, the share of successes and the D4RL score where the task has them."""
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
        return {**self.metrics(), **episodes}


def evaluate_policy(
    act: Callable[[Tensor], Tensor],
    env_id: str,
    env_kwargs: Mapping[str, Any],
    *,
    episodes: int,
    num_envs: int | None = None,
    seed: int = EVAL_SEED,
    device: torch.device | str = "cpu",
) -> EvaluationResult:
    """Run episodes with fixed seeds in a vector environment, on raw reward; draws nothing from training's generator."""
    count = min(num_envs or 10, episodes)
    envs = make_vector_env(env_id, env_kwargs, num_envs=count, raw_rewards=True)
    returns, lengths = np.zeros(episodes), np.zeros(episodes, dtype=int)
    successes: Any = np.full(episodes, None)
    running = np.arange(count)
    started = count
    try:
        with forked(seed, device):
            obs, _ = envs.reset(seed=[seed + int(k) for k in running])
            while (running >= 0).any():
                actions = act(torch.as_tensor(obs, dtype=torch.float32, device=device)).cpu().numpy()
                obs, rewards, terminated, truncated, infos = envs.step(actions)
                active, over = running >= 0, terminated | truncated
                returns[running[active]] += rewards[active]
                lengths[running[active]] += 1
                if over.any():
                    successes[running[active & over]] = _successes(infos, count)[active & over]
                    # Idle environments are reset too, so that stepping them stays allowed.
                    running, started = _next_episodes(running, over & active, started, episodes)
                    seeds: list[int | None] = [seed + max(int(k), 0) for k in running]
                    obs, _ = envs.reset(seed=seeds, options={"reset_mask": over})
    finally:
        envs.close()
    known = None if None in successes else tuple(map(bool, successes))
    return EvaluationResult(env_id, tuple(map(float, returns)), tuple(map(int, lengths)), known)


def _successes(infos: Mapping[str, Any], count: int) -> Any:
    """Whether each environment reports success, by either of the names in use; None where it says nothing."""
    for name in ("is_success", "success"):
        if name in infos:
            return np.where(infos[f"_{name}"], infos[name], None)
    return np.full(count, None)


def _next_episodes(running: Any, ended: Any, started: int, episodes: int) -> tuple[Any, int]:
    """Give each environment that finished its episode the next one, or -1 when there is none left."""
    running = running.copy()
    for slot in np.flatnonzero(ended):
        running[slot] = started if started < episodes else -1
        started += running[slot] >= 0
    return running, started


@dataclass(frozen=True)
class StepResult:
    """What one step of all environments led to; rows outside `valid` are resets, which belong to no episode."""

    next_obs: NDArray[Any]
    rewards: NDArray[Any]
    terminations: NDArray[np.bool_]
    truncations: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    successes: NDArray[Any]
    """Of the episodes that ended: whether in success, None where the task does not say."""

    @property
    def ends(self) -> NDArray[np.bool_]:
        """Where an episode ended."""
        return self.terminations | self.truncations


class Stepper:
    """A vector environment in which every step is one of the task, however the environment resets itself.

    `obs` is what to act on. Environments that wait to be reset are; for those that reset themselves in the step that
    ends an episode, its last observation is found in `infos`; the step in which one that resets itself afterwards
    brings nothing but a new observation is not valid.
    """

    def __init__(self, envs: Any, *, seed: int) -> None:
        self.envs = envs
        self.mode = AutoresetMode(envs.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self.restart(seed)

    def restart(self, seed: int) -> None:
        """New episodes everywhere, from this seed on, one for each environment."""
        self.seed = seed
        # Copied, since environments may write into the arrays they gave before.
        self.obs = np.array(self.envs.reset(seed=seed)[0])
        self.was_over = np.zeros(self.envs.num_envs, dtype=bool)

    def step(self, actions: NDArray[Any]) -> StepResult:
        """All environments, by one step."""
        obs, rewards, terminations, truncations, infos = self.envs.step(actions)
        over, valid = terminations | truncations, np.ones_like(terminations)
        next_obs, ended = np.array(obs), infos
        if self.mode == AutoresetMode.NEXT_STEP:
            valid, self.was_over = ~self.was_over, over
        elif self.mode == AutoresetMode.SAME_STEP and over.any():
            next_obs[over] = np.stack(infos["final_obs"][over])
            ended = infos["final_info"]
        elif self.mode == AutoresetMode.DISABLED and over.any():
            obs, _ = self.envs.reset(options={"reset_mask": over.copy()})
        self.obs = np.array(obs)
        return StepResult(
            next_obs, rewards.copy(), terminations.copy(), truncations.copy(), valid, _successes(ended, len(over))
        )

    def state_dict(self) -> dict[str, Any]:
        """The state of every environment, or none where one of them has a state that cannot be saved."""
        snapshots = list(self.envs.get_attr("snapshot")) if self.mode == AutoresetMode.DISABLED else [None]
        return {
            "seed": self.seed,
            "obs": torch.from_numpy(self.obs),
            "was_over": torch.from_numpy(self.was_over),
            "snapshots": None if None in snapshots else snapshots,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Go on where `state_dict` found the environments; false, with new episodes, where it did not know how."""
        if state["snapshots"] is None:
            # Not from the seeds of before, or the run would see its first episodes again.
            self.restart(state["seed"] + self.envs.num_envs)
            return False
        self.seed = state["seed"]
        self.envs.set_attr("snapshot", state["snapshots"])
        self.obs, self.was_over = state["obs"].numpy().copy(), state["was_over"].numpy().copy()
        return True


class RunningStatistics:
    """Mean and standard deviation of all rows so far, by Chan's update of sums of squares."""

    def __init__(self, width: int) -> None:
        self.count, self.mean, self.squares = 0, np.zeros(width), np.zeros(width)

    def add(self, rows: NDArray[Any]) -> None:
        """Take in some rows."""
        if not len(rows):
            return
        total, shift = self.count + len(rows), rows.mean(0) - self.mean
        self.squares += ((rows - rows.mean(0)) ** 2).sum(0) + shift**2 * (self.count * len(rows) / total)
        self.mean += shift * (len(rows) / total)
        self.count = total

    def moments(self, *, epsilon: float = 1e-3) -> tuple[Tensor, Tensor]:
        """Mean, and standard deviation plus epsilon."""
        std = np.sqrt(self.squares / max(self.count, 1)) + epsilon
        return torch.from_numpy(self.mean).float(), torch.from_numpy(std).float()

    def state_dict(self) -> dict[str, Any]:
        """Count and sums."""
        arrays = {"mean": self.mean, "squares": self.squares}
        return {"count": self.count} | {name: torch.from_numpy(value.copy()) for name, value in arrays.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self.count, self.mean, self.squares = state["count"], state["mean"].numpy(), state["squares"].numpy()


class Collector:
    """A policy at work: steps environments, fills the buffer, and remembers how episodes went."""

    def __init__(
        self,
        algorithm: Algorithm,
        stepper: Stepper,
        buffer: ReplayBuffer,
        *,
        noise: float = 0.0,
        normalize: bool = False,
    ) -> None:
        self.algorithm, self.stepper, self.buffer, self.noise = algorithm, stepper, buffer, noise
        self.obs_dim = algorithm.model.obs_dim
        self.statistics = RunningStatistics(self.obs_dim) if normalize else None
        self.num_envs = stepper.envs.num_envs
        self.returns, self.lengths = np.zeros(self.num_envs), np.zeros(self.num_envs, dtype=int)
        self.episodes: list[tuple[float, int, bool | None]] = []
        """Return, length and success of the episodes that ended since the last call of `metrics`."""

    def collect(self, *, random: bool) -> int:
        """One step of every environment, by uniform actions or by the policy's; how many steps of the task it was."""
        obs = self.stepper.obs
        space = self.algorithm.action_space
        actions = space.sample(self.num_envs).numpy() if random else self._policy_actions(obs)
        result = self.stepper.step(actions)
        self.buffer.add(
            obs=obs,
            actions=actions,
            rewards=result.rewards,
            next_obs=result.next_obs,
            terminations=result.terminations,
            truncations=result.truncations,
            mask=None if result.valid.all() else result.valid,
        )
        self._account(result)
        if self.statistics is not None:
            self.statistics.add(self._networks_see(result.next_obs[result.valid]))
            self.algorithm.set_obs_statistics(*self.statistics.moments())
        return int(result.valid.sum())

    def _policy_actions(self, obs: NDArray[Any]) -> NDArray[Any]:
        # A task with goals may tell more than the policy is to see.
        seen = torch.as_tensor(obs[:, : self.obs_dim], dtype=torch.float32, device=self.algorithm.obs_mean.device)
        actions: NDArray[Any] = self.algorithm.explore(seen, noise=self.noise).cpu().numpy()
        return actions

    def _networks_see(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Observations as updates will show them: where rows end with a goal achieved, with that as the goal, too."""
        goal_dim = rows.shape[1] - self.obs_dim
        seen = rows[:, : self.obs_dim]
        if not goal_dim:
            return seen
        return np.concatenate([seen, np.hstack([seen[:, :-goal_dim], rows[:, self.obs_dim :]])])

    def _account(self, result: StepResult) -> None:
        self.returns += np.where(result.valid, result.rewards, 0)
        self.lengths += result.valid
        for slot in np.flatnonzero(result.ends & result.valid):
            success = result.successes[slot]
            self.episodes.append(
                (float(self.returns[slot]), int(self.lengths[slot]), None if success is None else bool(success))
            )
            self.returns[slot], self.lengths[slot] = 0, 0

    def metrics(self) -> dict[str, float]:
        """Means over the episodes that ended since the last call; empty if none did."""
        if not self.episodes:
            return {}
        returns, lengths, successes = zip(*self.episodes, strict=True)
        self.episodes = []
        report = {
            "episodes": len(returns),
            "return_mean": float(np.mean(returns)),
            "length_mean": float(np.mean(lengths)),
        }
        return report if None in successes else report | {"success_rate": float(np.mean(successes))}

    def state_dict(self) -> dict[str, Any]:
        """Environments and running episodes, in tensors and plain values."""
        return {
            "stepper": self.stepper.state_dict(),
            "returns": torch.from_numpy(self.returns.copy()),
            "lengths": torch.from_numpy(self.lengths.copy()),
            "episodes": [list(episode) for episode in self.episodes],
            "statistics": None if self.statistics is None else self.statistics.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Go on where `state_dict` found the collector; false where new episodes had to begin."""
        self.episodes = [(value, length, success) for value, length, success in state["episodes"]]
        if self.statistics is not None:
            self.statistics.load_state_dict(state["statistics"])
        if not self.stepper.load_state_dict(state["stepper"]):
            self.buffer.break_streams()
            return False
        self.returns, self.lengths = state["returns"].numpy().copy(), state["lengths"].numpy().copy()
        return True

    def close(self) -> None:
        """Let go of the environments."""
        self.stepper.envs.close()
