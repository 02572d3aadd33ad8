"""The old place of `rl_training.models.actors`."""

from rl_training.models.actors import *
