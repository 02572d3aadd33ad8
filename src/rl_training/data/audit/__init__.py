"""Defects of a dataset, a function per check."""

from __future__ import annotations

from rl_training.data.audit.coverage import NEARLY_DETERMINISTIC, action_spread
from rl_training.data.audit.view import AuditFinding, View, count_verdicts

__all__ = ["NEARLY_DETERMINISTIC", "AuditFinding", "View", "action_spread", "count_verdicts"]
