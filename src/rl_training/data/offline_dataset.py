"""Logged transitions as tensors, with the facts about episodes that training must not confuse."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from typing_extensions import Self

from rl_training.core.batches import Batch
from rl_training.core.errors import DatasetError
from rl_training.core.rewards import RewardTransformConfig, episode_bounds, returns_to_go
from rl_training.core.spaces import ActionSpace, BoxActions, DiscreteActions
from rl_training.data.episodes import SHUFFLED, SHUFFLED_HINT, Episode, join_episodes
from rl_training.data.fields import MASKS, UNKNOWN, Origin, as_numpy, is_one_hot, read_transitions
from rl_training.data.mapped_columns import Stored, chunks, digest, map_rows, older_digest, take_rows
from rl_training.data.rows import Rows

if TYPE_CHECKING:
    from rl_training.data.replay.samplers import BlockSampler
    from rl_training.data.tables.columns import AnyColumns, ColumnsConfig, RewardOf


_ORIGINS = {"next_actions": f": {SHUFFLED_HINT}", "returns_to_go": "; call with_returns_to_go(gamma=...)"}
"""Fields that not every dataset has, and where they come from."""

BESIDE = ("truncations", "next_action_mask", "tail_rewards")
"""Per-row columns that are not training fields."""


@dataclass(frozen=True, eq=False)
class TransitionDataset:
    """Transitions on one device. Immutable: every with_... method returns a new dataset that shares storage.

    `dones` is 1 where the task terminated and nothing may be bootstrapped; `truncations` is 1 where the episode was
    only cut. `next_actions` holds the action that followed; `next_action_mask` is false on rows where none was
    recorded (cut episodes) and true on terminated rows, where its value does not matter.
    """

    fields: Mapping[str, Tensor]
    truncations: Tensor
    next_action_mask: Tensor | None = None
    tail_rewards: Tensor | None = None
    """Rewards of rows dropped at episode ends, on the row before, else NaN: they still count in returns."""
    is_ordered: bool = True
    """False after mixing, when neighbouring rows no longer belong together."""
    num_choices: int | None = None
    """The number of discrete actions, where the log says so by the width of one-hot actions."""
    num_dropped: int = 0
    has_rewards: bool = True
    """False where none were logged; they are 0 then."""
    origin: Origin = UNKNOWN
    """Facts about the log, as long as these are all of its rows."""
    raw_returns: Tensor | None = None
    """Returns of the episodes as they were logged, before any transform of rewards."""
    notes: tuple[str, ...] = ()
    obs_mean: Tensor | None = None
    obs_std: Tensor | None = None
    """Statistics for the algorithm to normalise with; the observations here stay as they were logged."""
    validation: TransitionDataset | None = None
    reward_transforms: tuple[RewardTransformConfig, ...] = ()
    """The transforms of the logged rewards, one after the other."""
    columns: ColumnsConfig | None = None
    """Of a table: which of its columns became what."""
    seed: int = 0
    stored: Stored | None = None
    """The files that the fields are mapped from; columns derived from all rows are then kept in files too."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", MappingProxyType(dict(self.fields)))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "fields": dict(self.fields)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} rows, fields {', '.join(self.fields)})"

    @classmethod
    def from_dict(cls, arrays: Mapping[str, ArrayLike | Tensor], *, copy: bool = True, seed: int = 0) -> Self:
        """A dataset from arrays under their usual names: plain, D4RL's, d3rlpy's, Minari's or OGBench's.

        Where `next_obs` is missing it is the next row of the same episode; rows without one are dropped and counted.
        """
        plain = {name: as_numpy(each) if isinstance(each, Tensor) else each for name, each in arrays.items()}
        logged, facts = read_transitions(plain, copy=copy)
        tensors = {name: torch.from_numpy(array) for name, array in logged.items()}
        beside: dict[str, Any] = {name: tensors.pop(name, None) for name in BESIDE}
        return cls(tensors, **beside, **facts, seed=seed)

    @classmethod
    def from_episodes(cls, episodes: Iterable[Any], *, seed: int = 0) -> Self:
        """A dataset from trajectories with T + 1 observations, as mappings or as objects with such attributes.

        Each has `observations`, `actions`, `rewards`, and says how it ended with `terminations` and `truncations`,
        arrays or single flags.
        """
        return cls.from_dict(join_episodes(episodes), copy=False, seed=seed)

    @classmethod
    def from_table(cls, table: Any, columns: AnyColumns = None, *, reward: RewardOf | None = None) -> TransitionDataset:
        """A dataset from a frame of pandas or polars, or another arrow stream; `columns` as in `dataset_columns`.

        `reward` is a function from the table to one number per row, where no column holds the reward.
        """
        from rl_training.data.tables.arrow import dataset_from_table  # Here, since that module imports this one.

        return dataset_from_table(table, columns, reward)

    def to_arrow(self) -> Any:
        """The transitions as a table of pyarrow, under the names of the table that they come from, if they do."""
        from rl_training.data.tables.arrow import dataset_to_arrow  # Here, since that module imports this one.

        return dataset_to_arrow(self)

    def __len__(self) -> int:
        return len(self.truncations)

    def __getattr__(self, name: str) -> Tensor:
        value: Tensor | None = self.__dict__.get("fields", {}).get(name)
        if value is not None:
            return value
        if name in _ORIGINS:
            raise AttributeError(f"this dataset has no {name}{_ORIGINS[name]}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def obs_dim(self) -> int:
        """Length of an observation."""
        return self.fields["obs"].shape[1]

    @property
    def action_dim(self) -> int:
        """Length of an action; 1 for discrete actions."""
        return 1 if self.is_discrete else self.fields["actions"].shape[1]

    @property
    def is_discrete(self) -> bool:
        """Whether actions are discrete, one integer per row."""
        return self.fields["actions"].ndim == 1

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return self.truncations.device

    @property
    def rows(self) -> Rows:
        """The rows as a store, which shares the tensors: for what is derived from rows of the same episode."""
        self._require_order("episodes")
        mask = {} if self.next_action_mask is None else {"next_action_mask": self.next_action_mask}
        return Rows({**self.fields, **mask, "truncations": self.truncations})

    @property
    def episode_ends(self) -> Tensor:
        """True on the last row of each episode, however it ended."""
        # By NumPy: the first use of a torch kernel costs memory, and loading must not need much.
        flags = self.truncations.numpy(force=True) | (self.fields["dones"].numpy(force=True) != 0)
        return torch.from_numpy(flags).to(self.device)

    @property
    def has_episodes(self) -> bool:
        """Whether rows are followed by others of their episode."""
        return self.is_ordered and not self.seems_shuffled

    @property
    def seems_shuffled(self) -> bool:
        """Whether hardly any row was followed by another of its episode in its file: by chance, some always are."""
        cut = self.truncations.numpy(force=True)[self.fields["dones"].numpy(force=True) == 0]
        return self.tail_rewards is None and len(cut) > 0 and bool(cut.mean() > SHUFFLED)

    def episode_bounds(self) -> Tensor:
        """First row and row after the last of each episode: (episodes, 2)."""
        self._require_order("episodes")
        return torch.from_numpy(episode_bounds(self.episode_ends.numpy(force=True))).to(self.device)

    def episodes(self) -> Iterator[Episode]:
        """The trajectories, in the order in which they were logged."""
        data = self.fields
        columns = [data["actions"], data["rewards"], data["dones"].bool(), self.truncations]
        columns += [data["achieved_goals"]] if "achieved_goals" in data else []
        for start, stop in self.episode_bounds().tolist():
            obs = torch.cat([data["obs"][start:stop], data["next_obs"][stop - 1 : stop]])
            yield Episode(obs, *(column[start:stop] for column in columns))

    def episode_returns(self) -> Tensor:
        """Sum of rewards of each episode, rewards of dropped last rows included."""
        logged, tails = self.fields["rewards"], self.tail_rewards
        values = (logged if tails is None else logged + tails.nan_to_num()).numpy(force=True)
        sums = [values[start:stop].sum(dtype=np.float64) for start, stop in self.episode_bounds().tolist()]
        return torch.tensor(sums, dtype=torch.float32, device=self.device)

    def with_fields(self, **fields: Tensor) -> Self:
        """The dataset with fields added or replaced."""
        return replace(self, fields={**self.fields, **fields})

    def with_notes(self, *notes: str) -> Self:
        """The dataset with remarks that training shows to its user."""
        return replace(self, notes=(*self.notes, *notes))

    def with_seed(self, seed: int) -> Self:
        """The dataset with its own stream of samples started anew from a seed."""
        return replace(self, seed=seed)

    def with_rewards(self, rewards: Tensor, tail_rewards: Tensor | None = None) -> Self:
        """The dataset with other rewards; returns-to-go of the old ones are dropped."""
        fields = {name: value for name, value in self.fields.items() if name != "returns_to_go"}
        return replace(self, fields={**fields, "rewards": rewards}, tail_rewards=tail_rewards, has_rewards=True)

    def with_reward_transform(
        self,
        scale: float = 1.0,
        shift: float = 0.0,
        clip_min: float | None = None,
        clip_max: float | None = None,
        *,
        sign: bool = False,
    ) -> Self:
        """Rewards times scale, plus shift, then their sign if asked, then clipped."""
        preset: Any = "sign_clip" if sign else None
        config = RewardTransformConfig(preset=preset, scale=scale, shift=shift, clip_min=clip_min, clip_max=clip_max)
        tails = None if self.tail_rewards is None else config.apply(self.tail_rewards)
        changed = self.with_rewards(config.apply(self.fields["rewards"]), tails)
        return replace(changed, reward_transforms=(*self.reward_transforms, config))

    def with_returns_to_go(self, gamma: float, *, failure_reward: float | None = None) -> Self:
        """The dataset with `returns_to_go`: the discounted sum of rewards from each row to its episode's end.

        An episode all of whose rewards equal `failure_reward` counts as if it never ended and always gave that reward.
        """
        self._require_order("returns_to_go")
        how: dict[str, Any] = {"gamma": gamma, "tails": self.tail_rewards, "failure_reward": failure_reward}
        return self.with_fields(returns_to_go=returns_to_go(self.rewards, self.episode_ends, **how))

    def map_actions(self, function: Callable[[Tensor], Tensor]) -> Self:
        """The dataset with a function applied to all actions, those of held-out episodes too."""
        names = [name for name in ("actions", "next_actions") if name in self.fields]
        mapped = {name: map_rows(self.fields[name], function, self.stored) for name in names}
        if all(value is self.fields[name] for name, value in mapped.items()):
            return self
        held_out = None if self.validation is None else self.validation.map_actions(function)
        return replace(self.with_fields(**mapped), validation=held_out)

    def has_actions_of(self, space: ActionSpace) -> bool:
        """Whether the actions are of the kind and the size of a space; their values are not looked at."""
        if isinstance(space, DiscreteActions) or self.is_discrete:
            return self.is_discrete and isinstance(space, DiscreteActions)
        return self.action_dim == space.size

    def with_actions_of(self, space: ActionSpace, origin: str) -> Self:
        """The dataset with actions of a space's kind; refused if they cannot be, with `origin` as the space's name.

        One-hot rows and whole numbers become discrete actions, and discrete actions a column of numbers.
        """
        found, actions = self, self.fields["actions"]
        if isinstance(space, BoxActions) and self.is_discrete:
            found = self.map_actions(lambda values: values[:, None].float())
        elif isinstance(space, DiscreteActions) and not self.is_discrete:
            if self.action_dim == space.count > 1 and is_one_hot(actions.numpy(force=True)):
                found = self.map_actions(lambda values: values.argmax(1) + space.start)
                found = found.with_notes("actions are one-hot rows")
            elif self.action_dim == 1 and bool((actions == actions.round()).all()):
                found = self.map_actions(lambda values: values[:, 0].long())
        if found.has_actions_of(space):
            return found
        if isinstance(space, DiscreteActions):
            raise DatasetError(f"the dataset has continuous actions, {origin} has {space}")
        raise DatasetError(f"the dataset has action_dim {found.action_dim}, {origin} has {space.size}")

    def with_action_bounds(self, low: ArrayLike, high: ArrayLike) -> Self:
        """Actions in native units mapped so that [low, high] becomes [-1, 1]."""
        return self.map_actions(BoxActions.between(low, high, self.action_dim).encode)

    def with_clipped_actions(self, low: ArrayLike, high: ArrayLike) -> Self:
        """Actions brought into [low, high]."""
        bounds = BoxActions.between(low, high, self.action_dim)
        return self.map_actions(lambda actions: actions.clamp(*map(actions.new_tensor, (bounds.low, bounds.high))))

    def with_obs_statistics(self, *, epsilon: float = 1e-3) -> Self:
        """The dataset with the mean and the standard deviation (plus epsilon) of its observations."""
        obs = self.fields["obs"]
        return replace(self, obs_mean=obs.mean(0), obs_std=obs.std(0, correction=0) + epsilon)

    def requiring(self, *names: str) -> Self:
        """Only these fields in a batch; rows for which one of them does not exist are dropped, with a note."""
        for name in (name for name in names if name not in self.fields):
            raise DatasetError(f"the data has no {name}{_ORIGINS.get(name, '')}")
        dataset = self
        if "next_actions" in names and self.next_action_mask is not None and not bool(self.next_action_mask.all()):
            kept = self.next_action_mask.nonzero().flatten()
            lost = len(self) - len(kept)
            if self.seems_shuffled:
                raise DatasetError(f"{lost} of {len(self)} rows have no next action: {SHUFFLED_HINT}")
            dataset = self.take(kept).with_notes(f"dropped {lost} rows without a next action")
        return replace(dataset, fields={name: dataset.fields[name] for name in names})

    def take(self, rows: Tensor) -> Self:
        """The dataset of some rows, in that order; their episodes are no longer known."""
        return replace(self._select(rows), is_ordered=False)

    def take_episodes(self, numbers: Sequence[int]) -> Self:
        """The dataset of some whole episodes, in that order."""
        bounds = self.episode_bounds().tolist()
        return self._select(torch.cat([torch.arange(*bounds[number]) for number in numbers]).to(self.device))

    def _select(self, rows: Tensor) -> Self:
        return replace(self._map(lambda tensor: take_rows(tensor, rows, self.stored), *BESIDE), origin=UNKNOWN)

    def _map(self, function: Callable[[Tensor], Tensor], *names: str) -> Self:
        """The dataset with a function applied to all fields, and to these attributes where it has them."""
        found: dict[str, Any] = {name: function(value) for name in names if (value := getattr(self, name)) is not None}
        return replace(self, fields={name: function(value) for name, value in self.fields.items()}, **found)

    def split(self, fraction: float, seed: int = 0, *, fold: int = 0) -> tuple[Self, Self]:
        """Two datasets of whole episodes: the rest, and `fraction` of the episodes chosen at random.

        Different numbers of a `fold` choose different episodes.
        """
        if not 0 < fraction < 1:
            raise DatasetError(f"fraction must be > 0 and < 1, got {fraction}")
        count = len(self.episode_bounds())
        if count < 2:
            raise DatasetError(f"a split by whole episodes needs at least 2 of them, got {count}")
        order, start = np.random.default_rng(seed).permutation(count), round(fold * fraction * count)
        chosen = order[start : max(round((fold + 1) * fraction * count), start + 1)][: count - 1]
        return self.take_episodes(np.setdiff1d(order, chosen).tolist()), self.take_episodes(sorted(chosen))

    def best_episodes(self, fraction: float) -> Self:
        """The dataset of the `fraction` of episodes with the highest returns, at least one."""
        returns = self.episode_returns()
        # 0.29 * 100 is a little less than 29.
        size = max(1, int(fraction * len(returns) + 1e-9))
        best = sorted(returns.argsort(descending=True, stable=True)[:size].tolist())
        return self.take_episodes(best).with_notes(f"kept the best {size} of {len(returns)} episodes")

    def to(self, device: torch.device | str) -> Self:
        """The dataset on a device."""
        moved = self._map(lambda tensor: tensor.to(device), *BESIDE, "raw_returns", "obs_mean", "obs_std")
        return replace(moved, validation=None if self.validation is None else self.validation.to(device))

    @cached_property
    def sampler(self) -> BlockSampler:
        """The source of the batches; its state is the position in the stream of samples."""
        from rl_training.data.replay.samplers import BlockSampler  # Here, since that district imports this module.

        return BlockSampler(self.fields, seed=self.seed)

    def sample(self, batch_size: int) -> Batch:
        """A batch of rows drawn uniformly with replacement from the dataset's own seeded stream."""
        return self.sampler.sample(batch_size)

    def save(self, path: str | Path) -> None:
        """Write the transitions in the form that the ending says; `dataset_path` reads them back."""
        from rl_training.data.files.formats import save_dataset  # Here, since that module imports this one.

        save_dataset(self, Path(path))

    def fingerprint(self, *, older: bool = False) -> str:
        """A short text that differs between datasets with different contents; old checkpoints have the `older` kind."""
        columns = {**self.fields, "truncations": self.truncations}
        return older_digest(columns) if older else digest(columns, self.stored)

    def _require_order(self, what: str) -> None:
        if not self.is_ordered:
            raise DatasetError(f"a mixed or filtered dataset has no {what}: its rows are not in episode order any more")


def sample_trajectory_windows(
    dataset: TransitionDataset, length: int, batch_size: int, *, seed: int = 0, pad: Literal["left", "right"] = "right"
) -> Batch:
    """One batch of windows of consecutive rows, decided by the seed; `WindowSource` says what is in it."""
    from rl_training.data.replay.samplers import UniformSource, WindowSource  # As in `sampler`.

    base = UniformSource(dataset.rows, (), seed=seed, is_raw=False)
    return WindowSource(base, dataset.fields, length, pad=pad).sample(batch_size)


def further_fields(dataset: TransitionDataset) -> dict[str, NDArray[Any]]:
    """Optional columns that cannot be derived and must be stored."""
    names = ["achieved_goals", "behavior_log_probs", "returns_to_go", "tail_rewards", "timestamps", *MASKS]
    names += [] if finds_next_actions(dataset) else ["next_actions", "next_action_mask"]
    found = {name: getattr(dataset, name, None) for name in names}
    return {name: value.numpy(force=True) for name, value in found.items() if value is not None}


def finds_next_actions(dataset: TransitionDataset) -> bool:
    """Whether the next actions are those of the next rows, as reading a log takes them."""
    if "next_actions" not in dataset.fields or dataset.next_action_mask is None:
        return True
    actions, following = (dataset.fields[name].numpy(force=True) for name in ("actions", "next_actions"))
    follows = ~dataset.episode_ends.numpy(force=True)
    is_known = follows | dataset.dones.bool().numpy(force=True)
    if not follows.any() or not np.array_equal(is_known, dataset.next_action_mask.numpy(force=True)):
        return False
    rows = len(dataset)
    return all(
        np.array_equal(actions[part.start + 1 : part.stop + 1], following[part.start : min(part.stop, rows - 1)])
        for part in chunks(rows)
    ) and np.array_equal(actions[-1:], following[-1:])
