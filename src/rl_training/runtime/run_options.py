"""Options of a run: a config bound to the option groups that own its values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeAlias

from rl_training.algorithms import ALGORITHMS, Algorithm
from rl_training.algorithms.base import Hyper, Mode
from rl_training.config import TrainConfig, parse_overrides, read_config
from rl_training.core.batches import Rollout
from rl_training.core.errors import ConfigError, nearest
from rl_training.core.options import MODES, bind, field_defaults, given_options, options_with
from rl_training.core.spaces import SpaceSpec
from rl_training.data import DataOptions
from rl_training.diagnostics import GuardOptions
from rl_training.envs import reward_transform
from rl_training.runtime.controls import ControlOptions, LoopOptions, OnlineOptions

ConfigSource: TypeAlias = "TrainConfig | Mapping[str, Any] | str | Path"
"""A configuration: a record, the mapping it is made of, the path of a YAML file, a packaged name, or an algorithm."""


@dataclass(frozen=True)
class RunOptions:
    """A config's `algo_kwargs`, bound."""

    algorithm: type[Algorithm]
    hyper: Hyper
    data: DataOptions
    loop: LoopOptions
    online: OnlineOptions
    controls: ControlOptions
    guards: GuardOptions

    @property
    def mode(self) -> Mode:
        """Where transitions come from: as the config says, or as the algorithm is made."""
        return self.loop.mode or self.algorithm.mode

    def resolve(self, config: TrainConfig) -> TrainConfig:
        """The config with every option written out, and with paths that do not depend on the working directory."""
        kwargs: dict[str, Any] = {}
        for group in (self.hyper, self.data, self.loop, self.online, self.controls, self.guards):
            kwargs |= asdict(group)
        datasets = [(spec, "dataset_path") for spec in (kwargs, *kwargs["dataset_mix"])]
        for spec, name in [*datasets, (kwargs, "initial_checkpoint")]:
            if spec[name] is not None:
                spec[name] = str(Path(spec[name]).resolve())
        return replace(config, algo_kwargs=kwargs)


BoundConfig: TypeAlias = tuple[TrainConfig, RunOptions]
"""A configuration and its options, checked, as `read_options` returns them."""


def find_algorithm(name: str) -> type[Algorithm]:
    """The registered algorithm of this name."""
    if name not in ALGORITHMS:
        hint = nearest(name, ALGORITHMS) or f"; there are {', '.join(sorted(ALGORITHMS))}, and your own with --import"
        raise ConfigError(f"unknown algorithm {name!r}{hint}")
    return ALGORITHMS[name]


def check_action_kind(algorithm: type[Algorithm], spaces: SpaceSpec, subject: str) -> None:
    """Refuse a task with a kind of actions that the algorithm does not support, and name algorithms that do."""
    if spaces.action.kind not in algorithm.action_kinds:
        *others, last = sorted(name for name, cls in ALGORITHMS.items() if spaces.action.kind in cls.action_kinds)
        names = f"{', '.join(others)} or {last}" if others else last
        kinds = " or ".join(algorithm.action_kinds)
        raise ConfigError(f"{algorithm.name} is for {kinds} actions, {subject} has {spaces.action}: use {names}")


def option_groups(algorithm: type[Algorithm]) -> tuple[type[Any], ...]:
    """The groups that share an algorithm's `algo_kwargs`; no two have a field of the same name."""
    return algorithm.hyper_class, DataOptions, LoopOptions, OnlineOptions, ControlOptions, GuardOptions


def bind_options(config: TrainConfig) -> RunOptions:
    """Check `algo_kwargs` and the wrappers in `env_kwargs`; all problems are raised together."""
    algorithm = find_algorithm(config.algo)
    values = {**_defaults(algorithm, config.algo_kwargs), **config.algo_kwargs}
    problems: list[str] = []
    with _collected(problems):
        outer = {field.name: f"{field.name!r} beside algo_kwargs" for field in fields(TrainConfig)}
        bound = bind(values, *option_groups(algorithm), where="algo_kwargs", hints=outer)
    with _collected(problems):
        reward_transform(config.env_kwargs)
    if problems:
        raise ConfigError(*problems)
    options = RunOptions(algorithm, *bound)
    options = replace(options, loop=replace(options.loop, mode=options.mode))
    _refuse_foreign(config, options)
    return options


