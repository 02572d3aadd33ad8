"""Checkpoints: the state of a run as one tree in one file, written so that a crash at any instant loses nothing."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rl_training.algorithms import Algorithm
from rl_training.files import atomic_write, link_or_copy, writing
from rl_training.runtime.disk_use import warn_of_full_disk
from rl_training.runtime.policy_files import POLICY_ONLY, policy_path, policy_tree
from rl_training.spaces import BoxActions, SpaceSpec
from rl_training.text import step_of_name
from rl_training.torch_files import read_tree
from rl_training.types import CheckpointError, DamagedError, TrainingError, UserError

if TYPE_CHECKING:
    from rl_training.runtime.callbacks import Callback
    from rl_training.runtime.guards import Alarm
    from rl_training.runtime.trainer import Session

LATEST = "latest.pt"
FORMAT = 2
"""The format that is written. Every format from 1 on can be read for its policy; a run goes on from this one only."""


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


def numbered_checkpoints(folder: Path) -> dict[int, Path]:
    """The numbered checkpoints in a folder by their timesteps, the newest first."""
    found = {step: path for path in folder.glob("*.pt") if (step := step_of_name(path.name)) is not None}
    return dict(sorted(found.items(), reverse=True))


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


def save_checkpoint(path: Path, tree: dict[str, Any]) -> None:
    """Write the state of a run; until the new file is whole on disk, the one before it stays."""
    save_tree(path, {"format": FORMAT, **tree})


def save_tree(path: Path, tree: dict[str, Any]) -> None:
    """Write tensors and plain values so that the file is either whole or not there."""
    with atomic_write(path, needs=_bytes(tree)) as temporary, temporary.open("wb") as file:
        torch.save({**tree, "checksum": _digest(tree)}, file)


def link_checkpoint(existing: Path, name: str) -> None:
    """Give a checkpoint a second name beside it, in place of whatever has that name."""
    with atomic_write(existing.with_name(name)) as temporary:
        link_or_copy(existing, temporary)


def load_checkpoint(path: Path, *, policy_only: bool = False) -> dict[str, Any]:
    """Read a checkpoint and make sure that it is whole; for its policy alone, it may be of an older format."""
    tree = _read(path)
    found = tree.get("format")
    if isinstance(found, int) and found > FORMAT:
        versions = f"checkpoint format {found}; this one reads up to {FORMAT}"
        raise CheckpointError(f"{path} was written by a newer version ({versions}): update rl-training")
    if "algorithm" not in tree or "config" not in tree or found not in range(1, FORMAT + 1):
        raise DamagedError(f"{path} is not a checkpoint of rl_training")
    if found != FORMAT and not policy_only:
        raise CheckpointError(
            f"{path} was written by an older version (checkpoint format {found}): predict and eval can use its policy, "
            "but no run can go on from it"
        )
    if tree.get(POLICY_ONLY) and not policy_only:
        raise CheckpointError(
            f"{path} holds a policy only, without the rest of the networks and optimisers: predict, eval, estimate and "
            "export can use it, but no run can go on from it; take a file in checkpoints/ of its run"
        )
    return _whole(path, tree)


def refuse_foreign(path: Path, tree: Mapping[str, Any], run_id: str | None) -> None:
    """Refuse a file of another run than the one with this identity; files of earlier versions do not say whose."""
    saved = tree.get("run") or {}
    if run_id is None or saved.get("id") in (None, run_id):
        return
    config = tree.get("config")
    about = f", {config['algo']} with seed {config['seed']}" if config else ""
    raise CheckpointError(
        f"{path} belongs to another run ({saved['name']}{about}): put back the file of this run, or move this one away"
    )


def saved_spaces(tree: Mapping[str, Any]) -> SpaceSpec:
    """The spaces in a checkpoint of any format. In format 1 they are vectors and bounds."""
    values = tree["spaces"]
    if tree["format"] == 1:
        actions = BoxActions(tuple(values["action_low"]), tuple(values["action_high"]))
        return SpaceSpec.vector(values["obs_dim"], actions)
    return SpaceSpec.from_plain(values)


def saved_spans(path: Path) -> list[list[int]]:
    """The files of rows that a checkpoint refers to."""
    spans: list[list[int]] = _read(path).get("replay", [])
    return spans


def load_tree(path: Path) -> dict[str, Any]:
    """Read what `save_tree` wrote and make sure that it is whole."""
    return _whole(path, _read(path))


def load_networks(
    algorithm: Algorithm, tree: Mapping[str, Any], *, what: str, error_class: type[UserError] = CheckpointError
) -> None:
    """Put a checkpoint's networks, target networks and optimisers into an algorithm; `what` names it in an error."""
    with refusing_other_networks(what, error_class):
        algorithm.load_state_dict(tree["algorithm"])


@contextmanager
def refusing_other_networks(what: str, error_class: type[UserError] = CheckpointError) -> Iterator[None]:
    """Say in one sentence that a state does not fit the networks it is loaded into."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise error_class(f"{what} does not fit the options of the networks: {reason}") from None


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise DamagedError(f"checkpoint {str(path)!r} does not exist")
    tree = read_tree(path, CheckpointError, what="checkpoint", damage_class=DamagedError)
    if not isinstance(tree, dict):
        raise DamagedError(f"{path} is not a checkpoint of rl_training")
    return tree


def _bytes(tree: Any) -> int:
    """About how much room a tree takes on disk."""
    if isinstance(tree, Tensor):
        return tree.nbytes + 500
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (list, tuple)) else ()
    return 10 + sum(map(_bytes, parts))


def _whole(path: Path, tree: dict[str, Any]) -> dict[str, Any]:
    if tree.pop("checksum", None) != _digest(tree):
        raise DamagedError(f"{path} is damaged: its contents do not match its checksum")
    return tree


def _digest(tree: Any) -> str:
    digest = hashlib.blake2b(digest_size=16)
    _feed(digest, tree)
    return digest.hexdigest()


def _feed(digest: Any, value: Any) -> None:
    """Hash a tree by content, so that neither file layout nor key order matters."""
    if isinstance(value, Tensor):
        digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
        digest.update(value.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            digest.update(str(key).encode())
            _feed(digest, value[key])
    elif isinstance(value, (list, tuple)):
        digest.update(struct.pack("q", len(value)))
        for item in value:
            _feed(digest, item)
    else:
        digest.update(repr(value).encode())
