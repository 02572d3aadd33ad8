"""Going on with a run: from which of its files, and what it leaves behind of those that it does not go on from."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rl_training.config import read_config
from rl_training.runtime.artifacts import RunDirectory
from rl_training.runtime.checkpointing import load_checkpoint, refuse_foreign, save_latest
from rl_training.runtime.policy_files import drop_policies
from rl_training.types import CheckpointError, ConfigError, DamagedError

if TYPE_CHECKING:
    from rl_training.runtime.trainer import Session

LATEST, BEST = "latest.pt", "best.pt"
NUMBERED = re.compile(r"(?:update|step)_(\d+)\.pt")
DEFINING = ("algo", "seed", "env_id")
"""Options by which a checkpoint is told from those of other runs, where it carries no identity."""


class Saved(NamedTuple):
    """The state of a run on disk, and the file it is in."""

    path: Path
    tree: dict[str, Any]


def numbered_checkpoints(folder: Path) -> dict[int, Path]:
    """The numbered checkpoints in a folder by their timesteps, the newest first."""
    found = {int(match[1]): path for path in folder.glob("*.pt") if (match := NUMBERED.fullmatch(path.name))}
    return dict(sorted(found.items(), reverse=True))


def read_state(run: RunDirectory, path: Path) -> Saved:
    """The state in a checkpoint, which must be whole and of this run."""
    tree = load_checkpoint(path)
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


def settle(session: Session, saved: Saved | None, *, is_changed: bool) -> None:
    """Make the directory agree with the state that a run goes on from, after some options have changed or none."""
    run, state = session.run, session.state
    if saved is None:
        run.set_metrics_aside()
    # Before the first timestep there is only the evaluation of an initial policy, which is made again.
    run.rewind_metrics(state.event_step if state.global_step else -1)
    if is_changed:
        state.should_stop, state.stop_reason = False, None
        run.write_config(session.config)
    if is_changed or saved is None or saved.path.name != LATEST:
        # The state that the run continues from becomes its latest one.
        save_latest(session)
    drop_policies(run.path, after=state.global_step)


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
