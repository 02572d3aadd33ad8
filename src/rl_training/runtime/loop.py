"""The training loop."""

from __future__ import annotations

from rl_training.runtime.artifacts import write_json
from rl_training.runtime.state import TrainResult
from rl_training.runtime.trainer import Session


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
    session.start()
    while not state.should_stop and not plan.is_over(state):
        updates = session.next_updates()
        if not updates:
            session.collect()
            updates = session.next_updates()
        session.learn(updates)
        session.after_block()
    session.save_rest()


def finish(session: Session) -> TrainResult:
    """Write the result and say goodbye."""
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
    session.save_replay()
    for callback in session.callbacks:
        callback.on_train_end(state)
    return result
