"""The commands `data inspect` and `data head`: what is in a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from rl_training.cli.columns import column_mapping, takes_columns
from rl_training.cli.console import print_json, print_table
from rl_training.cli.data_convert import SourceArgument
from rl_training.cli.options import JsonOption
from rl_training.text import number_text

BAR = 40
"""The width of the longest bar of a histogram."""
MOST_NUMBERS = 4
"""Numbers of a vector that a table shows."""


@takes_columns
def inspect(
    source: SourceArgument,
    plot: Annotated[Path | None, typer.Option(help="Draw a picture too: .png, .svg or .pdf.")] = None,
    as_json: JsonOption = False,
    *,
    columns: list[str],
) -> None:
    """Say what is in a dataset: fields, episodes and how they end, returns, bounds, memory."""
    from rl_training.data.conversion import load_any
    from rl_training.data.inspection import inspect_dataset
    from rl_training.experiment.data_plot import check_picture, plot_dataset

    if plot is not None:
        check_picture(plot)
    dataset = load_any(source, column_mapping(columns))
    about = {"data": source, **inspect_dataset(dataset)}
    if plot is not None:
        plot_dataset(dataset, plot, title=source)
    if as_json:
        print_json(about)
    else:
        _print_facts(about)
        if plot is not None:
            print(f"picture      {plot}")


@takes_columns
def head(
    source: SourceArgument,
    count: Annotated[int, typer.Option("--rows", "-n", min=1, help="Rows to show.")] = 5,
    as_json: JsonOption = False,
    *,
    columns: list[str],
) -> None:
    """Show the first rows of a dataset."""
    from rl_training.data.conversion import load_any
    from rl_training.data.inspection import first_rows

    rows = first_rows(load_any(source, column_mapping(columns)), count)
    if as_json:
        print_json(rows)
    else:
        print_table(list(rows[0]), [[_cell(value) for value in row.values()] for row in rows])


def _print_facts(about: dict[str, Any]) -> None:
    size = f"{about['bytes'] / 2**20:.1f} MiB {'in memory' if about['is_in_memory'] else 'on disk'}"
    dropped = f" ({about['rows_dropped']} more were left out)" if about["rows_dropped"] else ""
    ends = f"{about['terminations']} terminations, {about['truncations']} truncations"
    episodes = "not known: the rows seem shuffled" if about["episodes"] is None else f"{about['episodes']}: {ends}"
    facts = {"data": about["data"], "rows": f"{about['rows']}{dropped}", "episodes": episodes}
    facts |= {"size": size, "fingerprint": about["fingerprint"]}
    facts |= {} if about["has_rewards"] else {"rewards": "none"}
    for name, text in facts.items():
        print(f"{name:<12} {text}")
    for note in about["notes"]:
        print(f"{'note':<12} {note}")
    print()
    fields = about["fields"].items()
    rows = [[name, _shape(each), each["dtype"], _cell(each["low"]), _cell(each["high"])] for name, each in fields]
    print_table(["field", "shape", "type", "smallest", "largest"], rows)
    for name in ("lengths", "returns"):
        if name in about:
            print()
            _print_histogram(f"{name} of episodes", about[name])


def _print_histogram(title: str, spread: dict[str, Any]) -> None:
    """A distribution as bars, with its mean and range above them."""
    mean, std, low, high = (number_text(spread[name]) for name in ("mean", "std", "min", "max"))
    print(f"{title}: mean {mean}, standard deviation {std}, from {low} to {high}")
    if spread["min"] == spread["max"]:
        return
    edges, counts = spread["histogram"]["edges"], spread["histogram"]["counts"]
    starts = [number_text(edge) for edge in edges]
    width = max(map(len, starts))
    for number, count in enumerate(counts):
        bar = "█" * max(round(BAR * count / max(counts)), 1 if count else 0)
        print(f"  {starts[number]:>{width}} to {starts[number + 1]:>{width}}  {bar} {count}")


def _shape(field: dict[str, Any]) -> str:
    return " x ".join(map(str, field["shape"]))


def _cell(value: Any) -> str:
    """A number, or a vector of which only the first numbers are shown."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Sequence) and not isinstance(value, str):
        numbers = [number_text(each) for each in value[:MOST_NUMBERS]]
        return "[" + ", ".join([*numbers, *(["..."] if len(value) > MOST_NUMBERS else [])]) + "]"
    return number_text(value) if isinstance(value, float) else str(value)
