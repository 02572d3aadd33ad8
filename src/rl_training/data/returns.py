"""Returns of the rewards alone: the functions of `rl_training.returns`, under the name that they had first."""

from rl_training.returns import backward_recursion, returns_to_go

__all__ = ["backward_recursion", "returns_to_go"]
