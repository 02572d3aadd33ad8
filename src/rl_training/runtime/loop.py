"""The training loop, and the events between its blocks: logging, evaluating, saving."""

from __future__ import annotations

import math
import time

from rl_training.core.errors import DivergedError
from rl_training.diagnostics import LOWER, GuardAlarm
from rl_training.runtime.faults import faults_recorded, repeat_on_resume
from rl_training.runtime.fine_tuning import FineTuning
from rl_training.runtime.progress import introduce_disk_use
from rl_training.runtime.saving import respond, rolled_back, save, save_latest
from rl_training.runtime.trainer import Session, TrainResult
from rl_training.storage import write_json


def train_session(session: Session) -> TrainResult:
    """Train one run to its end; whatever ends it, display and log files are closed."""
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
