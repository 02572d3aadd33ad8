"""The old place of `rl_training.models.initializers`."""

from rl_training.models.initializers import (
    Init,
    orthogonal,
    orthogonal_small_last,
    small_last,
    uniform,
    uniform_small_last,
    xavier,
    xavier_small_last,
)

__all__ = ["Init", "orthogonal", "orthogonal_small_last", "small_last", "uniform", "uniform_small_last", "xavier",
           "xavier_small_last"]  # fmt: skip
