"""Callbacks: a class to derive one's own from, and ready ones."""

from rl_training.runtime import Callback as Callback
from rl_training.runtime import CheckpointCallback as CheckpointCallback
from rl_training.runtime import EarlyStoppingCallback as EarlyStoppingCallback
from rl_training.runtime import ProgressCallback as ProgressCallback
from rl_training.runtime import ThresholdCallback as ThresholdCallback
from rl_training.runtime import TimeBudgetCallback as TimeBudgetCallback
from rl_training.runtime import TrainerState as TrainerState
from rl_training.runtime import VideoCallback as VideoCallback
