"""What happens between two blocks of the loop: logging, evaluating, saving."""

from __future__ import annotations

import math
import time
from pathlib import Path

from rl_training.runtime.checkpointing import link_checkpoint, save_checkpoint
from rl_training.runtime.fine_tuning import FineTuning
from rl_training.runtime.session import Session
from rl_training.runtime.session_state import session_tree
from rl_training.types import TrainingError


def after_block(session: Session) -> None:
    """Log, evaluate and checkpoint, each if due; end the run if its budget is used up."""
    state, plan, step = session.state, session.plan, session.state.global_step
    if session.updates_per_epoch is not None:
        state.epoch = state.update_count // session.updates_per_epoch
    if state.interrupted and step >= plan.pretrain and plan.updates_due(state):
        # In the middle of a round: what belongs to its end happens when it is resumed.
        checkpoint(session)
        return
    ended = plan.is_over(state)
    logs, saves = (_passed(session, each) for each in (session.config.log_interval, session.config.checkpoint_interval))
    evaluates = _passed(session, session.controls.eval_interval) or _goes_online(session)
    state.event_step = step
    if plan.limit_reason is not None and plan.is_used_up(state):
        state.request_stop(plan.limit_reason)
    if logs or ended:
        log(session)
    if evaluates or ended:
        evaluate_now(session)
    if state.should_stop and not state.interrupted and state.update_count > session.logged_updates:
        log(session)
    if saves or ended or state.should_stop:
        checkpoint(session)


def _passed(session: Session, interval: int | None) -> bool:
    """Whether a multiple of an interval lies between the last events and this step."""
    state = session.state
    return interval is not None and state.global_step // interval > state.event_step // interval


def _goes_online(session: Session) -> bool:
    """Whether pretraining has just ended."""
    state = session.state
    return session.fine_tuning is not None and state.event_step < session.plan.pretrain <= state.global_step


def log(session: Session) -> None:
    """Write the averages of the updates since the last line, and how the episodes since then went."""
    state, passed = session.state, max(time.perf_counter() - session.clock, 1e-9)
    broken = session.window.find_broken()
    metrics = {**session.counters(), **session.window.drain(), **session.source.metrics()}
    metrics["updates_per_second"] = (state.update_count - session.logged_updates) / passed
    if session.collector is not None:
        metrics["steps_per_second"] = (state.env_steps - session.logged_steps) / passed
        rollout = session.collector.metrics()
        if rollout and session.plan.exploration_schedule is not None:
            rollout["exploration_noise"] = session.plan.exploration_at(state)
        if rollout:
            session.run.write_metrics("rollout", {**session.counters(), **rollout})
    session.mark_time()
    session.run.write_metrics("train", metrics)
    _raise_if_diverged(session, broken)
    for callback in session.callbacks:
        callback.on_update_end(state, metrics)


def _raise_if_diverged(session: Session, broken: str | None) -> None:
    """End a run before a state with a metric that is not a number is evaluated or saved."""
    if broken is not None:
        raise TrainingError(
            f"{broken} is not a number after {session.state.update_count} updates: training has diverged; try a lower "
            f"learning_rate or max_grad_norm; the last checkpoint is {session.run.checkpoints / 'latest.pt'}"
        )


def evaluate_now(session: Session) -> None:
    """Evaluate, tell the callbacks, and save the checkpoint if it is the best so far."""
    state, started = session.state, time.perf_counter()
    _raise_if_diverged(session, session.window.find_broken())
    rows = session.evaluate()
    if not rows:
        return
    session.last_metrics = session.counters() | {name: value for row in rows.values() for name, value in row.items()}
    for kind, row in rows.items():
        session.run.write_metrics(kind, {**session.counters(), **row})
    if session.fine_tuning is not None and state.global_step >= session.plan.pretrain:
        session.fine_tuning.add(session.last_metrics)
    is_best = _keep_best(session)
    for callback in session.callbacks:
        callback.on_eval_end(state, session.last_metrics)
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
    """Whether the last evaluation is better than all before it; if so, it is remembered."""
    if session.best_metric is None or session.best_metric[0] not in session.last_metrics:
        return False
    name, mode = session.best_metric
    best, value = session.state.best_score, session.last_metrics[name]
    is_best = math.isfinite(value) and (best is None or (value > best if mode == "max" else value < best))
    if is_best:
        session.state.best_score, session.state.best_step = value, session.state.global_step
        session.best_metrics = session.last_metrics
    return is_best


def save(session: Session, name: str) -> Path:
    """Write the state of the run to a checkpoint of this name, after the rows of the buffer that it refers to."""
    if session.store is not None:
        session.store.save()
    path = session.run.checkpoints / name
    save_checkpoint(path, session_tree(session))
    return path


def checkpoint(session: Session) -> None:
    """Write the state under its number and make it the latest."""
    _raise_if_diverged(session, session.window.find_broken())
    unit = "update" if session.collector is None else "step"
    link_checkpoint(save(session, f"{unit}_{session.state.global_step:09d}.pt"), "latest.pt")
    session.saved = session.state.update_count, session.state.env_steps
    if session.store is not None:
        session.store.prune()


def checkpoint_if_interrupted(session: Session) -> None:
    """Save what the run did since its last checkpoint, if it was interrupted before the next one was due."""
    if session.state.interrupted and session.saved != (session.state.update_count, session.state.env_steps):
        checkpoint(session)
