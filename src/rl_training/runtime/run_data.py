"""The data of a run: loaded, checked against its environment, and described."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from rl_training.acting import EVALUATION_METRICS
from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError, DatasetError
from rl_training.core.spaces import BoxActions, DiscreteActions, SpaceSpec
from rl_training.data import (
    LOGGED_REWARDS,
    MOST_KEYS,
    REWARDS_HINT,
    DataOptions,
    Keys,
    StepTimes,
    TrainingAudit,
    TransitionDataset,
    concatenate_datasets,
    episode_keys,
    fit_masks,
    fit_spaces,
    load_transition_dataset,
    remembered,
    step_times,
    with_masks_of_env,
    with_spaces_of_data,
)
from rl_training.envs import Task, make_native_env, reward_transform, try_out
from rl_training.ope import EvaluationLog
from rl_training.runtime.run_options import RunOptions

TRAINED_ON = "trained_on"
"""The keys of the episodes that trained a policy, in its checkpoint; None where the data has no episodes. Checkpoints
of earlier versions, whose runs held nothing out if they had an environment, do not have it."""


Split = Literal["auto", "held-out", "all"]
ENOUGH_HELD_OUT = 10
"""Held-out episodes from which `auto` evaluates on them alone."""
ENOUGH_EPISODES = 50
"""Episodes from which a run holds so many out."""
HELD_OUT_SHARE = 0.1


@dataclass(frozen=True)
class RunData:
    """A dataset ready for training, with facts about it."""

    dataset: TransitionDataset
    spaces: SpaceSpec
    fingerprint: str
    origin: str = "as the data has them"
    """The source of the action space, for the introduction of a run."""
    audit: Mapping[str, Any] = field(default_factory=dict)
    """Findings of the cheap part of the audit."""
    step_times: StepTimes | None = None
    """Durations of its steps, if it has timestamps."""
    logged: TransitionDataset | None = None
    """The dataset with rewards as they were logged, where that was asked for."""
    trained_on: Keys | None = None
    """The keys of the episodes that are not held out; None where the data has no episodes."""

    @property
    def mean_return(self) -> float | None:
        """Mean return of the logged episodes, on raw rewards."""
        returns = self.dataset.raw_returns
        return None if returns is None else float(returns.mean())

    def has_fingerprint(self, fingerprint: str) -> bool:
        """Whether a checkpoint was made with this data; older ones have an older kind of fingerprint."""
        return fingerprint in (self.fingerprint, _fingerprint(self.dataset, older=True))

    def describe(self, drawn: TransitionDataset) -> dict[str, Any]:
        """Plain values for the run's metadata; `drawn` are the rows that are trained on."""
        dataset, returns = self.dataset, self.dataset.raw_returns
        about: dict[str, Any] = {
            "fingerprint": self.fingerprint,
            "rows": len(drawn),
            "rows_held_out": 0 if dataset.validation is None else len(dataset.validation),
            "rows_dropped": dataset.num_dropped + len(dataset) - len(drawn),
            "notes": list(drawn.notes),
            "audit": dict(self.audit),
            "step_times": None if self.step_times is None else asdict(self.step_times),
        }
        if returns is None:
            return about
        spread = {"return_std": float(returns.std(correction=0)), "return_max": float(returns.max())}
        return about | {"episodes": len(returns), "return_mean": self.mean_return, **spread}


def find_task(config: TrainConfig) -> Task | None:
    """The environment that a config names, which is tried out; None where it names none."""
    return None if config.env_id is None else try_out(config.env_id, config.env_kwargs)


