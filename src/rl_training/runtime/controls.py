"""The names of the option groups that end a run early and move its learning rate."""

from rl_training.runtime.option_groups import ControlOptions, EarlyStoppingConfig

__all__ = ["ControlOptions", "EarlyStoppingConfig"]
