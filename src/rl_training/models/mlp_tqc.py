"""The old place of the networks of TQC; see `rl_training.models.bundles`."""

from rl_training.models.bundles import *
from rl_training.models.critics import *
