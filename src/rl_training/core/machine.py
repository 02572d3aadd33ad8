"""How much a file may take in memory, decided by what it claims and before anything is allocated."""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path

from rl_training.core.control_groups import CONTROL_GROUP, control_groups
from rl_training.core.errors import ConfigError, DatasetError, UserError
from rl_training.core.text import memory_text

LIMIT = "RL_TRAINING_MAX_READ"
"""The environment variable with which a user sets the limit, in bytes or as text such as 20GiB."""
LARGEST_RATIO = 200
"""Bytes in memory per byte of a file, beyond which a file is taken to be forged. Logs shrink by less."""
ALWAYS_ALLOWED = 1 << 28
"""Bytes that no ratio is asked about: a small file of zeros is no attack."""
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def check_memory(path: Path, needed: int, *, error: type[UserError] = DatasetError, hint: str = "") -> None:
    """Refuse to read what does not fit into memory, or is far larger than the file that claims to hold it.

    A limit that the user has set takes the place of both. `hint` says what else one can do about data that is large.
    """
    limit, size = _stated_limit(), path.stat().st_size
    if limit is not None:
        if needed > limit:
            raise error(f"{path} holds {memory_text(needed)} of arrays, and {LIMIT} allows {memory_text(limit)}")
        return
    free = free_memory()
    if free is not None and needed > free:
        sizes = f"{memory_text(needed)} of arrays, and {memory_text(free)} of memory are free"
        raise error(f"{path} holds {sizes}{f'; if that is right, {hint}' if hint else ''}")
    if needed > max(ALWAYS_ALLOWED, LARGEST_RATIO * size):
        claim = f"{memory_text(needed)} of arrays in a file of {size} bytes, more than {LARGEST_RATIO} times as much"
        raise error(f"{path} claims {claim}; if that is right, allow it with {LIMIT}={-(-needed >> 30)}GiB")


def _stated_limit() -> int | None:
    """The limit in the environment, in bytes."""
    text = os.environ.get(LIMIT, "").strip()
    if not text:
        return None
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([KMGT]?)(?:i?B)?", text, re.ASCII)
    if found is None:
        raise ConfigError(f"{LIMIT} must be a number of bytes such as 20GiB, got {text!r}")
    return int(float(found[1]) * _UNITS[found[2]])


def free_memory() -> int | None:
    """Bytes of memory that can be taken; None where the system does not say."""
    found = [each for each in (_free_on_machine(), _free_in_container(), _free_for_process()) if each is not None]
    return min(found, default=None)


def _free_on_machine() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        names = getattr(os, "sysconf_names", {})
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if "SC_PHYS_PAGES" in names else None


def _free_in_container() -> int | None:
    """What the control groups leave; a process that takes more is killed, without an error."""
    found = [free for free in map(_free_in_group, control_groups("memory", CONTROL_GROUP)) if free is not None]
    return min(found, default=None)


def _free_in_group(group: Path) -> int | None:
    is_second = (group / "memory.max").is_file()
    names = ("max", "current") if is_second else ("limit_in_bytes", "usage_in_bytes")
    try:
        limit, used = (int((group / f"memory.{name}").read_text("ascii")) for name in names)
        stat = dict(line.split() for line in (group / "memory.stat").read_text("ascii").splitlines())
        # Files that are kept in memory make room when it is needed.
        return max(limit - used + int(stat["file" if is_second else "total_cache"]), 0)
    except (OSError, ValueError, KeyError):
        # There is no limit, or it says "max".
        return None


def _free_for_process() -> int | None:
    """What `ulimit -v` leaves."""
    try:
        resource = importlib.import_module("resource")
        limit = int(resource.getrlimit(resource.RLIMIT_AS)[0])
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except (ImportError, OSError, ValueError):
        return None
    return None if limit < 0 else max(limit - pages * os.sysconf("SC_PAGE_SIZE"), 0)
