"""Many runs: seeds, sweeps, searches, and the pools that train them."""

from rl_training.config import TrainConfig
from rl_training.experiment.manager import ExperimentManager, default_workers
from rl_training.experiment.pools import ProgressListener, SeedProgress, count_workers, was_limited
from rl_training.experiment.registry import AlgorithmSpec, describe_options, get_algorithm_spec, list_algorithms
from rl_training.experiment.sweep import (
    Cost,
    SweepRun,
    estimate_costs,
    keep_names,
    run_sweep,
    total_seconds,
)
from rl_training.experiment.sweep_spec import PlannedRun, SweepSpec, plan_runs, read_sweep
from rl_training.experiment.tune import TuneResult, options_text, run_tuning
from rl_training.experiment.tune_spec import read_tune
from rl_training.reports import export_with_report, plot_curves, read_runs, summarize
from rl_training.reports.page import report_content, write_report

__all__ = [
    "AlgorithmSpec", "Cost", "ExperimentManager", "PlannedRun", "ProgressListener", "SeedProgress", "SweepRun",
    "SweepSpec", "TrainConfig", "TuneResult", "count_workers", "default_workers", "describe_options", "estimate_costs",
    "export_with_report", "get_algorithm_spec", "keep_names", "list_algorithms", "options_text", "plan_runs",
    "plot_curves", "read_runs", "read_sweep", "read_tune", "report_content", "run_sweep", "run_tuning", "summarize",
    "total_seconds", "was_limited", "write_report",
]  # fmt: skip
