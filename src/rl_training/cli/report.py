"""The command `report`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_training.cli.console import number_text, print_json, print_table
from rl_training.cli.options import JsonOption

if TYPE_CHECKING:
    from rl_training.experiment.report import RunRecord

RUNS_HELP = "Run directories, checkpoints, folders of runs, or patterns."
METRIC_HELP = "Metric to report; default the most telling one; repeatable."


def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN", help=RUNS_HELP)],
    metric: Annotated[list[str] | None, typer.Option(help=METRIC_HELP)] = None,
    plot: Annotated[Path | None, typer.Option(help="Write learning curves to this picture.")] = None,
    as_json: JsonOption = False,
) -> None:
    """A table over runs and seeds: last and best score, IQM and 95 % bootstrap interval."""
    from rl_training.experiment.plot import plot_curves
    from rl_training.experiment.report import read_runs, summarize

    records, metrics = read_runs(runs), list(dict.fromkeys(metric or []))
    rows = summarize(records, metrics=metrics)
    if plot is not None:
        plot_curves(records, plot, metrics=metrics)
    if as_json:
        print_json(rows)
        return
    print(taken_text(records, runs))
    print_rows(rows)
    if plot is not None:
        print(f"curves in {plot}")


def taken_text(records: Sequence[RunRecord], names: Sequence[str]) -> str:
    """How many runs a report is about, and where they were found."""
    places = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    text = f"{len(records)} run{'s' * (len(records) != 1)} in {places}"
    waiting = sum(not record.rows for record in records)
    return f"{text}, {waiting} without an evaluation yet" if waiting else text


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """The rows of `summarize` as a table; the column of variants is left out where there are none."""
    names = ["algo", "task", "variant", "metric", "runs"]
    head = ["algorithm", "task", "variant", "metric", "n", "last", "best", "IQM", "95 % interval"]
    if not any(row["variant"] for row in rows):
        names.remove("variant")
        head.remove("variant")
    cells = []
    for row in rows:
        numbers = [number_text(row[name]) for name in ("last", "best", "iqm")]
        interval = "-" if row["interval"] is None else f"[{', '.join(map(number_text, row['interval']))}]"
        cells.append([*(str(row[name]) for name in names), *numbers, interval])
    print_table(head, cells)
