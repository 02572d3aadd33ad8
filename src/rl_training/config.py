"""The configuration of a run, read from and written to YAML."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from importlib import resources
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BeforeValidator, Field

from rl_training.core.errors import LARGEST_SEED, ConfigError, nearest
from rl_training.core.options import bind, option, options
from rl_training.core.rewards import RewardPreset, RewardTransformConfig

__all__ = ["RewardPreset", "RewardTransformConfig", "TrainConfig", "load_config", "packaged_configs"]


def _path_text(path: Any) -> Any:
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if isinstance(text, str) and "\0" in text:
        raise ValueError("a path holds no null character")
    return text


PathText = Annotated[str, BeforeValidator(_path_text)]
"""A path as text; Python's path objects are taken too."""
DEVICES = r"^(auto|cpu|cuda(:\d+)?|mps)$"


_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s/?#]|file:///[^\s/]")
_PASSWORD = re.compile(r"[^/]*//[^/@]*:[^/@]*@")


def is_run_name(name: str) -> bool:
    """Whether a run directory may have a name."""
    return _RUN_NAME.fullmatch(name) is not None


def has_scheme(url: str) -> bool:
    """Whether a text is a URL with a protocol and something behind it."""
    return _SCHEME.match(url) is not None


@options
class TrainConfig:
    """One run: what to train, on what, for how long, and where the result goes."""

    algo: str = Field(description="name of an algorithm, see `rl-training list`", json_schema_extra={"resume": "fixed"})
    env_id: str | None = option(None, "Gymnasium environment; optional when a dataset is given", resume="fixed")
    seed: int = option(
        0, "seed of initialisation, sampling and noise", ge=0, le=LARGEST_SEED, resume="fixed", incidental=True
    )
    total_timesteps: int = option(1_000_000, "length of the run; offline, gradient updates", ge=1)
    output_dir: PathText = option("runs", "folder in which the run directory is made", resume="fixed", incidental=True)
    run_name: str | None = option(
        None,
        "name of the run directory; default made of algorithm, task, seed and time",
        resume="fixed",
        incidental=True,
    )
    device: str = option("auto", "auto, cpu, cuda, cuda:<n> or mps", pattern=DEVICES, incidental=True)
    num_envs: int | None = option(
        None,
        "environments side by side; default for evaluation: 10",
        ge=1,
        le=10_000,
        resume="fixed_while_acting",
        incidental=True,
    )
    eval_episodes: int = option(10, "episodes in an evaluation", ge=1, le=100_000)
    log_interval: int = option(1000, "timesteps between two lines of metrics", ge=1, incidental=True)
    checkpoint_interval: int = option(10_000, "timesteps between two checkpoints", ge=1, incidental=True)
    keep_checkpoints: Annotated[int, Field(ge=1)] | Literal["all"] = option(
        3, "numbered checkpoints that are kept, the newest, beside the best; or all", incidental=True
    )
    upload_url: str | None = option(
        None, "where complete checkpoints are uploaded to, such as s3://bucket/folder", incidental=True
    )
    tags: tuple[str, ...] = option((), "free labels, kept with the run", incidental=True)
    sinks: tuple[Literal["mlflow", "wandb"], ...] = option(
        (), "where metrics go beside the run directory: mlflow, wandb", incidental=True
    )
    algo_kwargs: dict[str, Any] = option({}, "options of the algorithm, its data and the loop")
    env_kwargs: dict[str, Any] = option({}, "arguments of the environment, and `wrappers`", resume="fixed")

    def __post_init__(self) -> None:
        if self.run_name is not None and not is_run_name(self.run_name):
            allowed = "letters, digits and . _ + -, the first a letter or a digit"
            raise ConfigError(f"run_name must consist of {allowed}, got {self.run_name!r}")
        if self.upload_url is not None and not has_scheme(self.upload_url):
            raise ConfigError(f"upload_url must be a URL such as s3://bucket/folder, got {self.upload_url!r}")
        if self.upload_url is not None and _PASSWORD.match(self.upload_url):
            raise ConfigError("upload_url must not hold a password, which would be written to files of the run")

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
    """Plain values as in YAML 1.2: `3e-4` is a number, `on` and `2024-02-30` are words. A key stands once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The mapping of a node; PyYAML alone would let the last of two equal keys win."""
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                problem = "a key must be text or a number, not a list or a mapping"
                raise yaml.constructor.ConstructorError(problem=problem, problem_mark=key.start_mark)
            if key.value in seen:
                problem = f"the key {key.value!r} stands twice"
                raise yaml.constructor.ConstructorError(problem=problem, problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


_Loader.yaml_implicit_resolvers = {
    key: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":bool", ":float", ":timestamp"))]
    for key, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_BOOL = re.compile(r"^(true|True|TRUE|false|False|FALSE)$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", _BOOL, list("tTfF"))


