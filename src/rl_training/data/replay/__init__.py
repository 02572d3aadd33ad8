"""Sources of batches."""

from __future__ import annotations

from rl_training.data.replay.samplers import BlockSampler

__all__ = ["BlockSampler"]
