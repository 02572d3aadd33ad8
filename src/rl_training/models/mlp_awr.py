"""The old place of the networks of AWR and MARWIL; see `rl_training.models.bundles`."""

from rl_training.models.bundles import *
