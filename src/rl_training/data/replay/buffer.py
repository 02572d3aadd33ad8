"""Replay buffer: the last transitions of a run's own environments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import index
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from rl_training.core.batches import TRANSITION, Batch, Column
from rl_training.core.errors import ConfigError, DatasetError
from rl_training.core.rewards import returns_to_go
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.replay.samplers import Hindsight, UniformSource
from rl_training.data.rows import Rows

MOST_STREAMS = 1 << 30
"""Streams are counted in 32 bits, with room for those of the environments that begin next."""

Annotate = Callable[[Batch, Tensor], Batch]
"""From rows in episode order, and the places of their last rows, to fields that no log contains."""


class ReplayBuffer(UniformSource):
    """A ring of the last `capacity` transitions, in the order in which they came; a source of uniform batches.

    Rewards are kept as the environment gave them, and transformed when they are drawn. Actions are kept as the policy
    drew them. The rows of each environment form a stream, so that a sum over several steps never crosses from one into
    another. `columns` says what else is stored beside a transition, or that a field has another shape or type.

    A buffer of `whole_episodes` holds rows back until their episode has ended, for fields that depend on what comes
    after. `next_actions` of a row is the action taken next; where an episode was cut there is none, and its last row is
    left out. `returns_to_go` is the discounted sum of transformed rewards to the episode's end; an episode all of whose
    rewards equal `failure_reward` counts as if it never ended and always gave that reward. With `hindsight`,
    observations that are added end with the achieved goal, which is stored apart from them. Fields in `annotates` are
    computed by `annotate`, and only rows that have them are drawn.
    """

    saved = (*UniformSource.saved, "annotated")

    def __init__(
        self,
        *,
        capacity: int,
        obs_dim: int,
        action_dim: int,
        num_envs: int = 1,
        gamma: float = 0.99,
        n_step: int = 1,
        transform: Callable[[Tensor], Tensor] | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
        columns: Mapping[str, Column] | None = None,
        whole_episodes: bool = False,
        needs: Sequence[str] = (),
        failure_reward: float | None = None,
        hindsight: Hindsight | None = None,
        annotates: Sequence[str] = (),
    ) -> None:
        if capacity < num_envs:
            raise ConfigError(f"buffer_capacity must be >= num_envs ({num_envs}), got {capacity}")
        if failure_reward is not None and gamma >= 1:
            raise ConfigError("failure_reward needs gamma < 1: the return of an endless failure is infinite")
        self.capacity, self.num_envs, self.device = capacity, num_envs, torch.device(device)
        self.whole_episodes = whole_episodes or hindsight is not None
        self.needs, self.failure_reward, self.annotates = tuple(needs), failure_reward, tuple(annotates)
        given = {"obs": Column((obs_dim,)), "actions": Column((action_dim,)), **(columns or {})}
        fields = dict.fromkeys(TRANSITION, Column()) | {"next_obs": given["obs"]} | given
        derived = {"next_actions": given["actions"], "returns_to_go": Column()}
        fields |= {name: column for name, column in derived.items() if name in needs}
        beside = dict.fromkeys(("truncations", "streams"), Column((), "int32"))
        if self.whole_episodes:
            beside |= dict.fromkeys(("starts", "stops"), Column((), "int64"))
        if hindsight is not None:
            beside["achieved_goals"] = Column((hindsight.goal_dim,))
        rows = Rows.ring(capacity, fields | beside | dict.fromkeys(annotates, Column()), device)
        if n_step > 1 and not self.whole_episodes:
            rows.link(num_envs)
        self.fields = {name: rows.columns[name] for name in fields | beside}
        """The columns that `rows_from` returns: all but annotations."""
        super().__init__(
            rows, (*fields, *annotates), seed=seed, gamma=gamma, n_step=n_step, transform=transform, hindsight=hindsight
        )
        self.annotated = 0
        """The number of the first row that came after fields were last annotated."""
        self.first_whole = 0
        """The number of the first row whose episode has not lost its beginning, where rows are whole episodes."""
        self.pending: list[list[Batch]] = [[] for _ in range(num_envs)]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def added(self) -> int:
        """Rows ever added."""
        return self.rows.stop

    def drawable(self) -> tuple[int, int]:
        """The number of the first row that can be drawn, and of the row after the last."""
        first = self.rows.first if self.hindsight is None else self.first_whole
        return first, self.annotated if self.annotates else self.rows.stop

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
        **extra: ArrayLike,
    ) -> None:
        """Add one row of each environment; rows outside `mask`, which no step of the task made, are left out.

        `next_obs` is what the step led to, never what a reset brought; where a step ended the task on the very step of
        a time limit, it has terminated. `extra` are the columns that are stored beside a transition.
        """
        given = {"obs": obs, "actions": actions, "rewards": rewards, "next_obs": next_obs, "dones": terminations}
        given |= {"truncations": truncations, **extra}
        rows = {name: _array(value) for name, value in given.items()}
        rows["truncations"] = rows["truncations"] * (rows["dones"] == 0)
        first = self.rows.first_stream
        rows["streams"] = np.arange(first, first + self.num_envs, dtype=np.int32)
        if self.hindsight is not None:
            width, after = self.fields["obs"].shape[1], rows["next_obs"]
            rows |= {"obs": rows["obs"][:, :width], "next_obs": after[:, :width], "achieved_goals": after[:, width:]}
        if mask is not None:
            kept = np.flatnonzero(_array(mask))
            rows = {name: value[kept] for name, value in rows.items()}
        if self.whole_episodes:
            self._hold_back(rows)
        else:
            self.rows.append(rows)

    def _hold_back(self, given: Mapping[str, NDArray[Any]]) -> None:
        """Let rows wait until their episode has ended."""
        # Copied, since the caller may write into its arrays before the episode ends.
        kinds = {name: self.fields[name].dtype for name in given}
        rows = {name: torch.as_tensor(value).to(self.device, kinds[name], copy=True) for name, value in given.items()}
        # Read once for all rows: each read from another device waits until that device is idle.
        flags = torch.stack([rows["streams"], rows["dones"].int(), rows["truncations"]], 1).tolist()
        for row, (number, done, cut) in enumerate(flags):
            stream = self.pending[number % self.num_envs]
            stream.append({name: value[row : row + 1] for name, value in rows.items()})
            if len(stream) > self.capacity:
                raise ConfigError(f"an episode is longer than buffer_capacity ({self.capacity}) rows")
            if done or cut:
                episode = _joined(stream)
                stream.clear()
                self._append_episode(episode, is_cut=bool(cut))

    def _append_episode(self, rows: Batch, *, is_cut: bool) -> None:
        """Add a whole episode, with what is known only at its end."""
        if "returns_to_go" in self.needs:
            rewards, ends = self.transformed(rows["rewards"]), rows["dones"] + rows["truncations"] != 0
            rows["returns_to_go"] = returns_to_go(rewards, ends, gamma=self.gamma, failure_reward=self.failure_reward)
        if "next_actions" in self.needs:
            rows["next_actions"] = torch.cat([rows["actions"][1:], rows["actions"][-1:]])
            if is_cut:
                rows = {name: value[:-1] for name, value in rows.items()}
                # The row before it is where the episode is cut from here on.
                rows["truncations"][-1:] = 1
        count = len(rows["streams"])
        rows["starts"] = torch.full((count,), self.added, device=self.device)
        rows["stops"] = rows["starts"] + count
        self.rows.append(rows)
        self._find_first_whole()

    def _find_first_whole(self) -> None:
        """Pass over an episode that has lost its beginning. Drawing then reads nothing from the device."""
        first = self.rows.first
        if first > self.first_whole:
            starts, stops = self.rows.bounds(torch.tensor([first], device=self.device))
            self.first_whole = first if int(starts) == first else int(stops)

    def break_streams(self) -> None:
        """Start anew: the next rows do not follow the last ones, and rows of unfinished episodes are dropped."""
        self.rows.break_streams(self.num_envs)
        self.pending = [[] for _ in range(self.num_envs)]

    def forget(self, before: int) -> None:
        """Drop the rows before a number: those of a rollout that has been learned from."""
        self.rows.oldest = before

    @torch.no_grad()
    def annotate(self, compute: Annotate) -> Batch:
        """Compute the fields in `annotates` for all rows, and return them, episode by episode.

        `compute` gets rows in episode order with transformed rewards, and the places at which episodes end.
        """
        if self.whole_episodes:
            # Episodes stand one after the other already; the oldest may have lost its beginning.
            numbers = self.rows.numbers()
            ends = self.rows.ends(numbers)
        else:
            numbers, ends = self.rows.by_stream()
        rows = self.rows.take(self.fields, numbers)
        rows["rewards"] = self.transformed(rows["rewards"])
        computed = compute(rows, ends.nonzero().flatten())
        found = {name: computed[name] for name in self.annotates}
        self.rows.put(numbers, found)
        self.annotated = self.added
        return found

    def metrics(self) -> dict[str, float]:
        """The size of the buffer, and facts about the batches drawn since the last call."""
        return {"buffer_size": len(self)} | super().metrics()

    def to_dataset(self) -> TransitionDataset:
        """The rows of the buffer, episode by episode, as data for offline training; rewards are raw."""
        if not len(self):
            raise DatasetError("the buffer is empty")
        numbers, ends = self.rows.by_stream()
        names = [name for name in (*TRANSITION, "achieved_goals") if name in self.fields]
        arrays = {name: value.cpu() for name, value in self.rows.take(names, numbers).items()}
        # A stream continues where the data does not: at its end the episode counts as cut.
        arrays["truncations"] = ends.cpu() & (arrays["dones"] == 0)
        return TransitionDataset.from_dict(arrays)

    def rows_from(self, number: int) -> Batch:
        """The rows from a number on, which must still be there, in the order in which they were added."""
        return self.rows.take(self.fields, self.rows.numbers(number))

    def state_dict(self) -> dict[str, Any]:
        """Position and generator, rows that wait for their episode's end, and annotations; no rows of the ring.

        Annotations are kept because networks that have changed since could not compute the same ones again.
        """
        known = self.rows.numbers()[: max(self.annotated - self.rows.first, 0)]
        return {
            **super().state_dict(),
            "added": self.added,
            "oldest": self.rows.oldest,
            "first_stream": self.rows.first_stream,
            "pending": [_joined(stream) for stream in self.pending],
            "annotations": self.rows.take(self.annotates, known),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` found the buffer; `restore` then brings its rows back."""
        super().load_state_dict(state)
        rows = self.rows
        rows.stop, rows.oldest, rows.first_stream = (index(state[name]) for name in ("added", "oldest", "first_stream"))
        if not 0 <= rows.first_stream < MOST_STREAMS:
            raise ValueError(f"first_stream is {rows.first_stream}, expected a number below {MOST_STREAMS}")
        self.first_whole = rows.first
        if rows.links is not None:
            rows.last.fill_(-1)
        self.pending = [_split(stream, self.device) for stream in state["pending"]]
        annotations = {name: value.to(self.device) for name, value in state["annotations"].items()}
        count = len(next(iter(annotations.values()), ()))
        rows.put(torch.arange(self.annotated - count, self.annotated, device=self.device), annotations)

    def restore(self, rows: Batch) -> None:
        """Put back the last rows, as `rows_from` gave them, after `load_state_dict`."""
        self.rows.stop -= len(rows["streams"])
        self.rows.append({name: rows[name].to(self.device) for name in self.fields})
        if self.whole_episodes and len(self):
            self.first_whole = -1
            self._find_first_whole()


def _array(value: ArrayLike) -> NDArray[Any]:
    """An array of the same numbers, in the same memory where that is possible."""
    return value.numpy(force=True) if isinstance(value, Tensor) else np.asarray(value)


def _joined(parts: Sequence[Batch]) -> Batch:
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]} if parts else {}


def _split(rows: Batch, device: torch.device) -> list[Batch]:
    columns = [torch.split(value.to(device), 1) for value in rows.values()]
    return [dict(zip(rows, row, strict=True)) for row in zip(*columns, strict=True)]
