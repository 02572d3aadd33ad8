"""Fine-tuning: an online run that begins with an offline policy, and its effect on that policy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_training.algorithms import ALGORITHMS, Algorithm
from rl_training.config import TrainConfig, parse_overrides
from rl_training.core.errors import ConfigError
from rl_training.core.options import field_defaults, options_with
from rl_training.core.rewards import RewardTransformConfig
from rl_training.core.spaces import SpaceSpec
from rl_training.data import DataOptions
from rl_training.envs import reward_transform
from rl_training.runtime.controls import ControlOptions, LoopOptions
from rl_training.runtime.run_options import BoundConfig, ConfigSource, RunOptions, plain_config, read_options
from rl_training.storage import find_checkpoint, load_networks, open_checkpoint

Rewards = Sequence[Mapping[str, Any]]
"""The transforms of rewards, one after the other, in numbers."""


def fine_tuning_config(
    checkpoint: str | Path, source: ConfigSource | None = None, *, overrides: Sequence[str] = ()
) -> BoundConfig:
    """The config of a run that goes online with a checkpoint's policy: its own, or another, with overrides."""
    path, was_offline = find_checkpoint(checkpoint), False
    if source is None:
        config = open_checkpoint(path)["config"]
        was_offline = config["algo_kwargs"].get("mode") == "offline"
        # Not its mode, nor budgets and schedules that were meant for the offline run.
        own = options_with("offline_only", LoopOptions, ControlOptions) if was_offline else ()
        kept = {name: value for name, value in config["algo_kwargs"].items() if name not in own}
        source = {**config, "algo_kwargs": kept}
    values = plain_config(source, overrides=overrides)
    kwargs = dict(values.get("algo_kwargs") or {})
    if "offline_pretrain_updates" not in parse_overrides(overrides).get("algo_kwargs", {}):
        # The policy of the checkpoint is trained already.
        kwargs.pop("offline_pretrain_updates", None)
    algorithm = ALGORITHMS.get(values.get("algo", ""))
    was_offline |= algorithm is not None and algorithm.mode == "offline"
    if kwargs.get("mode") is None and was_offline:
        kwargs["mode"] = "offline_to_online"
    return read_options({**values, "algo_kwargs": {**kwargs, "initial_checkpoint": str(path)}})


def begin_with_checkpoint(
    algorithm: Algorithm, spaces: SpaceSpec, config: TrainConfig, options: RunOptions, rewards: Rewards
) -> dict[str, Any]:
    """Load the networks, target networks and optimisers of a checkpoint, which must fit the run.

    Returns what the checkpoint says of its training.
    """
    path = find_checkpoint(str(options.online.initial_checkpoint))
    tree, named = open_checkpoint(path), f"initial_checkpoint {path}"
    other = TrainConfig(**tree["config"])
    if other.algo != config.algo:
        raise ConfigError(f"{named} is of {other.algo!r}, the run is of {config.algo!r}")
    if SpaceSpec.from_plain(tree["spaces"]) != spaces:
        raise ConfigError(f"{named} was trained for other observations or actions")
    if found := _differences(other, options.resolve(config), tree["trainer"].get("rewards"), rewards):
        name, before, after = found[0]
        must = "rewards and observations before and after must be transformed alike"
        raise ConfigError(f"{named} was trained with {name} {before}, the run has {after}: {must}")
    # Checkpoints that do not name a hyper-parameter of the networks have its default.
    usual = field_defaults(type(options.hyper))
    for name in options_with("agree", type(options.hyper)):
        before, after = other.algo_kwargs.get(name, usual[name]), getattr(options.hyper, name)
        if before != after:
            must = "the networks before and after must be the same"
            raise ConfigError(f"{named} was trained with {name} {before!r}, the run has {after!r}: {must}")
    load_networks(algorithm, tree, what=named, error_class=ConfigError)
    trainer: dict[str, Any] = tree["trainer"]
    return trainer


def _differences(
    before: TrainConfig, after: TrainConfig, before_rewards: Rewards | None, after_rewards: Rewards
) -> list[tuple[str, str, str]]:
    """The options in which two runs differ: name, value before, value after."""
    kwargs = after.to_plain()["algo_kwargs"]
    agree = {"gamma", *options_with("agree", DataOptions)} & before.algo_kwargs.keys()
    pairs = {name: (before.algo_kwargs[name], value) for name, value in kwargs.items() if name in agree}
    pairs["env_kwargs.wrappers.reward"] = (reward_transform(before.env_kwargs), reward_transform(after.env_kwargs))
    found = [(name, repr(first), repr(second)) for name, (first, second) in pairs.items() if first != second]
    if before_rewards is not None and not _are_close(before_rewards, after_rewards):
        # The same options can come to other numbers: reward_normalize looks at the data.
        found.append(("rewards of", describe_rewards(before_rewards), describe_rewards(after_rewards)))
    return found


def _are_close(first: Rewards, second: Rewards) -> bool:
    numbers = [[value for each in chain for value in each.values()] for chain in (first, second)]
    return len(numbers[0]) == len(numbers[1]) and all(
        one == other or (None not in (one, other) and math.isclose(one, other, rel_tol=1e-5))
        for one, other in zip(*numbers, strict=True)
    )


def describe_rewards(rewards: Rewards) -> str:
    """The transforms of rewards as a text."""
    usual = RewardTransformConfig().resolve()
    parts = [[f"{name} {value:g}" for name, value in each.items() if value != usual[name]] for each in rewards]
    return "; ".join(", ".join(each) for each in parts) or "the data as they are"


@dataclass
class FineTuning:
    """The evaluations since the run went online; the first one is of the offline policy."""

    starts_with_policy: bool = False
    """Whether there is a policy to be evaluated before the first timestep of the run."""
    scores: list[float] = field(default_factory=list)
    successes: list[float] = field(default_factory=list)

    def add(self, metrics: Mapping[str, float]) -> None:
        """Record an evaluation."""
        if "return_mean" in metrics:
            self.scores.append(metrics["return_mean"])
        if "success_rate" in metrics:
            self.successes.append(metrics["success_rate"])

    def summary(self) -> dict[str, float]:
        """The offline score, the last one, the largest drop below the offline score, and the regret.

        The regret is the mean difference between the best score of the run, that of the offline policy included, and
        the scores online. Where the task reports successes, it is 1 minus their mean share online.
        """
        if len(self.scores) < 2:
            return {}
        offline, *online = self.scores
        regret = max(self.scores) - sum(online) / len(online)
        if len(self.successes) == len(self.scores):
            regret = 1 - sum(self.successes[1:]) / len(online)
        drop = max(offline - min(online), 0.0)
        return {"offline_score": offline, "online_score": online[-1], "largest_drop": drop, "regret": regret}

    def state_dict(self) -> dict[str, Any]:
        """The evaluations so far."""
        return {"scores": list(self.scores), "successes": list(self.successes)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.scores, self.successes = list(state["scores"]), list(state["successes"])