@contextmanager
def _collected(problems: list[str], prefix: str = "") -> Iterator[None]:
    """Add new problems of an error to a list instead of raising it."""
    try:
        yield
    except ConfigError as error:
        problems += [text for text in (f"{prefix}{each}" for each in error.problems) if text not in problems]


def merge(values: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Merge overrides into values, mapping by mapping."""
    merged = {
        key: merge(values[key], value)
        for key, value in overrides.items()
        if isinstance(value, dict) and isinstance(values.get(key), dict)
    }
    return {**values, **overrides, **merged}


def option_modes(*groups: type[Any]) -> dict[str, Sequence[str]]:
    """The modes in which each option has an effect: those of its field, else of its group.

    Hyper-parameters that begin with `online_` are for the updates of a run that acts.
    """
    usual = {field.name: getattr(group, "modes", MODES) for group in groups for field in fields(group)}
    online = {name: OnlineOptions.modes for name in usual if name.startswith("online_")}
    return usual | online | options_with("modes", *groups)


def missing_files(options: RunOptions) -> list[str]:
    """Files that options name and that are not there."""
    named = {"dataset_path": options.data.dataset_path, "initial_checkpoint": options.online.initial_checkpoint}
    named |= {f"dataset_mix.{k}.dataset_path": part.dataset_path for k, part in enumerate(options.data.dataset_mix)}
    return [
        f"algo_kwargs: {name} {path!r} does not exist"
        for name, path in named.items()
        if path is not None and not Path(path).exists() and not any(Path(path).parent.glob(Path(path).name))
    ]


def mode_defaults(algorithm: type[Algorithm], mode: Mode) -> dict[str, Any]:
    """The algorithm's own defaults: for all modes, and those under the name of this one (`{"offline": {...}}`)."""
    shared = {name: value for name, value in algorithm.defaults.items() if name not in MODES}
    return shared | dict(algorithm.defaults.get(mode, {}))


def _defaults(algorithm: type[Algorithm], given: Mapping[str, Any]) -> dict[str, Any]:
    """The algorithm's own defaults, without those that do not go with the given options."""
    mode = given["mode"] if given.get("mode") in MODES else algorithm.mode
    meaningless = {name for name, modes in option_modes(DataOptions).items() if mode not in modes}
    if any(given.get(name) is not None for name in ("train_frequency", "gradient_updates_per_step")):
        # How often it updates is said in one way, and the user's counts.
        meaningless.add("update_to_data")
    return {name: value for name, value in mode_defaults(algorithm, mode).items() if name not in meaningless}


def _other_mode(name: str, algorithm: type[Algorithm], mode: Mode) -> str:
    """Advice for data that is given to an algorithm whose default mode is online."""
    learns_offline = mode == "online" and not isinstance(algorithm.reads, Rollout)
    return "; to learn from it, set algo_kwargs.mode=offline" if name == "dataset_path" and learns_offline else ""


def _refuse_foreign(config: TrainConfig, options: RunOptions) -> None:
    """Refuse options that have no effect in the run's mode, unless they have their default values."""
    algorithm, mode = options.algorithm, options.mode
    foreign = {name for name, modes in option_modes(*option_groups(algorithm)).items() if mode not in modes}
    usual = {name: each for group in option_groups(algorithm) for name, each in field_defaults(group).items()}
    usual |= _defaults(algorithm, config.algo_kwargs)
    problems = [
        f"algo_kwargs: {name} does not go with mode: {mode}{_other_mode(name, algorithm, mode)}"
        for name, value in config.algo_kwargs.items()
        if name in foreign and value != usual[name] and value is not None and value not in ([], ())
    ]
    reads, hindsight = algorithm.make_reads(options.hyper), options.online.replay == "hindsight"
    if mode != "offline" and config.env_id is None:
        problems.append(f"env_id is required with mode: {mode}")
    if mode == "offline" and hindsight and config.env_id is None:
        problems.append("env_id is required with replay: hindsight, whose rewards the environment computes")
    if hindsight and not (reads.bootstraps or algorithm.annotates):
        problems.append(f"algo_kwargs: replay: hindsight does not go with {config.algo}, which reads no rewards")
    elif hindsight and (reads.reads_returns or algorithm.annotates):
        problems.append(f"algo_kwargs: replay: hindsight does not go with {config.algo}, whose returns have old goals")
    problems += _refuse_for_model(algorithm, options.hyper)
    if isinstance(reads, Rollout):
        problems += _refuse_for_rollouts(config, options, usual)
    elif options.loop.n_step > 1 and not reads.bootstraps:
        problems.append(f"algo_kwargs: n_step has no effect on {config.algo}, which looks at no value of the next step")
    with _collected(problems, prefix="algo_kwargs: "):
        options.controls.schedules(ramp=mode == "offline")
    if problems:
        raise ConfigError(*problems)


def _refuse_for_model(algorithm: type[Algorithm], hyper: Hyper) -> list[str]:
    """Problems: network options that the model does not take; an own `build_model` may use them."""
    if algorithm.build_model.__func__ is not Algorithm.build_model.__func__:  # type: ignore[attr-defined]
        return []
    taken = algorithm.model_class.accepts() | ({"encoder_kwargs"} if hyper.encoder is not None else set())
    given = [name for name in given_options(hyper) if name in options_with("agree", type(hyper)) and name not in taken]
    model = algorithm.model_class.__name__
    return [f"algo_kwargs: {name} has no effect on {algorithm.name}: {model} does not take it" for name in given]


def _refuse_for_rollouts(config: TrainConfig, options: RunOptions, usual: Mapping[str, Any]) -> list[str]:
    """Problems: options without effect on an algorithm that learns from each rollout only once."""
    algo, kwargs, mode = config.algo, config.algo_kwargs, options.mode
    if mode != "online":
        return [f"algo_kwargs: mode: {mode} does not go with {algo}, which learns from its own rollouts only"]
    off_policy = options_with("off_policy", *option_groups(options.algorithm))
    given = [name for name in off_policy if kwargs.get(name) is not None and kwargs[name] != usual[name]]
    words = f"has no effect on {config.algo}, which learns from rollouts: see rollout_steps and epochs"
    return [f"algo_kwargs: {name} {words}" for name in given]


def _inner_hints(algo: Any) -> dict[str, str]:
    """Hints for options of `algo_kwargs` that were written one level too high."""
    groups = option_groups(ALGORITHMS[algo]) if isinstance(algo, str) and algo in ALGORITHMS else ()
    return {field.name: f"'algo_kwargs.{field.name}'" for group in groups for field in fields(group)}


def bind_hyper(config: TrainConfig) -> Hyper:
    """The hyper-parameters alone, which are all that a trained policy needs."""
    group = find_algorithm(config.algo).hyper_class
    hyper: Hyper = bind(_known(config.algo_kwargs, group), group, where="algo_kwargs")[0]
    return hyper


def read_saved_config(values: Mapping[str, Any]) -> TrainConfig:
    """The config in a checkpoint, without options that this version of the package does not have."""
    kwargs = _known(values["algo_kwargs"], *option_groups(find_algorithm(values["algo"])))
    return TrainConfig(**_known(values, TrainConfig) | {"algo_kwargs": kwargs})


def _known(values: Mapping[str, Any], *groups: type[Any]) -> dict[str, Any]:
    names = {field.name for group in groups for field in fields(group)}
    return {name: value for name, value in values.items() if name in names}


def plain_config(source: ConfigSource, *, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """A configuration as the mapping that it consists of, with overrides, not checked yet.

    The name of an algorithm stands for its defaults, unless a file has that name.
    """
    if isinstance(source, TrainConfig):
        values = source.to_plain()
    elif isinstance(source, Mapping):
        values = dict(source)
    elif str(source) in ALGORITHMS and not Path(source).is_file():
        values = {"algo": str(source)}
    else:
        return read_config(source, overrides=overrides, others=ALGORITHMS)
    return merge(values, parse_overrides(overrides))


def read_options(source: ConfigSource | BoundConfig, *, overrides: Sequence[str] = ()) -> BoundConfig:
    """A config and its options from a record, a mapping, a path or a packaged name; all problems of both together.

    It accepts its own result, so that callers need not know whether options are bound.
    """
    if isinstance(source, tuple):
        return source
    if isinstance(source, TrainConfig):
        return source, bind_options(source)
    values = plain_config(source, overrides=overrides)
    problems: list[str] = []
    config, options = None, None
    with _collected(problems):
        config = bind(values, TrainConfig, hints=_inner_hints(values.get("algo")))[0]
    with _collected(problems):
        # Where the outer record is wrong, the options inside it are still worth checking.
        inner = {key: values[key] for key in ("algo", "env_id", "algo_kwargs", "env_kwargs") if key in values}
        options = bind_options(config or TrainConfig(**inner))
    if config is None or options is None:
        raise ConfigError(*problems, where="config" if isinstance(source, Mapping) else str(source))
    return config, options
