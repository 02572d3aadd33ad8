"""Losses. All modules of this package are imported, which registers their algorithms and exports their names."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules
from typing import Any

from rl_training.algorithms.base import ALGORITHMS, Algorithm, Step, UpdateResult, register
from rl_training.core.errors import nearest

__all__ = ["ALGORITHMS", "Algorithm", "Step", "UpdateResult", "register"]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")


def _exports() -> dict[str, Any]:
    """The class of every algorithm, its alias and its loss."""
    names: dict[str, Any] = {}
    for algo, cls in ALGORITHMS.items():
        names[cls.__name__] = cls
        # A class of the user's own need not have these, and its module may be gone.
        found = vars(sys.modules.get(cls.__module__, object))
        names |= {name: found[name] for name in (f"{cls.__name__}Algorithm", f"{algo}_loss") if name in found}
    return names


def __getattr__(name: str) -> Any:
    exports = _exports()
    if name in exports:
        return exports[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{nearest(name, exports)}")


def _import_installed() -> None:
    """Import the modules that installed packages name as entry points, which registers their algorithms."""
    for point in entry_points(group=__name__):
        try:
            # The object is not looked up: if its module is the one whose import led here, it is not there yet.
            import_module(point.module)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            warnings.warn(f"entry point {point.name!r} in {__name__} is left out: {reason}", stacklevel=2)


_import_installed()
