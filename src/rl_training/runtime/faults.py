"""Failing environments and callbacks: the traceback goes to a log, and the run is saved if possible."""

from __future__ import annotations

import os
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.core.errors import UserCodeError, UserError
from rl_training.core.user_code import own_code_failed, resume_command
from rl_training.runtime.saving import save_latest

if TYPE_CHECKING:
    from rl_training.runtime.trainer import Session

LOG = "error.log"


@contextmanager
def traces_logged(folder: Path | None) -> Iterator[None]:
    """Write the traceback of the user's own code to a log in this folder, and name the log in the error."""
    try:
        yield
    except UserError as error:
        log_trace(error, None if folder is None else folder / LOG)
        raise


def log_trace(error: UserError, path: Path | None = None) -> None:
    """Add the traceback that an error carries to a log, by default a new one among the temporary files, once."""
    if not error.trace:
        return
    if path is None or not os.access(path.parent, os.W_OK):
        descriptor, name = tempfile.mkstemp(prefix="rl-training-", suffix=".log")
        os.close(descriptor)
        path = Path(name)
    with path.open("a", encoding="utf-8") as log:
        log.write(f"{datetime.now().astimezone().isoformat(timespec='seconds')} {error}\n{error.trace}\n")
    error.trace, error.remarks = "", (*error.remarks, f"the traceback is in {path}")


@contextmanager
def faults_recorded(session: Session) -> Iterator[None]:
    """Log what fails in environments and callbacks of a run, save the run, and name the command that resumes it.

    An error raised by a callback is passed on unchanged: the calling program may wait for it.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        fault = error if isinstance(error, UserCodeError) else _fault_of_callback(session, error)
        if fault is not None:
            log_trace(fault, session.run.path / LOG)
            fault.remarks = (*fault.remarks, _save(session), f"resume with: {resume_command(session.run.path)}")
        if fault is not None and fault is not error:
            _add_note(error, str(fault))
        raise


def _fault_of_callback(session: Session, error: BaseException) -> UserCodeError | None:
    """The error for a user's callback that raised; None if something else did."""
    own = [each for each in session.callbacks if not type(each).__module__.startswith("rl_training.")]
    for frame, _ in traceback.walk_tb(error.__traceback__):
        first = frame.f_locals.get(next(iter(frame.f_code.co_varnames), ""))
        if any(first is each for each in own):
            place = f"timestep {session.state.global_step}"
            return own_code_failed(f"the callback {type(first).__name__}, {frame.f_code.co_name} at {place},", error)
    return None


def _add_note(error: BaseException, note: str) -> None:
    """Let the traceback of an error end with a note. Python 3.10 knows no notes, and prints it as a warning."""
    if hasattr(error, "add_note"):
        error.add_note(note)
    else:
        warnings.warn(note, stacklevel=2)


def _save(session: Session) -> str:
    """Save a run in which code of the user's own has failed; a text about the outcome."""
    if session.is_rolling_back:
        return "the last checkpoint stays, since the run was going back to an earlier one"
    if session.undo_events is not None:
        session.undo_events()
        session.state.events_due = True
    try:
        save_latest(session)
    except (UserError, OSError) as error:
        return f"the last checkpoint stays, since the state cannot be saved ({error})"
    return f"the run is saved at timestep {session.state.global_step}"


def _undo(session: Session) -> Callable[[], None]:
    """A function that undoes the changes of log lines, evaluations and callbacks from here on."""
    metrics = session.last_metrics, session.best_metrics
    parts: list[Any] = [session.state, session.window, session.guards, session.fine_tuning, *session.callbacks]
    states = [(part, part.state_dict()) for part in parts if part is not None]

    def undo() -> None:
        session.last_metrics, session.best_metrics = metrics
        for part, state in states:
            part.load_state_dict(state)

    return undo


@contextmanager
def repeat_on_resume(session: Session) -> Iterator[None]:
    """If an event after a block fails, a resumed run repeats all of them."""
    state, config = session.state, session.config
    intervals = (config.log_interval, config.checkpoint_interval, session.options.controls.eval_interval)
    passed = [each for each in intervals if each is not None and state.global_step // each > state.event_step // each]
    if passed or session.plan.is_over(state) or state.should_stop:
        session.undo_events = _undo(session)
    yield
    session.undo_events = None
