"""How many cores this process may use: those of its affinity mask, as far as the quota of its control groups goes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from rl_training.core.control_groups import CONTROL_GROUP, MEMBERSHIP, control_groups


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
        """How many threads can work at a time.

        Rounded down: with a quota of 1.5, two threads are both stopped for a quarter of the time, and one never is.
        """
        allowed = self.affinity if self.quota is None else min(self.affinity, int(self.quota))
        return max(allowed, 1)


def available_cores() -> int:
    """How many cores this process may use, at least one."""
    return read_cores().available


def read_cores(root: Path = CONTROL_GROUP, membership: Path = MEMBERSHIP) -> Cores:
    """What the system says about cores; the files of control groups are read from `root` and `membership`."""
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
