"""What a run does when a guard has found something: say so, end, or go back to the last good checkpoint."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from rl_training.core.errors import CheckpointError
from rl_training.diagnostics.guards import MOST_ROLLBACKS, OUTSIDE, Alarm
from rl_training.runtime.checkpoints import Saved, read_state, settle
from rl_training.runtime.saving import diverged, load_session
from rl_training.runtime.trainer import Session


def went_back(session: Session, broken: Alarm | None, line: Mapping[str, float] | None = None) -> bool:
    """Look at a run after some updates and do what `on_divergence` says; whether it is at an earlier checkpoint now.

    `line` are the averages of a log line, if there is one. Guards that only warn do so at log lines.
    """
    guards, updates = session.guards, session.state.update_count
    if broken is not None:
        return answer(session, broken)
    warns = guards.options.on_divergence == "warn"
    if guards.looked == updates or (warns and line is None):
        return False
    alarms = guards.look(line or {}, updates)
    if warns:
        _warn(session, alarms)
    return answer(session, *alarms) if alarms and not warns else False


def answer(session: Session, alarm: Alarm, *others: Alarm) -> bool:
    """Take a run back to its last good checkpoint, or end it if it may not go back, or not any more."""
    times = len(session.guards.rollbacks)
    more = [f"further guards that fired: {', '.join(each.guard for each in others)}"] if others else []
    if not session.guards.goes_back or alarm.guard == OUTSIDE:
        raise diverged(session, alarm, *more)
    if times == MOST_ROLLBACKS:
        raise diverged(session, alarm, *more, f"the run went back {times} times, each time with half the learning rate")
    try:
        saved = read_state(session.run, session.run.checkpoints / str(session.guards.good))
    except CheckpointError as error:
        raise diverged(session, alarm, *more, f"the run cannot go back: {error}") from None
    _go_back(session, saved, alarm)
    return True


def _warn(session: Session, alarms: Sequence[Alarm]) -> None:
    """Say what guards have begun to find since the last log line, and note what is over."""
    guards = session.guards
    for alarm in alarms:
        if alarm.guard not in guards.raised:
            warnings.warn(f"timestep {session.state.global_step}: {alarm}", stacklevel=2)
            session.run.write_metrics("guard", _row(session, alarm, "warn"))
    found = [alarm.guard for alarm in alarms]
    for guard in guards.raised:
        if guard not in found:
            session.run.write_metrics("guard", {**session.counters(), "guard": guard, "action": "over"})
    guards.raised = found


def _go_back(session: Session, saved: Saved, alarm: Alarm) -> None:
    """Load a good checkpoint, halve the learning rate, and make this the run's latest state.

    The run goes on from there as one does that is resumed with other options. If it is killed before the state is
    saved, it comes to the same alarm again. If it is killed after that, the checkpoint has the row of metrics.
    """
    guards, state = session.guards, session.state
    noticed_at, reason, branches, rollbacks = state.global_step, state.stop_reason, session.branches, guards.rollbacks
    session.is_going_back = True
    load_session(session, saved.tree)
    session.branches = [step for step in branches if step <= state.global_step]
    guards.rollbacks = [*rollbacks, {}]
    row = {**_row(session, alarm, "rollback"), "noticed_at": noticed_at, "rollbacks": len(guards.rollbacks)}
    guards.rollbacks = [*rollbacks, {"kind": "guard", **row}]
    settle(session, saved, is_named=True, is_changed=True)
    # The events of the part that was left are not made again.
    session.is_going_back, session.before_events = False, None
    if state.interrupted:
        state.should_stop, state.stop_reason = True, reason or "interrupted"
    warnings.warn(
        f"timestep {noticed_at}: {alarm}; the run went back to timestep {state.global_step} and goes on with "
        f"{guards.learning_rate_factor:g} of the learning rate",
        stacklevel=2,
    )


def _row(session: Session, alarm: Alarm, action: str) -> dict[str, Any]:
    """What the metrics say about an alarm."""
    value = alarm.value if math.isfinite(alarm.value) else None
    found = {"guard": alarm.guard, "action": action, "value": value, "limit": alarm.limit, "message": str(alarm)}
    return {**session.counters(), **found}
