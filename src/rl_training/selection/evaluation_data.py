"""Policies as users name them, and the logged episodes to evaluate them on, with rewards as logged."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError, DatasetError
from rl_training.core.options import bind
from rl_training.core.spaces import DiscreteActions
from rl_training.data import (
    ColumnsConfig,
    DataOptions,
    TableFiles,
    TransitionDataset,
    as_dataset,
    check_logged,
    fit_masks,
    fit_spaces,
    load_transition_dataset,
    table_kind,
    with_spaces_of_data,
)
from rl_training.ope import EvaluationLog
from rl_training.policies import SavedPolicy, load_policy
from rl_training.runtime import RunOptions, Split, bind_options, find_task, load_data, log_of_run
from rl_training.storage import find_checkpoints, policy_name

HELD_OUT = "held out: the policies were not trained on them"

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
"""Options of data whose rewards stay as logged."""


@dataclass(frozen=True, eq=False)
class EvaluationData:
    """Episodes to evaluate policies on, and whether the policies were trained on them."""

    log: EvaluationLog
    source: str
    is_held_out: bool
    relation: str
    """Whether the policies were trained on these episodes, in words."""

    @property
    def has_probabilities(self) -> bool:
        """Whether the log has action probabilities, which importance sampling needs."""
        return "behavior_log_probs" in self.log.dataset.fields

    def part(self, episodes: Sequence[int]) -> EvaluationData:
        """These episodes alone."""
        return replace(self, log=EvaluationLog(self.log.dataset.take_episodes(episodes), self.log.spaces))


class NamedPolicy(NamedTuple):
    """A policy, and the checkpoint that it comes from, if it does."""

    policy: Any
    path: str | None


NamedPolicies = Mapping[str, NamedPolicy]


def find_evaluation_data(
    named: NamedPolicies,
    dataset: Any,
    split: Split,
    columns: Mapping[str, Any] | None = None,
    **bounds: Sequence[float] | None,
) -> EvaluationData:
    """The episodes of a given dataset, else those of the policies' runs."""
    saved = [each.policy for each in named.values() if isinstance(each.policy, SavedPolicy)]
    if saved and any(bound is not None for bound in bounds.values()):
        raise ConfigError("action_low and action_high come from the runs: leave them out")
    if dataset is not None:
        return data_given(dataset, saved, columns, is_held_out=split == "held-out", **bounds)
    if len(saved) < len(named):
        raise ConfigError("a function has no data of its own: pass dataset=")
    return data_of_runs(saved, split)


def data_of_runs(policies: Sequence[SavedPolicy], split: Split = "auto") -> EvaluationData:
    """The episodes that the runs of these policies name in their configs, which must be the same for all."""
    descriptions = [_description(each) for each in policies]
    different = [each for each in descriptions if each != descriptions[0]]
    if different:
        names = sorted({name for each in different for name in each if each[name] != descriptions[0].get(name)})
        hint = "evaluate them on one log, with --data or dataset="
        raise ConfigError(f"the runs were trained on different data ({', '.join(names)}): {hint}")
    config, options = _raw_options(policies[0].config)
    data = load_data(config, options, find_task(config))
    log, is_held_out = log_of_run(data.dataset, data.spaces, split)
    relation = HELD_OUT if is_held_out else "the policies were trained on them, which favours the policies a little"
    return EvaluationData(log, options.data.name(), is_held_out, relation)


def _description(saved: SavedPolicy) -> dict[str, Any]:
    """The options that decide which episodes a run had."""
    options = bind_options(saved.config)
    if options.mode == "online":
        raise ConfigError(f"an online run of {saved.config.algo} has no log: name one, with --data or dataset=")
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


