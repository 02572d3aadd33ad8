"""Many runs."""

from rl_training.config import TrainConfig
from rl_training.experiment.jobs import SeedProgress
from rl_training.experiment.manager import ExperimentManager
from rl_training.experiment.registry import AlgorithmSpec, get_algorithm_spec, list_algorithms
from rl_training.reports.handover import export_with_report
from rl_training.reports.page.write import report_content, write_report
from rl_training.reports.plots import plot_curves
from rl_training.reports.table import read_runs, summarize

__all__ = [
    "AlgorithmSpec",
    "ExperimentManager",
    "SeedProgress",
    "TrainConfig",
    "export_with_report",
    "get_algorithm_spec",
    "list_algorithms",
    "plot_curves",
    "read_runs",
    "report_content",
    "summarize",
    "write_report",
]
