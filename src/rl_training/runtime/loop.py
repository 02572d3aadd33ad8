"""The training loop."""

from __future__ import annotations

from rl_training.runtime import events
from rl_training.runtime.artifacts import write_json
from rl_training.runtime.session import Session
from rl_training.runtime.state import TrainResult


def train_session(session: Session) -> TrainResult:
    """One run to its end; whatever ends it, display and log files are closed."""
    try:
        run_loop(session)
        return finish(session)
    finally:
        for callback in session.callbacks:
            callback.close()
        session.close()


def run_loop(session: Session) -> None:
    """The training loop: learn while updates are due, else act."""
    state, plan = session.state, session.plan
    for callback in session.callbacks:
        callback.on_train_start(state)
    events.evaluate_initial_policy(session)
    session.mark_time()
    while not state.should_stop and not plan.is_over(state):
        updates = session.next_updates()
        if not updates:
            session.collect()
            updates = session.next_updates()
        session.learn(updates)
        events.after_block(session)
    events.checkpoint_if_interrupted(session)


def finish(session: Session) -> TrainResult:
    """Write the result, and the buffer as a dataset if asked for."""
    state, run = session.state, session.run
    result = TrainResult(
        run_dir=run.path,
        checkpoint_path=run.checkpoints / "latest.pt",
        metrics=session.last_metrics,
        stop_reason=state.stop_reason,
        interrupted=state.interrupted,
        best_metrics=session.best_metrics,
        data_return=session.data_return,
        fine_tuning={} if session.fine_tuning is None else session.fine_tuning.summary(),
    )
    write_json(
        run.path / "result.json",
        {
            **session.counters(),
            "metrics": result.metrics,
            "best_metrics": result.best_metrics,
            "best_step": state.best_step,
            "data_return": result.data_return,
            **({"fine_tuning": result.fine_tuning} if result.fine_tuning else {}),
            "stop_reason": state.stop_reason,
        },
    )
    if session.store is not None and session.saves_replay and not state.interrupted:
        session.store.export(run.path / "replay.npz", session.spaces)
    for callback in session.callbacks:
        callback.on_train_end(state)
    return result
