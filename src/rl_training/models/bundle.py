"""The old place of `rl_training.models.model`."""

from rl_training.models.model import *
