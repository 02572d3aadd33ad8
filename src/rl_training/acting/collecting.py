"""Collecting: a policy acts in the environments of a run, and the transitions go to a buffer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.acting.evaluation import read_successes
from rl_training.acting.policy import Policy
from rl_training.core.batches import Acted
from rl_training.core.errors import DivergedError, TrainingError, UserCodeError
from rl_training.data import ReplayBuffer
from rl_training.envs import AutoresetMode

SCALED_REWARDS = "scaled_rewards"
"""The column of a buffer that the collector fills, and not the model."""

LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class StepResult:
    """One step of all environments, in native units; rows outside `valid` are resets, which belong to no episode."""

    obs: NDArray[Any]
    actions: NDArray[Any]
    next_obs: NDArray[Any]
    rewards: NDArray[Any]
    terminations: NDArray[np.bool_]
    truncations: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    successes: NDArray[Any]
    """Whether the episodes that ended were successful; None if the task does not report it."""

    @property
    def ends(self) -> NDArray[np.bool_]:
        """Where an episode ended."""
        return self.terminations | self.truncations


class Stepper:
    """A vector environment whose steps are those of the task, in every mode of resetting that Gymnasium has.

    `obs` is the observation to act on. Environments that do not reset themselves are reset here. If they reset
    themselves in the last step of an episode, its last observation comes from `infos`. If they reset themselves in the
    step after it, that step is marked as not valid.
    """

    def __init__(self, envs: Any, *, seed: int) -> None:
        self.envs = envs
        self.mode = AutoresetMode(envs.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self.is_broken = False
        """Whether an environment has failed: it is not used any more, and a resumed run begins new episodes."""
        self.restart(seed)

    def restart(self, seed: int) -> None:
        """New episodes everywhere, from this seed on, one for each environment."""
        self.seed = seed
        # Copied, since environments may write into the arrays they gave before.
        self.obs = np.array(self.envs.reset(seed=seed)[0])
        self.was_over = np.zeros(self.envs.num_envs, dtype=bool)

    def step(self, actions: NDArray[Any]) -> StepResult:
        """All environments, by one step."""
        try:
            return self._step(actions)
        except UserCodeError:
            self.is_broken = True
            raise

    def _step(self, actions: NDArray[Any]) -> StepResult:
        before = self.obs
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
        outcome, successes = (rewards.copy(), terminations.copy(), truncations.copy()), read_successes(ended, len(over))
        return StepResult(before, actions, next_obs, *outcome, valid=valid, successes=successes)

    def state_dict(self) -> dict[str, Any]:
        """The state of every environment, or none where one of them has a state that cannot be saved."""
        knows = self.mode == AutoresetMode.DISABLED and not self.is_broken
        snapshots = list(self.envs.get_attr("snapshot")) if knows else [None]
        return {
            "seed": self.seed,
            "obs": torch.from_numpy(self.obs),
            "was_over": torch.from_numpy(self.was_over),
            "snapshots": None if None in snapshots else snapshots,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Restore the environments; false, with new episodes, if their state could not be saved."""
        if state["snapshots"] is None:
            # Not from the seeds of before, or the run would see its first episodes again.
            self.restart(state["seed"] + self.envs.num_envs)
            return False
        self.seed = state["seed"]
        self.envs.set_attr("snapshot", state["snapshots"])
        self.obs, self.was_over = _like(state["obs"], self.obs), _like(state["was_over"], self.was_over)
        return True


def _like(saved: torch.Tensor, own: NDArray[Any]) -> NDArray[Any]:
    """A copy of saved values, which must be as many as there are, and of their type."""
    found: NDArray[Any] = saved.numpy().copy()
    if (found.shape, found.dtype) != (own.shape, own.dtype):
        raise ValueError(f"expected {own.dtype} of shape {own.shape}, got {found.dtype} of shape {found.shape}")
    return found


