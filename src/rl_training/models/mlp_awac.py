"""The old place of the networks of AWAC and CRR; see `rl_training.models.bundles`."""

from rl_training.models.bundles import *
