"""The old place of `rl_training.models.initializers`."""

from rl_training.models.initializers import *
