"""What policies are judged on: the logged episodes of their runs or others, with rewards as they were logged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError, DatasetError
from rl_training.core.options import bind
from rl_training.core.spaces import BoxActions, DiscreteActions, SpaceSpec
from rl_training.data import DataOptions, TransitionDataset, as_dataset, load_transition_dataset
from rl_training.data.masks import check_logged
from rl_training.data.offline_mixers import concatenate_datasets
from rl_training.data.tables.columns import ColumnsConfig
from rl_training.data.tables.files import TableFiles
from rl_training.data.tables.in_memory import table_kind
from rl_training.models.novelty import Novelty, fit_novelty, hold_out
from rl_training.ope.fitting import EvaluationLog
from rl_training.policies.saved import SavedPolicy
from rl_training.runtime.run_data import find_task, fit_masks, fit_spaces, load_data, with_spaces_of_data
from rl_training.runtime.run_options import RunOptions, bind_options

Split = Literal["auto", "held-out", "all"]
ENOUGH_HELD_OUT = 10
"""Held-out episodes from which `auto` judges by them alone."""
ROWS = 4096
"""Rows whose distance from the log is measured at a time."""
HELD_OUT = "held out: the policies were not trained on them"
REPEATED = 0.5
"""The share of distinct observations up to which a log of choices is taken to have states that repeat."""
INCIDENTAL = {"validation_fraction", "accept_audit", "clip_actions", "normalize_obs"}
RAW: dict[str, Any] = {
    "reward_scale": None,
    "reward_shift": None,
    "reward_clip_min": None,
    "reward_clip_max": None,
    "reward_preset": None,
    "reward_normalize": "none",
    "normalize_obs": False,
}
"""Options of data whose rewards stay as they were logged."""


@dataclass(frozen=True, eq=False)
class JudgedData:
    """Episodes to judge policies by, and what the policies had to do with them."""

    log: EvaluationLog
    source: str
    is_held_out: bool
    relation: str
    """Whether the policies were trained on these episodes, in words."""


def data_of_runs(policies: Sequence[SavedPolicy], split: Split = "auto") -> JudgedData:
    """The episodes that the runs of these policies name in their configs, which must be the same for all."""
    descriptions = [_description(each) for each in policies]
    different = [each for each in descriptions if each != descriptions[0]]
    if different:
        names = sorted({name for each in different for name in each if each[name] != descriptions[0].get(name)})
        hint = "judge them on one log, with --data or dataset="
        raise ConfigError(f"the runs were trained on different data ({', '.join(names)}): {hint}")
    config, options = _raw_options(policies[0].config)
    data = load_data(config, options, find_task(config))
    log, is_held_out = log_of_run(data.dataset, data.spaces, split)
    relation = HELD_OUT if is_held_out else "the policies were trained on them, which favours the policies a little"
    return JudgedData(log, options.data.name(), is_held_out, relation)


def log_of_run(dataset: TransitionDataset, spaces: SpaceSpec, split: Split = "auto") -> tuple[EvaluationLog, bool]:
    """The episodes of a run's dataset to judge policies by, and whether these are held-out ones."""
    held_out = dataset.validation
    is_held_out = _chooses_held_out(held_out, split)
    parts = [*([] if is_held_out else [replace(dataset, validation=None)]), *([] if held_out is None else [held_out])]
    return EvaluationLog(parts[0] if len(parts) == 1 else concatenate_datasets(parts), spaces), is_held_out


def _description(saved: SavedPolicy) -> dict[str, Any]:
    """What decides which episodes a run had, by name of the option."""
    options = bind_options(saved.config)
    if options.mode == "online":
        raise ConfigError(f"a run of {saved.config.algo} that only acted has no log: name one, with --data or dataset=")
    if options.data.kind() is None and not options.data.dataset_mix:
        raise ConfigError("the run was given its data as an object: pass it again, as dataset=, or name it with --data")
    names = [name for name in vars(options.data) if name not in RAW and name not in INCIDENTAL]
    found = {name: getattr(options.data, name) for name in names if not name.startswith("__")}
    return {**found, "env_id": saved.config.env_id}


def _raw_options(config: TrainConfig) -> tuple[TrainConfig, RunOptions]:
    """The config and the options of a run's data, without transforms of its rewards."""
    wrappers = {name: value for name, value in config.env_kwargs.get("wrappers", {}).items() if name != "reward"}
    kwargs = {name: value for name, value in config.env_kwargs.items() if name != "wrappers"}
    plain = replace(config, env_kwargs={**kwargs, **({"wrappers": wrappers} if wrappers else {})})
    options = bind_options(plain)
    return plain, replace(options, data=replace(options.data, **RAW))


