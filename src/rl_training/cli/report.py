"""The command `report`: a table, a picture, a page."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_training.cli.console import number_text, print_json, print_table
from rl_training.cli.options import ImportOption, JsonOption
from rl_training.importing import command_text
from rl_training.types import ConfigError

if TYPE_CHECKING:
    from rl_training.experiment.report import RunRecord

RUNS_HELP = "Run directories, checkpoints, folders of runs, or patterns."
METRIC_HELP = "Metric to report; default the most telling one; repeatable."
LONGEST_SIDE = 100
"""Inches of a picture: more are a slip of the finger, and a picture that fills the memory."""
HTML_HELP = "Write everything known about the runs as one page, and its content as .json beside it."
DATA_HELP = "For --html: read this log instead of the runs' own data."
CHOSEN_HELP = "For --html: the run that the page is about; default the best."
ESTIMATES_HELP = "For --html: a file from `estimate --out`; default the estimate.json of each run."
SELECTION_HELP = "For --html: a file from `select`; default selection.json in the folder of the runs."
BUNDLE_HELP = "For --html: a folder from `export`, which the page describes."
SMOOTH_HELP = "Evaluations in a moving average of the curves; 1 is none."


def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN", help=RUNS_HELP)],
    metric: Annotated[list[str] | None, typer.Option(help=METRIC_HELP)] = None,
    plot: Annotated[Path | None, typer.Option(help="Write learning curves to this .png, .svg or .pdf file.")] = None,
    smooth: Annotated[int, typer.Option(min=1, help=SMOOTH_HELP)] = 1,
    title: Annotated[str | None, typer.Option(help="Title of the picture or the page.")] = None,
    size: Annotated[str | None, typer.Option(metavar="WIDTHxHEIGHT", help="Size of the picture in inches.")] = None,
    html: Annotated[Path | None, typer.Option(help=HTML_HELP)] = None,
    data: Annotated[str | None, typer.Option(metavar="DATA", help=DATA_HELP)] = None,
    chosen: Annotated[str | None, typer.Option(metavar="RUN", help=CHOSEN_HELP)] = None,
    estimates: Annotated[Path | None, typer.Option(help=ESTIMATES_HELP)] = None,
    selection: Annotated[Path | None, typer.Option(help=SELECTION_HELP)] = None,
    bundle: Annotated[Path | None, typer.Option(help=BUNDLE_HELP)] = None,
    import_: ImportOption = None,
    as_json: JsonOption = False,
) -> None:
    """A table over runs and seeds: last and best score, IQM, 95 % interval; curves with --plot, a page with --html."""
    for_page = {"dataset": data, "chosen": chosen, "estimates": estimates, "selection": selection, "bundle": bundle}
    given = {name: value for name, value in for_page.items() if value is not None}
    if html is not None:
        if plot is not None or metric or smooth != 1 or size is not None:
            raise ConfigError("--html has curves of its own: leave --plot, --metric, --smooth and --size out")
        write_page(runs, html, title=title, as_json=as_json, **given)
        return
    if given:
        raise ConfigError("--data, --chosen, --estimates, --selection and --bundle go with --html")
    print_report(runs, metric or [], plot, smooth=smooth, title=title, size=size, as_json=as_json)


def write_page(runs: Sequence[str], html: Path, *, title: str | None, as_json: bool, **options: Any) -> None:
    """Write the page and its content, and print the answer, or all of it."""
    from rl_training.experiment.page import write_report

    content = write_report(runs, html, title=title, **options)
    if as_json:
        print_json(content)
        return
    print(content["verdict"]["sentence"])
    print(content["verdict"]["advice"])
    print(f"report in {html}, its content in {html.with_suffix('.json')}")


def print_report(
    runs: Sequence[str],
    metric: Sequence[str],
    plot: Path | None,
    *,
    smooth: int,
    title: str | None,
    size: str | None,
    as_json: bool,
) -> None:
    """Print the table, and draw the picture if it is asked for."""
    from rl_training.experiment.plot import check_picture, plot_curves
    from rl_training.experiment.report import read_runs, summarize

    inches = None if size is None else parse_size(size)
    if plot is not None:
        check_picture(plot)
    elif smooth != 1 or title is not None or size is not None:
        raise ConfigError("--smooth, --title and --size change a picture; name its file with --plot")
    records, metrics = read_runs(runs), list(dict.fromkeys(metric))
    rows = summarize(records, metrics=metrics)
    if plot is not None:
        plot_curves(records, plot, metrics=metrics, smooth=smooth, title=title, size=inches)
    if as_json:
        print_json(rows)
        return
    shown = {row["metric"] for row in rows}
    print(taken_text(records, runs) + (f": {shown.pop()}" if len(shown) == 1 else ""))
    print_rows(rows)
    for record in records:
        for alarm in record.alarms:
            print(f"alarm in {record.path}, timestep {alarm.global_step}: {alarm.message}")
    if any(row["best"] is None for row in rows):
        command = command_text("estimate", shlex.join(runs))
        print(f"no estimate yet: {command}. Held-out measures say what is broken, not which run is better.")
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
        numbers = ["-" if row[name] is None else number_text(row[name]) for name in ("last", "best", "iqm")]
        interval = "-" if row["interval"] is None else f"[{', '.join(map(number_text, row['interval']))}]"
        cells.append([*(str(row[name]) for name in columns), *numbers, interval])
    print_table([*columns.values(), "last", "best", "IQM", "95 % interval"], cells)
