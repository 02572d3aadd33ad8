"""From a data option group to a checked, transformed dataset."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from rl_training.config import PathText
from rl_training.core.errors import LARGEST_SEED, ConfigError, DatasetError
from rl_training.core.files import refuse_what_is_no_file
from rl_training.core.options import MODES, bind, option, options, refuse_unused
from rl_training.core.rewards import RewardPreset, RewardTransformConfig
from rl_training.data.audit import audit
from rl_training.data.collect import collect_dataset
from rl_training.data.fields import REWARDS_HINT, naming
from rl_training.data.files.formats import read_pt
from rl_training.data.files.hdf5 import read_hdf5
from rl_training.data.files.mapped import read_mapped
from rl_training.data.files.minari import read_minari
from rl_training.data.files.npz import CONVERT_HINT, read_npz
from rl_training.data.infer_spaces import check_logged
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.offline_mixers import concatenate_datasets, mix_transition_datasets
from rl_training.data.tables.arrow import WHAT_COLUMNS, read_table
from rl_training.data.tables.columns import ColumnsConfig
from rl_training.data.tables.in_memory import ENDINGS as TABLE_ENDINGS
from rl_training.data.tables.in_memory import table_kind

Kind = Literal["random", "npz", "pt", "hdf5", "mapped", "minari", "csv", "parquet"]

ENDINGS: dict[str, Kind] = {".npz": "npz", ".pt": "pt", ".pth": "pt", ".hdf5": "hdf5", ".h5": "hdf5", ".rlt": "mapped"}

LOGGED_REWARDS = "logged_rewards"
"""The field of rewards as they were logged, in a dataset that keeps them beside transformed ones."""

_NEEDS = {
    "dataset_path": ("npz", "pt", "hdf5", "mapped", "csv", "parquet"),
    "dataset_id": ("minari",),
    "dataset_download": ("minari",),
}
"""Options that go with some kinds of data only; those that have no default are required there."""


@options
class DatasetSpec:
    """The source of one dataset."""

    dataset_kind: Kind | None = option(None, "form of the data; inferred from a path's ending")
    dataset_path: PathText | None = option(None, "file, or folder (mapped); of tables, also a folder or a pattern")
    dataset_columns: ColumnsConfig | None = option(None, "what the columns of a table mean (csv, parquet)")
    dataset_id: str | None = option(None, "name of a Minari dataset")
    dataset_download: bool = option(False, "fetch a Minari dataset that is not on this machine")
    dataset_size: int | None = option(None, "rows to collect (random, default 10000) or to mix", ge=1)
    dataset_seed: int = option(0, "seed of random collection, mixing and the held-out split", ge=0, le=LARGEST_SEED)

    def __post_init__(self) -> None:
        kind = self.kind()
        for name, kinds in _NEEDS.items():
            given = getattr(self, name)
            if kind in kinds and given is None:
                raise ConfigError(f"dataset_kind {kind!r} needs a {name}")
            if kind not in kinds and given:
                raise ConfigError(f"{name} does not go with dataset_kind {kind!r}")
        if self.dataset_columns is not None and kind not in ("csv", "parquet", "mapped", None):
            raise ConfigError(f"dataset_columns go with dataset_kind csv or parquet, not with {kind!r}")
        if self.dataset_columns is None and kind == "csv":
            raise ConfigError(f"dataset_kind 'csv' needs dataset_columns: {WHAT_COLUMNS}")

    def kind(self) -> Kind | None:
        """The kind given or inferred; None where no dataset is named."""
        if self.dataset_kind is not None:
            return self.dataset_kind
        if self.dataset_path is not None:
            if (table := table_kind(self.dataset_path)) is not None:
                return table
            ending = Path(self.dataset_path).suffix.lower()
            if ending not in ENDINGS:
                wrong = f"has none of the endings {', '.join((*ENDINGS, *TABLE_ENDINGS))}; set dataset_kind"
                if Path(self.dataset_path).is_dir():
                    wrong = "is a folder that holds no tables, or several kinds"
                raise ConfigError(f"dataset_path {self.dataset_path!r} {wrong}")
            return ENDINGS[ending]
        return "minari" if self.dataset_id is not None else None


@options
class MixSpec(DatasetSpec):
    """One part of a mixture."""

    ratio: float = option(1.0, "share of the mixture, relative to the other parts", gt=0)


@options
class DataOptions(DatasetSpec):
    """The data to train on, and its preparation."""

    modes: ClassVar = ("offline", "offline_to_online")
    dataset_mix: tuple[MixSpec, ...] = option((), "datasets to mix, each with a ratio")
    reward_scale: float | None = option(None, "factor on rewards; default 1", modes=MODES, agree=True)
    reward_shift: float | None = option(None, "added to rewards after scaling; default 0", modes=MODES, agree=True)
    reward_clip_min: float | None = option(None, "lower bound after scale and shift", modes=MODES, agree=True)
    reward_clip_max: float | None = option(None, "upper bound after scale and shift", modes=MODES, agree=True)
    reward_preset: RewardPreset | None = option(None, "named reward transform to start from", modes=MODES, agree=True)
    reward_normalize: Literal["none", "return_range", "standard"] = option(
        "none", "applied first: times 1000 / range of returns, or to mean 0 and standard deviation 1", agree=True
    )
    normalize_obs: bool = option(
        False, "normalise observations by their mean and standard deviation", modes=MODES, agree=True, resume="fixed"
    )
    clip_actions: bool = option(False, "clip logged actions into the action bounds")
    action_low: tuple[float, ...] | None = option(None, "lower action bounds, without an env_id")
    action_high: tuple[float, ...] | None = option(None, "upper action bounds, without an env_id")
    num_actions: int | None = option(None, "number of actions, without an env_id; default: largest logged + 1", ge=1)
    invalid_actions: Literal["error", "drop"] = option(
        "error", "rows whose action is excluded by their valid_actions: refuse the data, or drop them"
    )
    accept_audit: bool = option(False, "train even on data that the audit refuses; the run remembers it")
    best_fraction: float | None = option(None, "keep this share of episodes, by return", gt=0, le=1)
    validation_fraction: float | None = option(
        None, "held-out share of episodes; default 0.1, at least 10 of 50 or more; 0 of fewer with env_id", ge=0, lt=1
    )
    validation_folds: int | None = option(None, "hold out one of this many parts of the episodes instead", ge=2)
    validation_fold: int = option(0, "the part that is held out, from 0 on", ge=0)

    def __post_init__(self) -> None:
        refuse_unused(self, "validation_fold", unless="validation_folds", holds=self.validation_folds is not None)
        if self.validation_folds is not None and self.validation_fraction is not None:
            raise ConfigError("validation_folds and validation_fraction both say what is held out; give one")
        if self.validation_folds is not None and self.validation_fold >= self.validation_folds:
            raise ConfigError(f"validation_fold must be below {self.validation_folds}, got {self.validation_fold}")
        if self.dataset_mix and self.dataset_columns is not None:
            raise ConfigError("dataset_columns go into the parts of dataset_mix")
        if self.dataset_mix and self.kind() is not None:
            raise ConfigError("dataset_mix replaces dataset_kind, dataset_path and dataset_id; give one or the other")
        if not self.dataset_mix:
            super().__post_init__()
        if (self.action_low is None) != (self.action_high is None):
            raise ConfigError("action_low and action_high go together")
        self.reward_transform()

    def reward_transform(self) -> RewardTransformConfig:
        """The reward options as one transform."""
        names = [field.name for field in fields(RewardTransformConfig)]
        return RewardTransformConfig(**{name: getattr(self, f"reward_{name}") for name in names})

    def name(self) -> str:
        """A short name of the data, for run directories."""
        if self.dataset_mix:
            return "mix"
        if self.dataset_path:
            return Path(self.dataset_path).stem
        return (self.dataset_id or self.dataset_kind or "data").replace("/", "-")


def load_transition_dataset(
    source: DataOptions | str | Path | None = None,
    *,
    env: Callable[[], Any] | None = None,
    env_rewards: RewardTransformConfig | None = None,
    default_validation: Callable[[int], float] = lambda episodes: 0.0,
    returns: Mapping[str, Any] | None = None,
    dataset: TransitionDataset | None = None,
    inspect: Callable[[TransitionDataset], None] | None = None,
    first_choice: int | None = None,
    keep_rewards: bool = False,
    **values: Any,
) -> TransitionDataset:
    """The dataset that options describe: read, checked, filtered, its rewards transformed, split.

    Options are given as a group or by name (`dataset_path="log.npz"`), or a path stands alone. Actions keep their
    native units. `env` makes the environment in which `dataset_kind: random` acts, `env_rewards` is what training makes
    of its rewards. Held-out episodes are the result's `validation`; `default_validation` gives their share by
    the number of episodes where the options leave it open. With `returns`, the
    arguments of `with_returns_to_go`, the dataset has returns-to-go of the transformed rewards, computed before any row
    is mixed away. A `dataset` that is given takes the place of one that options name. `inspect` is called with each
    part as it was read, before anything is changed. Logged actions are compared with masks if `first_choice`, the
    number of the first discrete action, is given, or if excluded actions are to be dropped. With `keep_rewards`, the
    dataset has the rewards as they were logged in one field more.
    """
    if isinstance(source, DataOptions) and values:
        raise ConfigError(f"give options as a group or by name, not both: {', '.join(values)}")
    path = {} if source is None else {"dataset_path": source}
    options = source if isinstance(source, DataOptions) else bind({**path, **values}, DataOptions)[0]
    parts = [_filter(part, options, inspect, first_choice) for part in _parts(options, env, dataset)]
    if keep_rewards:
        parts = [part.with_fields(**{LOGGED_REWARDS: part.rewards}) for part in parts]
    if env_rewards is not None:
        parts = [part.with_reward_transform(**env_rewards.resolve()) for part in parts]
    # One normalisation for all parts: with one of its own, bad data would be rewarded as well as good data.
    parts = _transformed(parts, _reward_normalizer(parts, options.reward_normalize))
    parts = _transformed(parts, options.reward_transform())
    if returns is not None:
        if not all(part.has_episodes for part in parts):
            raise DatasetError("returns-to-go need whole episodes, and the rows seem shuffled")
        parts = [part.with_returns_to_go(**returns) for part in parts]
    split = partial(split_validation, options=options, default=default_validation)
    # Taken off the list, so that rows that have been copied can go.
    parts = [split(parts.pop(0)) for _ in range(len(parts))]
    dataset = parts[0]
    if options.dataset_mix:
        ratios = [part.ratio for part in options.dataset_mix]
        dataset = mix_transition_datasets(parts, ratios, size=options.dataset_size, seed=options.dataset_seed)
        held_out = [part.validation for part in parts if part.validation is not None]
        dataset = replace(dataset, validation=concatenate_datasets(held_out) if held_out else None)
    if options.clip_actions and options.action_low is not None and options.action_high is not None:
        dataset = dataset.with_clipped_actions(options.action_low, options.action_high)
    return dataset.with_obs_statistics() if options.normalize_obs else dataset


def _transformed(parts: list[TransitionDataset], transform: RewardTransformConfig) -> list[TransitionDataset]:
    """The parts with transformed rewards."""
    if transform == RewardTransformConfig():
        return parts
    return [part.with_reward_transform(**transform.resolve()) for part in parts]


def as_dataset(data: Any) -> TransitionDataset:
    """A dataset from any object that holds one: a dataset, a mapping of arrays, or a list of episodes."""
    if isinstance(data, TransitionDataset):
        return data
    if isinstance(data, Mapping):
        return TransitionDataset.from_dict(data)
    if isinstance(data, (list, tuple)):
        return TransitionDataset.from_episodes(data)
    if hasattr(data, "__arrow_c_stream__"):
        hint = "use TransitionDataset.from_table(table, columns)"
        raise DatasetError(f"a table does not say what its columns are: {hint}")
    kinds = "a TransitionDataset, a mapping of arrays, or a list of episodes"
    raise DatasetError(f"dataset must be {kinds}, got {type(data).__name__}")


def _parts(
    options: DataOptions, env: Callable[[], Any] | None, given: TransitionDataset | None
) -> list[TransitionDataset]:
    """The parts of the mixture that options name, or the one dataset that they name or that was given."""
    if given is None:
        try:
            return [read_dataset(spec, env) for spec in options.dataset_mix or (options,)]
        except MemoryError as error:
            raise DatasetError(f"the data does not fit into memory ({error}); {CONVERT_HINT}") from None
    if options.dataset_mix or options.kind() is not None:
        raise ConfigError("a dataset is given as an object and named by options: give one or the other")
    return [given]


def read_dataset(spec: DatasetSpec, env: Callable[[], Any] | None = None) -> TransitionDataset:
    """One dataset as it is, before options change anything; `env` makes the environment of a random one."""
    kind = spec.kind()
    if kind is None:
        hint = "in Python, pass dataset= (again, if a run that was given one is resumed)"
        raise ConfigError(
            f"no dataset is named: set dataset_path, dataset_id, dataset_mix, or dataset_kind: random; {hint}"
        )
    if kind == "random":
        if env is None:
            hint = "set env_id in a config, or pass env=, a function that makes one"
            raise ConfigError(f"dataset_kind 'random' needs an environment to act in: {hint}")
        return collect_dataset(env, size=spec.dataset_size or 10_000, seed=spec.dataset_seed)
    if spec.dataset_size is not None:
        raise ConfigError(f"dataset_size does not go with dataset_kind {kind!r}; it counts rows to collect or to mix")
    if kind == "minari":
        return TransitionDataset.from_episodes(read_minari(str(spec.dataset_id), download=spec.dataset_download))
    if (folder := find_shared(spec)) is not None:
        return read_mapped(folder)
    if kind in ("csv", "parquet"):
        return read_table(str(spec.dataset_path), kind, spec.dataset_columns)
    dataset = _read_file(Path(str(spec.dataset_path)), kind)
    if spec.dataset_columns is not None and spec.dataset_columns != dataset.columns:
        hint = "leave dataset_columns out; to change what the columns mean, convert the table again"
        raise DatasetError(f"{spec.dataset_path} was converted with other columns: {hint}")
    return dataset


def _read_file(path: Path, kind: Kind) -> TransitionDataset:
    if kind == "mapped" and path.exists():
        return read_mapped(path)
    refuse_what_is_no_file(path)
    arrays: Any = {"npz": read_npz, "pt": read_pt, "hdf5": read_hdf5}[kind](path)
    with naming(path):
        if isinstance(arrays, list):
            return TransitionDataset.from_episodes(arrays)
        return TransitionDataset.from_dict(arrays, copy=False)


def _filter(
    dataset: TransitionDataset,
    options: DataOptions,
    inspect: Callable[[TransitionDataset], None] | None,
    first_choice: int | None,
) -> TransitionDataset:
    """The episodes that the options ask for, with remarks on the data and the returns it came with."""
    drops = options.invalid_actions == "drop"
    if drops or first_choice is not None:
        dataset = check_logged(dataset, first=first_choice or 0, drop=drops)
    if inspect is not None:
        inspect(dataset)
    dataset = dataset.with_notes(*audit(dataset))
    stated = {"best_fraction": options.best_fraction, "reward_normalize": options.reward_normalize}
    for name, value in stated.items():
        if not dataset.has_rewards and value not in (None, "none"):
            raise DatasetError(f"the data has no rewards, which {name}: {value} needs: {REWARDS_HINT}")
    if not dataset.has_rewards:
        return dataset
    if not dataset.has_episodes:
        if options.best_fraction is not None:
            raise DatasetError("best_fraction needs episodes, and the rows seem shuffled; leave it out")
        if options.reward_normalize == "return_range":
            wrong = "return_range needs episodes, and the rows seem shuffled"
            raise DatasetError(f"reward_normalize: {wrong}; set reward_normalize: none")
        return dataset
    if options.best_fraction is not None:
        dataset = dataset.best_episodes(options.best_fraction)
    return replace(dataset, raw_returns=dataset.episode_returns())


def _reward_normalizer(parts: list[TransitionDataset], how: str) -> RewardTransformConfig:
    """The transform that gives the rewards of all parts together the range or the standard deviation asked for."""
    if how == "return_range":
        returns = torch.cat([part.episode_returns() for part in parts])
        span = float(returns.max() - returns.min())
        if span == 0:
            wrong = "return_range needs episodes with different returns"
            raise DatasetError(f"reward_normalize: {wrong}; set reward_normalize: none")
        return RewardTransformConfig(scale=1000 / span)
    if how == "standard":
        rewards = torch.cat([part.rewards for part in parts])
        mean, std = float(rewards.mean()), float(rewards.std(correction=0))
        if std == 0:
            raise DatasetError("reward_normalize: standard needs rewards that differ")
        return RewardTransformConfig(scale=1 / std, shift=-mean / std)
    return RewardTransformConfig()


NUMBERS = "numbers"


def split_validation(
    dataset: TransitionDataset, options: DataOptions, default: Callable[[int], float]
) -> TransitionDataset:
    """The dataset with a fraction of its episodes as `validation`; the default may be too much for it."""
    fraction = options.validation_fraction if options.validation_folds is None else 1 / options.validation_folds
    if fraction == 0:
        return dataset
    episodes = len(dataset.episode_bounds()) if dataset.is_ordered or fraction is not None else 0
    share = default(episodes) if fraction is None else fraction
    if share == 0:
        return dataset
    if episodes < 2 and fraction is None:
        return dataset.with_notes("no episode could be held out for diagnostics: there is only one")
    if episodes < 2:
        raise DatasetError(f"validation_fraction holds out whole episodes and needs at least 2 of them, got {episodes}")
    part: dict[str, Any] = {"seed": options.dataset_seed, "fold": options.validation_fold}
    if dataset.stored is not None:
        rest, held_out = dataset.split(share, **part)
        return replace(rest, validation=held_out)
    # Column by column: if nothing else refers to the dataset, its rows are not in memory twice.
    columns = dict(dataset.fields)
    dataset = replace(dataset, fields={"dones": columns["dones"], NUMBERS: torch.arange(len(dataset))})
    rest, held_out = dataset.split(share, **part)
    found: dict[str, list[Tensor]] = {}
    for name in list(columns):
        column = columns.pop(name)
        found[name] = [column.index_select(0, part.fields[NUMBERS]) for part in (rest, held_out)]
    ours, theirs = ({name: pair[k] for name, pair in found.items()} for k in (0, 1))
    return replace(rest, fields=ours, validation=replace(held_out, fields=theirs))


_SHARED: dict[str, str] = {}
"""Folders with the contents of a file, by the `shared_key` of the file."""


def shared_key(spec: DatasetSpec) -> str | None:
    """A key for the dataset in a file as long as the file does not change; None where there is no single file."""
    kind, path = spec.kind(), Path(str(spec.dataset_path))
    if kind not in ("npz", "pt", "hdf5", "csv", "parquet") or not path.is_file():
        return None
    status = path.stat()
    columns = None if spec.dataset_columns is None else asdict(spec.dataset_columns)
    return json.dumps([kind, str(path.resolve()), status.st_size, status.st_mtime_ns, columns])


@contextmanager
def use_shared(folders: Mapping[str, str]) -> Iterator[None]:
    """In this block, read these folders instead of the files that they were made of."""
    before = dict(_SHARED)
    _SHARED.update(folders)
    try:
        yield
    finally:
        _SHARED.clear()
        _SHARED.update(before)


def find_shared(spec: DatasetSpec) -> Path | None:
    """The folder that takes the place of a file, if there is one."""
    folder = _SHARED.get(shared_key(spec) or "") if _SHARED else None
    return Path(folder) if folder is not None and Path(folder).is_dir() else None
