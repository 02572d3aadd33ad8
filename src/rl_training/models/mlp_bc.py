"""The old place of the network of behaviour cloning; see `rl_training.models.bundles`."""

from rl_training.models.bundles import *
