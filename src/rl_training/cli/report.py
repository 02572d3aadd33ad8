"""The command `report`: a table, a picture, a page."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_training.cli.display.console import print_json, print_table
from rl_training.cli.display.options import ImportOption, JsonOption
from rl_training.core.errors import ConfigError
from rl_training.core.text import first_of, interval_text, number_text, plural, value_text
from rl_training.core.user_code import command_text

if TYPE_CHECKING:
    from rl_training.reports import Findings, RunRecord

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
COMPARE_HELP = "Two combinations, such as batch_size=16 batch_size=24: how probably is the first better?"
PROFILES_HELP = "Write performance profiles to this .png, .svg or .pdf file."
SMOOTH_HELP = "Evaluations in a moving average of the curves; 1 is none."


def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN", help=RUNS_HELP)],
    metric: Annotated[list[str] | None, typer.Option(help=METRIC_HELP)] = None,
    plot: Annotated[Path | None, typer.Option(help="Write learning curves to this .png, .svg or .pdf file.")] = None,
    profiles: Annotated[Path | None, typer.Option(help=PROFILES_HELP)] = None,
    compare: Annotated[tuple[str, str] | None, typer.Option(metavar="FIRST SECOND", help=COMPARE_HELP)] = None,
    smooth: Annotated[int, typer.Option(min=1, help=SMOOTH_HELP)] = 1,
    title: Annotated[str | None, typer.Option(help="Title of the pictures or the page.")] = None,
    size: Annotated[str | None, typer.Option(metavar="WIDTHxHEIGHT", help="Size of a picture in inches.")] = None,
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
        if plot or profiles or compare or metric or smooth != 1 or size is not None:
            others = "--plot, --profiles, --compare, --metric, --smooth and --size"
            raise ConfigError(f"--html has curves of its own: leave {others} out")
        write_page(runs, html, title=title, as_json=as_json, **given)
        return
    if given:
        raise ConfigError("--data, --chosen, --estimates, --selection and --bundle go with --html")
    pictures = plan_pictures(plot, profiles, smooth, title, None if size is None else parse_size(size))
    print_report(runs, list(dict.fromkeys(metric or [])), pictures, compare, as_json=as_json)


def plan_pictures(
    plot: Path | None, profiles: Path | None, smooth: int, title: str | None, size: tuple[float, float] | None
) -> dict[tuple[str, Path], Callable[..., None]]:
    """The functions that draw the pictures, by content and file; mistakes are found before anything is read."""
    from rl_training.reports import check_picture, plot_curves, plot_profiles

    pictures: dict[tuple[str, Path], Callable[..., None]] = {}
    if plot is not None:
        check_picture(plot)
        pictures["curves", plot] = partial(plot_curves, path=plot, smooth=smooth, title=title, size=size)
    if profiles is not None:
        check_picture(profiles, "--profiles")
        pictures["profiles", profiles] = partial(plot_profiles, path=profiles, title=title, size=size)
    if plot is None and (smooth != 1 or (profiles is None and (title, size) != (None, None))):
        raise ConfigError("--smooth, --title and --size change a picture; name its file with --plot")
    if plot is not None and plot == profiles:
        raise ConfigError("--plot and --profiles name the same file")
    return pictures


def write_page(runs: Sequence[str], html: Path, *, title: str | None, as_json: bool, **options: Any) -> None:
    """Write the page and its content, and print the verdict, or as JSON the whole content."""
    from rl_training.reports.page import write_report

    content = write_report(runs, html, title=title, **options)
    if as_json:
        print_json(content)
        return
    print(content["verdict"]["sentence"])
    print(content["verdict"]["advice"])
    print(f"report in {html}, its content in {html.with_suffix('.json')}")


def print_report(
    runs: Sequence[str],
    metrics: Sequence[str],
    pictures: Mapping[tuple[str, Path], Callable[..., None]],
    compare: tuple[str, str] | None,
    *,
    as_json: bool,
) -> None:
    """Print the table of runs and the findings below it, and draw the pictures."""
    from rl_training.reports import read_runs, summarize, sweep_findings

    records = read_runs(runs)
    rows = summarize(records, metrics=metrics)
    found = sweep_findings(runs, records, metrics=metrics, compare=compare)
    for draw in pictures.values():
        draw(records, metrics=metrics)
    if as_json:
        print_json(rows if found is None else {"rows": rows, **found.to_plain()})
        return
    shown = {row["metric"] for row in rows}
    print(taken_text(records, runs) + (f": {shown.pop()}" if len(shown) == 1 else ""))
    print_rows(rows)
    if found is not None:
        print_findings(found)
    for record in records:
        for alarm in record.alarms:
            print(f"alarm in {record.path}, timestep {alarm.global_step}: {alarm.message}")
    if any(row["best"] is None for row in rows):
        command = command_text("estimate", shlex.join(runs))
        print(f"no estimate yet: {command}. Held-out measures say what is broken, not which run is better.")
    for what, file in pictures:
        print(f"{what} in {file}")


def parse_size(text: str) -> tuple[float, float]:
    """Width and height in inches from text such as 7x4.5."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)x(\d+(?:\.\d+)?)", text)
    if match is None or not all(0 < float(side) <= LONGEST_SIDE for side in match.groups()):
        raise ConfigError(f"--size {text!r}: expected width and height in inches, up to {LONGEST_SIDE}, such as 7x4.5")
    return float(match[1]), float(match[2])


