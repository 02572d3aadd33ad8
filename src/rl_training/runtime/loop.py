"""The training loop, the events between its blocks, and failures of environments and callbacks in it."""

from __future__ import annotations

import math
import os
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from rl_training.core.errors import DivergedError, UserCodeError, UserError
from rl_training.core.files import write_json
from rl_training.core.user_code import own_code_failed, resume_command
from rl_training.diagnostics import LOWER, GuardAlarm
from rl_training.runtime.fine_tuning import FineTuning
from rl_training.runtime.progress import introduce_disk_use
from rl_training.runtime.saving import respond, rolled_back, save, save_latest
from rl_training.runtime.trainer import Session, TrainResult

LOG = "error.log"


def train_session(session: Session) -> TrainResult:
    """Train one run to its end; display and log files are closed in any case."""
    try:
        with faults_recorded(session):
            run_loop(session)
            return finish(session)
    finally:
        for callback in session.callbacks:
            callback.close()
        session.resources.close()


def run_loop(session: Session) -> None:
    """The training loop: learn while updates are due, else act."""
    state, plan = session.state, session.plan
    # A resumed run has not ended, whatever its result says.
    (session.run.path / "result.json").unlink(missing_ok=True)
    introduce_disk_use(session)
    for callback in session.callbacks:
        callback.on_train_start(state)
    evaluate_initial_policy(session)
    if state.events_due:
        state.events_due = False
        finish_block(session)
    session.mark_time()
    while not state.should_stop and not plan.is_over(state):
        updates = session.next_updates()
        if not updates:
            if not _collect(session):
                continue
            updates = session.next_updates()
        session.learn(updates)
        finish_block(session)
    if state.interrupted and session.saved != (state.update_count, state.env_steps):
        save_latest(session)


def _collect(session: Session) -> bool:
    """Step all environments once; false if diverged networks could not act, and the run went back."""
    try:
        session.collect()
    except DivergedError as error:
        respond(session, GuardAlarm("actions", math.nan, 0.0, str(error), "training has diverged", LOWER))
        evaluate_initial_policy(session)
        return False
    return True


def finish_block(session: Session) -> None:
    """Run all events after a block; if one fails, a resumed run repeats all of them."""
    with repeat_on_resume(session):
        after_block(session)


def after_block(session: Session) -> None:
    """Log, evaluate and checkpoint, each if due; end the run if its budget is used up."""
    state, plan, step = session.state, session.plan, session.state.global_step
    if plan.updates_per_epoch is not None:
        state.epoch = state.update_count // plan.updates_per_epoch
    if state.interrupted and step >= plan.pretrain and plan.updates_due(state):
        # In the middle of a round: the events at its end follow when the run is resumed.
        save_latest(session)
        return
    ended = plan.is_over(state)
    logs, saves = (_passed(session, each) for each in (session.config.log_interval, session.config.checkpoint_interval))
    # Pretraining has just ended.
    goes_online = session.fine_tuning is not None and state.event_step < plan.pretrain <= step
    evaluates = _passed(session, session.options.controls.eval_interval) or goes_online
    state.event_step = step
    # Evaluate the final policy even if a callback stopped the run.
    evaluates = evaluates or (state.should_stop and not state.interrupted)
    if plan.limit_reason is not None and plan.is_used_up(state):
        state.request_stop(plan.limit_reason)
    if _log_and_evaluate(session, logs=logs or ended, evaluates=evaluates or ended):
        # The run is at an earlier timestep, perhaps before its first one.
        evaluate_initial_policy(session)
        return
    # The moment of an interruption is arbitrary: its checkpoint is not one for rollbacks.
    is_due = saves or ended or (state.should_stop and not state.interrupted)
    if is_due and rolled_back(session, session.find_broken()):
        evaluate_initial_policy(session)
    elif is_due or state.should_stop:
        save_latest(session, good=is_due)


def _log_and_evaluate(session: Session, *, logs: bool, evaluates: bool) -> bool:
    """Log and evaluate as due; true if a guard took the run back to an earlier checkpoint."""
    state = session.state
    if logs and log(session):
        return True
    if evaluates:
        if (broken := session.find_broken()) is not None:
            return rolled_back(session, broken)
        evaluate_now(session)
    # A callback may have ended the run.
    is_late = state.should_stop and not state.interrupted and state.update_count > session.logged_updates
    return is_late and log(session)


