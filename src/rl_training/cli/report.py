"""The command `report`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_training.cli.console import number_text, print_json, print_table
from rl_training.cli.options import JsonOption
from rl_training.types import ConfigError

if TYPE_CHECKING:
    from rl_training.experiment.report import RunRecord

RUNS_HELP = "Run directories, checkpoints, folders of runs, or patterns."
METRIC_HELP = "Metric to report; default the most telling one; repeatable."
LONGEST_SIDE = 100
"""Inches of a picture: more are a slip of the finger, and a picture that fills the memory."""
SMOOTH_HELP = "Evaluations in a moving average of the curves; 1 is none."


def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN", help=RUNS_HELP)],
    metric: Annotated[list[str] | None, typer.Option(help=METRIC_HELP)] = None,
    plot: Annotated[Path | None, typer.Option(help="Write learning curves to this .png, .svg or .pdf file.")] = None,
    smooth: Annotated[int, typer.Option(min=1, help=SMOOTH_HELP)] = 1,
    title: Annotated[str | None, typer.Option(help="Title of the picture.")] = None,
    size: Annotated[str | None, typer.Option(metavar="WIDTHxHEIGHT", help="Size of the picture in inches.")] = None,
    as_json: JsonOption = False,
) -> None:
    """A table over runs and seeds: last and best score, IQM and 95 % bootstrap interval; curves with --plot."""
    from rl_training.experiment.plot import check_picture, plot_curves
    from rl_training.experiment.report import read_runs, summarize

    inches = None if size is None else parse_size(size)
    if plot is not None:
        check_picture(plot)
    elif smooth != 1 or title is not None or size is not None:
        raise ConfigError("--smooth, --title and --size change a picture; name its file with --plot")
    records, metrics = read_runs(runs), list(dict.fromkeys(metric or []))
    rows = summarize(records, metrics=metrics)
    if plot is not None:
        plot_curves(records, plot, metrics=metrics, smooth=smooth, title=title, size=inches)
    if as_json:
        print_json(rows)
        return
    shown = {row["metric"] for row in rows}
    print(taken_text(records, runs) + (f": {shown.pop()}" if len(shown) == 1 else ""))
    print_rows(rows)
    if plot is not None:
        print(f"curves in {plot}")


def parse_size(text: str) -> tuple[float, float]:
    """Width and height in inches from text such as 7x4.5."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)x(\d+(?:\.\d+)?)", text)
    size = None if match is None else (float(match[1]), float(match[2]))
    if size is None or not all(0 < side <= LONGEST_SIDE for side in size):
        raise ConfigError(f"--size {text!r}: expected width and height in inches, up to {LONGEST_SIDE}, such as 7x4.5")
    return size


def taken_text(records: Sequence[RunRecord], names: Sequence[str]) -> str:
    """How many runs a report is about, and where they were found."""
    places = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    text = f"{len(records)} run{'s' * (len(records) != 1)} in {places}"
    waiting = sum(not record.rows for record in records)
    return f"{text}, {waiting} without an evaluation yet" if waiting else text


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """The rows of `summarize` as a table, without columns that say nothing: no variants, or one metric for all."""
    columns = {"algo": "algorithm", "task": "task", "variant": "variant", "metric": "metric", "runs": "n"}
    if not any(row["variant"] for row in rows):
        del columns["variant"]
    if len({row["metric"] for row in rows}) == 1:
        del columns["metric"]
    cells = []
    for row in rows:
        numbers = [number_text(row[name]) for name in ("last", "best", "iqm")]
        interval = "-" if row["interval"] is None else f"[{', '.join(map(number_text, row['interval']))}]"
        cells.append([*(str(row[name]) for name in columns), *numbers, interval])
    print_table([*columns.values(), "last", "best", "IQM", "95 % interval"], cells)
