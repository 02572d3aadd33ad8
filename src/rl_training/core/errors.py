"""The errors of the package, hints at the nearest name, and two limits."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

LARGEST_SEED = 10**18
"""The largest seed that every generator takes, also with a number added to it."""

LARGEST_BATCH = 10**7
"""Rows; a larger batch is a mistake, which would end in an error about memory."""


class UserError(Exception):
    """An error that the user can correct: the command line prints its text and ends with status 2."""

    trace: str = ""
    """The traceback of the user's code that failed, for a log."""
    remarks: tuple[str, ...] = ()
    """Facts that became known after the error: where the log is, how to continue."""

    def __str__(self) -> str:
        return "; ".join([super().__str__(), *self.remarks])


class ConfigError(UserError, ValueError):
    """One or several problems with options, all found before anything was started."""

    def __init__(self, *problems: str, where: str | None = None) -> None:
        self.problems, self.where = problems, where
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        head = f"{where}: {count}" if where else count
        is_plain = where is None and len(problems) == 1
        super().__init__(problems[0] if is_plain else "\n  ".join([head, *problems]))


class DatasetError(UserError, ValueError):
    """Data that cannot be used, or is not what the options say."""


class CheckpointError(UserError, ValueError):
    """A checkpoint that cannot be used: damaged, foreign, or of another algorithm."""


class DamagedError(CheckpointError):
    """A checkpoint, or a file that it needs, that is missing or altered."""


class StorageError(UserError, OSError):
    """A file that cannot be written: the disk is full, read-only, or the folder is gone."""


class TrainingError(UserError, RuntimeError):
    """Training that cannot continue, such as a loss that is no longer a number."""


class DivergedError(TrainingError):
    """Training whose networks, and not its data or its environment, give numbers that are not finite."""


class UserCodeError(UserError, RuntimeError):
    """The user's code failed or returned an invalid result: an environment, a callback."""

    def __init__(self, message: object, trace: str = "") -> None:
        super().__init__(str(message))
        # An error in the process of an environment is raised again in this one, around itself.
        self.trace = trace or getattr(message, "trace", "")


class MissingExtraError(UserError, ImportError):
    """An optional dependency that is not installed."""

    def __init__(self, package: str, extra: str, purpose: str, *, beside: str = "") -> None:
        """`beside` is a package that the extra does not bring."""
        how = f"install it with: pip install 'rl-training[{extra}]'{f' {beside}' if beside else ''}"
        super().__init__(f"{purpose} needs the package '{package}'; {how}")


def import_extra(package: str, extra: str, purpose: str) -> Any:
    """An optional package. Where it is missing, the error says which extra brings it and what needs it."""
    try:
        return import_module(package)
    except ImportError:
        raise MissingExtraError(package, extra, purpose) from None


def nearest(name: str, candidates: Iterable[str], places: Mapping[str, str] | None = None) -> str:
    """A hint such as "; did you mean 'bc_alpha'?", or nothing when no candidate is close.

    `places` are names that are valid elsewhere, with what to say instead of them.
    """
    places = places or {}
    matches = difflib.get_close_matches(name, [*candidates, *places], n=1, cutoff=0.6)
    return f"; did you mean {places.get(matches[0], repr(matches[0]))}?" if matches else ""
