"""Runs read from disk: tables, plots, pages."""

from __future__ import annotations

from rl_training.reports.compare import Findings, Improvement, improvement, sweep_findings
from rl_training.reports.data_plot import plot_dataset
from rl_training.reports.handover import export_with_report
from rl_training.reports.plots import check_picture, plot_curves, plot_profiles
from rl_training.reports.runs import RESULTS, RunRecord, read_runs
from rl_training.reports.table import is_one_sweep, summarize
from rl_training.reports.tune_plot import draw_history, draw_importances

__all__ = [
    "RESULTS", "Findings", "Improvement", "RunRecord", "check_picture", "draw_history", "draw_importances",
    "export_with_report", "improvement", "is_one_sweep", "plot_curves", "plot_dataset", "plot_profiles", "read_runs",
    "summarize", "sweep_findings",
]  # fmt: skip
