"""Where batches come from."""

from __future__ import annotations

from rl_training.data.replay.samplers import BlockSampler

__all__ = ["BlockSampler"]
