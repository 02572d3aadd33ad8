"""Checkpoints: the state of a run as one tree in one file, written so that a crash at any instant loses nothing."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rl_training.algorithms import Algorithm
from rl_training.core.errors import CheckpointError, DamagedError, UserError
from rl_training.core.files import atomic_write, link_or_copy
from rl_training.core.spaces import BoxActions, SpaceSpec
from rl_training.core.text import step_of_name
from rl_training.core.torch_files import read_tree
from rl_training.storage.policy_files import POLICY_ONLY

LATEST = "latest.pt"

FORMAT = 2
"""The format that is written. Every format from 1 on can be read for its policy; a run goes on from this one only."""


def numbered_checkpoints(folder: Path) -> dict[int, Path]:
    """The numbered checkpoints in a folder by their timesteps, the newest first."""
    found = {step: path for path in folder.glob("*.pt") if (step := step_of_name(path.name)) is not None}
    return dict(sorted(found.items(), reverse=True))


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
