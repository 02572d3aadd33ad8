"""Experience as it comes: the last transitions of a run's own environments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from rl_training.data.n_step import sum_rewards
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.returns import backward_recursion
from rl_training.spaces import Column
from rl_training.types import Batch, ConfigError, DatasetError

SAMPLED = ("obs", "actions", "rewards", "next_obs", "dones")


class ReplayBuffer:
    """A ring of the last `capacity` transitions, in the order in which they came; a source of uniform batches.

    Rewards are kept as the environment gave them, and transformed when they are drawn. With several environments the
    rows of each form a stream, so that a sum over several steps never crosses from one into another.
    """

    def __init__(
        self,
        *,
        capacity: int,
        obs_dim: int,
        action_dim: int,
        action: Column | None = None,
        num_envs: int = 1,
        gamma: float = 0.99,
        n_step: int = 1,
        transform: Callable[[Tensor], Tensor] | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        if capacity < num_envs:
            raise ConfigError(f"buffer_capacity must be >= num_envs ({num_envs}), got {capacity}")
        self.capacity, self.num_envs = capacity, num_envs
        self.gamma, self.n_step, self.transform = gamma, n_step, transform
        self.device = torch.device(device)
        self.generator = torch.Generator().manual_seed(seed)
        self.added = 0
        """Rows ever added; row number k stands at k % capacity until row k + capacity takes its place."""
        self.sampled: tuple[str, ...] = SAMPLED
        self._first_stream = 0
        self.fields: dict[str, Tensor] = {}
        self._add_fields(obs=obs_dim, rewards=None, next_obs=obs_dim, dones=None)
        kept = Column((action_dim,)) if action is None else action
        self.fields["actions"] = torch.empty((capacity, *kept.shape), dtype=kept.torch_dtype, device=self.device)
        self._add_fields(truncations=None, streams=None, dtype=torch.int32)
        if n_step > 1:
            self._successors = torch.full((capacity,), -1, device=self.device)
            self._last = torch.full((num_envs,), -1, device=self.device)
            """The number of each environment's last row; -1 where nothing may follow it."""

    def _add_fields(self, *, dtype: torch.dtype = torch.float32, **widths: int | None) -> None:
        # Not filled, so that memory is taken only as rows come.
        for name, width in widths.items():
            shape = (self.capacity,) if width is None else (self.capacity, width)
            self.fields[name] = torch.empty(shape, dtype=dtype, device=self.device)

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    @property
    def num_drawable(self) -> int:
        """How many rows batches are drawn from."""
        first, stop = self._drawable()
        return max(stop - first, 0)

    def _drawable(self) -> tuple[int, int]:
        """The numbers of the first row that can be drawn and of the one after the last."""
        return self.added - len(self), self.added

    def add(
        self,
        *,
        obs: ArrayLike,
        actions: ArrayLike,
        rewards: ArrayLike,
        next_obs: ArrayLike,
        terminations: ArrayLike,
        truncations: ArrayLike,
        mask: ArrayLike | None = None,
    ) -> None:
        """One row of each environment; those outside `mask`, which no step of the task made, are left out.

        `next_obs` is what the step led to, never what a reset brought; where a step ended the task on the very step of
        a time limit, it has terminated.
        """
        values = {"obs": obs, "actions": actions, "rewards": rewards, "next_obs": next_obs, "dones": terminations}
        rows = {name: torch.as_tensor(value).to(self.device, self.fields[name].dtype) for name, value in values.items()}
        cut = torch.as_tensor(truncations).to(self.device, torch.int32)
        rows["truncations"] = cut * (rows["dones"] == 0)
        rows["streams"] = self._first_stream + torch.arange(self.num_envs, dtype=torch.int32, device=self.device)
        if mask is not None:
            kept = torch.as_tensor(mask).to(self.device).nonzero().flatten()
            rows = {name: value.index_select(0, kept) for name, value in rows.items()}
        self._take(rows)

    def _take(self, rows: Batch) -> None:
        """Rows of a step, at most one of each stream."""
        self._write(rows)

    def _write(self, rows: Batch) -> None:
        """Rows into the ring, the oldest making place."""
        count = len(rows["streams"])
        if count == 0:
            return
        added = torch.arange(self.added, self.added + count, device=self.device)
        places = added % self.capacity
        for name, value in rows.items():
            self.fields[name].index_copy_(0, places, value)
        self.added += count
        if self.n_step > 1:
            self._link(added, rows["streams"].long(), (rows["dones"] + rows["truncations"]) > 0)

    def _link(self, added: Tensor, streams: Tensor, ended: Tensor) -> None:
        """Let rows with these numbers know where their stream goes on, the last rows from before included."""
        streams, order = streams.sort(stable=True)
        added, ended = added[order], ended[order]
        places = added % self.capacity
        goes_on = streams[1:] == streams[:-1]
        edge = goes_on.new_ones(1)
        first, final = torch.cat([edge, ~goes_on]), torch.cat([~goes_on, edge])
        self._successors[places] = -1
        within = (goes_on & ~ended[:-1]).nonzero().flatten()
        self._successors[places[within]] = places[within + 1]
        before = self._last[streams[first] % self.num_envs]
        # Where a row has been overwritten since, its place is another's.
        is_there = before >= max(self.added - self.capacity, 0)
        self._successors[before[is_there] % self.capacity] = places[first][is_there]
        final &= streams >= self._first_stream
        self._last[streams[final] % self.num_envs] = torch.where(ended, -1, added)[final]

    def break_streams(self) -> None:
        """What comes next does not follow what came last: the environments were started anew."""
        self._first_stream += self.num_envs
        if self.n_step > 1:
            self._last.fill_(-1)

    def sample(self, batch_size: int) -> Batch:
        """A batch of rows drawn uniformly with replacement."""
        return self._batch(self._draw(batch_size) % self.capacity)

    def _draw(self, batch_size: int) -> Tensor:
        """The numbers of rows drawn uniformly."""
        first, stop = self._drawable()
        if first >= stop:
            raise DatasetError("the buffer holds no row that can be drawn")
        return torch.randint(first, stop, (batch_size,), generator=self.generator).to(self.device)

    def _batch(self, index: Tensor) -> Batch:
        if self.n_step == 1:
            batch = {name: self.fields[name].index_select(0, index) for name in self.sampled}
            batch["rewards"] = self._transformed(batch["rewards"])
            return batch
        window, follows = self._window(index)
        rewards, dones = self._transformed(self.fields["rewards"][window]), self.fields["dones"][window]
        return self._sum(window, rewards, dones, follows)

    def _transformed(self, rewards: Tensor) -> Tensor:
        return rewards if self.transform is None else self.transform(rewards)

    def _window(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Places of a row and of those that follow it, (B, n_step), and whether they do."""
        places, follows = [index], [torch.ones_like(index, dtype=torch.bool)]
        for _ in range(self.n_step - 1):
            after = self._successors[places[-1]]
            follows.append(follows[-1] & (after >= 0))
            places.append(torch.where(follows[-1], after, places[-1]))
        return torch.stack(places, 1), torch.stack(follows, 1)

    def _sum(self, window: Tensor, rewards: Tensor, dones: Tensor, follows: Tensor) -> Batch:
        """The batch of windows: their first rows, the sums of their rewards, and what came after their last."""
        sums, discounts, last = sum_rewards(rewards, dones, follows, self.gamma)
        end = window.gather(1, last[:, None])[:, 0]
        batch = {
            name: self.fields[name].index_select(0, end if name.startswith("next_") else window[:, 0])
            for name in self.sampled
        }
        final = dones.gather(1, last[:, None])[:, 0]
        return batch | {"rewards": sums, "dones": final, "discounts": discounts}

    def metrics(self) -> dict[str, float]:
        """What there is to say about the batches drawn since the last call, and about the buffer."""
        return {"buffer_size": len(self)}

    def to_dataset(self) -> TransitionDataset:
        """What the buffer holds, episode by episode, as data for offline training; rewards are raw."""
        if not len(self):
            raise DatasetError("the buffer is empty")
        rows = self.rows_from(self.added - len(self))
        order = torch.sort(rows["streams"], stable=True).indices
        rows = {name: value.index_select(0, order).cpu() for name, value in rows.items()}
        # A stream goes on where the data does not: at its end the episode counts as cut.
        is_last = rows["streams"] != rows["streams"].roll(-1)
        is_last[-1] = True
        arrays = {name: rows[name] for name in SAMPLED}
        arrays["truncations"] = (rows["truncations"].bool() | is_last) & (rows["dones"] == 0)
        return TransitionDataset.from_dict(arrays)

    def rows_from(self, number: int) -> Batch:
        """The rows from a number on, which must still be there, in the order in which they were added."""
        places = torch.arange(number, self.added, device=self.device) % self.capacity
        return {name: value.index_select(0, places) for name, value in self.fields.items()}

    def state_dict(self) -> dict[str, Any]:
        """Where the buffer is, without its rows."""
        return {
            "added": self.added,
            "first_stream": self._first_stream,
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` found the buffer, once `restore` has brought its rows back."""
        self.added, self._first_stream = state["added"], state["first_stream"]
        self.generator.set_state(state["generator"])
        if self.n_step > 1:
            self._last.fill_(-1)

    def restore(self, rows: Batch) -> None:
        """Put back the last rows, as `rows_from` gave them."""
        self.added -= len(rows["streams"])
        self._write({name: value.to(self.device) for name, value in rows.items()})


class EpisodeReplayBuffer(ReplayBuffer):
    """Holds rows back until their episode has ended, for fields that depend on what comes after.

    `next_actions` of a row is the action taken next; where an episode was cut there is none, and its last row is left
    out. `returns_to_go` is the discounted sum of transformed rewards to the episode's end; an episode all of whose
    rewards equal `failure_reward` counts as if it went on like that for ever.
    """

    def __init__(self, *, needs: Sequence[str] = (), failure_reward: float | None = None, **options: Any) -> None:
        super().__init__(**options)
        if failure_reward is not None and self.gamma >= 1:
            raise ConfigError("failure_reward needs gamma < 1: the return of an endless failure is infinite")
        self.failure_reward = failure_reward
        self.pending: list[list[Batch]] = [[] for _ in range(self.num_envs)]
        if "next_actions" in needs:
            self.fields["next_actions"] = torch.empty_like(self.fields["actions"])
        if "returns_to_go" in needs:
            self._add_fields(returns_to_go=None)
        self.sampled += tuple(name for name in ("next_actions", "returns_to_go") if name in self.fields)

    def _take(self, rows: Batch) -> None:
        # Copied, since the caller may write into its arrays before the episode ends.
        rows = {name: value.clone() for name, value in rows.items()}
        # Read once for all rows: from another device, each read waits for all that it has to do.
        streams, ends = rows["streams"].tolist(), (rows["dones"] + rows["truncations"]).tolist()
        for row, (number, ended) in enumerate(zip(streams, ends, strict=True)):
            stream = self.pending[number % self.num_envs]
            stream.append({name: value[row : row + 1] for name, value in rows.items()})
            if len(stream) > self.capacity:
                raise ConfigError(f"an episode is longer than buffer_capacity ({self.capacity}) rows")
            if ended:
                episode = self._complete({name: torch.cat([part[name] for part in stream]) for name in stream[0]})
                stream.clear()
                self._write(episode)

    def _complete(self, rows: Batch) -> Batch:
        """The rows of an episode that are kept, with what is known only at its end."""
        if "returns_to_go" in self.fields:
            rows["returns_to_go"] = self._returns(self._transformed(rows["rewards"]))
        if "next_actions" in self.fields:
            rows["next_actions"] = torch.cat([rows["actions"][1:], rows["actions"][-1:]])
            if bool(rows["truncations"][-1]):
                rows = {name: value[:-1] for name, value in rows.items()}
                # The row before it is where the episode is cut from here on.
                rows["truncations"][-1:] = 1
        return rows

    def _returns(self, rewards: Tensor) -> Tensor:
        if self.failure_reward is not None and bool((rewards == self.failure_reward).all()):
            return torch.full_like(rewards, self.failure_reward / (1 - self.gamma))
        ends = torch.zeros(len(rewards), dtype=torch.bool)
        return backward_recursion(rewards, self.gamma, ends)

    def break_streams(self) -> None:
        """What comes next does not follow what came last; rows of episodes that will not end are dropped."""
        super().break_streams()
        self.pending = [[] for _ in range(self.num_envs)]

    def state_dict(self) -> dict[str, Any]:
        """Where the buffer is, without its rows, but with those that wait for their episode's end."""
        pending = [
            {name: torch.cat([part[name] for part in stream]) for name in stream[0]} if stream else {}
            for stream in self.pending
        ]
        return {**super().state_dict(), "pending": pending}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` found the buffer, once `restore` has brought its rows back."""
        super().load_state_dict(state)
        self.pending = [
            [
                dict(zip(stream, part, strict=True))
                for part in zip(*(value.to(self.device).split(1) for value in stream.values()), strict=True)
            ]
            for stream in state["pending"]
        ]
