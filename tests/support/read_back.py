"""Curves of a run, as it wrote them and as MLflow has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rl_training.storage import read_metrics
from rl_training.storage.sinks import numbers

Curves = dict[str, list[tuple[int, float]]]
"""By name, timesteps and values."""


def curves_of_run(run_dir: Path) -> Curves:
    """What `metrics.jsonl` has, as sinks should have it."""
    curves: Curves = {}
    for row in read_metrics(run_dir):
        for name, value in numbers(str(row["kind"]), row).items():
            curves.setdefault(name, []).append((row["global_step"], value))
    return curves


def only_run(client: Any, experiment: str = "Default") -> Any:
    """The one run that an experiment has."""
    (found,) = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    return found


def curves_in_mlflow(client: Any, run: Any) -> Curves:
    """What MLflow has of a run."""
    history = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
    return {name: sorted((each.step, each.value) for each in found) for name, found in history.items()}
