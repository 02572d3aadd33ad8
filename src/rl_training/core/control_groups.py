"""The control groups of this process, by which containers and job schedulers limit cores and memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

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
