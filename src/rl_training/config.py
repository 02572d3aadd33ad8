"""The configuration of a run, read from and written to YAML."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from importlib import resources
from pathlib import Path
from types import NoneType
from typing import Annotated, Any

import yaml
from pydantic import BeforeValidator, Field

from rl_training.binding import bind, options
from rl_training.rewards import RewardPreset, RewardTransformConfig
from rl_training.types import ConfigError, nearest

__all__ = [
    "PathText",
    "RewardPreset",
    "RewardTransformConfig",
    "TrainConfig",
    "dump_yaml",
    "find_config",
    "load_config",
    "packaged_configs",
    "parse_overrides",
    "parse_yaml",
    "read_config",
]


def _path_text(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


PathText = Annotated[str, BeforeValidator(_path_text)]
"""A path as text; Python's path objects are taken too."""


@options
class TrainConfig:
    """One run: what to train, on what, for how long, and where the result goes."""

    algo: str = Field(description="name of a registered algorithm, see `rl-training list`")
    env_id: str | None = Field(default=None, description="Gymnasium environment; optional when a dataset is given")
    seed: int = Field(default=0, ge=0, description="seed of initialisation, sampling and noise")
    total_timesteps: int = Field(default=1_000_000, ge=1, description="length of the run; offline, gradient updates")
    output_dir: PathText = Field(default="runs", description="folder in which the run directory is made")
    device: str = Field(
        default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?|mps)$", description="auto, cpu, cuda, cuda:<n> or mps"
    )
    num_envs: int | None = Field(
        default=None, ge=1, description="environments side by side; default for evaluation: 10"
    )
    eval_episodes: int = Field(default=10, ge=1, description="episodes in an evaluation")
    log_interval: int = Field(default=1000, ge=1, description="timesteps between two lines of metrics")
    checkpoint_interval: int = Field(default=10_000, ge=1, description="timesteps between two checkpoints")
    tags: tuple[str, ...] = Field(default=(), description="free labels, kept with the run")
    algo_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="options of the algorithm, its data and the loop"
    )
    env_kwargs: dict[str, Any] = Field(default_factory=dict, description="arguments of the environment, and `wrappers`")

    def to_plain(self) -> dict[str, Any]:
        """Lists, mappings, numbers and text only, as YAML and checkpoints store them."""
        return {name: _plain(value) for name, value in asdict(self).items()}

    def to_yaml(self) -> str:
        """The configuration as YAML text that `load_config` reads back."""
        return dump_yaml(self.to_plain())


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    # NumPy's numbers and arrays, which neither YAML nor a safe checkpoint can hold.
    return value.tolist() if hasattr(value, "tolist") else value


class _Loader(yaml.SafeLoader):
    """YAML 1.2's idea of numbers and booleans: `3e-4` is a number, `on` is a word. A key may stand only once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The mapping of a node; PyYAML alone would let the last of two equal keys win."""
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    problem=f"the key {key.value!r} stands twice", problem_mark=key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


_Loader.yaml_implicit_resolvers = {
    key: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":bool", ":float"))]
    for key, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_FLOAT = re.compile(
    r"^[-+]?(([0-9][0-9_]*)?\.[0-9_]+([eE][-+]?[0-9]+)?|[0-9][0-9_]*\.?([eE][-+]?[0-9]+)|[0-9][0-9_]*\.|\.(inf|nan))$"
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


class _Dumper(yaml.SafeDumper):
    """Quotes text that any version of YAML would read as something else."""


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


def parse_yaml(text: str, *, where: str) -> Any:
    """The value a YAML text stands for."""
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - _Loader is a SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ConfigError(f"{where}: not valid YAML: {place}{getattr(error, 'problem', error)}") from None


def dump_yaml(value: Any) -> str:
    """Plain values as YAML text, keys in the order given."""
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True))


def packaged_configs() -> dict[str, Path]:
    """The configurations shipped with the package, by name such as 'td3_bc/pendulum'."""
    root = Path(str(resources.files("rl_training"))) / "assets" / "configs"
    return {path.relative_to(root).with_suffix("").as_posix(): path for path in sorted(root.glob("*/*.yaml"))}


def find_config(name: str | Path) -> Path:
    """The file behind a path or a packaged name."""
    path = Path(name)
    if path.is_file():
        return path
    packaged = packaged_configs()
    if str(name) in packaged:
        return packaged[str(name)]
    hint = nearest(str(name), packaged) or f"; packaged configs: {', '.join(packaged)}"
    raise ConfigError(f"no config file or packaged config {str(name)!r}{hint}")


def read_config(name: str | Path, *, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The mapping in a config file, with `key=value` overrides written into it, not checked yet."""
    path = find_config(name)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not a text file in UTF-8") from None
    values = parse_yaml(text, where=str(path))
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected a mapping of options, got {type(values).__name__}")
    for override in overrides:
        _override(values, override)
    return values


def parse_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """`key=value` overrides as a mapping of a TrainConfig's fields."""
    values: dict[str, Any] = {}
    for override in overrides:
        _override(values, override)
    names = [field.name for field in fields(TrainConfig)]
    problems = [f"unknown option {name!r}{nearest(name, names)}" for name in values if name not in names]
    if problems:
        raise ConfigError(*problems)
    return values


def _override(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set expects key=value, got {override!r}")
    *parents, last = key.strip().split(".")
    for parent in parents:
        child = values.get(parent)
        if not isinstance(child, (dict, NoneType)):
            raise ConfigError(f"--set {key}: {parent} is {child!r}, not a mapping; set {parent} as a whole")
        values[parent] = values = dict(child or {})
    values[last] = parse_yaml(text, where=f"--set {key}")


def load_config(name: str | Path, *, overrides: Sequence[str] = ()) -> TrainConfig:
    """A checked TrainConfig from a path or a packaged name."""
    values = read_config(name, overrides=overrides)
    try:
        config: TrainConfig = bind(values, TrainConfig)[0]
    except ConfigError as error:
        raise ConfigError(*error.problems, where=str(name)) from None
    return config
