"""The old place of the networks of TD3, DDPG and ReBRAC; see `rl_training.models.bundles`."""

from rl_training.models.bundles import *
