"""The old place of the networks of BCQ and BEAR; see `rl_training.models.bundles`."""

from rl_training.models.behavior_vae import *
from rl_training.models.bundles import *
from rl_training.models.critics import *
