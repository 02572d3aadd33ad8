"""Policy files: of every checkpoint, what acts and nothing else, kept to choose among policies later."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.models import Model
from rl_training.runtime.policy import spectators
from rl_training.text import step_of_name

if TYPE_CHECKING:
    from rl_training.runtime.trainer import Session

POLICY_ONLY = "policy_only"
"""The key that tells the tree of a policy file from that of a checkpoint."""


def policy_path(run: Path, step: int) -> Path:
    """The policy file of a run at a timestep."""
    return run / "policies" / f"step_{step:09d}.pt"


def policy_step(path: Path) -> int | None:
    """The timestep of a policy file, by its name; None for any other file."""
    return step_of_name(path.name) if path.parent.name == "policies" else None


def policy_files(run: Path) -> list[Path]:
    """The policy files of a run, in the order of their timesteps."""
    steps = steps_of(run)
    return sorted(steps, key=steps.__getitem__)


def drop_policies(run: Path, *, after: int) -> None:
    """Delete the policy files of later timesteps, which a run that goes back to this one writes again."""
    for path, step in steps_of(run).items():
        if step > after:
            path.unlink(missing_ok=True)


def steps_of(run: Path) -> dict[Path, int]:
    """The policy files of a run with their timesteps."""
    found = {path: policy_step(path) for path in (run / "policies").glob("*.pt")}
    return {path: step for path, step in found.items() if step is not None}


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
