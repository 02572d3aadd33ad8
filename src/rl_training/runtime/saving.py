"""The state of a run: to a checkpoint and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rl_training.acting.policy import spectators
from rl_training.core.errors import TrainingError
from rl_training.core.files import writing
from rl_training.models import Model
from rl_training.runtime.disk_use import warn_of_full_disk
from rl_training.storage.checkpoint import LATEST, link_checkpoint, load_networks, numbered_checkpoints, save_checkpoint
from rl_training.storage.policy_files import POLICY_ONLY, policy_path

if TYPE_CHECKING:
    from rl_training.diagnostics.guards import Alarm
    from rl_training.runtime.callbacks import Callback
    from rl_training.runtime.trainer import Session


def save_latest(session: Session, *, good: bool = False) -> None:
    """Write the state of the run as the latest checkpoint, and under its number; its policy gets a file of its own."""
    write_latest(session, good=good)
    number_latest(session)
    warn_of_full_disk(session)
    upload(session)


def upload(session: Session) -> None:
    """Upload the latest checkpoint of a run, if that is asked for; the run does not wait for it."""
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
    if guards.goes_back and (good or guards.good is None):
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


def diverged(session: Session, alarm: Alarm, *more: str) -> TrainingError:
    """The error with which a run ends in which something has gone wrong."""
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
            "rewards": session.rewards,
            "branches": session.branches,
            "guards": session.guards.state_dict(),
        },
        "random": {
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        },
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
        note = f"the state of {session.config.env_id} cannot be saved: the run goes on with new episodes"
        session.state.notes = (*session.state.notes, note)
    session.mark_time()
    torch.set_rng_state(tree["random"]["torch"])
    if torch.cuda.is_available() and tree["random"]["cuda"]:
        torch.cuda.set_rng_state_all(tree["random"]["cuda"])


def policy_tree(session: Session) -> dict[str, Any]:
    """What a policy file holds: the networks that act, statistics of observations, and where it comes from."""
    state = session.algorithm.state_dict()
    names = _acting(session.algorithm.model, (name for name in state if name.startswith("model.")))
    return {
        POLICY_ONLY: True,
        "run": session.run.identity,
        "config": session.config.to_plain(),
        "spaces": session.spaces.to_plain(),
        # Cloned, since a tensor that is part of a larger one is written with all of it.
        "algorithm": {name: state[name].clone() for name in [*names, "obs_mean", "obs_std"]},
        "replay": [] if session.store is None else [list(span) for span in session.store.spans],
        "trainer": {
            "state": {"global_step": session.state.global_step},
            "rewards": session.rewards,
            "fingerprint": session.fingerprint,
        },
    }


def _acting(model: Model, names: Iterable[str]) -> list[str]:
    left_out = spectators(model)
    return [name for name in names if name.split(".")[1] not in left_out]
