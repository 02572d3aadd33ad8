"""The share of a machine that a process may use: cores, threads, memory, device."""

from __future__ import annotations

import ctypes
import importlib
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

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
    """Refuse to read data that does not fit into memory, or is far larger than the file that claims to hold it.

    A limit that the user has set takes the place of both. `hint` is an alternative for large data.
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
    groups = map(_free_in_group, control_groups("memory", CONTROL_GROUP))
    return min((each for each in (_free_on_machine(), _free_for_process(), *groups) if each is not None), default=None)


def _free_on_machine() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        names = getattr(os, "sysconf_names", {})
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if "SC_PHYS_PAGES" in names else None


def _free_in_group(group: Path) -> int | None:
    """The memory that a control group leaves; a process that takes more is killed, without an error."""
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
    """The memory that `ulimit -v` leaves."""
    try:
        resource = importlib.import_module("resource")
        limit = int(resource.getrlimit(resource.RLIMIT_AS)[0])
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except (ImportError, OSError, ValueError):
        return None
    return None if limit < 0 else max(limit - pages * os.sysconf("SC_PAGE_SIZE"), 0)


def configure_machine(threads: int | None = None) -> None:
    """Set the number of threads, and keep the allocator from returning buffers to the system."""
    set_threads(threads)
    keep_buffers()


def set_threads(threads: int | None = None) -> None:
    """Compute with this number of threads.

    Without one, torch's own is kept, unless this process may use fewer cores: torch knows nothing of quotas, and takes
    OMP_NUM_THREADS at its word.
    """
    if threads is not None or torch.get_num_threads() > available_cores():
        torch.set_num_threads(threads or available_cores())


def keep_buffers() -> None:
    """Keep the allocator from returning buffers to the system, from when data has been read on.

    glibc maps every buffer above 128 KiB anew; an activation of 256 x 256 is 256 KiB, and page faults cost 20 %. Before
    that, what reading data leaves behind should be returned.
    """
    if sys.platform != "linux":
        return
    m_trim_threshold, m_mmap_threshold = -1, -3
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(m_mmap_threshold, 1 << 30)
        mallopt(m_trim_threshold, 1 << 30)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread: small networks gain nothing from more, and lose much where others use the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def default_device(name: str) -> torch.device:
    """The device that a name in a config stands for."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not available[name.split(":")[0]]:
        raise ConfigError(f"device {name!r} is not available on this machine")
    return torch.device(name)


CONTROL_GROUP = Path("/sys/fs/cgroup")

MEMBERSHIP = Path("/proc/self/cgroup")


def control_groups(controller: str, root: Path = CONTROL_GROUP, membership: Path = MEMBERSHIP) -> Iterator[Path]:
    """The folders of every group whose limits hold for this process: its own, those above it, and the root.

    `controller` is cpu or memory. Folders of both versions of control groups are given, whether they exist or not: the
    path that the system names may lie outside of what a container sees, which has its limits at the root.
    """
    for controllers, path in _memberships(membership):
        names = controllers.split(",")
        # Version 2 has one tree for all controllers, and names none of them.
        mounts = [root] if not controllers else [root / controllers, *(root / name for name in names)]
        if controllers and controller not in names:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for mount in dict.fromkeys(mounts):
            yield from (mount.joinpath(*parts[:depth]) for depth in range(len(parts), 0, -1))
    yield from (root, root / controller)


def _memberships(file: Path) -> Iterator[tuple[str, str]]:
    """Controllers and path of each group, from lines such as `4:cpu,cpuacct:/jobs/7` or `0::/jobs/7`."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        fields = line.split(":", maxsplit=2)
        if len(fields) == 3:
            yield fields[1], fields[2]


@dataclass(frozen=True)
class Cores:
    """The cores of the machine, and what is left of them for this process."""

    machine: int
    affinity: int
    """Cores in the affinity mask, which `taskset`, job schedulers and `docker run --cpuset-cpus` set."""
    quota: float | None
    """Cores' worth of time that control groups allow, as `docker run --cpus` sets it; None where there is no limit."""

    @property
    def available(self) -> int:
        """The number of threads that can work at a time.

        Rounded down: with a quota of 1.5, two threads are both stopped for a quarter of the time, and one never is.
        """
        allowed = self.affinity if self.quota is None else min(self.affinity, int(self.quota))
        return max(allowed, 1)


def available_cores() -> int:
    """The number of cores that this process may use, at least one."""
    return read_cores().available


def read_cores(root: Path = CONTROL_GROUP, membership: Path = MEMBERSHIP) -> Cores:
    """The cores by the system's own account; the files of control groups are read from `root` and `membership`."""
    machine = os.cpu_count() or 1
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else machine
    groups = control_groups("cpu", root, membership)
    quotas = [quota for quota in map(_quota, groups) if quota is not None]
    return Cores(machine, affinity, min(quotas, default=None))


def _quota(group: Path) -> float | None:
    """Cores' worth of time of one group; None where it sets no limit."""
    try:
        if (group / "cpu.max").is_file():
            quota, period = (group / "cpu.max").read_text(encoding="ascii").split()
        else:
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text(encoding="ascii") for name in ("quota", "period"))
        found = int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        # There is no such file, or it says "max".
        return None
    # Version 1 says -1 where there is no limit.
    return found if found > 0 else None
