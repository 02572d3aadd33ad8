"""The old place of the networks of BCQ and BEAR; see `rl_training.models.bundles`."""

from rl_training.models.behavior_vae import LATENT_CLIP, LOG_STD_MAX, LOG_STD_MIN, BehaviorVAE
from rl_training.models.bundles import MLPBCQModel, MLPBEARModel
from rl_training.models.critics import best_action

__all__ = ["LATENT_CLIP", "LOG_STD_MAX", "LOG_STD_MIN", "BehaviorVAE", "MLPBCQModel", "MLPBEARModel", "best_action"]
