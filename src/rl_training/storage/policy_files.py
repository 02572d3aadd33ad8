"""Policy files: of every checkpoint, what acts and nothing else, kept to choose among policies later."""

from __future__ import annotations

from pathlib import Path

from rl_training.core.text import step_of_name

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
