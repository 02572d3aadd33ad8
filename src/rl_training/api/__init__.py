"""Managed algorithms: one class per registered algorithm."""

from __future__ import annotations

from rl_training.api.algorithms import MANAGED, ManagedAlgorithm
from rl_training.types import nearest

__all__ = ["MANAGED", "ManagedAlgorithm"]
__all__.extend(MANAGED)


def __getattr__(name: str) -> type[ManagedAlgorithm]:
    if name in MANAGED:
        return MANAGED[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{nearest(name, __all__)}")


def __dir__() -> list[str]:
    return __all__
