"""Loading a policy for a command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rl_training.runtime import SavedPolicy


def load(path: Path) -> SavedPolicy:
    """The policy of a checkpoint; the process computes with no more threads than it has cores."""
    from rl_training.runtime import load_policy
    from rl_training.runtime.performance import set_threads

    set_threads()
    return load_policy(path)
