"""The old place of the networks of AWAC and CRR; see `rl_training.models.bundles`."""

from rl_training.models.bundles import AWAC_LOG_STD_RANGES, MLPAWACModel, MLPCRRModel

__all__ = ["AWAC_LOG_STD_RANGES", "MLPAWACModel", "MLPCRRModel"]
