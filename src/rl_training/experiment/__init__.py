"""Many runs: seeds, sweeps, searches, and the pools that train them."""

from rl_training.config import TrainConfig
from rl_training.experiment.manager import ExperimentManager, default_workers
from rl_training.experiment.pools import ProgressListener, SeedProgress, count_workers
from rl_training.experiment.registry import AlgorithmSpec, describe_options, get_algorithm_spec, list_algorithms
from rl_training.experiment.sweep import (
    CellResult,
    Cost,
    estimate_costs,
    find_cells,
    run_sweep,
    total_seconds,
)
from rl_training.experiment.sweep_spec import Cell, SweepSpec, make_cells, read_sweep
from rl_training.experiment.tune import TuneResult, options_text, run_tuning
from rl_training.experiment.tune_spec import read_tune
from rl_training.reports import export_with_report, plot_curves, read_runs, summarize
from rl_training.reports.page import report_content, write_report

__all__ = [
    "AlgorithmSpec", "Cell", "CellResult", "Cost", "ExperimentManager", "ProgressListener", "SeedProgress",
    "SweepSpec", "TrainConfig", "TuneResult", "count_workers", "default_workers", "describe_options", "estimate_costs",
    "export_with_report", "find_cells", "get_algorithm_spec", "list_algorithms", "make_cells", "options_text",
    "plot_curves", "read_runs", "read_sweep", "read_tune", "report_content", "run_sweep", "run_tuning", "summarize",
    "total_seconds", "write_report",
]  # fmt: skip
