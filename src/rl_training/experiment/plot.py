"""Learning curves as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rl_training.experiment.report import RunRecord, choose_metrics
from rl_training.types import ConfigError, MissingExtraError


def plot_curves(records: Sequence[RunRecord], path: Path, *, metrics: Sequence[str] = ()) -> None:
    """Learning curves as a picture: a line per run, a colour per algorithm, task and metric."""
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot as plt
    except ImportError:
        raise MissingExtraError("matplotlib", "plot", "--plot") from None
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    shown = set()
    for number, ((algo, task, variant), name, members) in enumerate(choose_metrics(records, metrics)):
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