def load_data(
    config: TrainConfig,
    options: RunOptions,
    task: Task | None,
    given: TransitionDataset | None = None,
    *,
    keep_rewards: bool = False,
    trainer: Mapping[str, Any] | None = None,
) -> RunData:
    """The dataset with actions as networks see them, checked against the environment that it comes from.

    With `keep_rewards`, the result has the rewards as they were logged beside those that training sees. `trainer` is
    that part of a run's checkpoint, whose version decides which episodes are held out by default.
    """
    env_id, data_options = config.env_id, options.data
    spaces = None if task is None else task.spaces
    env = None if env_id is None else partial(make_native_env, env_id, config.env_kwargs, raw_rewards=True)
    _check_reward_wrappers(config, data_options)
    audit = TrainingAudit(None if spaces is None else spaces.action)
    count = data_options.num_actions
    stated = None if count is None else DiscreteActions(count)
    known, origin = (stated, f"num_actions: {count}") if spaces is None else (spaces.action, str(env_id))
    first = known.start if isinstance(known, DiscreteActions) else 0
    is_earlier = trainer is not None and TRAINED_ON not in trainer
    keys: list[Keys | None] = []

    def inspect(part: TransitionDataset) -> None:
        audit.inspect(part)
        keys.append(episode_keys(part) if part.has_episodes else None)
        # Before rows are held out or dropped, so that they have the numbers of the log.
        if isinstance(known, DiscreteActions) and part.is_discrete:
            known.check(part.actions, name="actions", origin=origin)

    dataset = load_transition_dataset(
        data_options,
        env=env,
        env_rewards=reward_transform(config.env_kwargs),
        default_validation=partial(_held_out_share, has_env=env is not None, is_earlier=is_earlier),
        returns=_returns(options),
        dataset=given,
        inspect=inspect,
        first_choice=first,
        keep_rewards=keep_rewards,
    )
    trained_on = _trained_on(keys, None if chooses_by_log(config, options) else dataset.validation)
    summary = audit.summary(accepted=data_options.accept_audit)
    times, dataset = step_times(dataset), _without(dataset, "timestamps")
    _check_columns(dataset, options, env_id)
    says = "as the data has them"
    if spaces is None:
        is_stated = data_options.action_low is not None or data_options.num_actions is not None
        origin = "the config" if is_stated else "the data"
        dataset, spaces, says = with_spaces_of_data(dataset, data_options)
    else:
        origin = str(env_id)
        _refuse_stated_spaces(data_options)
        dataset = with_masks_of_env(fit_spaces(dataset, spaces, origin), spaces, origin)
    if data_options.clip_actions and isinstance(spaces.action, BoxActions):
        dataset = dataset.with_clipped_actions(spaces.action.low, spaces.action.high)
    _check_actions(dataset, spaces, origin)
    encoded = dataset.map_actions(spaces.action.encode)
    if "valid_actions" in dataset.fields:
        encoded, spaces = fit_masks(encoded, spaces)
        says += "; valid_actions mask the invalid ones"
    logged = _as_logged(encoded) if keep_rewards else None
    encoded = _without(encoded, LOGGED_REWARDS)
    return RunData(encoded, spaces, _fingerprint(encoded), says, summary, times, logged, trained_on)


def _held_out_share(episodes: int, *, has_env: bool, is_earlier: bool) -> float:
    """The share that is held out by default: enough episodes to judge a policy by, if there are enough to train on."""
    if episodes >= ENOUGH_EPISODES and not is_earlier:
        return max(HELD_OUT_SHARE, ENOUGH_HELD_OUT / episodes)
    return 0.0 if has_env else HELD_OUT_SHARE


def _trained_on(parts: list[Keys | None], held_out: TransitionDataset | None) -> Keys | None:
    """The keys of all parts but the held-out episodes; None if a part has no episodes."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    return remembered(np.concatenate(known), np.array([], np.uint64) if held_out is None else episode_keys(held_out))


def chooses_by_log(config: TrainConfig, options: RunOptions) -> bool:
    """Whether held-out episodes decide when training stops."""
    stopping = options.controls.early_stopping
    return stopping is not None and (config.env_id is None or stopping.metric not in EVALUATION_METRICS)


def keys_in(trainer: Mapping[str, Any]) -> Keys | None:
    """The keys of the episodes that trained a policy, from its checkpoint; None if they are not known."""
    stored = trainer.get(TRAINED_ON)
    return None if stored is None else stored.numpy().view(np.uint64)


def stored_keys(data: RunData | None, before: Mapping[str, Any] | None) -> dict[str, Any]:
    """The keys of a new run, for its checkpoints; `before` is that part of the checkpoint that it begins with."""
    parts = [np.array([], np.uint64) if data is None else data.trained_on]
    parts += [] if before is None else [keys_in(before)]
    known = [part for part in parts if part is not None]
    # Of two parts of different logs, the union would be no random part of both.
    if len(known) < len(parts) or (before is not None and max(map(len, known)) == MOST_KEYS):
        return {TRAINED_ON: None}
    return {TRAINED_ON: torch.tensor(np.unique(np.concatenate(known)).view(np.int64).tolist(), dtype=torch.int64)}


def same_keys(trainer: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a resumed run; none if its version did not store them."""
    return {name: value for name, value in trainer.items() if name == TRAINED_ON}


def _fingerprint(dataset: TransitionDataset, *, older: bool = False) -> str:
    """That of the rows to train on, and of those that are held out."""
    held_out = "" if dataset.validation is None else dataset.validation.fingerprint(older=older)
    return dataset.fingerprint(older=older) + held_out


def _without(dataset: TransitionDataset, name: str) -> TransitionDataset:
    """The dataset without a field that training does not read; not every device knows the float64 of timestamps."""
    if name not in dataset.fields:
        return dataset
    held_out = None if dataset.validation is None else _without(dataset.validation, name)
    kept = {other: value for other, value in dataset.fields.items() if other != name}
    return replace(dataset, fields=kept, validation=held_out)


