"""The parts of algorithms: base class, hyper-parameters, shared losses, optimisers, registration."""

from __future__ import annotations

from rl_training.algorithms.base import losses
from rl_training.algorithms.base.algorithm import Algorithm, Step, UpdateResult
from rl_training.algorithms.base.hyper import (
    ActorCriticHyper,
    Alpha,
    CalibrationHyper,
    EntropyHyper,
    Hyper,
    LambdaReturnHyper,
    SmoothingHyper,
    VAEHyper,
    ValueHyper,
    network_option,
)
from rl_training.algorithms.base.optimizers import AdamW, trainable
from rl_training.algorithms.base.registration import ALGORITHMS, Mode, register

__all__ = [
    "ALGORITHMS", "ActorCriticHyper", "AdamW", "Algorithm", "Alpha", "CalibrationHyper", "EntropyHyper", "Hyper",
    "LambdaReturnHyper", "Mode", "SmoothingHyper", "Step", "UpdateResult", "VAEHyper", "ValueHyper", "losses",
    "network_option", "register", "trainable",
]  # fmt: skip
