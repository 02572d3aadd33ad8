"""Losses. Every module of this package that registers an algorithm is found by being here, and its names with it."""

from __future__ import annotations

import sys
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from rl_training.algorithms.base import ALGORITHMS, Algorithm, Step, UpdateResult, register
from rl_training.types import nearest

__all__ = ["ALGORITHMS", "Algorithm", "Step", "UpdateResult", "register"]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")


def _exports() -> dict[str, Any]:
    """The class, its alias and its loss, of every algorithm."""
    names = {}
    for algo, cls in ALGORITHMS.items():
        module = sys.modules[cls.__module__]
        for name in (cls.__name__, f"{cls.__name__}Algorithm", f"{algo}_loss"):
            names[name] = getattr(module, name)
    return names


def __getattr__(name: str) -> Any:
    exports = _exports()
    if name in exports:
        return exports[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{nearest(name, exports)}")
