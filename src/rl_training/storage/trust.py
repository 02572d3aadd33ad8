"""Which checkpoints are trusted. Code named by any other is imported only with consent.

A run that `train` began on this machine is in the user's own index, a file under the user's state folder. No field of a
checkpoint can say that it is one of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rl_training.core.files import write_text
from rl_training.core.user_code import distrust, trust
from rl_training.storage.run_directory import run_of

INDEX = "runs.jsonl"


def state_folder() -> Path:
    """The folder for state files of this user."""
    for name in ("XDG_STATE_HOME", "LOCALAPPDATA"):
        if Path(os.environ.get(name, "")).is_absolute():
            return Path(os.environ[name]) / "rl-training"
    return Path.home() / ".local" / "state" / "rl-training"


def remember_run(run_dir: Path, config: Mapping[str, Any]) -> None:
    """Put a run whose config names code into the index. If that cannot be written, the user is asked later."""
    if not named_modules(config):
        return
    with suppress(OSError):
        state_folder().mkdir(parents=True, exist_ok=True)
        with (state_folder() / INDEX).open("a", encoding="utf-8") as file:
            file.write(json.dumps(str(run_dir.resolve())) + "\n")


def forget_run(run_dir: Path) -> None:
    """Take a run out of the index, since another one takes its path."""
    index, line = state_folder() / INDEX, json.dumps(str(run_dir.resolve()))
    if is_own_run(run_dir):
        kept = [each for each in index.read_text(encoding="utf-8").splitlines() if each != line]
        write_text(index, "".join(f"{each}\n" for each in kept))


def is_own_run(run_dir: Path) -> bool:
    """Whether a run directory is in the index."""
    try:
        lines = (state_folder() / INDEX).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return False
    return json.dumps(str(run_dir.resolve())) in lines


def check_trust(config: Mapping[str, Any], checkpoint: Path) -> None:
    """Trust the code that a checkpoint of the user's own run names, and distrust that of any other."""
    modules = named_modules(config)
    if not modules:
        return
    # Links are followed first: what counts is where the file really lies.
    if is_own_run(run_of(checkpoint.resolve())):
        trust(modules)
    else:
        distrust(modules, str(checkpoint))


def named_modules(config: Mapping[str, Any]) -> list[str]:
    """The text before a colon in any value of a config, since code is named as `module:Name`."""
    found: dict[str, None] = {}
    # A URL has a colon too, and names no code.
    waiting: list[Any] = [value for name, value in config.items() if name != "upload_url"]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            waiting += value.values()
        elif isinstance(value, (list, tuple)):
            waiting += value
        elif isinstance(value, str) and ":" in value:
            found[value.partition(":")[0]] = None
    return list(found)
