"""The old place of the networks of REDQ and RLPD; see `rl_training.models.bundles`."""

from rl_training.models.bundles import *
