"""Modules of the user's own, imported by path or by name, so that the algorithms in them are registered."""

from __future__ import annotations

import hashlib
import re
import sys
import traceback
from collections.abc import Iterable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from rl_training.types import ConfigError

IMPORTED: list[str] = []
"""Modules that were imported, files by their whole path. A process that this one starts has to import them too."""


def has_imported() -> bool:
    """Whether any module was imported."""
    return bool(IMPORTED)


def import_modules(names: Iterable[str] | None) -> None:
    """Import .py files and modules. An error is reported in one sentence, without a traceback."""
    for given in names or ():
        is_file = given.endswith(".py") or "/" in given
        name = str(Path(given).resolve()) if is_file else given
        if name in IMPORTED:
            continue
        if is_file and not Path(name).is_file():
            raise ConfigError(f"--import {given}: there is no such file")
        try:
            (_import_file if is_file else import_module)(name)
        except (Exception, SystemExit) as error:
            raise ConfigError(f"--import {given}{_reason(error, name)}") from None
        IMPORTED.append(name)


def _import_file(path: str) -> None:
    """Import a file under a name that no other module has, so that it hides no other module."""
    digest = hashlib.blake2b(path.encode(), digest_size=4).hexdigest()
    name = re.sub(r"\W", "_", f"{Path(path).stem}_{digest}")
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError("it is no .py file")
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)


def _reason(error: BaseException, name: str) -> str:
    """Why an import failed, and in which line of the file."""
    if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
        return f": there is no module of this name; a file is given by its path, such as {name}.py"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == name]
    if isinstance(error, SyntaxError) and error.filename == name:
        lines.append(error.lineno)
    what = traceback.format_exception_only(error)[-1].strip().splitlines()[-1]
    return f" failed{f' in line {lines[-1]}' if lines else ''}: {what}"


def resume_command(run_dir: str | Path) -> str:
    """The command that goes on with a run, with the modules that it needs."""
    return " ".join(["rl-training resume", str(run_dir), *(f"--import {name}" for name in IMPORTED)])
