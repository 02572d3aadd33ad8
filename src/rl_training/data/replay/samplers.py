"""Samplers: blocks, uniform rows, windows, n-step sums, relabelled goals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.core.batches import Batch
from rl_training.core.errors import DatasetError
from rl_training.data.rows import Rows

if TYPE_CHECKING:
    from rl_training.data.offline_dataset import TransitionDataset


BLOCK = 64
"""Batches gathered at a time: one index_select per field and block costs a quarter of one per batch."""


class Source:
    """A stream of batches; its state is the position in that stream."""

    inner: Source | None = None
    """The source that this one wraps, if any. Metrics and the number of rows come from it by default."""
    saved: ClassVar[tuple[str, ...]] = ()
    """The attributes that are the state: plain values, tensors, generators and other sources."""

    @property
    def num_drawable(self) -> int:
        """The number of rows that batches are drawn from."""
        if self.inner is None:
            raise NotImplementedError
        return self.inner.num_drawable

    def sample(self, batch_size: int) -> Batch:
        """The next batch."""
        raise NotImplementedError

    def metrics(self) -> dict[str, float]:
        """Facts about the batches drawn since the last call."""
        return {} if self.inner is None else self.inner.metrics()

    def state_dict(self) -> dict[str, Any]:
        """The position in the stream, in tensors and plain values."""
        return {name: _state(getattr(self, name)) for name in self.saved}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` found the stream."""
        for name in self.saved:
            part = getattr(self, name)
            if isinstance(part, Source):
                part.load_state_dict(state[name])
            elif isinstance(part, torch.Generator):
                part.set_state(state[name])
            else:
                setattr(self, name, _state(state[name]))


def _state(part: Any) -> Any:
    """The state of an attribute; a copy, so that it stays as it is."""
    if isinstance(part, Source):
        return part.state_dict()
    if isinstance(part, torch.Generator):
        return part.get_state()
    return part.clone() if isinstance(part, Tensor) else part


