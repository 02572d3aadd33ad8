"""Checkpoints of a run: saving, choosing the one to resume from, rollbacks."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

from rl_training.acting import unused_in_acting
from rl_training.config import TrainConfig, load_config, read_config
from rl_training.core.errors import CheckpointError, ConfigError, DamagedError, TrainingError
from rl_training.core.files import writing
from rl_training.diagnostics import OUTSIDE, GuardAlarm
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.progress import warn_of_full_disk
from rl_training.runtime.trainer import Session
from rl_training.storage import (
    LATEST,
    MOST_ROLLBACKS,
    POLICY_ONLY,
    RunDirectory,
    drop_policies,
    link_checkpoint,
    load_networks,
    numbered_checkpoints,
    open_checkpoint,
    policy_path,
    refuse_foreign,
    save_checkpoint,
    saved_spans,
)


def save_latest(session: Session, *, good: bool = False) -> None:
    """Write the state of the run as the latest checkpoint, also under its number, and its policy as a file."""
    write_latest(session, good=good)
    number_latest(session)
    warn_of_full_disk(session)
    upload(session)


def upload(session: Session) -> None:
    """Upload the latest checkpoint of a run in the background, if `upload_url` is set."""
    if session.uploader is not None:
        session.uploader.offer(session.state.global_step, good=session.guards.good)


def write_latest(session: Session, *, good: bool = False) -> None:
    """Write the state of the run as the latest checkpoint, and its policy.

    The policy comes first: a run that is killed after it goes back to the state before, and drops it. Then comes the
    latest checkpoint, which everything else in the directory follows. A `good` checkpoint is one to which guards may go
    back.
    """
    if (broken := session.find_broken()) is not None:
        raise diverged(session, broken)
    session.run.check_place()
    guards = session.guards
    if guards.rolls_back and (good or guards.good is None):
        guards.good = _number(session)
    path = policy_path(session.run.path, session.state.global_step)
    with writing(path.parent):
        path.parent.mkdir(exist_ok=True)
    save_checkpoint(path, policy_tree(session))
    save(session, LATEST)
    session.saved = session.state.update_count, session.state.env_steps


def number_latest(session: Session) -> None:
    """Give the latest checkpoint its number too, and delete numbered ones and rows that are not to be kept."""
    folder, name, keep = session.run.checkpoints, _number(session), session.config.keep_checkpoints
    latest, numbered = folder / LATEST, folder / name
    if not (numbered.exists() and numbered.samefile(latest)):
        link_checkpoint(latest, name)
    if keep != "all":
        for older in list(numbered_checkpoints(folder).values())[keep:]:
            if older.name != session.guards.good:
                older.unlink(missing_ok=True)
    if session.store is not None:
        session.store.keep(name)
        session.store.prune()


def _number(session: Session) -> str:
    """The name of a checkpoint with the timestep of the run."""
    return f"{'update' if session.collector is None else 'step'}_{session.state.global_step:09d}.pt"


def save(session: Session, name: str) -> Path:
    """Write the state of the run to a checkpoint of this name, after the rows of the buffer that it refers to."""
    session.run.check_place()
    if session.store is not None:
        session.store.save()
    path = session.run.checkpoints / name
    save_checkpoint(path, session_tree(session))
    session.checkpoint_bytes = path.stat().st_size
    if session.store is not None:
        session.store.keep(name)
    return path


def diverged(session: Session, alarm: GuardAlarm, *more: str) -> TrainingError:
    """The error that ends a run after an alarm."""
    last = f"the last checkpoint is {session.run.checkpoints / LATEST}"
    return TrainingError("; ".join([f"timestep {session.state.global_step}: {alarm}", *more, last]))


def _named_callbacks(session: Session) -> list[tuple[str, Callback]]:
    """Callbacks under the names of their classes; several of one class are numbered."""
    kinds = [type(callback).__name__ for callback in session.callbacks]
    return [(f"{kind}{kinds[:k].count(kind) or ''}", session.callbacks[k]) for k, kind in enumerate(kinds)]


def session_tree(session: Session) -> dict[str, Any]:
    """The complete state of the run: tensors and plain values only.

    Rows of the replay buffer are not part of it. It names the files they are in, as of the last `store.save()`.
    """
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {
        "run": session.run.identity,
        "config": session.config.to_plain(),
        "spaces": session.spaces.to_plain(),
        "algorithm": session.algorithm.state_dict(),
        "source": session.source.state_dict(),
        "replay": [] if session.store is None else [list(span) for span in session.store.spans],
        "collector": None if session.collector is None else session.collector.state_dict(),
        "trainer": {
            "state": session.state.state_dict(),
            "window": session.window.state_dict(),
            "callbacks": {name: callback.state_dict() for name, callback in _named_callbacks(session)},
            "last_metrics": session.last_metrics,
            "best_metrics": session.best_metrics,
            "fine_tuning": None if session.fine_tuning is None else session.fine_tuning.state_dict(),
            "horizon": session.horizon,
            "fingerprint": session.fingerprint,
            **session.trained_on,
            "rewards": session.rewards,
            "branches": session.branches,
            "guards": session.guards.state_dict(),
        },
        "random": {"torch": torch.get_rng_state(), "cuda": cuda},
        "machine": {
            "torch": str(torch.__version__),
            "threads": torch.get_num_threads(),
            "compiled": session.state.compiled,
            "compiled_from": session.state.compiled_from,
        },
    }


def load_session(session: Session, tree: Mapping[str, Any]) -> None:
    """Continue from what `session_tree` returned."""
    trainer = tree["trainer"]
    load_networks(session.algorithm, tree, what="the checkpoint")
    # A source may compute fields with the networks, so these come first. The buffer's counters are part of the
    # source's state and say how many rows the store has to bring back, so the rows come last.
    session.source.load_state_dict(tree["source"])
    if session.store is not None:
        session.store.load(tree["replay"])
    session.state.load_state_dict(trainer["state"])
    session.saved = session.state.update_count, session.state.env_steps
    if session.fine_tuning is not None:
        session.fine_tuning.load_state_dict(trainer["fine_tuning"])
    session.window.load_state_dict(trainer["window"])
    # Runs of earlier versions have none.
    if trainer.get("guards") is not None:
        session.guards.load_state_dict(trainer["guards"])
    for name, callback in _named_callbacks(session):
        # A callback may be new to the run; then there is nothing to restore.
        if name in trainer["callbacks"]:
            callback.load_state_dict(trainer["callbacks"][name])
    session.last_metrics, session.best_metrics = dict(trainer["last_metrics"]), dict(trainer["best_metrics"])
    session.horizon = trainer["horizon"]
    session.branches = list(trainer.get("branches", ()))
    session.algorithm.set_online_share(session.online_share(session.state.online_updates))
    if session.collector is not None and not session.collector.load_state_dict(tree["collector"]):
        note = f"the state of {session.config.env_id} cannot be saved: the run continues with new episodes"
        session.state.notes = (*session.state.notes, note)
    session.mark_time()
    torch.set_rng_state(tree["random"]["torch"])
    if torch.cuda.is_available() and tree["random"]["cuda"]:
        torch.cuda.set_rng_state_all(tree["random"]["cuda"])


def policy_tree(session: Session) -> dict[str, Any]:
    """The contents of a policy file: the networks that act, statistics of observations, and its origin."""
    state, step = session.algorithm.state_dict(), {"global_step": session.state.global_step}
    unused = unused_in_acting(session.algorithm.model)
    names = [name for name in state if name.startswith("model.") and name.split(".")[1] not in unused]
    return {
        POLICY_ONLY: True,
        "run": session.run.identity,
        "config": session.config.to_plain(),
        "spaces": session.spaces.to_plain(),
        # Cloned, since a tensor that is part of a larger one is written with all of it.
        "algorithm": {name: state[name].clone() for name in [*names, "obs_mean", "obs_std"]},
        "replay": [] if session.store is None else [list(span) for span in session.store.spans],
        "trainer": {
            "state": step,
            "rewards": session.rewards,
            "fingerprint": session.fingerprint,
            **session.trained_on,
        },
    }


BEST = "best.pt"

DEFINING = ("algo", "seed", "env_id")
"""Options that tell the checkpoints of runs apart, if they have no identity."""


class Saved(NamedTuple):
    """The stored state of a run, and its file."""

    path: Path
    tree: dict[str, Any]


def read_state(run: RunDirectory, path: Path) -> Saved:
    """The state in a checkpoint, which must be whole and of this run."""
    tree = open_checkpoint(path)
    refuse_foreign(path, tree, run.run_id)
    _refuse_other_options(path, tree, run.path / "config.yaml")
    return Saved(path, tree)


def newest_state(run: RunDirectory) -> Saved | None:
    """The newest state of a run that is whole; files that are damaged are named in a warning.

    None where there is no checkpoint: a run that was killed before the first.
    """
    latest, problems = run.checkpoints / LATEST, []
    files = list(_newest_first(run.checkpoints))
    if files and not latest.exists():
        problems.append(f"{latest} is missing")
    for path in files:
        try:
            saved = read_state(run, path)
        except DamagedError as error:
            problems.append(str(error))
            continue
        if problems:
            step = saved.tree["trainer"]["state"]["global_step"]
            warnings.warn(f"{'; '.join(problems)}: resuming from {path}, timestep {step}", stacklevel=3)
        return saved
    if files:
        raise DamagedError(f"no checkpoint in {run.checkpoints} is whole: {'; '.join(problems)}")
    return None


def reconcile_directory(session: Session, saved: Saved | None, *, is_named: bool, is_changed: bool) -> None:
    """Reconcile the directory with the state that a run resumes from.

    The checkpoint may have been named, and options may have changed. The latest checkpoint comes first, at one stroke.
    Everything else follows from it; if a kill prevents that, the next `resume` does it.
    """
    run, state = session.run, session.state
    if is_changed:
        state.should_stop, state.stop_reason = False, None
        session.branches.append(state.global_step)
    numbered = numbered_checkpoints(run.checkpoints)
    _keep_rows(session)
    best, is_stale = run.checkpoints / BEST, _is_best_stale(session, is_named=is_named)
    restored = None if state.best_step is None else numbered.get(state.best_step)
    if is_stale and is_changed and restored is None:
        # The next evaluation is the best: the checkpoint of a better one is gone.
        state.best_score, state.best_step, session.best_metrics = None, None, {}
    if saved is None:
        run.set_metrics_aside()
    is_moved = saved is not None and saved.tree["config"].get("upload_url") != session.config.upload_url
    if _lacks_good(session) or is_changed or is_moved or saved is None or saved.path.name != LATEST:
        # The run that it describes as ended is continued.
        (run.path / "result.json").unlink(missing_ok=True)
        write_latest(session)
    session.checkpoint_bytes = (run.checkpoints / LATEST).stat().st_size
    # Before the first timestep there is only the evaluation of an initial policy, which is made again.
    run.rewind_metrics(state.event_step if state.global_step else -1, session.guards.rollbacks)
    run.write_config(session.config)
    if is_stale and restored is not None:
        link_checkpoint(restored, BEST)
    elif is_stale:
        best.unlink(missing_ok=True)
    for step, path in numbered.items():
        if step > state.global_step:
            path.unlink(missing_ok=True)
    drop_policies(run.path, after=state.global_step)
    # The last, since it deletes checkpoints. One of them may have become the best.
    number_latest(session)
    upload(session)


def _lacks_good(session: Session) -> bool:
    """Whether there is no checkpoint for rollbacks, so that the state to resume from must become one.

    A kill may have come before the last good one got its number, or the file is gone.
    """
    guards, folder = session.guards, session.run.checkpoints
    if guards.good is not None and not (folder / guards.good).exists():
        guards.good = None
    return guards.rolls_back and guards.good is None


def _keep_rows(session: Session) -> None:
    """Keep the rows that the checkpoints of the run refer to, as far as these can be read."""
    store = session.store
    for path in session.run.checkpoints.glob("*.pt"):
        with suppress(DamagedError):
            if store is not None:
                store.keep(path.name, saved_spans(path))


def _is_best_stale(session: Session, *, is_named: bool) -> bool:
    """Whether the best checkpoint is from a part that was abandoned: of other options, or later than a named one."""
    path, step = session.run.checkpoints / BEST, session.state.global_step
    if not path.exists():
        return False
    try:
        trainer = open_checkpoint(path)["trainer"]
    except DamagedError:
        return is_named or bool(session.branches)
    before, best_step = list(trainer.get("branches", ())), trainer["state"]["global_step"]
    if before == session.branches:
        return is_named and best_step > step
    # Options have changed since, and it must have been saved before that.
    shared = session.branches[: len(before)]
    return before != shared or best_step > session.branches[len(before)]


def saved_config(run_dir: Path) -> TrainConfig:
    """The configuration to resume with: that of the latest checkpoint, which `config.yaml` follows."""
    try:
        return TrainConfig(**open_checkpoint(run_dir / "checkpoints" / LATEST)["config"])
    except DamagedError:
        return load_config(run_dir / "config.yaml")


def _newest_first(folder: Path) -> Iterator[Path]:
    """The checkpoints in a folder, each file once, whatever names it has."""
    seen = set()
    for path in (folder / LATEST, *numbered_checkpoints(folder).values(), folder / BEST):
        if path.exists() and path.stat().st_ino not in seen:
            seen.add(path.stat().st_ino)
            yield path


def _refuse_other_options(path: Path, tree: Mapping[str, Any], config: Path) -> None:
    """Refuse a checkpoint of another algorithm, seed or environment than the configuration beside it names."""
    try:
        stored = read_config(config)
    except ConfigError:
        # It is written again from the checkpoint.
        return
    others = [name for name in DEFINING if name in stored and stored[name] != tree["config"].get(name)]
    if others:
        theirs, ours = (", ".join(f"{name} {each.get(name)}" for name in others) for each in (tree["config"], stored))
        advice = "put back the file of this run, or move this one away"
        raise CheckpointError(f"{path} belongs to another run ({theirs}; this one has {ours}): {advice}")


def rolled_back(session: Session, broken: GuardAlarm | None, line: Mapping[str, float] | None = None) -> bool:
    """Check a run after some updates and do what `on_divergence` says; true if it is at an earlier checkpoint now.

    `line` are the averages of a log line, if there is one. Guards that only warn do so at log lines.
    """
    guards, updates = session.guards, session.state.update_count
    if broken is not None:
        return respond(session, broken)
    warns = guards.options.on_divergence == "warn"
    if guards.looked == updates or (warns and line is None):
        return False
    alarms = guards.look(line or {}, updates)
    if warns:
        _warn(session, alarms)
    return respond(session, *alarms) if alarms and not warns else False


def respond(session: Session, alarm: GuardAlarm, *others: GuardAlarm) -> bool:
    """Roll a run back to its last good checkpoint, or end it if that is not allowed."""
    times = len(session.guards.rollbacks)
    more = [f"further guards that fired: {', '.join(each.guard for each in others)}"] if others else []
    if not session.guards.rolls_back or alarm.guard == OUTSIDE:
        raise diverged(session, alarm, *more)
    if times == MOST_ROLLBACKS:
        raise diverged(session, alarm, *more, f"the run went back {times} times, each time with half the learning rate")
    try:
        saved = read_state(session.run, session.run.checkpoints / str(session.guards.good))
    except CheckpointError as error:
        raise diverged(session, alarm, *more, f"the run cannot go back: {error}") from None
    _roll_back(session, saved, alarm)
    return True


def _warn(session: Session, alarms: Sequence[GuardAlarm]) -> None:
    """Warn of alarms that are new since the last log line, and record those that are over."""
    guards, found = session.guards, [alarm.guard for alarm in alarms]
    for alarm in alarms:
        if alarm.guard not in guards.raised:
            warnings.warn(f"timestep {session.state.global_step}: {alarm}", stacklevel=2)
            session.run.write_metrics("guard", _row(session, alarm, "warn"))
    for guard in guards.raised:
        if guard not in found:
            session.write_row("guard", {"guard": guard, "action": "over"})
    guards.raised = found


def _roll_back(session: Session, saved: Saved, alarm: GuardAlarm) -> None:
    """Load a good checkpoint, halve the learning rate, and make this the run's latest state.

    The run continues from there as if it were resumed with other options. If it is killed before the state is
    saved, it comes to the same alarm again. If it is killed after that, the checkpoint has the row of metrics.
    """
    guards, state = session.guards, session.state
    noticed_at, reason, branches, rollbacks = state.global_step, state.stop_reason, session.branches, guards.rollbacks
    session.is_rolling_back = True
    load_session(session, saved.tree)
    session.branches = [step for step in branches if step <= state.global_step]
    guards.rollbacks = [*rollbacks, {}]
    row = {**_row(session, alarm, "rollback"), "noticed_at": noticed_at, "rollbacks": len(guards.rollbacks)}
    guards.rollbacks = [*rollbacks, {"kind": "guard", **row}]
    reconcile_directory(session, saved, is_named=True, is_changed=True)
    # The events after the good checkpoint are not repeated.
    session.is_rolling_back, session.undo_events = False, None
    if state.interrupted:
        state.should_stop, state.stop_reason = True, reason or "interrupted"
    went = f"the run went back to timestep {state.global_step} and continues with {guards.learning_rate_factor:g}"
    warnings.warn(f"timestep {noticed_at}: {alarm}; {went} of the learning rate", stacklevel=2)


def _row(session: Session, alarm: GuardAlarm, action: str) -> dict[str, Any]:
    """The row of metrics about an alarm."""
    value = alarm.value if math.isfinite(alarm.value) else None
    found = {"guard": alarm.guard, "action": action, "value": value, "limit": alarm.limit, "message": str(alarm)}
    return {**session.counters(), **found}
