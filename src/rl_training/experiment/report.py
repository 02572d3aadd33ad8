"""Tables and curves over run directories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.config import TrainConfig, load_config
from rl_training.experiment.statistics import bootstrap_interval, interquartile_mean
from rl_training.runtime.artifacts import read_metrics
from rl_training.types import ConfigError, MissingExtraError, nearest

PREFERRED = ("normalized_score", "return_mean", "td_error", "action_mse")
LOWER_IS_BETTER = ("td_error", "action_mse")


@dataclass(frozen=True)
class RunRecord:
    """One run's evaluations."""

    path: Path
    config: TrainConfig
    rows: list[dict[str, Any]]

    @property
    def group(self) -> tuple[str, str]:
        """Algorithm, and environment or dataset."""
        subject = self.path.name.split("__")[1] if "__" in self.path.name else "-"
        return self.config.algo, self.config.env_id or subject

    def curve(self, metric: str) -> list[tuple[int, float]]:
        """Update count and value at each evaluation."""
        return [(row["update_count"], row[metric]) for row in self.rows if row.get(metric) is not None]


def find_runs(paths: Sequence[str | Path]) -> list[RunRecord]:
    """The runs in the given directories, each a run or a folder of runs."""
    records = []
    for path in map(Path, paths):
        if not path.is_dir():
            raise ConfigError(f"{str(path)!r} is not a directory")
        found = (
            [path] if (path / "config.yaml").is_file() else sorted(item.parent for item in path.glob("*/config.yaml"))
        )
        if not found:
            raise ConfigError(f"{str(path)!r} holds no run: there is no config.yaml in it or in its folders")
        for run in found:
            rows = [row for row in read_metrics(run) if row["kind"] in ("eval", "validation")]
            records.append(RunRecord(run, load_config(run / "config.yaml"), rows))
    return records


def summarize(records: Sequence[RunRecord], *, metric: str | None = None) -> list[dict[str, Any]]:
    """One row per algorithm and task: seeds, last and best score, IQM of the last with its 95 % interval."""
    metric = metric or pick_metric(records)
    better = min if metric in LOWER_IS_BETTER or metric.endswith("_loss") else max
    rows = []
    for group in sorted({record.group for record in records}):
        curves = [curve for record in records if record.group == group and (curve := record.curve(metric))]
        if not curves:
            continue
        last = [curve[-1][1] for curve in curves]
        best = [better(value for _, value in curve) for curve in curves]
        low, high = bootstrap_interval(last)
        rows.append(
            {
                "algo": group[0],
                "task": group[1],
                "metric": metric,
                "runs": len(curves),
                "last": sum(last) / len(last),
                "best": sum(best) / len(best),
                "iqm": interquartile_mean(last),
                "interval": [low, high],
            }
        )
    return rows


def pick_metric(records: Sequence[RunRecord]) -> str:
    """The most telling metric that every run with evaluations has."""
    reported = [{name for row in record.rows for name in row} for record in records if record.rows]
    if not reported:
        raise ConfigError("none of these runs has an evaluation yet")
    for name in PREFERRED:
        if all(name in names for names in reported):
            return name
    raise ConfigError("these runs have no metric in common; report them separately")


def check_metric(records: Sequence[RunRecord], metric: str) -> None:
    """Refuse a metric that no run has."""
    names = {
        name for record in records for row in record.rows for name, value in row.items() if isinstance(value, float)
    }
    if metric not in names:
        raise ConfigError(f"no run reports {metric!r}{nearest(metric, names) or f'; there are {sorted(names)}'}")


def plot_curves(records: Sequence[RunRecord], path: Path, *, metric: str | None = None) -> None:
    """Learning curves as a picture: a line per run, a colour per algorithm and task."""
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot as plt
    except ImportError:
        raise MissingExtraError("matplotlib", "plot", "--plot") from None
    metric = metric or pick_metric(records)
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for number, group in enumerate(sorted({record.group for record in records})):
        curves = [curve for record in records if record.group == group and (curve := record.curve(metric))]
        for k, curve in enumerate(curves):
            label = f"{group[0]} on {group[1]} ({len(curves)} runs)" if k == 0 else None
            axes.plot(*zip(*curve, strict=True), color=f"C{number}", alpha=0.8, marker=".", label=label)
    axes.set(xlabel="updates", ylabel=metric)
    axes.grid(alpha=0.3)
    axes.legend()
    try:
        figure.savefig(path, dpi=120)
    except ValueError as error:
        raise ConfigError(f"--plot {str(path)!r}: {error}") from None
    finally:
        plt.close(figure)
