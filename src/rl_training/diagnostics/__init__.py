"""Diagnostics of training, models and machines."""

from __future__ import annotations

from rl_training.diagnostics.doctor import Machine, MachineSpeed, advise, examine, measure_speed
from rl_training.diagnostics.guards import LOWER, OUTSIDE, GuardAlarm, GuardOptions, Guards
from rl_training.diagnostics.held_out import diagnose
from rl_training.diagnostics.model_check import check_model

__all__ = [
    "LOWER", "OUTSIDE", "GuardAlarm", "GuardOptions", "Guards", "Machine", "MachineSpeed", "advise", "check_model",
    "diagnose", "examine", "measure_speed",
]  # fmt: skip