def _chooses_held_out(held_out: TransitionDataset | None, split: Split) -> bool:
    """Whether only held-out episodes are judged by: if that is asked for, or if there are enough of them."""
    if split == "all" or (split == "auto" and held_out is None):
        return False
    if held_out is None:
        raise ConfigError("no episodes were held out: train with validation_fraction, or judge by all of them")
    return split == "held-out" or len(held_out.episode_bounds()) >= ENOUGH_HELD_OUT


def data_given(
    data: Any,
    policies: Sequence[SavedPolicy],
    columns: Mapping[str, Any] | None = None,
    *,
    is_held_out: bool = False,
    **bounds: Sequence[float] | None,
) -> JudgedData:
    """Episodes from a file or an object; policies tell what its actions are, else the data itself does.

    What the columns of a table are is said by `columns`, or else by the runs of the policies. Only who made the split
    knows that episodes are held out. `bounds` are `action_low` and `action_high`, for policies that do not tell them.
    """
    if isinstance(data, (str, Path)):
        said = next((bind_options(each.config).data.dataset_columns for each in policies), None)
        known = _asked(data, said) if columns is None else _stated(columns, said)
        options: DataOptions = bind({"dataset_path": str(data), "dataset_columns": known}, DataOptions)[0]
        dataset = load_transition_dataset(options)
        source = str(data)
    elif columns is not None:
        raise ConfigError("columns go with a table that is named by its path; this dataset is an object")
    else:
        dataset = as_dataset(data)
        source = "the given dataset"
    if policies:
        spaces = policies[0].spaces
        dataset = fit_spaces(dataset, spaces, "the policy")
    else:
        stated: DataOptions = bind(bounds, DataOptions)[0]
        dataset, spaces, _ = with_spaces_of_data(dataset, stated)
    if isinstance(spaces.action, DiscreteActions):
        spaces.action.check(dataset.actions, name="actions", origin="the policy")
    drops = any(bind_options(each.config).data.invalid_actions == "drop" for each in policies)
    dataset = check_logged(dataset, first=getattr(spaces.action, "start", 0), drop=drops)
    dataset = dataset.map_actions(spaces.action.encode)
    if spaces.is_masked and "valid_actions" not in dataset.fields:
        raise DatasetError("the policy chooses among valid_actions, which the data does not have")
    if "valid_actions" in dataset.fields and (spaces.is_masked or not policies):
        dataset, spaces = fit_masks(dataset, spaces)
    relation = HELD_OUT if is_held_out else "whether the policies were trained on them is not known"
    return JudgedData(EvaluationLog(dataset, spaces), source, is_held_out, relation)


def _asked(data: str | Path, said: ColumnsConfig | None) -> ColumnsConfig | None:
    """What the runs say of the columns, where the data is a table that does not say it itself."""
    kind = table_kind(data)
    is_told = kind is not None and TableFiles(str(data), kind).mapping is not None
    return None if kind is None or is_told else said


def _stated(columns: Mapping[str, Any], said: ColumnsConfig | None) -> dict[str, Any]:
    """What columns are, with the names of choices and categories that the policies know."""
    known = {} if said is None else {"choices": said.choices, "one_hot": said.one_hot}
    return {**{name: value for name, value in known.items() if value}, **columns}


def as_inputs(policy: Any, log: EvaluationLog, name: str) -> Callable[[Tensor], Tensor]:
    """A policy as a function from observations to actions as members of a fit see them.

    A policy is an object with `predict`, or a function of an array of observations. It gives actions in native units;
    a function may give probabilities of choices instead.
    """
    predict = getattr(policy, "predict", policy)
    if not callable(predict):
        raise ConfigError(f"{name} is neither a run, nor a function of observations, nor an object with predict")
    space = log.spaces.action

    def act(obs: Tensor) -> Tensor:
        found = np.asarray(predict(obs.numpy(force=True)))
        native = torch.from_numpy(_checked(found, len(obs), space, name))
        is_probable = isinstance(space, DiscreteActions) and native.ndim == 2
        return native if is_probable else log.as_inputs(space.encode(native))

    return act


