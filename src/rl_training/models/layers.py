"""The old place of `rl_training.models.perceptrons`, and of `QEnsemble` and `ValueNetwork`."""

from rl_training.models.critics import *
from rl_training.models.perceptrons import *
