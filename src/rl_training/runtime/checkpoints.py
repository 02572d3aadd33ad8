"""Going on with a run: from which of its files, and what it leaves behind of those that it does not go on from."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rl_training.config import TrainConfig, load_config, read_config
from rl_training.core.errors import CheckpointError, ConfigError, DamagedError
from rl_training.runtime.saving import number_latest, upload, write_latest
from rl_training.storage.checkpoint import (
    LATEST,
    link_checkpoint,
    numbered_checkpoints,
    refuse_foreign,
    saved_spans,
)
from rl_training.storage.checkpoint_schema import open_checkpoint
from rl_training.storage.policy_files import drop_policies
from rl_training.storage.run_directory import RunDirectory

if TYPE_CHECKING:
    from rl_training.runtime.trainer import Session

BEST = "best.pt"
DEFINING = ("algo", "seed", "env_id")
"""Options by which a checkpoint is told from those of other runs, where it carries no identity."""


class Saved(NamedTuple):
    """The state of a run on disk, and the file it is in."""

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
            warnings.warn(f"{'; '.join(problems)}: going on from {path}, timestep {step}", stacklevel=3)
        return saved
    if files:
        raise DamagedError(f"no checkpoint in {run.checkpoints} is whole: {'; '.join(problems)}")
    return None


def settle(session: Session, saved: Saved | None, *, is_named: bool, is_changed: bool) -> None:
    """Make the directory agree with the state that a run goes on from.

    The checkpoint may have been named, and options may have changed. The latest checkpoint comes first, at one stroke.
    Everything else follows from it: if a kill prevents that, the next `resume` does it.
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
        # The next evaluation is the best: what was better than it is gone.
        state.best_score, state.best_step, session.best_metrics = None, None, {}
    if saved is None:
        run.set_metrics_aside()
    is_moved = saved is not None and saved.tree["config"].get("upload_url") != session.config.upload_url
    if _lacks_good(session) or is_changed or is_moved or saved is None or saved.path.name != LATEST:
        # It says how the run ended, which it has not any more.
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
    """Whether guards have no checkpoint to go back to, so that the state that the run goes on from must be one.

    A kill may have come before the last good one got its number, or the file is gone.
    """
    guards, folder = session.guards, session.run.checkpoints
    if guards.good is not None and not (folder / guards.good).exists():
        guards.good = None
    return guards.goes_back and guards.good is None


def _keep_rows(session: Session) -> None:
    """Keep the rows that the checkpoints of the run refer to, as far as these can be read."""
    store = session.store
    for path in session.run.checkpoints.glob("*.pt"):
        with suppress(DamagedError):
            if store is not None:
                store.keep(path.name, saved_spans(path))


def _is_best_stale(session: Session, *, is_named: bool) -> bool:
    """Whether the best checkpoint is one that the run has left behind: of other options, or later than a named one."""
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
    """The configuration that a run goes on with: that of its latest checkpoint, which `config.yaml` follows."""
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
        theirs, ours = (", ".join(f"{name} {each[name]}" for name in others) for each in (tree["config"], stored))
        raise CheckpointError(
            f"{path} belongs to another run ({theirs}; this one has {ours}): put back the file of this run, or move "
            "this one away"
        )
