"""How much room a run takes on disk, and whether there is enough of it."""

from __future__ import annotations

import shutil
import warnings
from typing import TYPE_CHECKING

from rl_training.core.text import size_text
from rl_training.storage.policy_files import policy_path
from rl_training.storage.run_directory import UPLOADS

if TYPE_CHECKING:
    from rl_training.runtime.trainer import Session


def foresee(session: Session) -> int:
    """About how many bytes the whole run takes when it has ended, judged by its latest checkpoint."""
    config, plan = session.config, session.plan
    count = plan.total // config.checkpoint_interval + 2
    kept = count if config.keep_checkpoints == "all" else min(config.keep_checkpoints, count)
    has_best = session.best_metric is not None
    return (kept + has_best) * session.checkpoint_bytes + count * _policy_bytes(session) + _replay_bytes(session)


def introduce_disk_use(session: Session) -> None:
    """Say at the start what a checkpoint and the run take, and if there is not enough room."""
    total, free = foresee(session), shutil.disk_usage(session.run.path).free
    # Files that are being uploaded come and go, and are links.
    kept = (path for path in session.run.path.iterdir() if path.name != UPLOADS)
    taken = sum(path.stat().st_size for each in kept for path in (each, *each.rglob("*")) if path.is_file())
    sizes = f"a checkpoint takes {size_text(session.checkpoint_bytes)}, the run about {size_text(total)}"
    session.state.introduction = (*session.state.introduction, f"{'disk':<12}{sizes}; {size_text(free)} are free")
    if total - taken > free:
        short = f"the run takes about {size_text(total - taken)} more, and {size_text(free)} are free"
        advice = "make room, or choose a larger checkpoint_interval or a smaller keep_checkpoints"
        session.state.notes = (*session.state.notes, f"{short} at {session.run.path}: {advice}")


def warn_of_full_disk(session: Session) -> None:
    """Say beforehand if there is no room for the next checkpoint, once until there is room again."""
    # A checkpoint is written beside the one before it, and its policy file first.
    needed = session.checkpoint_bytes + _policy_bytes(session)
    free = shutil.disk_usage(session.run.path).free
    if free < needed and not session.is_disk_short:
        warnings.warn(
            f"{session.run.path}: {size_text(free)} are free, and the next checkpoint needs {size_text(needed)}: make "
            "room, or the run ends there",
            stacklevel=3,
        )
    session.is_disk_short = free < needed


def _policy_bytes(session: Session) -> int:
    path = policy_path(session.run.path, session.state.global_step)
    return path.stat().st_size if path.is_file() else 0


def _replay_bytes(session: Session) -> int:
    """The rows of the buffer; the best checkpoint may need as many again, which have been overwritten since."""
    if session.store is None:
        return 0
    buffer, steps = session.store.buffer, max(session.plan.total - session.plan.pretrain, 0)
    row = sum(column[:1].nbytes for column in buffer.fields.values())
    capacity = session.options.online.buffer_capacity
    overwritten = min(capacity, max(steps - capacity, 0)) if session.best_metric is not None else 0
    return (min(capacity, steps) + overwritten) * row
