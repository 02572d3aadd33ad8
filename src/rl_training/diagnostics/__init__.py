"""Whether the training, the model and the machine are all right."""

from __future__ import annotations

from rl_training.diagnostics.doctor import Machine, Speed, advise, examine, measure
from rl_training.diagnostics.guards import LOWER, OUTSIDE, GuardAlarm, GuardOptions, Guards
from rl_training.diagnostics.held_out import diagnose
from rl_training.diagnostics.model_check import try_policy

__all__ = [
    "LOWER", "OUTSIDE", "GuardAlarm", "GuardOptions", "Guards", "Machine", "Speed", "advise", "diagnose", "examine",
    "measure", "try_policy",
]  # fmt: skip
