"""The page of a report."""

from __future__ import annotations

from rl_training.reports.page.write import report_content, write_report

__all__ = ["report_content", "write_report"]
