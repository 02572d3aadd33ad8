"""Defects of a dataset, a function per check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rl_training.data.audit import borders, coverage, effects, order, rewards, values
from rl_training.data.audit.coverage import NEARLY_DETERMINISTIC, action_spread
from rl_training.data.audit.view import AuditFinding, Check, View, count_verdicts
from rl_training.data.offline_dataset import TransitionDataset

__all__ = [
    "AGAINST_CLAIMS", "CHEAP", "CHECKS", "NEARLY_DETERMINISTIC", "AuditFinding", "View", "action_spread",
    "against_claims", "audit", "check_data", "count_verdicts",
]  # fmt: skip

CHEAP: tuple[Check, ...] = (
    *(values.finite, order.order, order.next_observations, order.timestamps, order.end_flags, order.time_limits),
    *(rewards.constant_reward, values.constant_columns, values.action_scale),
    *(order.open_episodes, borders.unmarked_borders),
)
"""The checks of every training: a few passes over the rows."""

CHECKS: tuple[Check, ...] = (
    *(values.finite, order.order, order.next_observations, borders.jumps, order.timestamps, order.intervals),
    *(order.end_flags, order.open_episodes, order.time_limits, order.cut_episodes),
    *(values.constant_columns, values.outliers, values.frozen_sensors, values.duplicate_columns),
    *(values.duplicate_rows, values.duplicate_episodes),
    *(values.action_bounds, values.valid_actions, values.masks_in_order, values.logged_probabilities),
    *(values.stuck_actions, values.quantised_actions, values.action_scale),
    *(rewards.constant_reward, rewards.reward_outliers, rewards.cumulative_rewards),
    *(rewards.reward_leak, rewards.late_rewards),
    *(effects.action_timing, effects.action_columns, effects.hidden_causes),
    *(coverage.returns, coverage.drift, coverage.determinism, coverage.coverage),
    *(coverage.trajectories, coverage.enough),
)
"""All checks, in the order of the report."""

REMARKS: tuple[Check, ...] = (order.order, order.time_limits, rewards.constant_reward)
"""The checks whose answers become notes of a dataset."""


def check_data(view: View, checks: Sequence[Check] = CHECKS) -> list[AuditFinding]:
    """The findings of checks on data. Where numbers are not finite, no other check makes sense."""
    first = values.finite(view)
    if first.verdict == "fail":
        return [first]
    findings = [first]
    for check in (each for each in checks if each is not values.finite):
        finding = check(view)
        # End flags are looked at as they were logged, all others on the rows that are kept.
        findings.append(replace(finding, rows=view.in_log(finding.rows, as_logged=check is order.end_flags)))
    return findings


AGAINST_CLAIMS = "action timing"
"""The check whose warning rules out claims: actions in another row than their effect turn the sign of a difference."""


def against_claims(dataset: TransitionDataset) -> str | None:
    """Why no claim follows from this data; None if nothing is found."""
    finding = effects.action_timing(View(dataset))
    return finding.message if finding.is_alarm else None


def audit(dataset: TransitionDataset) -> list[str]:
    """Remarks on data that looks wrong, for its notes."""
    alarms = [answer for check in REMARKS if (answer := check(View(dataset))).is_alarm]
    return [f"{each.message}; {each.advice}" if each.check == "time limits" else each.message for each in alarms]