def _refuse_broken(name: str, values: NDArray[Any], lengths: NDArray[Any]) -> None:
    """Refuse values of environments that are not finite; `lengths` are those of the running episodes."""
    # What is stored are 32 bits, which hold less. Comparisons with what is no number are false.
    if values.min() >= -LARGEST and values.max() <= LARGEST:
        return
    with np.errstate(over="ignore"):
        wrong = ~np.isfinite(values.astype(np.float32))
    if wrong.any():
        slot, *column = np.argwhere(wrong)[0].tolist()
        place = f"environment {slot}, after {lengths[slot]} steps of an episode"
        place += f", column {column[0]}" if column else ""
        advice = "look at its step() and reset(), not at the training"
        raise TrainingError(f"the environment gave {name} that is {values[wrong][0]} ({place}): {advice}")


class RunningStatistics:
    """Mean and standard deviation of all rows so far, by Chan's update of sums of squares."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count, self.mean, self.squares = 0, np.zeros(shape), np.zeros(shape)

    def add(self, rows: NDArray[Any]) -> None:
        """Add some rows."""
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
        return {"count": self.count, "mean": torch.tensor(self.mean), "squares": torch.tensor(self.squares)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.count, self.mean, self.squares = state["count"], state["mean"].numpy(), state["squares"].numpy()


class RewardScaler:
    """Rewards divided by the standard deviation of discounted returns so far, within -10 and 10."""

    def __init__(self, num_envs: int, *, gamma: float) -> None:
        self.gamma, self.returns, self.statistics = gamma, np.zeros(num_envs), RunningStatistics((1,))

    def scale(self, rewards: NDArray[Any], ends: NDArray[np.bool_], valid: NDArray[np.bool_]) -> NDArray[np.float32]:
        """The scaled rewards of one step of all environments, which count among the returns from now on."""
        self.returns = np.where(valid, self.gamma * self.returns + rewards, self.returns)
        self.statistics.add(self.returns[valid][:, None])
        variance = self.statistics.squares[0] / max(self.statistics.count, 1)
        self.returns = np.where(ends, 0.0, self.returns)
        scaled: NDArray[np.float32] = np.clip(rewards / np.sqrt(variance + 1e-8), -10, 10).astype(np.float32)
        return scaled

    def state_dict(self) -> dict[str, Any]:
        """Returns of the running episodes, and their statistics."""
        return {"returns": torch.tensor(self.returns), "statistics": self.statistics.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.returns = state["returns"].numpy().copy()
        self.statistics.load_state_dict(state["statistics"])


class Collector(Protocol):
    """Acts in a run: takes steps of the task and adds the transitions to a buffer."""

    buffer: ReplayBuffer
    last_step: StepResult | None
    """The last step of all environments, for callbacks."""

    def collect(self, *, random: bool, noise: float = 0.0) -> int:
        """Act, by uniform actions or by the policy with noise; the number of steps of the task that were taken."""

    def metrics(self) -> dict[str, float]:
        """Means over the episodes that ended since the last call; empty if none did."""

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs, in tensors and plain values."""

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Restore what `state_dict` returned; false if new episodes had to begin."""

    def close(self) -> None:
        """Release the environments."""


class LocalCollector:
    """Steps a vector environment in this process, fills the buffer, and records episodes."""

    def __init__(self, policy: Policy, stepper: Stepper, buffer: ReplayBuffer, *, normalize: bool = False) -> None:
        self.policy, self.stepper, self.buffer = policy, stepper, buffer
        self.last_step: StepResult | None = None
        self.num_envs = stepper.envs.num_envs
        self.statistics = RunningStatistics(policy.spaces.obs_column.shape) if normalize else None
        scales = SCALED_REWARDS in buffer.fields
        self.scaler = RewardScaler(self.num_envs, gamma=buffer.gamma) if scales else None
        self.returns, self.lengths = np.zeros(self.num_envs), np.zeros(self.num_envs, dtype=int)
        self.episodes: list[tuple[float, int, bool | None]] = []
        """Return, length and success of the episodes that ended since the last call of `metrics`."""

    def collect(self, *, random: bool, noise: float = 0.0) -> int:
        """Step every environment once, by uniform actions or by the policy's, and count the steps of the task."""
        obs = self.stepper.obs
        if self.last_step is None or self.last_step.ends.any():
            # Later ones were looked at after the step that led to them.
            _refuse_broken("an observation", obs, self.lengths)
        # In a task with goals, an observation ends with the goal achieved, which the policy does not see.
        device, obs_dim = self.policy.obs_mean.device, self.policy.spaces.obs_dim
        seen = torch.as_tensor(obs[:, :obs_dim], dtype=torch.float32, device=device)
        acted = self.policy.sample(seen) if random else self._explore(seen, noise)
        actions = acted.actions.numpy(force=True)
        if not np.isfinite(actions).all():
            raise DivergedError(f"the policy gave an action that is {actions[~np.isfinite(actions)][0]}")
        result = self.last_step = self.stepper.step(actions)
        _refuse_broken("a reward", result.rewards, self.lengths)
        _refuse_broken("an observation", result.next_obs, self.lengths)
        extras: dict[str, Any] = dict(acted.extras)
        if self.scaler is not None:
            rewards = self.buffer.transformed(torch.as_tensor(result.rewards, dtype=torch.float32)).numpy(force=True)
            extras[SCALED_REWARDS] = self.scaler.scale(rewards, result.ends, result.valid)
        self.buffer.add(
            obs=obs,
            actions=acted.raw_actions,
            rewards=result.rewards,
            next_obs=result.next_obs,
            terminations=result.terminations,
            truncations=result.truncations,
            mask=None if result.valid.all() else result.valid,
            **extras,
        )
        self._account(result)
        if self.statistics is not None:
            self.statistics.add(self._networks_see(result.next_obs[result.valid]))
            mean, std = self.statistics.moments()
            # A mask at the beginning of observations stays as it is.
            masked = slice(self.policy.spaces.mask_dim)
            mean[masked], std[masked] = 0, 1
            self.policy.set_obs_statistics(mean, std)
        return int(result.valid.sum())

    def _explore(self, obs: Tensor, noise: float) -> Acted:
        try:
            return self.policy.explore(obs, noise=noise)
        except RuntimeError:
            # Probabilities that are not numbers cannot be drawn from.
            if all(bool(each.isfinite().all()) for each in self.policy.model.parameters()):
                raise
            raise DivergedError("the policy's weights are not numbers, and it cannot act") from None

    def _networks_see(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Observations as updates show them: with goals, each a second time with the achieved goal as the desired."""
        seen, achieved = np.split(rows, [self.policy.spaces.obs_dim], axis=1)
        goal_dim = achieved.shape[1]
        if not goal_dim:
            return seen
        return np.concatenate([seen, np.hstack([seen[:, :-goal_dim], achieved])])

    def _account(self, result: StepResult) -> None:
        self.returns += np.where(result.valid, result.rewards, 0)
        self.lengths += result.valid
        for slot in np.flatnonzero(result.ends & result.valid):
            success = result.successes[slot]
            ended = float(self.returns[slot]), int(self.lengths[slot]), None if success is None else bool(success)
            self.episodes.append(ended)
            self.returns[slot], self.lengths[slot] = 0, 0

    def metrics(self) -> dict[str, float]:
        """Means over the episodes that ended since the last call; empty if none did."""
        if not self.episodes:
            return {}
        returns, lengths, successes = zip(*self.episodes, strict=True)
        self.episodes = []
        means = {"return_mean": returns, "length_mean": lengths}
        means |= {} if None in successes else {"success_rate": successes}
        return {"episodes": len(returns), **{name: float(np.mean(values)) for name, values in means.items()}}

    def state_dict(self) -> dict[str, Any]:
        """Environments and running episodes, in tensors and plain values."""
        return {
            "stepper": self.stepper.state_dict(),
            "returns": torch.tensor(self.returns),
            "lengths": torch.tensor(self.lengths),
            "episodes": [list(episode) for episode in self.episodes],
            "statistics": None if self.statistics is None else self.statistics.state_dict(),
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Restore what `state_dict` returned; false if new episodes had to begin."""
        self.last_step = None
        self.episodes = [(value, length, success) for value, length, success in state["episodes"]]
        if self.statistics is not None:
            self.statistics.load_state_dict(state["statistics"])
        if self.scaler is not None:
            self.scaler.load_state_dict(state["scaler"])
        if not self.stepper.load_state_dict(state["stepper"]):
            self.buffer.break_streams()
            return False
        self.returns, self.lengths = _like(state["returns"], self.returns), _like(state["lengths"], self.lengths)
        return True

    def close(self) -> None:
        """Close the environments."""
        self.stepper.envs.close()