def _passed(session: Session, interval: int | None) -> bool:
    """Whether a multiple of an interval lies between the last events and this step."""
    state = session.state
    return interval is not None and state.global_step // interval > state.event_step // interval


def log(session: Session) -> bool:
    """Write the averages over the updates and the episodes since the last line.

    Guards check them; true if one took the run back to an earlier checkpoint.
    """
    state, passed = session.state, max(time.perf_counter() - session.clock, 1e-9)
    broken = session.find_broken()
    metrics = {**session.counters(), **session.window.drain(), **session.source.metrics()}
    metrics["updates_per_second"] = (state.update_count - session.logged_updates) / passed
    if session.collector is not None:
        metrics["steps_per_second"] = (state.env_steps - session.logged_steps) / passed
        rollout = session.collector.metrics()
        if rollout and session.plan.exploration_schedule is not None:
            rollout["exploration_noise"] = session.plan.exploration_at(state)
        if rollout:
            session.write_row("rollout", rollout)
    metrics |= state.drain_log(metrics)
    session.mark_time()
    session.run.write_metrics("train", metrics)
    if rolled_back(session, broken, metrics):
        return True
    for callback in session.callbacks:
        callback.on_update_end(state, metrics)
    return False


def evaluate_now(session: Session) -> None:
    """Evaluate, tell the callbacks, and save the checkpoint if it is the best so far."""
    state, started = session.state, time.perf_counter()
    rows = session.evaluate()
    if not rows:
        return
    session.last_metrics = session.counters() | {name: value for row in rows.values() for name, value in row.items()}
    for kind, row in rows.items():
        session.write_row(kind, row)
    if session.fine_tuning is not None and state.global_step >= session.plan.pretrain:
        session.fine_tuning.add(session.last_metrics)
    is_best = _keep_best(session)
    # Numbers that callbacks log here belong to this evaluation, not to the updates since the last row.
    since_last_row, state.logged = state.logged, {}
    for callback in session.callbacks:
        callback.on_eval_end(state, session.last_metrics)
    if own := state.drain_log(session.last_metrics):
        session.write_row("callback", own)
    state.logged = since_last_row
    if is_best:
        save(session, "best.pt")
    session.clock += time.perf_counter() - started


def evaluate_initial_policy(session: Session) -> None:
    """Evaluate a policy that comes from a checkpoint before it learns anything here."""
    tuning = session.fine_tuning
    if tuning is not None and tuning.starts_with_policy and session.state.global_step == 0:
        # A run that was stopped before its first timestep evaluates again.
        session.fine_tuning = FineTuning(starts_with_policy=True)
        evaluate_now(session)


def _keep_best(session: Session) -> bool:
    """True if the last evaluation is the best so far; its score is then remembered."""
    if session.best_metric is None or session.best_metric[0] not in session.last_metrics:
        return False
    name, mode = session.best_metric
    best, value = session.state.best_score, session.last_metrics[name]
    is_best = math.isfinite(value) and (best is None or (value > best if mode == "max" else value < best))
    if is_best:
        session.state.best_score, session.state.best_step = value, session.state.global_step
        session.best_metrics = session.last_metrics
    return is_best


def finish(session: Session) -> TrainResult:
    """Write the last numbers of callbacks, the buffer as a dataset if configured, and the result."""
    state, run = session.state, session.run
    if state.logged and not state.interrupted:
        session.write_row("callback", state.drain_log(()))
    result = TrainResult(
        run_dir=run.path,
        checkpoint_path=run.checkpoints / "latest.pt",
        metrics=session.last_metrics,
        stop_reason=state.stop_reason,
        interrupted=state.interrupted,
        signal=state.signal,
        best_metrics=session.best_metrics,
        data_return=session.data_return,
        fine_tuning={} if session.fine_tuning is None else session.fine_tuning.summary(),
        table=session.options.data.dataset_path if session.options.data.kind() in ("csv", "parquet") else None,
    )
    if session.store is not None and session.options.online.save_replay and not state.interrupted:
        session.store.export(run.path / "replay.npz", session.spaces)
    # The last file of a run: a run that has it counts as ended.
    write_json(run.path / "result.json", {**session.counters(), "best_step": state.best_step, **result.to_plain()})
    for callback in session.callbacks:
        callback.on_train_end(state)
    return result


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
    """Add a note to the traceback of an error. Python 3.10 has no notes, and shows a warning."""
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
    if any(_passed(session, each) for each in intervals) or session.plan.is_over(state) or state.should_stop:
        session.undo_events = _undo(session)
    yield
    session.undo_events = None
