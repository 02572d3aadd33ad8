"""Run directories that are being made: they have a hidden name until they are complete."""

from __future__ import annotations

import os
import re
import shutil
import time
from contextlib import suppress
from pathlib import Path

from rl_training.runtime.locking import is_locked, is_signed

DRAFT = re.compile(r"\..+\.\d+\.\d+")
"""The name of a run directory that is being made."""
OLD_DRAFT = 60.0
"""Seconds; to make one takes far less."""
INSIDE = "checkpoints"
"""The folder that every run directory has."""


def draft_path(parent: Path, name: str) -> Path:
    """Where this process makes a run directory of this name."""
    return parent / f".{name}.{os.getpid()}.{time.monotonic_ns()}"


def drop_drafts(parent: Path) -> None:
    """Delete directories that a kill left before they got their names.

    One of a live process is locked. It is not yet signed, and young, if the process is about to lock it.
    """
    for path in parent.glob(".*") if parent.is_dir() else ():
        # Another process may give it its name at any moment.
        with suppress(FileNotFoundError, NotADirectoryError):
            if DRAFT.fullmatch(path.name) and _is_left(path):
                _delete(path)


def _is_left(path: Path) -> bool:
    """Whether a draft belongs to no process any more."""
    if not (path / INSIDE).is_dir() and any(path.iterdir()):
        return False
    is_old = time.time() - path.stat().st_mtime > OLD_DRAFT
    return (is_old or is_signed(path)) and is_locked(path) is False


def _delete(draft: Path) -> None:
    """Delete a draft so that one of which a kill leaves a part is still known to be a draft."""
    with suppress(OSError):
        for path in draft.iterdir():
            if path.is_dir() and path.name != INSIDE:
                shutil.rmtree(path)
            elif path.name != INSIDE:
                path.unlink()
    shutil.rmtree(draft, ignore_errors=True)


def claim(draft: Path, name: str, *, numbered: bool = True) -> Path:
    """Give a complete directory its name, or, if it may be `numbered`, a numbered one where another run has it."""
    path, number = draft.with_name(name), 1
    while True:
        try:
            # Renaming onto a directory that holds something fails, so two runs never share one.
            return draft.rename(path)
        except OSError:
            if not (numbered and path.exists()):
                raise
        number += 1
        path = draft.with_name(f"{name}-{number}")
