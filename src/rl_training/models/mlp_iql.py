"""The old place of the networks of IQL and XQL; see `rl_training.models.bundles`."""

from rl_training.models.bundles import *
