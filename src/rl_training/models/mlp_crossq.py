"""The old place of the networks of CrossQ; see `rl_training.models.bundles`."""

from rl_training.models.bundles import *
from rl_training.models.critics import *
from rl_training.models.perceptrons import *
