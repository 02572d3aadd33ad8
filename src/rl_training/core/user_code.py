"""The user's code: modules that are imported for what they register, and classes by their import path."""

from __future__ import annotations

import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable
from functools import reduce
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from rl_training.core.errors import ConfigError, UserCodeError, UserError, nearest

IMPORTED: list[str] = []
"""Modules that were imported, files by their whole path. A process that this one starts has to import them too."""

FILES: dict[str, str] = {}
"""The modules that were made of imported files, by the names of the files without their ending."""

DISTRUSTED: dict[str, str] = {}
"""Modules that a checkpoint from elsewhere names and the user does not, with that checkpoint."""

ASK: list[Callable[[str], bool]] = []
"""Asks the user for consent; empty without a terminal."""


def distrust(modules: Iterable[str], origin: str) -> None:
    """Refuse to import these modules, which only `origin` names, until they are trusted."""
    DISTRUSTED.update(dict.fromkeys(modules, origin))


def trust(modules: Iterable[str]) -> None:
    """Allow modules that the user names, whatever else names them."""
    for module in modules:
        DISTRUSTED.pop(module, None)


def check_trust(module: str, what: str) -> None:
    """Refuse to run code that only a checkpoint from elsewhere names; `what` it is wanted for is part of the error."""
    if module not in DISTRUSTED or module in sys.modules or module in FILES:
        return
    origin = DISTRUSTED[module]
    if ASK and ASK[0](f"{origin} names code: {what}. Import the module {module!r} and run what is in it?"):
        trust([module])
        return
    raise ConfigError(
        f"{origin} names code, {what}, and is not one of your own runs: nothing was imported. If you trust it, add "
        f"--import {module}; in Python, import {module} first"
    )


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
            absent = f": there is no module of this name; a file is given by its path, such as {name}.py"
            reason = absent if _is_absent(error, name) else failure(error, name)
            raise ConfigError(f"--import {given}{reason}") from None
        IMPORTED.append(name)


def _import_file(path: str) -> None:
    """Import a file under a name that no other module has, so that it hides no other module."""
    from hashlib import blake2b

    digest = blake2b(path.encode(), digest_size=4).hexdigest()
    name = re.sub(r"\W", "_", f"{Path(path).stem}_{digest}")
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError("it is no .py file")
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    FILES[Path(path).stem] = name


def _is_absent(error: BaseException, name: str) -> bool:
    """Whether an import failed because there is no such module, and not because of something in it."""
    return isinstance(error, ModuleNotFoundError) and bool(error.name) and f"{name}.".startswith(f"{error.name}.")


def failure(error: BaseException, name: str | None) -> str:
    """The end of an error about the user's code: in which line of its file `name` it failed, and why."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == name]
    if isinstance(error, SyntaxError) and error.filename == name:
        lines.append(error.lineno)
    what = traceback.format_exception_only(error)[-1].strip().splitlines()[-1]
    if isinstance(error, UserError):
        what = str(error)
    return f" failed{f' in line {lines[-1]}' if lines else ''}: {what}"


def own_code_failed(what: str, error: BaseException) -> UserCodeError:
    """The error for the user's code that raised another: what was called, and the line that raised."""
    how = f"called sys.exit({error.code!r})" if isinstance(error, SystemExit) else f"raised {type(error).__name__}"
    reason = "" if isinstance(error, SystemExit) or not str(error) else f": {error}"
    trace = "".join(traceback.format_exception(error))
    return UserCodeError(f"{what} {how}{reason}{error_place(error)}", trace)


def error_place(error: BaseException) -> str:
    """The line of the user's code that an error comes from: the last that belongs to no installed package."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    installed = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))
    package = str(Path(__file__).parents[1])
    own = [each for each in frames if not each.filename.startswith((*installed, package, "<"))]
    frame = (own or frames)[-1]
    return f" ({Path(frame.filename).name}, line {frame.lineno})"


def find_class(path: str, *, what: str) -> type[Any]:
    """The class at an import path such as my_module:MyClass; `what` names its use in an error.

    A file that was imported is found under its name without the ending.
    """
    module_name, colon, name = path.partition(":")
    if not (module_name and colon and name):
        raise ConfigError(f"{what} must be an import path such as my_module:MyClass, got {path!r}")
    if module_name == "__main__":
        raise ConfigError(
            f"{what} {name} is part of the program itself, where a saved policy would not find it again: move it to a "
            "file of its own, such as my_module.py, and import it from there"
        )
    check_trust(module_name, f"{what} {path}")
    try:
        module = import_module(FILES.get(module_name, module_name))
    except (Exception, SystemExit) as error:
        if _is_absent(error, module_name):
            place = "it must be in the working folder or on PYTHONPATH, or be named by --import"
            raise ConfigError(f"{what} {path}: there is no module {module_name!r}; {place}") from None
        raise ConfigError(f"{what} {path}: importing it{failure(error, None)}") from None
    try:
        found = reduce(getattr, name.split("."), module)
    except AttributeError:
        classes = [each for each, value in vars(module).items() if isinstance(value, type)]
        raise ConfigError(f"{what} {path}: the module has no {name!r}{nearest(name, classes)}") from None
    if not isinstance(found, type):
        raise ConfigError(f"{what} {path} is not a class")
    return found


def class_path(cls: type[Any], *, what: str) -> str:
    """The import path by which a class is found again; a class that is not found by it is refused."""
    module = next((stem for stem, name in FILES.items() if name == cls.__module__), cls.__module__)
    path = f"{module}:{cls.__qualname__}"
    if "<locals>" in path or find_class(path, what=what) is not cls:
        raise ConfigError(f"{what} {path} cannot be found by its import path: define it at the top level of a module")
    return path


def command_text(name: str, run_dir: str | Path, *options: str) -> str:
    """A command on a run, with the modules that the run needs."""
    modules = [f"--import {module}" for module in IMPORTED]
    return " ".join(["rl-training", name, str(run_dir), *options, *modules])


def resume_command(run_dir: str | Path) -> str:
    """The command that resumes a run."""
    return command_text("resume", run_dir)
