"""From a config to the option groups that own its values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from rl_training.algorithms import ALGORITHMS, Algorithm
from rl_training.algorithms.base import Hyper
from rl_training.binding import bind
from rl_training.config import TrainConfig, read_config
from rl_training.data import DataOptions
from rl_training.envs import reward_transform
from rl_training.runtime.controls import ControlOptions
from rl_training.runtime.trainer import LoopOptions
from rl_training.types import ConfigError, nearest

ConfigSource: TypeAlias = "TrainConfig | Mapping[str, Any] | str | Path"
"""A configuration: a record, the mapping it is made of, the path of a YAML file, or a packaged name."""


@dataclass(frozen=True)
class RunOptions:
    """A config's `algo_kwargs`, bound."""

    algorithm: type[Algorithm]
    hyper: Hyper
    data: DataOptions
    loop: LoopOptions
    controls: ControlOptions

    def resolve(self, config: TrainConfig) -> TrainConfig:
        """The config with every option written out, and with paths that do not depend on the working directory."""
        kwargs: dict[str, Any] = {}
        for group in (self.hyper, self.data, self.loop, self.controls):
            kwargs |= asdict(group)
        for spec in (kwargs, *kwargs["dataset_mix"]):
            if spec["dataset_path"] is not None:
                spec["dataset_path"] = str(Path(spec["dataset_path"]).resolve())
        return replace(config, algo_kwargs=kwargs)


def find_algorithm(name: str) -> type[Algorithm]:
    """The registered algorithm of this name."""
    if name not in ALGORITHMS:
        hint = nearest(name, ALGORITHMS) or f"; there are {', '.join(sorted(ALGORITHMS))}"
        raise ConfigError(f"unknown algorithm {name!r}{hint}")
    return ALGORITHMS[name]


def option_groups(algorithm: type[Algorithm]) -> tuple[type[Any], ...]:
    """The groups over which an algorithm's `algo_kwargs` are shared out; no two have a field of the same name."""
    return algorithm.hyper_class, DataOptions, LoopOptions, ControlOptions


def bind_options(config: TrainConfig) -> RunOptions:
    """Check `algo_kwargs` and the wrappers in `env_kwargs`; all problems are raised together."""
    algorithm = find_algorithm(config.algo)
    values = {**algorithm.defaults, **config.algo_kwargs}
    problems: list[str] = []
    bound: tuple[Any, ...] = ()
    try:
        bound = bind(values, *option_groups(algorithm), where="algo_kwargs")
    except ConfigError as error:
        problems += error.problems
    try:
        reward_transform(config.env_kwargs)
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(*problems)
    return RunOptions(algorithm, *bound)


def read_options(source: ConfigSource, *, overrides: Sequence[str] = ()) -> tuple[TrainConfig, RunOptions]:
    """A config and its options from a record, a mapping, a path or a packaged name; all problems of both together."""
    if isinstance(source, TrainConfig):
        return source, bind_options(source)
    values = dict(source) if isinstance(source, Mapping) else read_config(source, overrides=overrides)
    problems: list[str] = []
    config, options = None, None
    try:
        config = bind(values, TrainConfig)[0]
    except ConfigError as error:
        problems += error.problems
    try:
        # Where the outer record is wrong, the options inside it are still worth checking.
        inner = {key: values[key] for key in ("algo", "algo_kwargs", "env_kwargs") if key in values}
        options = bind_options(config or TrainConfig(**inner))
    except ConfigError as error:
        problems += [problem for problem in error.problems if problem not in problems]
    if config is None or options is None:
        raise ConfigError(*problems, where="config" if isinstance(source, Mapping) else str(source))
    return config, options