def _checked(actions: NDArray[Any], rows: int, space: BoxActions | DiscreteActions, name: str) -> NDArray[Any]:
    """The answer of a policy, if it has the form of actions."""
    if isinstance(space, DiscreteActions) and actions.shape == (rows,) and np.issubdtype(actions.dtype, np.integer):
        space.check(torch.from_numpy(actions), name="actions", origin=name)
        return actions.astype(np.int64)
    numbers = actions.astype(np.float32)
    if numbers.shape != (rows, space.size):
        shapes = f"({rows},) or ({rows}, {space.size})" if space.kind == "discrete" else f"({rows}, {space.size})"
        raise ConfigError(f"{name} answers {rows} observations with an array of shape {actions.shape}, not {shapes}")
    if not np.isfinite(numbers).all():
        raise ConfigError(f"{name} answers with actions that are not finite numbers")
    is_distribution = (numbers >= 0).all() and np.allclose(numbers.sum(1), 1, atol=1e-3)
    if isinstance(space, DiscreteActions) and not is_distribution:
        raise ConfigError(f"{name} answers with probabilities of choices that do not add up to 1")
    return numbers


def novelty_of_log(log: EvaluationLog, *, seed: int = 0) -> tuple[Novelty, NDArray[np.int64]]:
    """The distance from a log, and the numbers of the episodes that were held out to calibrate it."""
    data, held_out = log.dataset, hold_out(log.episodes, seed=seed)
    choices = log.spaces.action_dim if data.is_discrete else 0
    return fit_novelty(data.obs, data.actions, log.episodes, held_out=held_out, choices=choices, seed=seed), held_out


class Support:
    """How much of what a policy does is backed by the log.

    Where states of a log of choices repeat, an action is backed that was logged in that state. Elsewhere, an action is
    backed that is not farther from all logged rows than rows of held-out episodes are.
    """

    novelty: Novelty | None = None
    missing: float | None = None
    """Where states repeat, the share of the behaviour's own actions that a log of this size lacks; else None."""

    def __init__(self, log: EvaluationLog, *, seed: int = 0) -> None:
        self.log, data = log, log.dataset
        if data.is_discrete:
            states, numbers = np.unique(data.obs.numpy(force=True), axis=0, return_inverse=True)
            if len(states) <= REPEATED * len(data):
                self._count_pairs(numbers.reshape(-1), len(states))
        if self.missing is None and len(log.bounds) > 1:
            self.novelty, _ = novelty_of_log(log, seed=seed)

    def _count_pairs(self, numbers: NDArray[np.int64], states: int) -> None:
        """Which actions were logged in which state.

        The rows whose pair of state and action no other episode has are as many as the log would lack if it were one
        episode shorter. That is Good and Turing's estimate of the share that it lacks.
        """
        self.numbers, choices = numbers, self.log.spaces.action_dim
        pairs = numbers * choices + self.log.dataset.actions.numpy(force=True)
        by_episode = np.unique(np.stack([pairs, self.log.episodes.numpy()]), axis=1)
        episodes = np.bincount(by_episode[0], minlength=states * choices)
        self.logged = (episodes > 0).reshape(states, choices)
        self.missing = float((episodes[pairs] == 1).mean())

    def novel_share(self, actions: Tensor) -> float:
        """The share of a policy's actions, given for all logged observations, that the log does not back."""
        obs = self.log.dataset.obs
        if self.log.dataset.is_discrete:
            return float((self._unbacked_choices(obs) * actions).sum(1).mean())
        if self.novelty is None:
            return 0.0
        return float(torch.cat([self._is_far(*part) for part in _parts(obs, actions)]).mean())

    def _unbacked_choices(self, obs: Tensor) -> Tensor:
        """1 for each choice (rows, choices) that the log does not back; one that a mask excludes never is."""
        count, mask = self.log.spaces.action_dim, self.log.spaces.mask_of(obs)
        if self.missing is not None:
            unbacked = torch.from_numpy(~self.logged[self.numbers]).float()
        elif self.novelty is not None:
            taken = [torch.full((len(obs),), choice) for choice in range(count)]
            shares = [torch.cat([self._is_far(*part) for part in _parts(obs, choices)]) for choices in taken]
            unbacked = torch.stack(shares, dim=1)
        else:
            unbacked = torch.zeros(len(obs), count)
        return unbacked if mask is None else torch.maximum(unbacked, 1 - mask)

    def _is_far(self, obs: Tensor, actions: Tensor) -> Tensor:
        assert self.novelty is not None  # noqa: S101 - for the type checker
        novelty: Tensor = self.novelty(obs, actions)
        return (novelty > 1).float()


def _parts(obs: Tensor, actions: Tensor) -> list[tuple[Tensor, Tensor]]:
    return list(zip(torch.split(obs, ROWS), torch.split(actions, ROWS), strict=True))
