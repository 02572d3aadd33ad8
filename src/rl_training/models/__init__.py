"""Networks; no losses."""

from rl_training.models.actors import DeterministicActor, GaussianActor, PerturbationActor, TanhGaussianActor
from rl_training.models.behavior_vae import BehaviorVAE
from rl_training.models.bundles import (
    MLPAWACModel,
    MLPAWRModel,
    MLPBCModel,
    MLPBCQModel,
    MLPBEARModel,
    MLPCQLModel,
    MLPCrossQModel,
    MLPCRRModel,
    MLPDDPGModel,
    MLPIQLModel,
    MLPMARWILModel,
    MLPReBRACModel,
    MLPREDQModel,
    MLPSACModel,
    MLPSACNModel,
    MLPTD3Model,
    MLPTQCModel,
)
from rl_training.models.critics import QEnsemble, ValueNetwork
from rl_training.models.model import Model
from rl_training.models.perceptrons import MLP, EnsembleMLP, Multiplier

__all__ = ["MLP", "BehaviorVAE", "DeterministicActor", "EnsembleMLP", "GaussianActor", "MLPAWACModel", "MLPAWRModel",
           "MLPBCModel", "MLPBCQModel", "MLPBEARModel", "MLPCQLModel", "MLPCRRModel", "MLPCrossQModel",
           "MLPDDPGModel", "MLPIQLModel", "MLPMARWILModel", "MLPREDQModel", "MLPReBRACModel", "MLPSACModel",
           "MLPSACNModel", "MLPTD3Model", "MLPTQCModel", "Model", "Multiplier", "PerturbationActor", "QEnsemble",
           "TanhGaussianActor", "ValueNetwork"]  # fmt: skip
