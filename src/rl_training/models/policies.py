"""The old place of `rl_training.models.actors`."""

from rl_training.models.actors import (
    LOG_STD_RANGE,
    DeterministicActor,
    GaussianActor,
    PerturbationActor,
    Spread,
    TanhGaussianActor,
    gaussian_log_prob,
    log_tanh_slope,
)

__all__ = ["LOG_STD_RANGE", "DeterministicActor", "GaussianActor", "PerturbationActor", "Spread", "TanhGaussianActor",
           "gaussian_log_prob", "log_tanh_slope"]  # fmt: skip
