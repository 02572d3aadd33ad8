"""What algorithms are made of."""

from __future__ import annotations

from rl_training.algorithms.base.algorithm import Algorithm, Step
from rl_training.algorithms.base.hyper import Hyper
from rl_training.algorithms.base.optimizers import AdamW, trainable
from rl_training.algorithms.base.registration import Mode

__all__ = ["AdamW", "Algorithm", "Hyper", "Mode", "Step", "trainable"]
