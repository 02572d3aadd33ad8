"""The stub of `rl_training`: managed classes with every option by name and type, for editors and type checkers."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BeforeValidator

from rl_training.config import TrainConfig
from rl_training.data import DataOptions
from rl_training.diagnostics import GuardOptions
from rl_training.experiment import AlgorithmSpec, list_algorithms
from rl_training.runtime.controls import ControlOptions, LoopOptions, OnlineOptions

SHARED = (TrainConfig, DataOptions, LoopOptions, OnlineOptions, ControlOptions, GuardOptions)
GIVEN_OTHERWISE = {"algo", "env_id"}
"""Options of a run that a class has an argument for, or is itself."""
NOTHING = "    pass\n"
HEAD = '''"""Written by `make docs` from the code: what editors and type checkers know about this package."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, TypedDict

from typing_extensions import Unpack

from rl_training.api import ManagedAlgorithm
from rl_training.config import TrainConfig as TrainConfig
from rl_training.experiment import run_sweep as run_sweep
from rl_training.experiment import run_tuning as run_tuning
from rl_training.pipeline import run_pipeline as run_pipeline
from rl_training.runtime import ConfigSource, TrainResult
from rl_training.runtime import evaluate as evaluate
from rl_training.runtime import fetch_run as fetch_run
from rl_training.runtime import predict as predict
from rl_training.runtime import resume as resume
from rl_training.runtime import train as train
from rl_training.selection import estimate as estimate
from rl_training.selection import select as select

__version__: str

# Algorithms of one's own, once they are registered.
def __getattr__(name: str) -> Any: ...
'''


def stub() -> str:
    """The whole file."""
    known: dict[type[Any], str] = {}
    for group in SHARED:
        _add(group, known, base="TypedDict")
    bases = ", ".join(f"_{group.__name__}" for group in SHARED)
    parts = [HEAD, *known.values(), f"class _Options({bases}, total=False):\n    pass\n"]
    for spec in list_algorithms():
        before = list(known)
        _add(spec.algorithm.hyper_class, known, base="_Options")
        parts += [text for group, text in known.items() if group not in before]
        parts.append(_managed(spec))
    return "\n".join(parts)


def _add(group: type[Any], known: dict[type[Any], str], *, base: str) -> None:
    """Add the options of a group, and first those of the groups it is made from, as typed dictionaries."""
    parents = [parent for parent in group.__bases__ if is_dataclass(parent)]
    for parent in parents:
        if parent not in known:
            _add(parent, known, base=base)
    inherited = {field.name for parent in parents for field in fields(parent)} | GIVEN_OTHERWISE
    hints = get_type_hints(group, include_extras=True)
    own = [f"    {field.name}: {_type(hints[field.name])}\n" for field in fields(group) if field.name not in inherited]
    bases = ", ".join(f"_{parent.__name__}" for parent in parents) or base
    known[group] = f"class _{group.__name__}({bases}, total=False):\n{''.join(own) or NOTHING}"


def _managed(spec: AlgorithmSpec) -> str:
    name = spec.algorithm.__name__
    return (
        f"class {name}(ManagedAlgorithm):\n"
        f'    """{name}: {spec.idea}"""\n\n'
        "    algo: ClassVar[str]\n"
        "    def __init__(\n"
        "        self,\n"
        "        config: ConfigSource | None = None,\n"
        "        *,\n"
        "        dataset: Any = None,\n"
        "        env: Any = None,\n"
        f"        **options: Unpack[_{spec.algorithm.hyper_class.__name__}],\n"
        "    ) -> None: ...\n\n"
        f"def train_{spec.name}(config: ConfigSource, **arguments: Any) -> TrainResult: ...\n"
    )


def _type(hint: Any) -> str:
    """A type as one writes it; values that options take as lists and mappings are named so."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        # What is converted first may come in several forms.
        converted = any(isinstance(each, BeforeValidator) for each in inner[1:])
        return "Any" if converted else _type(inner[0])
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, inner))}]"
    if origin in (Union, types.UnionType):
        return " | ".join(dict.fromkeys(map(_type, inner)))
    if origin in (tuple, list):
        return f"Sequence[{_type(inner[0])}]"
    if origin in (dict, Mapping) or is_dataclass(hint):
        return "Mapping[str, Any]"
    plain = {int: "int", float: "float", bool: "bool", str: "str", types.NoneType: "None"}
    return plain.get(hint, "Any")
