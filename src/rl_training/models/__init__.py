"""Networks; no losses."""

from rl_training.models.actors import DeterministicActor, GaussianActor, PerturbationActor, TanhGaussianActor
from rl_training.models.algorithm_models import (
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
from rl_training.models.mlp import MLP, EnsembleMLP, Multiplier
from rl_training.models.mlp_bcq import BehaviorVAE
from rl_training.models.model import Model

__all__ = ["MLP", "BehaviorVAE", "DeterministicActor", "EnsembleMLP", "GaussianActor", "MLPAWACModel", "MLPAWRModel",
           "MLPBCModel", "MLPBCQModel", "MLPBEARModel", "MLPCQLModel", "MLPCRRModel", "MLPCrossQModel",
           "MLPDDPGModel", "MLPIQLModel", "MLPMARWILModel", "MLPREDQModel", "MLPReBRACModel", "MLPSACModel",
           "MLPSACNModel", "MLPTD3Model", "MLPTQCModel", "Model", "Multiplier", "PerturbationActor", "QEnsemble",
           "TanhGaussianActor", "ValueNetwork"]  # fmt: skip
