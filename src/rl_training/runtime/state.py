"""The old place of `TrainerState` and `TrainResult`; see `rl_training.runtime.trainer`."""

from rl_training.runtime.trainer import TrainerState as TrainerState
from rl_training.runtime.trainer import TrainResult as TrainResult