def data_given(
    data: Any,
    policies: Sequence[SavedPolicy],
    columns: Mapping[str, Any] | None = None,
    *,
    is_held_out: bool = False,
    **bounds: Sequence[float] | None,
) -> EvaluationData:
    """Episodes from a file or an object; the action space is that of the policies, else that of the data.

    `columns` say what the columns of a table are, else the runs of the policies do. Only the caller knows that the
    episodes are held out. `bounds` are `action_low` and `action_high`, for policies that do not have them.
    """
    if isinstance(data, (str, Path)):
        stated = next((bind_options(each.config).data.dataset_columns for each in policies), None)
        known = _columns_of_runs(data, stated) if columns is None else _with_names(columns, stated)
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
        dataset, spaces, _ = with_spaces_of_data(dataset, bind(bounds, DataOptions)[0])
    if isinstance(spaces.action, DiscreteActions):
        spaces.action.check(dataset.actions, name="actions", origin="the policy")
    drops = any(bind_options(each.config).data.invalid_actions == "drop" for each in policies)
    dataset = check_logged(dataset, first=getattr(spaces.action, "start", 0), drop=drops)
    dataset = dataset.map_actions(spaces.action.encode)
    if spaces.is_masked and "valid_actions" not in dataset.fields:
        raise DatasetError("the policy needs action masks (valid_actions), which the data does not have")
    if "valid_actions" in dataset.fields and (spaces.is_masked or not policies):
        dataset, spaces = fit_masks(dataset, spaces)
    relation = HELD_OUT if is_held_out else "whether the policies were trained on them is not known"
    return EvaluationData(EvaluationLog(dataset, spaces), source, is_held_out, relation)


def _columns_of_runs(data: str | Path, stated: ColumnsConfig | None) -> ColumnsConfig | None:
    """The columns that the runs state, if the data is a table that does not state them itself."""
    kind = table_kind(data)
    has_own = kind is not None and TableFiles(str(data), kind).mapping is not None
    return None if kind is None or has_own else stated


def _with_names(columns: Mapping[str, Any], stated: ColumnsConfig | None) -> dict[str, Any]:
    """The columns, with the names of actions and categories that the policies know."""
    known = {} if stated is None else {"choices": stated.choices, "one_hot": stated.one_hot}
    return {**{name: value for name, value in known.items() if value}, **columns}


LOGS = (".npz", ".h5", ".hdf5", ".csv", ".csv.gz", ".csv.zst", ".tsv", ".parquet", ".rlt")
"""Endings of files that hold a log."""

NO_POLICY = (
    "is a log, not a policy: it has logged actions only. To evaluate its policy, give a run, "
    "or a function that gives every action a probability"
)


def named_policies(policies: Any, checkpoint: str = "latest.pt") -> dict[str, NamedPolicy]:
    """Policies by name, with the checkpoint that each comes from, if it does."""
    _refuse_logs(policies)
    if isinstance(policies, Mapping):
        found = {str(name): _loaded(each, checkpoint) for name, each in policies.items()}
    else:
        given = policies if isinstance(policies, Sequence) and not isinstance(policies, str) else [policies]
        texts = [each for each in given if isinstance(each, (str, Path))]
        paths = find_checkpoints(texts, name=checkpoint) if texts else []
        found = {policy_name(path): NamedPolicy(load_policy(path), str(path)) for path in paths}
        for each in given:
            if not isinstance(each, (str, Path)):
                found[_free(getattr(each, "__name__", type(each).__name__), found)] = NamedPolicy(each, None)
    if not found:
        raise ConfigError("no policy is named")
    return found


def _loaded(policy: Any, checkpoint: str) -> NamedPolicy:
    if not isinstance(policy, (str, Path)):
        return NamedPolicy(policy, None)
    paths = find_checkpoints([policy], name=checkpoint)
    if len(paths) > 1:
        raise ConfigError(f"{str(policy)!r} stands for {len(paths)} policies, which cannot share one name")
    return NamedPolicy(load_policy(paths[0]), str(paths[0]))


def _free(name: str, taken: Mapping[str, Any]) -> str:
    """The name, with a number if it is taken."""
    names = itertools.chain([name], (f"{name} {number}" for number in itertools.count(2)))
    return next(each for each in names if each not in taken)


def _refuse_logs(policies: Any) -> None:
    """Refuse a log where a policy is expected."""
    given = policies.values() if isinstance(policies, Mapping) else policies
    for each in [given] if isinstance(given, (str, Path, TransitionDataset)) or callable(given) else list(given):
        is_file = isinstance(each, (str, Path)) and str(each).lower().endswith(LOGS) and Path(each).exists()
        if is_file or isinstance(each, TransitionDataset):
            raise ConfigError(f"{str(each) if is_file else 'a TransitionDataset'} {NO_POLICY}")
