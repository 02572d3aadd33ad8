"""Options: typed and bounded records, bound from plain mappings, read from and written to YAML."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from importlib import resources
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import yaml
from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass
from typing_extensions import dataclass_transform

from rl_training.types import ConfigError, nearest

T = TypeVar("T")


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field,))
def options(cls: type[T]) -> type[T]:
    """Make a class an option group: frozen, keyword-only, checked on construction, unknown names refused."""
    group: Any = pydantic_dataclass(cls, frozen=True, kw_only=True, config=_SETTINGS)
    validate = group.__init__

    def checked(self: object, **values: Any) -> None:
        problems = _strays(group, values)
        try:
            validate(self, **{name: _number(value) for name, value in values.items()})
        except ValidationError as error:
            problems |= _problems(error, group)
        if problems:
            raise ConfigError(*problems.values())

    group.__init__ = checked
    return group  # type: ignore[no-any-return]  # pydantic types its decorator's result as its own protocol


_SETTINGS = ConfigDict(extra="forbid", allow_inf_nan=False, validate_default=False)


def _strays(hint: Any, value: Any, name: str = "") -> dict[str, str]:
    """By name, the booleans that stand for numbers, which pydantic would take as 0 and 1."""
    kinds = _kinds(hint)
    if isinstance(value, bool) and not {bool, Any} & kinds:
        return {name: f"{name} must not be a boolean, got {value}"}
    group = next(filter(is_dataclass, kinds), None)
    hints = get_type_hints(group) if group is not None else {}
    parts: list[tuple[Any, Any, Any]] = []
    if isinstance(value, Mapping):
        parts = [(hints[key], key, item) for key, item in value.items() if key in hints]
    elif isinstance(value, (list, tuple)):
        parts = [(hint, number, item) for number, item in enumerate(value)]
    found: dict[str, str] = {}
    for part, key, item in parts:
        found |= _strays(part, item, f"{name}.{key}" if name else key)
    return found


def _kinds(hint: Any) -> set[Any]:
    """A type and all those it is made of."""
    return {hint}.union(*map(_kinds, get_args(hint)))


def _number(value: Any) -> Any:
    """Text such as '1e6' as the whole number it stands for, so that integer options take it too."""
    if isinstance(value, str) and _EXPONENT.match(value) and float(value).is_integer():
        return int(float(value))
    return value


_EXPONENT = re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE]\+?[0-9]+$")


def _problems(error: ValidationError, group: type) -> dict[str, str]:
    """One problem per name; a list that is too short only because its items are wrong is not reported."""
    items = [item for item in error.errors() if item["type"] != "too_short" or not item["input"]]
    return {".".join(_path(item)): _problem(item, group) for item in items}


def _path(item: Mapping[str, Any]) -> list[str]:
    """Where in the options a problem is; pydantic's own words, which are no names, are left out."""
    return [str(part) for part in item["loc"] if not isinstance(part, str) or part.isidentifier()]


_RELATIONS = {"greater_than": ">", "greater_than_equal": ">=", "less_than": "<", "less_than_equal": "<="}
_KINDS = {
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "finite": "a finite number",
    "dict": "a mapping",
    "dataclass": "a mapping",
    "tuple": "a list",
}


def _problem(item: Mapping[str, Any], group: type) -> str:
    """One pydantic error in the package's own words: what, expected, got."""
    path = _path(item)
    name, kind, got = ".".join(path) or group.__name__, item["type"], item["input"]
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        return f"unknown option {name!r}{nearest(path[-1], _names(group, path[:-1]))}"
    if kind in ("missing", "missing_argument", "missing_keyword_only_argument"):
        return f"{name} is required"
    if kind == "value_error":
        return str(item["ctx"]["error"])
    if kind == "too_short":
        return f"{name} must not be empty"
    return f"{name} must be {_expectation(item)}, got {got!r}{nearest(str(got), _choices(item))}"


def _expectation(item: Mapping[str, Any]) -> str:
    kind, context = item["type"], item.get("ctx", {})
    if kind in _RELATIONS:
        return f"{_RELATIONS[kind]} {next(iter(context.values())):g}"
    if kind == "literal_error":
        return f"one of {context['expected']}"
    if kind == "string_pattern_mismatch":
        return f"of the form {context['pattern']}"
    start = kind.split("_")[0]
    return _KINDS.get(start) or item["msg"].removeprefix("Input should be ").lower()


def _choices(item: Mapping[str, Any]) -> list[str]:
    return re.findall(r"'([^']*)'", item["ctx"]["expected"]) if item["type"] == "literal_error" else []


