"""The table of algorithms: those of this package, those of installed packages, and those that a user's module adds."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, MutableMapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rl_training.algorithms.base import Algorithm

GROUP = "rl_training.algorithms"
"""An installed package that has algorithms names their modules as entry points in this group."""


class Registry(MutableMapping[str, "type[Algorithm]"]):
    """Algorithms by name. The modules that entry points name are imported when the table is first read."""

    def __init__(self) -> None:
        self.registered: dict[str, type[Algorithm]] = {}
        """The table as it is, without looking for installed packages."""
        self._was_read = False

    def _complete(self) -> dict[str, type[Algorithm]]:
        if not self._was_read:
            # Marked first, since a module that is imported here may read the table itself.
            self._was_read = True
            for point in entry_points(group=GROUP):
                try:
                    # Importing the module registers its algorithms. The object is not looked up: the module may be
                    # the one whose import led here, and then it is not there yet.
                    import_module(point.module)
                except Exception as error:
                    reason = f"{type(error).__name__}: {error}"
                    warnings.warn(f"entry point {point.name!r} in {GROUP} is left out: {reason}", stacklevel=3)
        return self.registered

    def __getitem__(self, name: str) -> type[Algorithm]:
        return self._complete()[name]

    def __setitem__(self, name: str, cls: type[Algorithm]) -> None:
        self.registered[name] = cls

    def __delitem__(self, name: str) -> None:
        del self.registered[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._complete())

    def __len__(self) -> int:
        return len(self._complete())
