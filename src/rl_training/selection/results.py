"""What `estimate` and `select` have written beside runs, checked when it is read for a report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rl_training.core.errors import ConfigError
from rl_training.ope import FitOptions
from rl_training.selection.estimate import Estimates
from rl_training.selection.select import Selection
from rl_training.storage import first_mistake

Plain = dict[str, Any]


@cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def check_estimates(values: Mapping[str, Any], source: str) -> Plain:
    """Plain values, if they are what `estimate` writes."""
    found = _checked(values, Estimates, "estimate", source)
    return {**found, "fit": _checked(found["fit"], FitOptions, "estimate", f"{source}, fit")}


def check_selection(values: Mapping[str, Any], source: str) -> Plain:
    """Plain values, if they are what `select` writes."""
    found = _checked(values, Selection, "select", source)
    return {**found, "estimates": check_estimates(found["estimates"], f"{source}, estimates")}


def _checked(values: Mapping[str, Any], kind: type, command: str, source: str) -> Plain:
    try:
        found = _adapter(kind).validate_python(dict(values))
    except ValidationError as error:
        raise ConfigError(f"{source}: {first_mistake(error)}; expected what rl-training {command} writes") from None
    plain: Plain = json.loads(json.dumps(asdict(found)))
    return plain
