"""Option groups: typed, bounded records that report all problems with their values at once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass
from typing_extensions import dataclass_transform

from rl_training.core.errors import ConfigError, nearest

T = TypeVar("T")


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field,))
def options(cls: type[T]) -> type[T]:
    """Make a class an option group: frozen, keyword-only, checked on construction, unknown names refused."""
    group: Any = pydantic_dataclass(cls, frozen=True, kw_only=True, config=_SETTINGS)
    validate = group.__init__

    def checked(self: object, **values: Any) -> None:
        problems = _booleans_for_numbers(group, values)
        try:
            validate(self, **{name: _number(value) for name, value in values.items()})
        except ValidationError as error:
            problems |= _problems(error, group)
        if problems:
            raise ConfigError(*problems.values())

    group.__init__ = checked
    return group  # type: ignore[no-any-return]  # pydantic types its decorator's result as its own protocol


_SETTINGS = ConfigDict(extra="forbid", allow_inf_nan=False, validate_default=False)


def _booleans_for_numbers(hint: Any, value: Any, name: str = "") -> dict[str, str]:
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
        found |= _booleans_for_numbers(part, item, f"{name}.{key}" if name else key)
    return found


def _kinds(hint: Any) -> set[Any]:
    """A type and all types inside it."""
    return {hint}.union(*map(_kinds, get_args(hint)))


def _number(value: Any) -> Any:
    """Text such as '1e6' as the whole number it stands for, so that integer options take it too."""
    if isinstance(value, str) and _EXPONENT.match(value) and float(value).is_integer():
        return int(float(value))
    return value


_EXPONENT = re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE]\+?[0-9]+$")


def _problems(error: ValidationError, group: type) -> dict[str, str]:
    """One problem per name; a list that is too short only because its items are wrong is not reported."""
    alternatives: dict[str, list[Mapping[str, Any]]] = {}
    for item in error.errors():
        if item["type"] != "too_short" or not item["input"]:
            alternatives.setdefault(".".join(_path(item)), []).append(item)
    return {path: _problem(found[0], group, found[1:]) for path, found in alternatives.items()}


def _path(item: Mapping[str, Any]) -> list[str]:
    """The place of a problem in the options; pydantic's own words, which are no names, are left out."""
    return [str(part) for part in item["loc"] if not isinstance(part, str) or part.isidentifier()]


_RELATIONS = {"greater_than": ">", "greater_than_equal": ">=", "less_than": "<", "less_than_equal": "<="}
_KINDS = {"int": "an integer", "float": "a number", "finite": "a finite number", "bool": "true or false"}
_KINDS |= {"invalid-json-value": "a number, text, a boolean, null, a list or a mapping"}
_KINDS |= {"string": "text", "tuple": "a list", "dict": "a mapping", "dataclass": "a mapping"}


def _problem(item: Mapping[str, Any], group: type, others: Sequence[Mapping[str, Any]] = ()) -> str:
    """One pydantic error in the package's own words: what, expected, got; `others` are for other types it may be."""
    path = _path(item)
    name, kind, got = ".".join(path) or group.__name__, item["type"], item["input"]
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        # A name that is no identifier is not part of the path.
        wrong = str(item["loc"][-1])
        parents = path[:-1] if path and path[-1] == wrong else path
        return f"unknown option {'.'.join([*parents, wrong])!r}{nearest(wrong, _names(group, parents))}"
    if kind in ("missing", "missing_argument", "missing_keyword_only_argument"):
        return f"{name} is required"
    if kind == "value_error":
        return str(item["ctx"]["error"])
    if kind == "too_short":
        return f"{name} must not be empty"
    expected = " or ".join(dict.fromkeys(_expectation(each, group) for each in (item, *others)))
    literals = [literal for each in (item, *others) for literal in _literals(each)]
    return f"{name} must be {expected}, got {got!r}{nearest(str(got), literals)}"


def _expectation(item: Mapping[str, Any], group: Any) -> str:
    kind, context = item["type"], item.get("ctx", {})
    if kind in _RELATIONS:
        return f"{_RELATIONS[kind]} {next(iter(context.values())):g}"
    if kind == "literal_error":
        literals = str(context["expected"])
        return f"one of {literals}" if " or " in literals else literals
    if kind == "string_pattern_mismatch":
        return str(group.__pydantic_fields__[item["loc"][0]].description)
    return _KINDS.get(kind.split("_")[0]) or item["msg"].removeprefix("Input should be ").lower()


def _literals(item: Mapping[str, Any]) -> list[str]:
    return re.findall(r"'([^']*)'", item["ctx"]["expected"]) if item["type"] == "literal_error" else []