class _Dumper(yaml.SafeDumper):
    """Quotes text that any version of YAML would read as something else."""


_FLOAT = re.compile(
    r"^[-+]?(([0-9][0-9_]*)?\.[0-9_]+([eE][-+]?[0-9]+)?|[0-9][0-9_]*\.?([eE][-+]?[0-9]+)|[0-9][0-9_]*\.|\.(inf|nan))$"
)
for _each in (_Loader, _Dumper):
    _each.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


MOST_TEXT = 1 << 20
"""Characters of a YAML text."""
MOST_VALUES = 100_000
"""Values that a YAML text stands for: with aliases, a few lines can stand for more than fit into memory."""


def parse_yaml(text: str, *, where: str) -> Any:
    """The value a YAML text stands for: text, numbers, booleans, null, lists and mappings."""
    if len(text) > MOST_TEXT:
        raise ConfigError(f"{where}: {len(text)} characters of YAML, expected at most {MOST_TEXT}")
    try:
        value = yaml.load(text, Loader=_Loader)  # noqa: S506 - _Loader is a SafeLoader
        _check_plain(value, where)
        return value
    except ConfigError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as error:
        reason = "too many levels" if isinstance(error, RecursionError) else error
        raise ConfigError(f"{where}: not valid YAML: {reason}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ConfigError(f"{where}: not valid YAML: {place}{getattr(error, 'problem', error)}") from None


def _check_plain(value: Any, where: str) -> None:
    """Refuse values that no option can have, and more values than any config has."""
    waiting, count = [value], 0
    while waiting:
        part, count = waiting.pop(), count + 1
        if count > MOST_VALUES:
            raise ConfigError(f"{where}: its aliases stand for more than {MOST_VALUES} values")
        if isinstance(part, dict):
            waiting += [*part, *part.values()]
        elif isinstance(part, list):
            waiting += part
        elif not isinstance(part, (str, int, float, NoneType)):
            kinds = "text, a number, a boolean, null, a list or a mapping"
            raise ConfigError(f"{where}: expected {kinds}, got a {type(part).__name__}")


def dump_yaml(value: Any) -> str:
    """Plain values as YAML text, keys in the order given."""
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True))


def packaged_configs() -> dict[str, Path]:
    """The configurations shipped with the package, by name such as 'td3_bc/pendulum'."""
    root = Path(str(resources.files("rl_training"))) / "assets" / "configs"
    return {path.relative_to(root).with_suffix("").as_posix(): path for path in sorted(root.glob("*/*.yaml"))}


def find_config(name: str | Path, *, others: Iterable[str] = ()) -> Path:
    """The file behind a path or a packaged name; `others` are names that are valid where this one stands."""
    path = Path(name)
    if path.is_file():
        return path
    packaged = packaged_configs()
    if str(name) in packaged:
        return packaged[str(name)]
    hint = nearest(str(name), [*packaged, *others]) or f"; packaged configs: {', '.join(packaged)}"
    raise ConfigError(f"no config file or packaged config {str(name)!r}{hint}")


def read_config(name: str | Path, *, overrides: Sequence[str] = (), others: Iterable[str] = ()) -> dict[str, Any]:
    """The mapping in a config file, with `key=value` overrides written into it, not checked yet."""
    return with_overrides(read_mapping(find_config(name, others=others)), overrides)


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MOST_TEXT + 1)
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not a text file in UTF-8") from None
    values = parse_yaml(text, where=str(path))
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected a mapping of options, got {type(values).__name__}")
    return values


T = TypeVar("T")


def read_group(source: Any, group: type[T]) -> T:
    """An option group from a record of it, a mapping, or the path of a YAML file."""
    if isinstance(source, group):
        return source
    is_mapping = isinstance(source, Mapping)
    try:
        found: T = bind(source if is_mapping else read_mapping(Path(source)), group)[0]
    except ConfigError as error:
        raise ConfigError(*error.problems, where=None if is_mapping else str(source)) from None
    return found


def with_overrides(values: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """A mapping of options with `dotted.key=value` overrides written into it."""
    found = dict(values)
    for override in overrides:
        _override(found, override)
    return found


def parse_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """`key=value` overrides as a mapping of a TrainConfig's fields."""
    values = with_overrides({}, overrides)
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


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Options under dotted names; a mapping without entries stays one."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        inner = flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {}
        flat |= inner or {f"{prefix}{name}": value}
    return flat


def load_config(name: str | Path, *, overrides: Sequence[str] = ()) -> TrainConfig:
    """A checked TrainConfig from a path or a packaged name."""
    values = read_config(name, overrides=overrides)
    try:
        config: TrainConfig = bind(values, TrainConfig)[0]
    except ConfigError as error:
        raise ConfigError(*error.problems, where=str(name)) from None
    return config
