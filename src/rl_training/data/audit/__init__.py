"""What may be wrong with a dataset, a function per check."""

from __future__ import annotations

from rl_training.data.audit.coverage import NEARLY_DETERMINISTIC, action_spread
from rl_training.data.audit.view import Finding, View, count_verdicts

__all__ = ["NEARLY_DETERMINISTIC", "Finding", "View", "action_spread", "count_verdicts"]