def taken_text(records: Sequence[RunRecord], names: Sequence[str]) -> str:
    """The number of runs in a report, where they were found, and what all runs of a sweep have in common."""
    from rl_training.reports import is_one_sweep

    text = f"{plural(len(records), 'run')} in {first_of(names)}"
    if is_one_sweep(records):
        # The table of a sweep has no columns for an algorithm and a task that did not vary.
        algos_and_tasks = [set(values) for values in zip(*(record.group for record in records), strict=True)]
        if shared := " on ".join(next(iter(values)) for values in algos_and_tasks if len(values) == 1):
            text += f", {shared}"
    waiting = sum(not record.rows for record in records)
    return f"{text}, {waiting} without an evaluation yet" if waiting else text


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the rows of `summarize` as a table, without variants if there are none, and without a common metric."""
    varied = list(dict.fromkeys(name for row in rows for name in row.get("values", ())))
    # Options that did not vary in a sweep stand above the table.
    is_sweep = all("values" in row for row in rows)
    columns = {} if is_sweep else {"algo": "algorithm", "task": "task"}
    if not is_sweep and any(row["variant"] for row in rows):
        columns["variant"] = "variant"
    if len({row["metric"] for row in rows}) > 1:
        columns["metric"] = "metric"
    columns["runs"] = "n"
    cells = []
    for row in rows:
        values = [value_text(row["values"][name]) if name in row["values"] else "-" for name in varied]
        numbers = ["-" if row[name] is None else number_text(row[name]) for name in ("last", "best", "iqm")]
        cells.append([*values, *(str(row[name]) for name in columns), *numbers, interval_text(row["interval"])])
    print_table([*varied, *columns.values(), "last", "best", "IQM", "95 % interval"], cells)


def print_findings(found: Findings) -> None:
    """Print what follows the table: unfinished runs, scores over all tasks, comparisons."""
    for line in found.undone_lines:
        print(line)
    if rows := found.over_tasks:
        print(f"all {rows[0]['tasks']} tasks together: {rows[0]['metric']}")
        cells = [
            [row["name"], str(row["runs"]), number_text(row["iqm"]), interval_text(row["interval"])] for row in rows
        ]
        print_table(["combination", "n", "IQM", "95 % interval"], cells)
    if found.note:
        print(found.note)
    for each in found.improvements:
        interval = "" if each.interval is None else f", 95 % interval [{each.interval[0]:.2f}, {each.interval[1]:.2f}]"
        over = "" if len(each.tasks) == 1 or each.is_opposite else f", mean over {len(each.tasks)} tasks"
        mean = "" if each.is_opposite else f"probability of improvement {each.probability:.2f}{interval}; "
        print(f"{each.first} over {each.second} ({each.metric}{over}):")
        print(f"  {mean}{each.meaning}")
        if len(each.tasks) > 1:
            by_task = zip(each.tasks, each.by_task, strict=True)
            print(f"  {'; '.join(f'{task}: {probability:.2f}' for task, probability in by_task)}")
