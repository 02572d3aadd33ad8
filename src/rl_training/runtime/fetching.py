"""Making a run directory again from an uploaded run, so that it goes on on another machine."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from rl_training.config import TrainConfig, is_run_name
from rl_training.importing import resume_command
from rl_training.runtime.drafts import claim, draft_path, drop_drafts
from rl_training.runtime.locking import RunLock
from rl_training.runtime.remote import POINTER, Pointer, Remote, refused
from rl_training.runtime.trust import forget_run
from rl_training.types import CheckpointError, ConfigError, DamagedError

ATTEMPTS = 5
"""How often a run is fetched that is being uploaded meanwhile: objects of an older checkpoint may go away."""


def fetch_run(url: str, out: str | Path = "runs") -> Path:
    """Make the directory of an uploaded run in a folder; it appears whole, or not at all.

    Every file is compared with its digest. The run is not one of your own until you go on with it: code that it names
    is not imported unasked.
    """
    remote = Remote(url)
    path = Path(out, remote.url.rpartition("/")[2])
    if not is_run_name(path.name):
        raise ConfigError(f"{url} does not end with the name of a run")
    if os.path.lexists(path):
        raise ConfigError(f"there is {path} already: go on with it ({resume_command(path)}), or choose another folder")
    with refused(url, "read"):
        pointer = remote.pointer()
        for _ in range(ATTEMPTS):
            if pointer is None:
                raise CheckpointError(f"{url} holds no uploaded run: there is no {POINTER}")
            try:
                return _make(remote, pointer, path)
            except DamagedError:
                before, pointer = pointer, remote.pointer()
                if pointer == before:
                    raise
    raise CheckpointError(f"{url} changes faster than it can be fetched: try again")


def fetch_if_missing(config: TrainConfig) -> Path | None:
    """Fetch the run of a config's name from its `upload_url`, if it is there and not in `output_dir`.

    The path of a run that was fetched.
    """
    if config.upload_url is None or config.run_name is None or Path(config.output_dir, config.run_name).exists():
        return None
    remote = Remote(config.upload_url).below(config.run_name)
    with refused(remote.url, "read"):
        is_there = remote.pointer() is not None
    return fetch_run(remote.url, config.output_dir) if is_there else None


def _make(remote: Remote, pointer: Pointer, path: Path) -> Path:
    """Fetch all files into a draft, which other processes leave alone, and give it its name."""
    drop_drafts(path.parent)
    draft = draft_path(path.parent, path.name)
    try:
        (draft / "checkpoints").mkdir(parents=True)
        lock = RunLock(draft)
        for name, entry in pointer.files.items():
            (draft / name).parent.mkdir(exist_ok=True)
            remote.get_object(entry, draft / name, what=name)
        # Trust goes by place, and what was here before may have been one of the user's own.
        forget_run(path)
        claim(draft, path.name, numbered=False)
        lock.folder = path
        lock.release()
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return path
