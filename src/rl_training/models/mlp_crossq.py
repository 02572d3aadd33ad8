"""The old place of the networks of CrossQ; see `rl_training.models.bundles`."""

from rl_training.models.bundles import MLPCrossQModel
from rl_training.models.critics import RenormCritic
from rl_training.models.perceptrons import EnsembleRenormMLP, RenormMLP

__all__ = ["EnsembleRenormMLP", "MLPCrossQModel", "RenormCritic", "RenormMLP"]