def _names(group: Any, path: Sequence[str]) -> list[str]:
    """The option names that are valid at a path inside a group."""
    for part in (part for part in path if not part.isdigit()):
        hint = get_type_hints(group).get(part)
        group = next((arg for arg in (hint, *get_args(hint)) if is_dataclass(arg)), None)
    return [field.name for field in fields(group)] if group is not None else []


MODES = ("offline", "online", "offline_to_online")
"""The sources of a run's transitions."""


def option(
    default: Any,
    meaning: str,
    *,
    modes: Sequence[str] | None = None,
    resume: Literal["fixed", "fixed_while_acting"] | None = None,
    agree: bool | None = None,
    offline_only: bool | None = None,
    incidental: bool | None = None,
    off_policy: bool | None = None,
    **bounds: Any,
) -> Any:
    """A field of an option group, with facts about the option beyond its value.

    `modes`: where it has a meaning; without them, where its group has one (`modes` of the class), else everywhere.
    `resume`: it cannot change when a run is resumed, or a run that acts is. `agree`: a run that begins with a
    checkpoint needs the value the checkpoint was trained with. `offline_only`: what an offline run was given, or an
    algorithm has as default, does not hold for a run that acts. `incidental`: it makes no difference to learning.
    `off_policy`: it has no effect on an algorithm that learns from rollouts.
    """
    facts = {"modes": modes, "resume": resume, "agree": agree, "offline_only": offline_only}
    facts |= {"incidental": incidental, "off_policy": off_policy}
    stated: dict[str, Any] = {name: value for name, value in facts.items() if value is not None}
    return Field(default=default, description=meaning, json_schema_extra=stated, **bounds)


def options_with(fact: str, *groups: type[Any]) -> dict[str, Any]:
    """The options of some groups whose fields state a fact, with its value."""
    options = [field for group in groups for field in fields(group)]
    stated = {field.name: getattr(field.default, "json_schema_extra", None) or {} for field in options}
    return {name: facts[fact] for name, facts in stated.items() if fact in facts}


def field_defaults(group: type[Any]) -> dict[str, Any]:
    """The options of a group with their defaults."""
    return {field.name: getattr(field.default, "default", field.default) for field in fields(group)}


def given_options(group: Any) -> list[str]:
    """The options of a group that do not have their default."""
    return [name for name, default in field_defaults(type(group)).items() if getattr(group, name) != default]


def refuse_unused(group: Any, *names: str, unless: str, holds: bool) -> None:
    """Refuse options that were given but mean nothing: `unless` says what would have to hold."""
    given = [name for name in given_options(group) if name in names]
    if given and not holds:
        raise ConfigError(f"{given[0]} has no effect without {unless}")


def bind(
    values: Mapping[str, Any], *groups: type[Any], where: str | None = None, hints: Mapping[str, str] | None = None
) -> tuple[Any, ...]:
    """Share one flat mapping out over several option groups by field name; collect every problem before raising.

    `hints` are options that belong elsewhere, each with the words for that place.
    """
    homes = {field.name: group for group in groups for field in fields(group)}
    problems = [f"unknown option {key!r}{nearest(str(key), homes, hints)}" for key in values if key not in homes]
    bound = []
    for group in groups:
        try:
            bound.append(group(**{key: value for key, value in values.items() if homes.get(key) is group}))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(*(f"{where}: {problem}" if where else problem for problem in problems))
    return tuple(bound)


def describe(group: type[Any], defaults: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """One row per option of a group: name, type, bound, default, meaning."""
    hints, rows = get_type_hints(group), []
    for field in fields(group):
        info: Any = field.default
        default = (defaults or {}).get(field.name, info.get_default(call_default_factory=True))
        rows.append(
            {
                "name": field.name,
                "type": _type_name(hints[field.name]),
                "bound": _bound(info.metadata),
                "default": "required" if info.is_required() else default,
                "meaning": info.description or "",
            }
        )
    return rows


def _type_name(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " | ".join(map(str, get_args(hint)))
    if get_origin(hint) in (tuple, list):
        return f"list of {_type_name(get_args(hint)[0])}"
    if get_origin(hint) in (dict, Mapping):
        return "mapping"
    if get_args(hint):
        return " | ".join(_type_name(arg) for arg in get_args(hint))
    plain = {"NoneType": "null", "str": "text", "int": "integer", "float": "number", "bool": "true | false"}
    return plain.get(hint.__name__, str(hint.__name__))


def _bound(metadata: Sequence[Any]) -> str:
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    pairs = [(sign, getattr(item, key, None)) for item in metadata for key, sign in signs.items()]
    return ", ".join(f"{sign} {value:g}" for sign, value in pairs if value is not None)
