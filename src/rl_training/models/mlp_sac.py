"""The old place of the networks of SAC, SAC-N and CQL; see `rl_training.models.bundles`."""

from rl_training.models.bundles import *
from rl_training.models.bundles import SAC_LOG_STD_RANGE

WIDE = SAC_LOG_STD_RANGE