class BlockSampler(Source):
    """Uniform batches with replacement from a log, gathered many at a time and handed out as views."""

    saved = ("block_start", "offset", "batch_size")

    def __init__(self, fields: Mapping[str, Tensor], *, seed: int) -> None:
        self.fields = fields
        self.generator = torch.Generator().manual_seed(seed)
        self.batch_size, self.offset = 0, BLOCK
        """The batches of this size that were used of the block."""
        self.block_start = self.generator.get_state()
        """The generator before the block was drawn."""
        self.block: list[Batch] = []

    @property
    def num_drawable(self) -> int:
        """The number of rows that batches are drawn from."""
        return len(next(iter(self.fields.values())))

    def sample(self, batch_size: int) -> Batch:
        """The next batch of the stream; another batch size begins another block."""
        if self.offset == BLOCK or batch_size != self.batch_size:
            self.block_start = self.generator.get_state()
            self._gather(batch_size)
            self.offset = 0
        self.offset += 1
        return self.block[self.offset - 1]

    def _gather(self, batch_size: int) -> None:
        if batch_size < 1:
            raise DatasetError(f"batch_size must be >= 1, got {batch_size}")
        index = torch.randint(self.num_drawable, (BLOCK * batch_size,), generator=self.generator)
        drawn = {name: value.index_select(0, index.to(value.device)) for name, value in self.fields.items()}
        gathered = {name: torch.split(value, batch_size) for name, value in drawn.items()}
        self.block = [{name: parts[k] for name, parts in gathered.items()} for k in range(BLOCK)]
        self.batch_size = batch_size

    def replace_fields(self, fields: Mapping[str, Tensor]) -> None:
        """Draw the same rows from now on, but with other values."""
        self.fields = fields
        if self.block:
            self.load_state_dict(self.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` found the stream."""
        super().load_state_dict(state)
        self.generator.set_state(self.block_start)
        if self.batch_size:
            self._gather(self.batch_size)


class UniformSource(Source):
    """Uniform batches with replacement from a log or a ring; sums and new goals are derived from the rows drawn.

    Rewards are summed over `n_step` steps, and goals are relabelled by `hindsight`. `transform` is applied to raw
    rewards: to those of rows if `is_raw`, and to those that hindsight computes.
    """

    saved: ClassVar[tuple[str, ...]] = ("generator", "relabelled")

    def __init__(
        self,
        rows: Rows,
        fields: Iterable[str],
        *,
        seed: int = 0,
        gamma: float = 0.99,
        n_step: int = 1,
        transform: Callable[[Tensor], Tensor] | None = None,
        is_raw: bool = True,
        hindsight: Hindsight | None = None,
    ) -> None:
        self.rows, self.names = rows, tuple(fields)
        self.gamma, self.n_step, self.transform, self.is_raw = gamma, n_step, transform, is_raw
        self.hindsight = hindsight
        self.generator = torch.Generator().manual_seed(seed)
        self.relabelled: list[Any] = [0, 0, 0.0]
        """Rows drawn, rows relabelled, and the sum of their rewards, since the last call of `metrics`."""

    def drawable(self) -> tuple[int, int]:
        """The number of the first row that can be drawn, and of the row after the last."""
        return self.rows.first, self.rows.stop

    @property
    def num_drawable(self) -> int:
        """The number of rows that batches are drawn from."""
        first, stop = self.drawable()
        return max(stop - first, 0)

    def draw(self, batch_size: int) -> Tensor:
        """The numbers of rows drawn uniformly."""
        first, stop = self.drawable()
        if first >= stop:
            raise DatasetError("the buffer holds no row that can be drawn")
        return torch.randint(first, stop, (batch_size,), generator=self.generator).to(self.rows.device)

    def transformed(self, rewards: Tensor) -> Tensor:
        """Raw rewards as updates see them."""
        return rewards if self.transform is None else self.transform(rewards)

    def stored_rewards(self, rows: Tensor) -> Tensor:
        """The rewards of rows as updates see them."""
        rewards = self.rows.get("rewards", rows)
        return self.transformed(rewards) if self.is_raw else rewards

    def batch(self, names: Iterable[str], rows: Tensor) -> Batch:
        """Fields of rows with these numbers, one step each."""
        batch = self.rows.take(names, rows)
        if self.is_raw and "rewards" in batch:
            batch["rewards"] = self.transformed(batch["rewards"])
        return batch

    def sample(self, batch_size: int) -> Batch:
        """A batch of rows drawn uniformly with replacement, some of them relabelled if that is on."""
        rows = self.draw(batch_size)
        if self.hindsight is not None:
            return self._relabel(self.hindsight, rows)
        if self.n_step == 1:
            return self.batch(self.names, rows)
        window, follows = self.rows.window(rows, self.n_step)
        rewards, dones = self.stored_rewards(window), self.rows.get("dones", window)
        return sum_windows(self.rows, self.names, window, follows, rewards=rewards, dones=dones, gamma=self.gamma)

    def _relabel(self, hindsight: Hindsight, rows: Tensor) -> Batch:
        is_chosen, goals = hindsight.choose(self.rows, rows, self.generator)
        window, follows = self.rows.window(rows, self.n_step)
        rewards, dones = self.stored_rewards(window), self.rows.get("dones", window)
        virtual, ended = hindsight.outcomes(self.rows, window[is_chosen], goals)
        rewards[is_chosen] = self.transformed(virtual.to(rewards.device))
        if ended is not None:
            dones[is_chosen] = ended.to(dones.device)
        batch = sum_windows(self.rows, self.names, window, follows, rewards=rewards, dones=dones, gamma=self.gamma)
        hindsight.write_goals(batch, is_chosen, goals)
        counts = (len(rows), len(goals), virtual[:, 0].sum().double())
        self.relabelled = [total + count for total, count in zip(self.relabelled, counts, strict=True)]
        if self.n_step == 1:
            del batch["discounts"]
        return batch

    def metrics(self) -> dict[str, float]:
        """With hindsight, the share of relabelled rows since the last call, and their mean reward."""
        if self.hindsight is None:
            return {}
        drawn, relabelled, rewards = map(float, self.relabelled)
        self.relabelled = [0, 0, 0.0]
        return {"virtual_share": relabelled / max(drawn, 1), "virtual_reward_mean": rewards / max(relabelled, 1)}


class WindowSource(Source):
    """Windows of consecutive rows of one episode, (batch_size, length, ...) per field, at rows that `base` draws.

    A window starts (pad right) or ends (pad left) at a row drawn uniformly and stops at the episode's bound. Rows that
    are missing are zero, and `mask` is 1 on real rows. `timesteps` counts rows from the start of the episode.
    """

    def __init__(
        self, base: UniformSource, names: Iterable[str], length: int, *, pad: Literal["left", "right"] = "right"
    ) -> None:
        if pad not in ("left", "right"):
            raise DatasetError(f"pad must be 'left' or 'right', got {pad!r}")
        self.inner = self.base = base
        self.names, self.length, self.pad = tuple(names), length, pad

    def sample(self, batch_size: int) -> Batch:
        """The next batch of windows."""
        if self.length < 1 or batch_size < 1:
            raise DatasetError(f"length and batch_size must be >= 1, got {self.length} and {batch_size}")
        store, rows = self.base.rows, self.base.draw(batch_size)
        starts, stops = (bound[:, None] for bound in store.bounds(rows))
        offset = 0 if self.pad == "right" else 1 - self.length
        window = rows[:, None] + torch.arange(offset, offset + self.length, device=rows.device)
        # The oldest episode of a ring may have lost its beginning.
        mask = (window >= starts.clamp_min(store.first)) & (window < stops)
        index = torch.where(mask, window, rows[:, None])
        values = {name: store.get(name, index) for name in self.names if name not in ("rewards", "timesteps", "mask")}
        if "rewards" in self.names:
            values["rewards"] = self.base.stored_rewards(index)
        windows = {name: _blank(value, mask) for name, value in (values | {"timesteps": window - starts}).items()}
        return windows | {"mask": mask.float()}

    def state_dict(self) -> dict[str, Any]:
        """The position in the stream of rows."""
        return self.base.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` found the rows' stream."""
        self.base.load_state_dict(state)


def _blank(values: Tensor, mask: Tensor) -> Tensor:
    return values * mask.reshape(*mask.shape, *[1] * (values.ndim - 2)).to(values.dtype)


def sum_rewards(rewards: Tensor, dones: Tensor, follows: Tensor, gamma: float) -> tuple[Tensor, Tensor, Tensor]:
    """Discounted sums over windows (B, n), the discount of the value after each, and the place of its last row.

    `follows` is true where a row belongs to the episode of the first. A window ends with its episode, and with the
    first row of `dones`; the row on which it ends counts.
    """
    counts = follows & (dones.cumsum(1) <= dones)
    lengths = counts.sum(1)
    weights = gamma ** torch.arange(rewards.shape[1], dtype=rewards.dtype, device=rewards.device)
    return (rewards * weights * counts).sum(1), weights.new_tensor(gamma) ** lengths, lengths - 1


def sum_windows(
    rows: Rows, names: Sequence[str], window: Tensor, follows: Tensor, *, rewards: Tensor, dones: Tensor, gamma: float
) -> Batch:
    """The batch of windows (B, n): their first rows, the sums of their rewards, and what came after their last.

    `rewards` and `dones` (B, n) take the place of those that are stored.
    """
    sums, discounts, last = sum_rewards(rewards, dones, follows, gamma)
    end, final = (values.gather(1, last[:, None])[:, 0] for values in (window, dones))
    now = [name for name in names if not name.startswith("next_") and name not in ("rewards", "dones")]
    after = [name for name in names if name.startswith("next_")]
    batch = rows.take(now, window[:, 0]) | rows.take(after, end)
    return batch | {"rewards": sums, "dones": final, "discounts": discounts}


def with_n_step(dataset: TransitionDataset, n_step: int, gamma: float) -> TransitionDataset:
    """The dataset whose rows reach over `n_step` steps: rewards are sums, and the next row is that after the last.

    `discounts` is the factor on the value after a row's last step; returns-to-go stay those of the first. Since rows
    overlap, they are no longer in episode order.
    """
    rows = dataset.rows
    window, follows = rows.window(rows.numbers(), n_step)
    after = ("next_obs", "next_actions", "next_action_mask", "next_valid_actions")
    names = [name for name in after if name in rows.columns]
    rewards, dones = rows.get("rewards", window), rows.get("dones", window)
    stepped = sum_windows(rows, names, window, follows, rewards=rewards, dones=dones, gamma=gamma)
    mask = stepped.pop("next_action_mask", None)
    return replace(dataset.with_fields(**stepped), next_action_mask=mask, is_ordered=False)


Strategy = Literal["future", "final", "episode"]

GoalFunction = Callable[[NDArray[Any], NDArray[Any]], Any]
"""From goals achieved and goals desired, row by row, to rewards, or to whether the task has ended."""


@dataclass(frozen=True)
class Hindsight:
    """The rule by which goals are relabelled (HER), both in rings and in logs.

    Observations end with the desired goal, and the column `achieved_goals` holds the goal achieved after each row.
    `her_ratio` is the chance of a row to be relabelled. The new goal is what was achieved after a row drawn from the
    rest of the episode, its own step included (`future`), after the last row (`final`) or after any (`episode`).
    Rewards are computed anew, and where the task ends on success, terminations too.
    """

    goal_dim: int
    compute_reward: GoalFunction
    compute_terminated: GoalFunction | None = None
    her_ratio: float = 0.8
    strategy: Strategy = "future"

    def choose(self, rows: Rows, numbers: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The rows to relabel (B,), and their new goals."""
        chosen, place = (torch.rand(len(numbers), generator=generator).to(rows.device) for _ in range(2))
        is_chosen = chosen < self.her_ratio
        starts, stops = rows.bounds(numbers)
        low = {"future": numbers, "final": stops - 1, "episode": starts}[self.strategy]
        source = torch.minimum(low + ((stops - low) * place).long(), stops - 1)
        return is_chosen, rows.get("achieved_goals", source)[is_chosen]

    def outcomes(self, rows: Rows, window: Tensor, goals: Tensor) -> tuple[Tensor, Tensor | None]:
        """Raw rewards of windows (B, n) for one goal each, and terminations where they depend on the goal.

        The task computes them with NumPy, so both are on the CPU.
        """
        achieved = rows.get("achieved_goals", window)
        desired = goals[:, None].expand_as(achieved)
        pair = [values.reshape(-1, self.goal_dim).numpy(force=True) for values in (achieved, desired)]

        def compute(function: GoalFunction) -> Tensor:
            return torch.from_numpy(np.asarray(function(*pair), dtype=np.float32)).reshape(window.shape)

        ends = self.compute_terminated
        return compute(self.compute_reward), None if ends is None else compute(ends)

    def write_goals(self, batch: Batch, is_chosen: Tensor, goals: Tensor) -> None:
        """Write the new goals into the observations of a batch."""
        for name in ("obs", "next_obs"):
            batch[name][is_chosen, -self.goal_dim :] = goals
