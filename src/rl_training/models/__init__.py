"""Networks; no losses."""

from rl_training.models.bundle import Model
from rl_training.models.layers import MLP, EnsembleMLP, Multiplier, QEnsemble, ValueNetwork
from rl_training.models.mlp_awac import MLPAWACModel, MLPCRRModel
from rl_training.models.mlp_awr import MLPAWRModel, MLPMARWILModel
from rl_training.models.mlp_bc import MLPBCModel
from rl_training.models.mlp_bcq import BehaviorVAE, MLPBCQModel, MLPBEARModel
from rl_training.models.mlp_crossq import MLPCrossQModel
from rl_training.models.mlp_iql import MLPIQLModel
from rl_training.models.mlp_redq import MLPREDQModel
from rl_training.models.mlp_sac import MLPCQLModel, MLPSACModel, MLPSACNModel
from rl_training.models.mlp_td3 import MLPDDPGModel, MLPReBRACModel, MLPTD3Model
from rl_training.models.mlp_tqc import MLPTQCModel
from rl_training.models.policies import DeterministicActor, GaussianActor, PerturbationActor, TanhGaussianActor

__all__ = [
    "MLP",
    "BehaviorVAE",
    "DeterministicActor",
    "EnsembleMLP",
    "GaussianActor",
    "MLPAWACModel",
    "MLPAWRModel",
    "MLPBCModel",
    "MLPBCQModel",
    "MLPBEARModel",
    "MLPCQLModel",
    "MLPCRRModel",
    "MLPCrossQModel",
    "MLPDDPGModel",
    "MLPIQLModel",
    "MLPMARWILModel",
    "MLPREDQModel",
    "MLPReBRACModel",
    "MLPSACModel",
    "MLPSACNModel",
    "MLPTD3Model",
    "MLPTQCModel",
    "Model",
    "Multiplier",
    "PerturbationActor",
    "QEnsemble",
    "TanhGaussianActor",
    "ValueNetwork",
]
