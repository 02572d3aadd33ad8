"""Networks; no losses."""

from rl_training.models.bundle import Model
from rl_training.models.layers import MLP, EnsembleMLP, QEnsemble
from rl_training.models.mlp_bc import MLPBCModel
from rl_training.models.mlp_td3 import MLPTD3Model
from rl_training.models.policies import DeterministicActor, GaussianActor

__all__ = [
    "MLP",
    "DeterministicActor",
    "EnsembleMLP",
    "GaussianActor",
    "MLPBCModel",
    "MLPTD3Model",
    "Model",
    "QEnsemble",
]
