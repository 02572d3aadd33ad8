"""Terminal output of commands: results, tables, JSON."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

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
NARROW = 8
"""Letters of the narrowest column of a table."""
ONE_LINE = 1_000_000
"""Width of a table where each row is one line."""


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
    """Print a table: on a terminal, cells are folded so that it fits; elsewhere, each row is one line."""
    console = Console(highlight=False)
    # A terminal that is narrower than this breaks the lines itself.
    console.width = max(console.width, NARROW * len(head)) if console.is_terminal else ONE_LINE
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in head:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)
