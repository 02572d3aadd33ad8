"""Policies as users name them, and the logged episodes to evaluate them on, with rewards as logged."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError, DatasetError
from rl_training.core.options import bind
from rl_training.core.spaces import DiscreteActions
from rl_training.data import (
    ColumnsConfig,
    DataOptions,
    Keys,
    TableFiles,
    TransitionDataset,
    as_dataset,
    check_logged,
    episode_keys,
    fit_masks,
    fit_spaces,
    load_transition_dataset,
    table_kind,
    unseen_episodes,
    with_spaces_of_data,
)
from rl_training.data.audit import against_claims
from rl_training.ope import EvaluationLog
from rl_training.policies import SavedPolicy, load_policy
from rl_training.runtime import (
    ENOUGH_HELD_OUT,
    TRAINED_ON,
    RunOptions,
    Split,
    bind_options,
    chooses_by_log,
    find_task,
    keys_in,
    load_data,
    log_of_run,
)
from rl_training.storage import find_checkpoints, policy_name

HELD_OUT = "held out: the policies were not trained on them"
OWN = "the policies were trained on them, which makes values too high"
CHOSEN = "they decided when training stopped or which checkpoint is the best, which makes values too high"
TUNED = "they chose the options, which makes values too high"
REPEATED = "episodes repeat, so whether the policies were trained on them cannot be told"
UNKNOWN = "whether the policies were trained on them is not known"
STATE = "if they were not, state it: --split held-out, or split='held-out'"
REMEDIES = {
    OWN: "name others with --data, or train with validation_fraction, or a run for each of some validation_folds",
    CHOSEN: "name others with --data",
    TUNED: "hold out at least 20 episodes, with validation_fraction",
    REPEATED: STATE,
    UNKNOWN: STATE,
}
"""How to get a verdict, by the relation of the episodes to the policies."""

MOSTLY = 0.5
"""The share of unseen episodes below which equal episodes are no chance."""
ACCEPT = "mend the data, or state that it is right: --accept-audit, or accept_audit=True"

ENOUGH_TO_SPLIT = 20
"""Episodes from which on a claim is made on other episodes than those that made the choice."""

INCIDENTAL = {"accept_audit", "clip_actions", "normalize_obs"}

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
    relation: str
    """Whether the policies were trained on these episodes, in words."""
    doubt: str | None = None
    """The audit's finding that rules out claims, unless the user accepts it."""

    @property
    def is_held_out(self) -> bool:
        """Whether no policy was trained on these episodes."""
        return self.relation == HELD_OUT

    @property
    def untrusted(self) -> str | None:
        """Why these episodes cannot judge the policies; None if they can."""
        if not self.is_held_out:
            return f"no verdict on these episodes: {self.relation}; {REMEDIES[self.relation]}"
        return None if self.doubt is None else f"the audit warns of the timing of actions: {self.doubt}; {ACCEPT}"

    @property
    def has_probabilities(self) -> bool:
        """Whether the log has action probabilities, which importance sampling needs."""
        return "behavior_log_probs" in self.log.dataset.fields

    def part(self, episodes: Sequence[int]) -> EvaluationData:
        """These episodes alone."""
        return replace(self, log=EvaluationLog(self.log.dataset.take_episodes(episodes), self.log.spaces))

    def halves(self, seed: int) -> tuple[EvaluationData, EvaluationData | None]:
        """Episodes for a choice, and others for a claim about it; all and None where there are few."""
        count = len(self.log.bounds)
        if count < ENOUGH_TO_SPLIT:
            return self, None
        order = np.random.default_rng([seed, count]).permutation(count)
        first, second = (self.part(np.sort(part).tolist()) for part in np.array_split(order, 2))
        return first, second


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
    *,
    accept_audit: bool = False,
    **bounds: Sequence[float] | None,
) -> EvaluationData:
    """The episodes of a given dataset, else those of the policies' runs; without a doubt if the user accepts it."""
    saved = [each.policy for each in named.values() if isinstance(each.policy, SavedPolicy)]
    if saved and any(bound is not None for bound in bounds.values()):
        raise ConfigError("action_low and action_high come from the runs: leave them out")
    if dataset is not None:
        found = data_given(dataset, saved, columns, split, has_others=len(saved) < len(named), **bounds)
    elif len(saved) < len(named):
        raise ConfigError("a function has no data of its own: pass dataset=")
    else:
        found = data_of_runs(saved, split)
    return replace(found, doubt=None) if accept_audit else found