def _names(group: Any, path: Sequence[str]) -> list[str]:
    """The option names that are valid at a path inside a group."""
    for part in path:
        if part.isdigit():
            continue
        hint = get_type_hints(group).get(part)
        group = next((arg for arg in (hint, *get_args(hint)) if is_dataclass(arg)), None)
    return [field.name for field in fields(group)] if group is not None else []


def bind(values: Mapping[str, Any], *groups: type[Any], where: str | None = None) -> tuple[Any, ...]:
    """Share one flat mapping out over several option groups by field name; collect every problem before raising."""
    homes = {field.name: group for group in groups for field in fields(group)}
    problems = [f"unknown option {key!r}{nearest(str(key), homes)}" for key in values if key not in homes]
    bound = []
    for group in groups:
        try:
            bound.append(group(**{key: value for key, value in values.items() if homes.get(key) is group}))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(*(f"{where}: {problem}" if where else problem for problem in problems))
    return tuple(bound)


RewardPreset = Literal["sign_clip", "clip_1", "sparse_goal_zero_one"]

_PRESETS: dict[str, dict[str, Any]] = {
    "sign_clip": {"sign": True},
    "clip_1": {"clip_min": -1.0, "clip_max": 1.0},
    "sparse_goal_zero_one": {"shift": 1.0, "clip_min": 0.0, "clip_max": 1.0},
}


@options
class RewardTransformConfig:
    """What is done to rewards, in this order: times scale, plus shift, sign, clip.

    A preset fills the fields it needs; a field given beside it overrides the preset's value or composes with it.
    """

    preset: RewardPreset | None = Field(default=None, description="named transform to start from")
    scale: float | None = Field(default=None, description="factor on the reward; default 1")
    shift: float | None = Field(default=None, description="added after scaling; default 0")
    clip_min: float | None = Field(default=None, description="lower bound after scale and shift")
    clip_max: float | None = Field(default=None, description="upper bound after scale and shift")

    def __post_init__(self) -> None:
        low, high = self.resolve()["clip_min"], self.resolve()["clip_max"]
        if low is not None and high is not None and low > high:
            raise ConfigError(f"clip_min must be <= clip_max, got {low} and {high}")

    def resolve(self) -> dict[str, Any]:
        """Every field with its final value: scale, shift, sign, clip_min, clip_max."""
        given = {key: value for key, value in asdict(self).items() if key != "preset" and value is not None}
        plain = {"scale": 1.0, "shift": 0.0, "sign": False, "clip_min": None, "clip_max": None}
        return plain | _PRESETS.get(self.preset or "", {}) | given


@options
class TrainConfig:
    """One run: what to train, on what, for how long, and where the result goes."""

    algo: str = Field(description="name of a registered algorithm, see `rl-training list`")
    env_id: str | None = Field(default=None, description="Gymnasium environment; optional when a dataset is given")
    seed: int = Field(default=0, ge=0, description="seed of initialisation, sampling and noise")
    total_timesteps: int = Field(default=1_000_000, ge=1, description="length of the run; offline, gradient updates")
    output_dir: str = Field(default="runs", description="folder in which the run directory is made")
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
    """YAML 1.2's idea of numbers and booleans: `3e-4` is a number, `on` is a word."""


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


def describe(group: type[Any], defaults: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """One row per option of a group: name, type, bound, default, meaning."""
    rows = []
    for field in fields(group):
        info: Any = field.default
        default = info.default_factory() if info.default_factory else info.default
        rows.append(
            {
                "name": field.name,
                "type": _type_name(get_type_hints(group)[field.name]),
                "bound": _bound(info.metadata),
                "default": "required" if info.is_required() else (defaults or {}).get(field.name, default),
                "meaning": info.description or "",
            }
        )
    return rows


def _type_name(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " | ".join(map(str, get_args(hint)))
    if get_origin(hint) in (tuple, list):
        return f"list of {_type_name(get_args(hint)[0])}"
    if get_origin(hint) is dict or get_origin(hint) is Mapping:
        return "mapping"
    if get_args(hint):
        return " | ".join(_type_name(arg) for arg in get_args(hint))
    plain = {"NoneType": "null", "str": "text", "int": "integer", "float": "number", "bool": "true | false"}
    return plain.get(hint.__name__, str(hint.__name__))


def _bound(metadata: Sequence[Any]) -> str:
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    bounds = [
        f"{sign} {value:g}"
        for item in metadata
        for key, sign in signs.items()
        if (value := getattr(item, key, None)) is not None
    ]
    return ", ".join(bounds)
