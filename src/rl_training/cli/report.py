"""The command `report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rl_training.cli.console import number_text, print_json, print_table
from rl_training.cli.options import JsonOption


def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN", help="Run directories, or folders of them.")],
    metric: Annotated[str | None, typer.Option(help="Metric to report; default the most telling one.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write learning curves to this picture.")] = None,
    as_json: JsonOption = False,
) -> None:
    """A table over runs and seeds: last and best score, IQM and 95 % bootstrap interval."""
    from rl_training.experiment.report import check_metric, find_runs, plot_curves, summarize

    records = find_runs(runs)
    if metric is not None:
        check_metric(records, metric)
    rows = summarize(records, metric=metric)
    if plot is not None:
        plot_curves(records, plot, metric=metric)
    if as_json:
        print_json(rows)
        return
    head = ["algorithm", "task", "variant", "metric", "runs", "last", "best", "IQM", "95 % interval"]
    cells = []
    for row in rows:
        words = [str(row[name]) for name in ("algo", "task", "variant", "metric", "runs")]
        numbers = [number_text(row[name]) for name in ("last", "best", "iqm")]
        cells.append([*words, *numbers, f"[{', '.join(map(number_text, row['interval']))}]"])
    print_table(head, cells)
    if plot is not None:
        print(f"curves in {plot}")
