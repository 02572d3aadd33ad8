"""Managed algorithms: one class per registered algorithm."""

from __future__ import annotations

from typing import Any

from rl_training.api.algorithms import MANAGED, ManagedAlgorithm
from rl_training.types import nearest

__all__ = ["MANAGED", "ManagedAlgorithm"]
# From here on `__getattr__` answers for it, so that algorithms registered later are in it too.
_NAMES: list[str] = globals().pop("__all__")


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return __dir__()
    if name in MANAGED:
        return MANAGED[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{nearest(name, __dir__())}")


def __dir__() -> list[str]:
    return [*_NAMES, *MANAGED]
