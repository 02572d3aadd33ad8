"""Tables and curves over run directories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.binding import options_with
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
        """Timestep and value at each evaluation."""
        return [(row["global_step"], row[metric]) for row in self.rows if row.get(metric) is not None]


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
    """One row per algorithm, task and variant: last and best score over seeds, IQM of the last, its 95 % interval."""
    rows = []
    for (algo, task, variant), members in group_runs(records).items():
        name = metric or pick_metric(members)
        better = min if name in LOWER_IS_BETTER or name.endswith("_loss") else max
        curves = [curve for record in members if (curve := record.curve(name))]
        if not curves:
            continue
        last = [curve[-1][1] for curve in curves]
        best = [better(value for _, value in curve) for curve in curves]
        rows.append(
            {
                "algo": algo,
                "task": task,
                "variant": variant,
                "metric": name,
                "runs": len(curves),
                "last": sum(last) / len(last),
                "best": sum(best) / len(best),
                "iqm": interquartile_mean(last),
                "interval": list(bootstrap_interval(last)),
            }
        )
    return rows


def group_runs(records: Sequence[RunRecord]) -> dict[tuple[str, str, str], list[RunRecord]]:
    """Runs that differ only in their seed, under algorithm, task and the options that tell them from their neighbours.

    Runs without an evaluation are left out.
    """
    evaluated = [record for record in records if record.rows]
    if not evaluated:
        raise ConfigError("none of these runs has an evaluation yet")
    groups: dict[tuple[str, str, str], list[RunRecord]] = {}
    for subject in sorted({record.group for record in evaluated}):
        neighbours = [record for record in evaluated if record.group == subject]
        options = [_options(record.config) for record in neighbours]
        varied = [key for key in options[0] if any(other.get(key) != options[0][key] for other in options)]
        for record, values in zip(neighbours, options, strict=True):
            variant = ", ".join(f"{key.removeprefix('algo_kwargs.')}={values.get(key)}" for key in varied)
            groups.setdefault((*subject, variant), []).append(record)
    return groups


def _options(config: TrainConfig) -> dict[str, str]:
    """Every option of a run but those that make no difference to what it learns, by dotted name."""
    incidental = options_with("incidental", TrainConfig)
    values = {key: value for key, value in config.to_plain().items() if key not in incidental}
    kwargs = values.pop("algo_kwargs")
    return {key: str(value) for key, value in {**values, **{f"algo_kwargs.{k}": v for k, v in kwargs.items()}}.items()}


def pick_metric(records: Sequence[RunRecord]) -> str:
    """The most telling metric that all of these runs have."""
    reported = [{name for row in record.rows for name in row} for record in records]
    for name in PREFERRED:
        if all(name in names for names in reported):
            return name
    raise ConfigError(f"the runs beside {records[0].path} have no metric in common; name one with --metric")


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
    groups = group_runs(records)
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    shown = set()
    for number, ((algo, task, variant), members) in enumerate(groups.items()):
        name = metric or pick_metric(members)
        curves = [curve for record in members if (curve := record.curve(name))]
        shown.add(name)
        for k, curve in enumerate(curves):
            label = f"{algo} on {task} {variant} ({len(curves)} runs)".replace("  ", " ") if k == 0 else None
            axes.plot(*zip(*curve, strict=True), color=f"C{number}", alpha=0.8, marker=".", label=label)
    axes.set(xlabel="timesteps", ylabel=", ".join(sorted(shown)))
    axes.grid(alpha=0.3)
    axes.legend()
    try:
        figure.savefig(path, dpi=120)
    except ValueError as error:
        raise ConfigError(f"--plot {str(path)!r}: {error}") from None
    finally:
        plt.close(figure)