def data_of_runs(policies: Sequence[SavedPolicy], split: Split = "auto") -> EvaluationData:
    """The episodes that the runs of these policies name in their configs, which must be the same for all."""
    descriptions = [_description(each) for each in policies]
    different = [each for each in descriptions if each != descriptions[0]]
    if different:
        names = sorted({name for each in different for name in each if each[name] != descriptions[0].get(name)})
        hint = "evaluate them on one log, with --data or dataset="
        raise ConfigError(f"the runs were trained on different data ({', '.join(names)}): {hint}")
    config, options = _raw_options(policies[0].config)
    data = load_data(config, options, find_task(config), trainer=policies[0].tree.get("trainer", {}))
    log, is_held_out = log_of_run(data.dataset, data.spaces, split)
    chosen = any(_is_best_by_log(each) or chooses_by_log(each.config, bind_options(each.config)) for each in policies)
    # A run may have begun with a checkpoint that was trained on them.
    known = [keys for each in policies if (keys := keys_in(each.tree.get("trainer", {}))) is not None]
    unseen = unseen_episodes(episode_keys(log.dataset), known)
    is_own = not is_held_out or (unseen is not None and unseen.mean() < MOSTLY)
    relation = CHOSEN if chosen and is_held_out else OWN if is_own else HELD_OUT
    doubt = None if options.data.accept_audit else against_claims(data.dataset)
    return EvaluationData(log, options.data.name(), relation, doubt)


def _is_best_by_log(saved: SavedPolicy) -> bool:
    """Whether held-out episodes decided that this is the best checkpoint."""
    return saved.path is not None and saved.path.name == "best.pt" and saved.config.env_id is None


def _description(saved: SavedPolicy) -> dict[str, Any]:
    """The options that decide which episodes a run had."""
    options = bind_options(saved.config)
    if options.mode == "online":
        raise ConfigError(f"an online run of {saved.config.algo} has no log: name one, with --data or dataset=")
    if options.data.kind() is None and not options.data.dataset_mix:
        raise ConfigError("the run was given its data as an object: pass it again, as dataset=, or name it with --data")
    names = [name for name in vars(options.data) if name not in RAW and name not in INCIDENTAL]
    found = {name: getattr(options.data, name) for name in names if not name.startswith("__")}
    has_default = TRAINED_ON in saved.tree.get("trainer", {})
    return {**found, "env_id": saved.config.env_id, "version": has_default}


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
    split: Split = "auto",
    *,
    has_others: bool = False,
    **bounds: Sequence[float] | None,
) -> EvaluationData:
    """Episodes from a file or an object; the action space is that of the policies, else that of the data.

    `columns` say what the columns of a table are, else the runs of the policies do. With `has_others`, there are
    policies that do not know which episodes trained them. `bounds` are `action_low` and `action_high`, for policies
    that do not have them.
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
    doubt = against_claims(dataset)
    if policies:
        spaces = policies[0].spaces
        dataset = fit_spaces(dataset, spaces, "the policy")
    else:
        dataset, spaces, _ = with_spaces_of_data(dataset, bind(bounds, DataOptions)[0])
    if isinstance(spaces.action, DiscreteActions):
        spaces.action.check(dataset.actions, name="actions", origin="the policy")
    drops = any(bind_options(each.config).data.invalid_actions == "drop" for each in policies)
    dataset = check_logged(dataset, first=getattr(spaces.action, "start", 0), drop=drops)
    trained_on = [None if _is_best_by_log(each) else keys_in(each.tree.get("trainer", {})) for each in policies]
    dataset, relation = _unseen(dataset, [*trained_on, *[None] * has_others], split, source)
    dataset = dataset.map_actions(spaces.action.encode)
    if spaces.is_masked and "valid_actions" not in dataset.fields:
        raise DatasetError("the policy needs action masks (valid_actions), which the data does not have")
    if "valid_actions" in dataset.fields and (spaces.is_masked or not policies):
        dataset, spaces = fit_masks(dataset, spaces)
    return EvaluationData(EvaluationLog(dataset, spaces), source, relation, doubt)


def _unseen(
    dataset: TransitionDataset, trained_on: Sequence[Keys | None], split: Split, source: str
) -> tuple[TransitionDataset, str]:
    """The episodes to evaluate on, and their relation to policies that remember the keys of those that trained them.

    What the policies remember counts more than what `split` says of them.
    """
    if not dataset.has_episodes:
        return dataset, UNKNOWN
    known = [keys for keys in trained_on if keys is not None]
    unseen = unseen_episodes(episode_keys(dataset), known)
    is_unknown = split != "held-out" and (len(known) < len(trained_on) or not trained_on)
    if unseen is None:
        return dataset, HELD_OUT if split == "held-out" else REPEATED
    if unseen.all():
        return dataset, UNKNOWN if is_unknown else HELD_OUT
    fewest = {"held-out": 1, "auto": ENOUGH_HELD_OUT, "all": len(unseen)}[split]
    if unseen.sum() >= fewest:
        return dataset.take_episodes(np.flatnonzero(unseen).tolist()), UNKNOWN if is_unknown else HELD_OUT
    if split == "held-out":
        raise ConfigError(f"the policies were trained on every episode of {source}: name others")
    return dataset, OWN


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
