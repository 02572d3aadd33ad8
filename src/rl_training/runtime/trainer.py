"""The names of a run's parts in one place."""

from rl_training.runtime.option_groups import LoopOptions
from rl_training.runtime.plan import Plan
from rl_training.runtime.session import Session
from rl_training.runtime.state import TrainerState, TrainResult

__all__ = ["LoopOptions", "Plan", "Session", "TrainResult", "TrainerState"]
