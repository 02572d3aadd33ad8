"""Networks. All public names of these modules can be imported from here."""

from rl_training.models.actors import *
from rl_training.models.behavior_vae import *
from rl_training.models.bundles import *
from rl_training.models.critics import *
from rl_training.models.model import *
from rl_training.models.perceptrons import *
