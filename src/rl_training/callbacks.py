"""Callbacks: a class to derive one's own from, and ready ones."""

from rl_training.runtime.callbacks import Callback as Callback
from rl_training.runtime.callbacks import CheckpointCallback as CheckpointCallback
from rl_training.runtime.callbacks import EarlyStoppingCallback as EarlyStoppingCallback
from rl_training.runtime.callbacks import ThresholdCallback as ThresholdCallback
from rl_training.runtime.callbacks import TimeBudgetCallback as TimeBudgetCallback
from rl_training.runtime.callbacks import VideoCallback as VideoCallback
from rl_training.runtime.progress import ProgressCallback as ProgressCallback
from rl_training.runtime.trainer import TrainerState as TrainerState
