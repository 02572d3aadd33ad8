"""Hindsight: what was reached is what was asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.data.replay_buffer import EpisodeReplayBuffer
from rl_training.types import Batch

Strategy = Literal["future", "final", "episode"]
GoalFunction = Callable[[NDArray[Any], NDArray[Any]], Any]
"""From goals achieved and goals desired, row by row, to rewards, or to whether the task has ended."""


class HindsightReplayBuffer(EpisodeReplayBuffer):
    """Whole episodes, whose goals are exchanged in a share of each batch for goals that the episode achieved later.

    Observations that are added end with the goal desired and then the goal achieved; those that are drawn end with the
    goal desired. `her_ratio` is the chance of a row to be relabelled. The new goal is what was achieved after a row
    drawn from the rest of the episode, its own step included (`future`), after the last row (`final`) or after any
    (`episode`). Rewards are computed anew, and where the task ends on success, terminations too.
    """

    def __init__(
        self,
        *,
        goal_dim: int,
        compute_reward: GoalFunction,
        compute_terminated: GoalFunction | None = None,
        her_ratio: float = 0.8,
        strategy: Strategy = "future",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.goal_dim, self.her_ratio, self.strategy = goal_dim, her_ratio, strategy
        self.compute_reward, self.compute_terminated = compute_reward, compute_terminated
        self._add_fields(achieved=goal_dim)
        self._add_fields(starts=None, stops=None, dtype=torch.int64)
        self._counts = torch.zeros(3, dtype=torch.float64)
        """Rows drawn, rows relabelled, and the sum of their rewards, since they were last asked for."""

    def _take(self, rows: Batch) -> None:
        width = self.fields["obs"].shape[1]
        rows["achieved"] = rows["next_obs"][:, width:]
        rows["obs"], rows["next_obs"] = rows["obs"][:, :width], rows["next_obs"][:, :width]
        super()._take(rows)

    def _complete(self, rows: Batch) -> Batch:
        rows = super()._complete(rows)
        rows["starts"] = torch.full_like(rows["streams"], self.added, dtype=torch.int64)
        rows["stops"] = rows["starts"] + len(rows["streams"])
        return rows

    def _drawable(self) -> tuple[int, int]:
        """The rows of episodes that are still there from their beginning."""
        oldest = self.added - len(self)
        if not self.added:
            return oldest, self.added
        start, stop = (int(self.fields[name][oldest % self.capacity]) for name in ("starts", "stops"))
        return (oldest if start == oldest else stop), self.added

    def sample(self, batch_size: int) -> Batch:
        """A batch of rows drawn uniformly with replacement from whole episodes, a share of them relabelled."""
        rows = self._draw(batch_size)
        chosen = torch.rand(batch_size, generator=self.generator) < self.her_ratio
        place = torch.rand(batch_size, generator=self.generator)
        return self._relabel(rows, chosen.to(self.device), place.to(self.device))

    def _relabel(self, rows: Tensor, chosen: Tensor, place: Tensor) -> Batch:
        """The batch of rows with these numbers; `place` in [0, 1) says which goal a chosen one gets."""
        index = rows % self.capacity
        window, follows = self._window(index) if self.n_step > 1 else (index[:, None], chosen.new_ones(len(index), 1))
        goals = self._goals(rows, place)[chosen]
        rewards, dones = self.fields["rewards"][window], self.fields["dones"][window]
        achieved = self.fields["achieved"][window[chosen]]
        desired = goals[:, None].expand_as(achieved)
        virtual = self._compute(self.compute_reward, achieved, desired)
        rewards[chosen] = virtual
        if self.compute_terminated is not None:
            dones[chosen] = self._compute(self.compute_terminated, achieved, desired)
        batch = self._sum(window, self._transformed(rewards), dones, follows)
        for name in ("obs", "next_obs"):
            batch[name][chosen, -self.goal_dim :] = goals
        self._counts += torch.tensor([len(rows), len(goals), float(virtual[:, 0].sum())])
        return batch if self.n_step > 1 else {name: value for name, value in batch.items() if name != "discounts"}

    def _goals(self, rows: Tensor, place: Tensor) -> Tensor:
        """What the episode of each row achieved at a place that the strategy allows."""
        starts, stops = (self.fields[name][rows % self.capacity] for name in ("starts", "stops"))
        if self.strategy == "final":
            source = stops - 1
        else:
            low = rows if self.strategy == "future" else starts
            source = torch.minimum(low + ((stops - low) * place).long(), stops - 1)
        return self.fields["achieved"][source % self.capacity]

    def _compute(self, function: GoalFunction, achieved: Tensor, desired: Tensor) -> Tensor:
        """A function of goals for windows of them (B, n, goal)."""
        flat = (values.reshape(-1, self.goal_dim).numpy(force=True) for values in (achieved, desired))
        values = np.asarray(function(*flat), dtype=np.float32)
        return torch.from_numpy(values).reshape(achieved.shape[:-1]).to(self.device)

    def metrics(self) -> dict[str, float]:
        """The share of relabelled rows since the last call, and their mean reward."""
        drawn, relabelled, rewards = self._counts.tolist()
        self._counts.zero_()
        shares = {"virtual_share": relabelled / max(drawn, 1), "virtual_reward_mean": rewards / max(relabelled, 1)}
        return super().metrics() | shares

    def state_dict(self) -> dict[str, Any]:
        """Where the buffer is, without its rows."""
        return {**super().state_dict(), "counts": self._counts.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` found the buffer, once `restore` has brought its rows back."""
        super().load_state_dict(state)
        self._counts.copy_(state["counts"])
