"""What the command `report` prints: the table, what is missing from it, and comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rl_training.cli.console import print_table
from rl_training.text import number_text

if TYPE_CHECKING:
    from rl_training.experiment.improvement import Improvement
    from rl_training.experiment.report import RunRecord
    from rl_training.experiment.sweep_report import Findings


def taken_text(records: Sequence[RunRecord], names: Sequence[str]) -> str:
    """How many runs a report is about, and where they were found."""
    places = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    text = f"{len(records)} run{'s' * (len(records) != 1)} in {places}"
    text += _in_common(records)
    waiting = sum(not record.rows for record in records)
    return f"{text}, {waiting} without an evaluation yet" if waiting else text


def _in_common(records: Sequence[RunRecord]) -> str:
    """Algorithm and task of a sweep in which they did not vary; its table has no columns for them."""
    from rl_training.experiment.report import is_one_sweep

    if not is_one_sweep(records):
        return ""
    algos, tasks = ({record.group[place] for record in records} for place in range(2))
    algo, task = ("".join(each) if len(each) == 1 else "" for each in (algos, tasks))
    return f", {' on '.join(filter(None, (algo, task)))}" if algo or task else ""


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """The rows of `summarize` as a table, without columns that say nothing: no variants, or one metric for all."""
    from rl_training.experiment.sweep_folder import value_text

    swept = list(dict.fromkeys(name for row in rows for name in row.get("values", ())))
    columns = {"algo": "algorithm", "task": "task", "variant": "variant", "metric": "metric", "runs": "n"}
    if all("values" in row for row in rows):
        # What did not vary in a sweep is said above the table.
        columns = {"metric": "metric", "runs": "n"}
    if "variant" in columns and not any(row["variant"] for row in rows):
        del columns["variant"]
    if len({row["metric"] for row in rows}) == 1:
        del columns["metric"]
    cells = []
    for row in rows:
        values = [value_text(row["values"][name]) if name in row["values"] else "-" for name in swept]
        numbers = ["-" if row[name] is None else number_text(row[name]) for name in ("last", "best", "iqm")]
        cells.append([*values, *(str(row[name]) for name in columns), *numbers, interval_text(row["interval"])])
    print_table([*swept, *columns.values(), "last", "best", "IQM", "95 % interval"], cells)


def interval_text(interval: Sequence[float] | None) -> str:
    """An interval, or a dash."""
    return "-" if interval is None else f"[{', '.join(map(number_text, interval))}]"


def print_findings(found: Findings) -> None:
    """What belongs below the table: what is missing from it, all tasks put together, comparisons."""
    for line in found.undone_lines:
        print(line)
    _print_over_tasks(found.over_tasks)
    if found.note:
        print(found.note)
    _print_improvements(found.improvements)


def _print_over_tasks(rows: Sequence[Mapping[str, Any]]) -> None:
    """The rows of `summary_over_tasks` as a table."""
    if rows:
        print(f"all {rows[0]['tasks']} tasks put together: {rows[0]['metric']}")
        cells = [
            [row["name"], str(row["runs"]), number_text(row["iqm"]), interval_text(row["interval"])] for row in rows
        ]
        print_table(["combination", "n", "IQM", "95 % interval"], cells)


def _print_improvements(found: Sequence[Improvement]) -> None:
    """How probably one combination is better than another, and what that means."""
    for each in found:
        interval = "" if each.interval is None else f", 95 % interval [{each.interval[0]:.2f}, {each.interval[1]:.2f}]"
        over = "" if len(each.tasks) == 1 else f", mean over {len(each.tasks)} tasks"
        print(f"{each.first} over {each.second} ({each.metric}{over}):")
        print(f"  probability of improvement {each.probability:.2f}{interval}; {each.meaning}")
        if len(each.tasks) > 1:
            by_task = zip(each.tasks, each.by_task, strict=True)
            print(f"  {'; '.join(f'{task}: {probability:.2f}' for task, probability in by_task)}")
