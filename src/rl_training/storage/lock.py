"""A lock on a run directory, so that no two processes write to one."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import time
import warnings
from datetime import datetime
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from rl_training.core.errors import ConfigError

if sys.platform != "win32":
    import fcntl

NAME = ".lock"
ATTEMPTS = 5
CANNOT_LOCK = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
"""Errors of file systems without locks."""


class RunLock:
    """The right to write to a run directory, until it is released or the process ends, however it ends.

    The operating system holds the lock, so that one of a killed process is free. It belongs to this process alone:
    environments in processes of their own do not inherit it. The file says who has it.
    """

    descriptor: int | None
    """The open file; None where there is no lock."""
    held: WeakValueDictionary[tuple[int, int], RunLock] = WeakValueDictionary()
    """The locks of this process by directory. The operating system would give a process its own lock again."""

    def __init__(self, folder: Path) -> None:
        """Take the lock of a directory; if another process has it, the error says which."""
        self.folder, self.descriptor = folder, None
        found = folder.stat()
        self.place = found.st_dev, found.st_ino
        if self.place in self.held:
            raise ConfigError(f"{folder} is in use by another run of this program: wait until it has ended")
        self.descriptor = self._open()
        self.held[self.place] = self

    def release(self) -> None:
        """Give the lock back; the file goes, unless the directory is gone or another's."""
        if self.descriptor is None:
            return
        path = self.folder / NAME
        if _is_same(self.descriptor, path):
            path.unlink(missing_ok=True)
        os.close(self.descriptor)
        self.descriptor = None
        self.held.pop(self.place, None)

    def is_in_place(self) -> bool:
        """Whether the path still leads to the locked directory."""
        try:
            found = self.folder.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return self.place == (found.st_dev, found.st_ino)

    def moved_to(self) -> Path | None:
        """The new path of a moved directory, if the system can tell."""
        try:
            path = Path(f"/proc/self/fd/{self.descriptor}").readlink()
        except OSError:
            return None
        return path.parent if path.exists() else None

    def __del__(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)

    def _open(self) -> int | None:
        if sys.platform == "win32":
            return None
        path, holder = self.folder / NAME, {}
        for _ in range(ATTEMPTS):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The process that had it may have deleted the file after it was opened here.
                if _is_same(descriptor, path):
                    self._sign(descriptor)
                    return descriptor
            except OSError as error:
                if error.errno in CANNOT_LOCK:
                    os.close(descriptor)
                    warnings.warn(f"{path}: {error.strerror}: nothing keeps another process off this run", stacklevel=5)
                    return None
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    os.close(descriptor)
                    raise
                holder = _holder(descriptor)
            os.close(descriptor)
            # A process that only tests the lock holds it for a moment.
            time.sleep(0.02)
        raise ConfigError(_refusal(self.folder, holder))

    def _sign(self, descriptor: int) -> None:
        """Record the owner; an owner on another machine may still be alive."""
        before, host = _holder(descriptor), socket.gethostname()
        if before.get("host", host) != host:
            who = f"process {before.get('pid')} on {before['host']}"
            advice = "if it is still going there, stop it: not every network file system keeps two machines apart"
            warnings.warn(f"{self.folder}: {who} has not ended this run properly; {advice}", stacklevel=6)
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        text = json.dumps({"pid": os.getpid(), "host": host, "since": now}).encode()
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text, 0)


def is_locked(folder: Path) -> bool | None:
    """Whether a process has the lock of a directory; None where that cannot be known."""
    found = folder.stat()
    # To open the file here and close it again would give the lock away.
    if (found.st_dev, found.st_ino) in RunLock.held:
        return True
    if sys.platform == "win32":
        return None
    try:
        descriptor = os.open(folder / NAME, os.O_RDWR)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return None if error.errno in CANNOT_LOCK else True
    finally:
        os.close(descriptor)
    return False


def is_signed(folder: Path) -> bool:
    """Whether a process has had the lock of a directory and has not given it back; it may have ended."""
    path = folder / NAME
    return path.is_file() and path.stat().st_size > 0


def _holder(descriptor: int) -> dict[str, Any]:
    try:
        found = json.loads(os.pread(descriptor, 1000, 0))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _refusal(folder: Path, holder: dict[str, Any]) -> str:
    if not holder:
        return f"{folder} is in use by another process: wait until it has ended"
    who = f"process {holder.get('pid')} on {holder.get('host')}, since {holder.get('since')}"
    return f"{folder} is in use by {who}: wait until it has ended, or stop it"


def _is_same(descriptor: int, path: Path) -> bool:
    """Whether a path leads to the file that is open."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
