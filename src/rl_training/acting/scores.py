"""D4RL's normalised score: 0 for a random policy, 100 for an expert."""

from __future__ import annotations

import re

# Random and expert returns, from the reference scores that D4RL publishes with its tasks.
REFERENCE_RETURNS: dict[str, tuple[float, float]] = {
    "halfcheetah": (-280.178953, 12135.0),
    "hopper": (-20.272305, 3234.3),
    "walker2d": (1.629008, 4592.3),
    "ant": (-325.6, 3879.7),
    "antmaze": (0.0, 1.0),
    "pen": (96.262799, 3076.8331017826877),
    "door": (-56.512833, 2880.5693087298737),
    "hammer": (-274.856578, 12794.134825156867),
    "relocate": (-6.425911, 4233.877797728884),
    "maze2d-open-v0": (0.01, 20.66),
    "maze2d-umaze-v1": (23.85, 161.86),
    "maze2d-medium-v1": (13.13, 277.39),
    "maze2d-large-v1": (6.7, 273.99),
    "maze2d-open-dense-v0": (11.17817, 27.166538620695782),
    "maze2d-umaze-dense-v1": (68.537689, 193.66285642381482),
    "maze2d-medium-dense-v1": (44.264742, 297.4552547777125),
    "maze2d-large-dense-v1": (30.569041, 303.4857382709002),
    "kitchen": (0.0, 4.0),
}


def reference_returns(task: str) -> tuple[float, float] | None:
    """Random and expert returns of a D4RL task, or of its Gymnasium environment; None if there are none."""
    name = task.lower()
    if name in REFERENCE_RETURNS:
        return REFERENCE_RETURNS[name]
    # Hopper-v4, hopper-medium-v2, AdroitHandDoor-v1: the family is what the score depends on.
    family = re.split(r"[-_]", name.removeprefix("adroithand"))[0]
    return REFERENCE_RETURNS.get(family)


def normalized_score(task: str, value: float) -> float | None:
    """The score of a return on a task, or None where the task has no reference returns."""
    reference = reference_returns(task)
    if reference is None:
        return None
    random, expert = reference
    return 100 * (value - random) / (expert - random)
