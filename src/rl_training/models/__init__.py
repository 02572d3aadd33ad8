"""Networks; no losses."""

from __future__ import annotations

from rl_training.models.actors import (
    DeterministicActor,
    GaussianActor,
    PerturbationActor,
    TanhGaussianActor,
    gaussian_log_prob,
)
from rl_training.models.algorithm_models import (
    MLPAWACModel,
    MLPAWRModel,
    MLPBCModel,
    MLPCQLModel,
    MLPCrossQModel,
    MLPCRRModel,
    MLPDDPGModel,
    MLPDiscreteBCQModel,
    MLPDiscreteCRRModel,
    MLPDiscreteIQLModel,
    MLPDiscreteSACModel,
    MLPDQNModel,
    MLPFQEModel,
    MLPIQLModel,
    MLPMARWILModel,
    MLPPPOModel,
    MLPReBRACModel,
    MLPREDQModel,
    MLPSACModel,
    MLPSACNModel,
    MLPTD3Model,
    MLPTQCModel,
)
from rl_training.models.critics import Critic, QEnsemble, ValueNetwork
from rl_training.models.discrete import CategoricalActor, DiscreteCritic, expectation, likely_actions, pick
from rl_training.models.encoders import Network, SkipMask, VectorEncoder, encoder_path, make_encoder
from rl_training.models.mlp import ACTIVATIONS, MLP, Activation, EnsembleMLP, Multiplier, Norm, Precision, products_in
from rl_training.models.mlp_bcq import BehaviorVAE, MLPBCQModel
from rl_training.models.mlp_bear import MLPBEARModel
from rl_training.models.model import Model
from rl_training.models.novelty import EPISODE_QUANTILE, ROW_QUANTILE, Novelty, fit_novelty, novelty_split

__all__ = [
    "ACTIVATIONS", "EPISODE_QUANTILE", "MLP", "ROW_QUANTILE", "Activation", "BehaviorVAE", "CategoricalActor", "Critic",
    "DeterministicActor", "DiscreteCritic", "EnsembleMLP", "GaussianActor", "MLPAWACModel", "MLPAWRModel", "MLPBCModel",
    "MLPBCQModel", "MLPBEARModel", "MLPCQLModel", "MLPCRRModel", "MLPCrossQModel", "MLPDDPGModel", "MLPDQNModel",
    "MLPDiscreteBCQModel", "MLPDiscreteCRRModel", "MLPDiscreteIQLModel", "MLPDiscreteSACModel", "MLPFQEModel",
    "MLPIQLModel", "MLPMARWILModel", "MLPPPOModel", "MLPREDQModel", "MLPReBRACModel", "MLPSACModel", "MLPSACNModel",
    "MLPTD3Model", "MLPTQCModel", "Model", "Multiplier", "Network", "Norm", "Novelty", "PerturbationActor", "Precision",
    "QEnsemble", "SkipMask", "TanhGaussianActor", "ValueNetwork", "VectorEncoder", "encoder_path", "expectation",
    "fit_novelty", "gaussian_log_prob", "likely_actions", "make_encoder", "novelty_split", "pick", "products_in",
]  # fmt: skip
