"""The command `rl-training`.

Everything that imports torch is imported inside the command that needs it, so that --help answers at once.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

import rl_training
from rl_training.cli import export, policies, report, train
from rl_training.cli.config import config_app, list_
from rl_training.cli.data import data_app
from rl_training.cli.display.console import print_json
from rl_training.cli.doctor import doctor
from rl_training.cli.env import env_app
from rl_training.cli.estimate import estimate
from rl_training.cli.pipeline import pipeline
from rl_training.cli.select import select
from rl_training.cli.sweep import sweep, tune
from rl_training.core.errors import UserError
from rl_training.core.signals import exit_status, raised
from rl_training.core.user_code import ASK

SPINS = "2000"
"""How many turns of OpenMP's loop a waiting thread spins before it gives up its core. With OpenMP's own default, two
threads beside a busy core made a fiftieth of the updates of one thread. With this value they make half of them, and
as many as before where all cores are free."""

ArgumentError: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")
"""The error of Typer for a mistake in the arguments. It is Click's class, which newer versions of Typer have inside."""

__all__ = ["app", "main"]

app = typer.Typer(
    name="rl-training",
    help="Train policies on logged data, and know how good they are.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
RENAMED = {"evaluate": "eval", "list_": "list"}
"""Commands with another name than their function."""
for command in (
    train.train, train.resume, train.fetch, policies.evaluate, policies.record, policies.play, policies.predict,
    estimate, select, pipeline, sweep, tune, export.export, list_, report.report, doctor,
):  # fmt: skip
    app.command(RENAMED.get(command.__name__))(command)
for name, group in {"config": config_app, "data": data_app, "env": env_app}.items():
    app.add_typer(group, name=name)


def print_version(asked: bool) -> None:
    """Print the version and end, with --version."""
    if asked:
        print(rl_training.__version__)
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", is_eager=True, callback=print_version, help="Print the version.")]


@app.callback()
def options(version: Version = False) -> None:
    """Train policies on logged data, and know how good they are."""


def main() -> None:
    """Run the command. Mistakes of the user end with a message and status 2, without a traceback."""
    # The line of code that raised a warning does not help the user of a command.
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    threading.excepthook = _pass_over_storage
    # Modules in the working folder are found, such as that of an environment, but hide no other.
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    if "OMP_WAIT_POLICY" not in os.environ:
        # Read when torch is loaded, which is why it cannot be an option of a run.
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
    with _quiet_without_reader(), raised() as received:
        try:
            _run(as_json="--json" in sys.argv)
        except (SystemExit, KeyboardInterrupt):
            if received:
                sys.exit(exit_status(received[0]))
            raise


def _run(*, as_json: bool) -> NoReturn:
    if sys.stdin.isatty() and sys.stderr.isatty() and not as_json:
        ASK[:] = [_ask]
    try:
        # Typer prints mistakes in the arguments itself, unless they are wanted as JSON.
        sys.exit(app(standalone_mode=not as_json))
    except (UserError, OSError) as error:
        if isinstance(error, UserError) and error.trace:
            from rl_training.runtime import log_trace

            log_trace(error)
        # OSError: a traceback would not explain a missing folder or a full disk.
        _refuse(str(error), as_json=as_json)
    except ArgumentError as error:
        _refuse(error.format_message(), as_json=as_json)


def _pass_over_storage(found: threading.ExceptHookArgs) -> None:
    """Print no traceback of a thread that cannot write a file: the run itself reports the failure of TensorBoard."""
    if not issubclass(found.exc_type, OSError):
        threading.__excepthook__(found)


def _ask(question: str) -> bool:
    """Ask the user at the terminal; only y or yes counts as consent."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


@contextmanager
def _quiet_without_reader() -> Iterator[None]:
    """End without a message when the reader of the output has ended, as in `rl-training list | head -1`."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # Python would complain at its end about what is still in its buffer.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _refuse(message: str, *, as_json: bool) -> NoReturn:
    """End with a message: on standard error, or as a JSON value where results would be one."""
    if as_json:
        print_json({"error": message})
    else:
        print(f"error: {message}", file=sys.stderr)
    sys.exit(2)
