"""The data of a run: read, checked against the environment it is said to come from, and described."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.config import TrainConfig
from rl_training.data import DataOptions, TransitionDataset, load_transition_dataset
from rl_training.envs import make_native_env, reward_transform, space_spec, try_out
from rl_training.runtime.options import RunOptions
from rl_training.types import ConfigError, DatasetError, SpaceSpec

DEFAULT_VALIDATION = 0.1
TOLERANCE = 1e-5
"""How far a logged action may stand outside its bounds, relative to their distance, and count as rounding."""


@dataclass(frozen=True)
class Data:
    """A dataset ready for training, and what is known about it."""

    dataset: TransitionDataset
    spaces: SpaceSpec
    fingerprint: str

    @property
    def mean_return(self) -> float | None:
        """Mean return of the logged episodes, on raw rewards."""
        returns = self.dataset.raw_returns
        return None if returns is None else float(returns.mean())

    def describe(self, rows: int, notes: Sequence[str]) -> dict[str, Any]:
        """Plain values for the run's metadata, with the rows that are trained on and what was said about them."""
        dataset, returns = self.dataset, self.dataset.raw_returns
        held_out = 0 if dataset.validation is None else len(dataset.validation)
        about: dict[str, Any] = {
            "fingerprint": self.fingerprint,
            "rows": rows,
            "rows_held_out": held_out,
            "rows_dropped": dataset.num_dropped + len(dataset) - rows,
            "notes": list(notes),
        }
        if returns is not None:
            about |= {
                "episodes": len(returns),
                "return_mean": self.mean_return,
                "return_std": float(returns.std(correction=0)),
                "return_max": float(returns.max()),
            }
        return about


def find_spaces(config: TrainConfig) -> SpaceSpec | None:
    """The spaces of the environment that a config names, if it does."""
    if config.env_id is None:
        return None
    env = make_native_env(config.env_id, config.env_kwargs, raw_rewards=True)
    try:
        try_out(env, config.env_id, config.env_kwargs)
        return space_spec(env)
    finally:
        env.close()


def load_data(config: TrainConfig, options: RunOptions) -> Data:
    """The dataset with actions in [-1, 1], checked against the environment it is said to come from."""
    spaces = find_spaces(config)
    env = partial(make_native_env, config.env_id, config.env_kwargs, raw_rewards=True) if config.env_id else None
    data_options = options.data
    _check_reward_wrappers(config, data_options)
    dataset = load_transition_dataset(
        data_options,
        env=env,
        env_rewards=reward_transform(config.env_kwargs),
        default_validation=DEFAULT_VALIDATION if env is None else 0.0,
        returns=_returns(options),
    )
    spaces = _check_spaces(dataset, spaces, data_options, config.env_id)
    if data_options.clip_actions:
        dataset = dataset.with_clipped_actions(spaces.action_low, spaces.action_high)
    _check_bounds(dataset, spaces, config.env_id or ("the data" if data_options.action_low is None else "the config"))
    scaled = dataset.with_action_bounds(spaces.action_low, spaces.action_high)
    fingerprint = scaled.fingerprint()
    if dataset.validation is not None:
        held_out = dataset.validation.with_action_bounds(spaces.action_low, spaces.action_high)
        scaled = replace(scaled, validation=held_out)
        fingerprint += held_out.fingerprint()
    return Data(scaled, spaces, fingerprint)


def _returns(options: RunOptions) -> dict[str, Any] | None:
    """How the returns-to-go are computed that the algorithm asks for, if it does."""
    hyper: Any = options.hyper
    if "returns_to_go" not in options.algorithm.make_needs(hyper):
        return None
    return {"gamma": hyper.gamma, "failure_reward": getattr(hyper, "failure_reward", None)}


def _check_reward_wrappers(config: TrainConfig, options: DataOptions) -> None:
    kinds = {part.kind() for part in options.dataset_mix} or {options.kind()}
    if reward_transform(config.env_kwargs) is not None and kinds != {"random"}:
        raise ConfigError(
            "env_kwargs.wrappers.reward does not change rewards in a file; use reward_preset, reward_scale, "
            "reward_shift, reward_clip_min and reward_clip_max in algo_kwargs"
        )


def _check_spaces(
    dataset: TransitionDataset, spaces: SpaceSpec | None, options: DataOptions, env_id: str | None
) -> SpaceSpec:
    """The environment's spaces, which the data must fit, or else those that the options or the data imply."""
    if spaces is None:
        return _spaces_of_data(dataset, options)
    if options.action_low is not None:
        raise ConfigError("action_low and action_high come from the environment; leave them out or set env_id: null")
    for name in ("obs_dim", "action_dim"):
        found, expected = getattr(dataset, name), getattr(spaces, name)
        if found != expected:
            raise DatasetError(f"the dataset has {name} {found}, {env_id} has {expected}")
    return spaces


def _spaces_of_data(dataset: TransitionDataset, options: DataOptions) -> SpaceSpec:
    low, high = options.action_low, options.action_high
    if low is None or high is None:
        parts = [part.actions.numpy(force=True) for part in (dataset, dataset.validation) if part is not None]
        bottom = np.min([part.min(axis=0) for part in parts], axis=0)
        top = np.max([part.max(axis=0) for part in parts], axis=0)
        if (bottom >= -1).all() and (top <= 1).all():
            bottom, top = -np.ones_like(bottom), np.ones_like(top)
        flat = np.flatnonzero(bottom == top)
        if len(flat):
            raise DatasetError(
                f"action column {flat[0]} is {bottom[flat[0]]:g} throughout; set action_low and action_high"
            )
        low, high = tuple(map(float, bottom)), tuple(map(float, top))
    if not len(low) == len(high) == dataset.action_dim:
        raise ConfigError(
            f"action_low and action_high must have {dataset.action_dim} numbers, got {len(low)} and {len(high)}"
        )
    return SpaceSpec(dataset.obs_dim, dataset.action_dim, low, high)


def _check_bounds(dataset: TransitionDataset, spaces: SpaceSpec, origin: str) -> None:
    low, high = torch.tensor(spaces.action_low), torch.tensor(spaces.action_high)
    slack = TOLERANCE * (high - low)
    parts = [part for part in (dataset, dataset.validation) if part is not None]
    for part in parts:
        for name in [name for name in ("actions", "next_actions") if name in part.fields]:
            values = part.fields[name]
            outside = (values < low - slack) | (values > high + slack)
            if name == "next_actions":
                # After the end of an episode there is no next action; what stands there means nothing.
                outside &= ~part.episode_ends[:, None]
            if bool(outside.any()):
                raise DatasetError(_out_of_bounds(name, values, outside, spaces, origin))


def _out_of_bounds(name: str, values: Tensor, outside: Tensor, spaces: SpaceSpec, origin: str) -> str:
    row, column = outside.nonzero()[0].tolist()
    count = int(outside.any(1).sum())
    bounds = f"[{spaces.action_low[column]:g}, {spaces.action_high[column]:g}]"
    return (
        f"{count} rows have {name} outside the bounds of {origin}: row {row}, column {column} "
        f"is {float(values[row, column]):g}, expected {bounds}; set clip_actions: true to clip them"
    )
