"""Terminal output of commands: results, tables, JSON."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rl_training.core.text import NOTHING, metrics_text, number_text
from rl_training.core.user_code import command_text

if TYPE_CHECKING:
    from rl_training.runtime import TrainResult

OFFLINE_SCORES = (
    "td_error",
    "initial_value",
    "initial_return",
    "action_mse",
    "action_agreement",
    "logged_action_probability",
)
"""Measures on held-out rows, in the order in which they are shown."""
UNKNOWN = "without an environment, the policy's return is not known"
GAP = 2
"""Spaces between two columns of a table."""
WORD = re.compile(r"\S+")
PART = re.compile(r"(?:[^\s_./=]|\.(?=\d))*(?:[_/=]|\.(?!\d))|(?:[^\s_./=]|\.(?=\d))+")
"""A piece of a name, such as `dataset_`, after which a line may break; numbers are not broken."""


def summary(result: TrainResult) -> dict[str, str]:
    """The result of a run, line by line: scores of policy and data, their meaning, and where the files are."""
    lines = {}
    if result.metrics:
        lines["policy"] = score_text(result.metrics)
    if result.best_metrics and result.best_metrics != result.metrics:
        lines["best"] = score_text(result.best_metrics)
    if result.data_return is not None:
        lines["data"] = f"return {_return_text(result.data_return)}"
    if result.fine_tuning:
        offline, drop, regret = (result.fine_tuning[name] for name in ("offline_score", "largest_drop", "regret"))
        lines["online"] = f"offline score {offline:.1f}, largest drop below it {drop:.1f}, regret {regret:.3g}"
    lines["meaning"] = meaning(result.metrics, result.data_return)
    lines["run"] = str(result.run_dir)
    lines["checkpoint"] = str(result.checkpoint_path)
    return {name: text for name, text in lines.items() if text}


def meaning(metrics: Mapping[str, float], data_return: float | None) -> str:
    """The meaning and the limits of an evaluation, in a sentence."""
    if "return_mean" in metrics:
        if data_return is None:
            return "the return is a mean over episodes in the environment, on its own reward"
        gain = metrics["return_mean"] - data_return
        side = "above" if gain >= 0 else "below"
        return f"the policy's mean return is {_return_text(abs(gain))} {side} the data's"
    if "initial_value" in metrics:
        guess = f"Its critic guesses {number_text(metrics['initial_value'])} (discounted, transformed rewards)"
        logged = f"; held-out episodes had {number_text(metrics['initial_return'])}" * ("initial_return" in metrics)
        return f"{UNKNOWN}. {guess}{logged}. Critics often guess too high"
    return UNKNOWN if metrics else ""


def next_command(result: TrainResult) -> str:
    """The command that usually follows a run."""
    if "return_mean" in result.metrics:
        return command_text("eval", result.run_dir, "--episodes 100")
    return command_text("predict", result.run_dir, f"--obs {shlex.quote(result.table or 'observations.npy')}")


def score_text(metrics: Mapping[str, float]) -> str:
    """The scores of an evaluation on one line."""
    if "return_mean" in metrics:
        text = f"return {_return_text(metrics['return_mean'])} ± {_return_text(metrics['return_std'])}"
        if "success_rate" in metrics:
            text += f", success {metrics['success_rate']:.2f}"
        return f"{text}, D4RL score {metrics['normalized_score']:.1f}" if "normalized_score" in metrics else text
    return metrics_text(metrics, OFFLINE_SCORES, ", ")


@contextmanager
def working(*, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Give a function that shows the current work on a terminal; the line disappears at the end."""
    console = Console(stderr=True, highlight=False)
    if quiet or not console.is_terminal:
        yield lambda text: None
        return
    with console.status("") as status:
        yield lambda text: status.update(text.replace("[", r"\["))


def _return_text(value: float) -> str:
    """A return with one decimal, or with two digits if it is small, such as a click rate."""
    return f"{value:.1f}" if abs(value) >= 1 or abs(value) < NOTHING else f"{value:.2g}"


def print_json(value: Any) -> None:
    """Print one JSON value on standard output."""
    print(json.dumps(value, indent=2, default=list))


def cell(value: Any) -> str:
    """A value as text for a cell of a table."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: on a terminal, cells wrap so that it fits, and no name is cut; elsewhere, each row is one line."""
    console = Console(highlight=False)
    widths = column_widths([head, *rows], console.width if console.is_terminal else None)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, width in zip(head, widths, strict=True):
        table.add_column(wrap(name, width), width=width)
    for row in rows:
        table.add_row(*(Text(wrap(text, width)) for text, width in zip(row, widths, strict=True)))
    # A terminal that is narrower breaks the lines itself.
    Console(highlight=False, width=max(console.width, _total(widths))).print(table)


def column_widths(rows: Sequence[Sequence[str]], room: int | None) -> list[int]:
    """The widths of columns that fit into `room`: the widest are narrowed, down to words, then to parts of names."""
    columns = list(zip(*rows, strict=True))
    natural = [max(map(cell_len, column)) for column in columns]
    for unit in (WORD, PART):
        least = [max(cell_len(piece) for text in column for piece in unit.findall(text) or [""]) for column in columns]
        widths = list(natural)
        while room is not None and _total(widths) > room:
            wide = [number for number, width in enumerate(widths) if width > least[number]]
            if not wide:
                break
            widths[max(wide, key=widths.__getitem__)] -= 1
        else:
            break
    return widths


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def wrap(text: str, width: int) -> str:
    """Text in lines of this width; a longer word is broken after one of its separators."""
    lines = [""]
    for word in WORD.findall(text):
        for number, part in enumerate([word] if cell_len(word) <= width else PART.findall(word)):
            gap = " " if number == 0 and lines[-1] else ""
            if not lines[-1] or cell_len(lines[-1] + gap + part) <= width:
                lines[-1] += gap + part
            else:
                lines.append(part)
    return "\n".join(lines)
