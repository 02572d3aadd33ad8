"""What the command line prints: results, tables, and several seeds at once."""

from __future__ import annotations

import json
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
"""What is measured on held-out rows, in the order in which it is shown."""
GAP = 2
"""Spaces between two columns of a table."""
NARROW = 8
"""A column that is as narrow as this is not narrowed further."""


def summary(result: TrainResult) -> dict[str, str]:
    """The outcome of a run, by name: the policy's score, the data's, what that means, and where the files are."""
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
    """What an evaluation says about the policy, and what it does not say."""
    if "return_mean" in metrics and data_return is None:
        return "the return is a mean over episodes in the environment, on its own reward"
    if "return_mean" in metrics and data_return is not None:
        gain = metrics["return_mean"] - data_return
        side = "above" if gain >= 0 else "below"
        return f"the policy's mean return is {_return_text(abs(gain))} {side} the data's"
    if "initial_value" in metrics:
        guess = f"Its critic guesses {number_text(metrics['initial_value'])} (discounted, transformed rewards)"
        logged = f"; held-out episodes had {number_text(metrics['initial_return'])}" * ("initial_return" in metrics)
        return (
            f"without an environment, the policy's return is not known. {guess}{logged}. Critics often guess too high"
        )
    return "without an environment, the policy's return is not known" if metrics else ""


def next_command(result: TrainResult) -> str:
    """The command that one would type after this run."""
    if "return_mean" in result.metrics:
        return command_text("eval", result.run_dir, "--episodes 100")
    return command_text("predict", result.run_dir, f"--obs {shlex.quote(result.table or 'observations.npy')}")


def score_text(metrics: Mapping[str, float]) -> str:
    """An evaluation in a few words."""
    if "return_mean" in metrics:
        text = f"return {_return_text(metrics['return_mean'])} ± {_return_text(metrics['return_std'])}"
        if "success_rate" in metrics:
            text += f", success {metrics['success_rate']:.2f}"
        return f"{text}, D4RL score {metrics['normalized_score']:.1f}" if "normalized_score" in metrics else text
    return metrics_text(metrics, OFFLINE_SCORES, ", ")


@contextmanager
def working(*, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Show on a terminal what is being worked on, by the function that is given; nothing stays behind."""
    console = Console(stderr=True, highlight=False)
    if quiet or not console.is_terminal:
        yield lambda text: None
        return
    with console.status("") as status:
        yield lambda text: status.update(text.replace("[", r"\["))


def _return_text(value: float) -> str:
    """A return with one decimal; a small one, such as a rate of clicks, with two digits."""
    return f"{value:.1f}" if abs(value) >= 1 or abs(value) < NOTHING else f"{value:.2g}"


def print_json(value: Any) -> None:
    """One JSON value on standard output."""
    print(json.dumps(value, indent=2, default=list))


def cell(value: Any) -> str:
    """A value as a table shows it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on standard output: on a terminal cells are folded so that it fits; elsewhere a row is a line."""
    console = Console(highlight=False)
    widths = column_widths([head, *rows], console.width if console.is_terminal else None)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, width in zip(head, widths, strict=True):
        table.add_column(name, width=width, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    # A terminal that is narrower than that breaks the lines itself.
    Console(highlight=False, width=max(console.width, sum(widths) + GAP * (len(widths) - 1))).print(table)


def column_widths(rows: Sequence[Sequence[str]], room: int | None) -> list[int]:
    """The widths of columns that fit into `room`: the widest are narrowed, down to words, then to parts of words."""
    columns = list(zip(*rows, strict=True))
    widths = [max(map(cell_len, column)) for column in columns]
    words = [max(cell_len(word) for text in column for word in text.split() or [""]) for column in columns]
    for least in (words, [min(width, NARROW) for width in words]):
        while room is not None and sum(widths) + GAP * (len(widths) - 1) > room:
            wide = [number for number, width in enumerate(widths) if width > least[number]]
            if not wide:
                break
            widths[max(wide, key=widths.__getitem__)] -= 1
    return widths