def _as_logged(dataset: TransitionDataset) -> TransitionDataset:
    """The dataset with the rewards that were kept in place of the transformed ones."""
    held_out = None if dataset.validation is None else _as_logged(dataset.validation)
    plain = dataset.with_fields(rewards=dataset.fields[LOGGED_REWARDS])
    return replace(_without(plain, LOGGED_REWARDS), validation=held_out, reward_transforms=())


def _check_columns(dataset: TransitionDataset, options: RunOptions, env_id: str | None) -> None:
    """Refuse a table that lacks rewards or the order of its actions where they are needed."""
    algorithm, columns = options.algorithm, dataset.columns
    reads = algorithm.make_reads(options.hyper)
    if not dataset.has_rewards and (reads.bootstraps or reads.reads_returns or algorithm.annotates):
        raise DatasetError(f"the data has no rewards, which {algorithm.name} learns from: {REWARDS_HINT}")
    stated = [part.dataset_columns for part in (options.data, *options.data.dataset_mix)]
    if env_id is not None and columns is not None and columns.choices and not any(c and c.choices for c in stated):
        hint = f"list them in dataset_columns.choices in the order of the numbers that {env_id} gives them"
        raise DatasetError(f"the actions of the table are text: {hint}")


def with_columns(config: TrainConfig, data: RunData | None) -> TrainConfig:
    """The config with the names, categories and actions that `dataset_columns` left to the table."""
    if data is None or data.dataset.columns is None:
        return config
    kwargs = {**config.algo_kwargs, "dataset_columns": asdict(data.dataset.columns)}
    if config.algo_kwargs.get("dataset_mix"):
        # The parts of a mixture agree in what a policy needs to know, and keep the rest for themselves.
        found = {name: kwargs["dataset_columns"][name] for name in ("obs", "actions", "choices", "one_hot")}
        parts = [
            {**part, "dataset_columns": {**part["dataset_columns"], **found}} if part["dataset_columns"] else part
            for part in config.algo_kwargs["dataset_mix"]
        ]
        kwargs |= {"dataset_columns": None, "dataset_mix": parts}
    return replace(config, algo_kwargs=kwargs)


def _returns(options: RunOptions) -> dict[str, Any] | None:
    """Options of the returns-to-go; None if the algorithm reads none."""
    hyper: Any = options.hyper
    if not options.algorithm.make_reads(hyper).reads_returns:
        return None
    return {"gamma": hyper.gamma, "failure_reward": getattr(hyper, "failure_reward", None)}


def _check_reward_wrappers(config: TrainConfig, options: DataOptions) -> None:
    kinds = {part.kind() for part in options.dataset_mix} or {options.kind()}
    if reward_transform(config.env_kwargs) is not None and kinds != {"random"}:
        advice = "use reward_preset, reward_scale, reward_shift, reward_clip_min and reward_clip_max in algo_kwargs"
        raise ConfigError(f"env_kwargs.wrappers.reward does not change rewards in a file; {advice}")


def _refuse_stated_spaces(options: DataOptions) -> None:
    if options.action_low is not None:
        raise ConfigError("action_low and action_high come from the environment; leave them out or set env_id: null")
    if options.num_actions is not None:
        raise ConfigError("num_actions comes from the environment; leave it out or set env_id: null")


def _check_actions(dataset: TransitionDataset, spaces: SpaceSpec, origin: str) -> None:
    for part in [part for part in (dataset, dataset.validation) if part is not None]:
        spaces.action.check(part.actions, name="actions", origin=origin)
        if "next_actions" in part.fields:
            # After the end of an episode there is no next action; what stands there means nothing.
            ends = part.episode_ends
            spaces.action.check(part.fields["next_actions"], name="next_actions", origin=origin, ignored=ends)


def log_of_run(dataset: TransitionDataset, spaces: SpaceSpec, split: Split = "auto") -> tuple[EvaluationLog, bool]:
    """The episodes of a run's dataset to evaluate policies on, and whether they are held out."""
    held_out = dataset.validation
    if held_out is None and split == "held-out":
        raise ConfigError("no episodes were held out: train with validation_fraction, or use all of them")
    if held_out is None:
        return EvaluationLog(dataset, spaces), False
    if split == "held-out" or (split == "auto" and len(held_out.episode_bounds()) >= ENOUGH_HELD_OUT):
        return EvaluationLog(held_out, spaces), True
    return EvaluationLog(concatenate_datasets([replace(dataset, validation=None), held_out]), spaces), False
