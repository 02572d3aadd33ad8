"""Managed algorithms: one class per registered algorithm."""

from rl_training.api.algorithms import MANAGED as MANAGED
from rl_training.api.algorithms import ManagedAlgorithm as ManagedAlgorithm
from rl_training.api.algorithms import __dir__ as __dir__
from rl_training.api.algorithms import __getattr__ as __getattr__
