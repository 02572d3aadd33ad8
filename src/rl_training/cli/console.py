"""What the command line prints: results, tables, and several seeds at once."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rl_training.importing import command_text

if TYPE_CHECKING:
    from typing_extensions import Self

    from rl_training.experiment import SeedProgress
    from rl_training.runtime import TrainResult

GAP = 2
"""Spaces between two columns of a table."""
NOTHING = 1e-100
"""Below it, a number is what arithmetic leaves of 0."""
WORD = re.compile(r"\S+")
PART = re.compile(r"(?:[^\s_./=]|\.(?=\d))*(?:[_/=]|\.(?!\d))|(?:[^\s_./=]|\.(?=\d))+")
"""A piece of a name, such as `dataset_`, after which a line may break; numbers are not broken."""


LINE_SECONDS = 10.0
"""Time between two lines of progress about the same thing, where there is no terminal."""


class LiveDisplay:
    """A table that is kept up to date on a terminal; elsewhere, lines now and then."""

    def __init__(self, *, quiet: bool, to_stderr: bool = False) -> None:
        self.console = Console(highlight=False, soft_wrap=True, quiet=quiet, stderr=to_stderr)
        self.next_lines: dict[object, float] = {}
        self.live = Live(get_renderable=self.table, console=self.console) if self.console.is_terminal else None

    def __enter__(self) -> Self:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def table(self) -> Table:
        """What a terminal shows."""
        raise NotImplementedError

    def line(self, text: str) -> None:
        """A line that stays."""
        self.console.print(text.rstrip(), markup=False)

    def is_line_due(self, subject: object, *, is_news: bool = False) -> bool:
        """Whether to write a line about something, because there is news or the last one was a while ago."""
        if self.live is not None or not (is_news or time.monotonic() >= self.next_lines.get(subject, 0.0)):
            return False
        self.next_lines[subject] = time.monotonic() + LINE_SECONDS
        return True


class SweepDisplay(LiveDisplay):
    """One line per seed, live on a terminal; else a line for every evaluation, and now and then one in between."""

    def __init__(self, seeds: Sequence[int], *, quiet: bool, to_stderr: bool = False) -> None:
        self.rows: dict[int, SeedProgress | None] = dict.fromkeys(seeds)
        super().__init__(quiet=quiet, to_stderr=to_stderr)

    def update(self, progress: SeedProgress) -> None:
        """Show how far a seed has come."""
        before, self.rows[progress.seed] = self.rows[progress.seed], progress
        is_news = before is None or (before.status, before.metrics) != (progress.status, progress.metrics)
        if self.is_line_due(progress.seed, is_news=is_news):
            self.line("  ".join(self.cells(progress.seed, progress)))

    def table(self) -> Table:
        """The live display."""
        table = Table.grid(padding=(0, 2))
        for seed, progress in self.rows.items():
            table.add_row(*self.cells(seed, progress))
        return table

    @staticmethod
    def cells(seed: int, progress: SeedProgress | None) -> list[str]:
        """The line of one seed."""
        if progress is None:
            return [f"seed {seed}", "waiting"]
        if progress.status == "failed":
            return [f"seed {seed}", "failed", (progress.error or "").splitlines()[-1]]
        cells = [f"seed {seed}", progress.status, f"{progress.global_step}/{progress.total or '?'}"]
        return [*cells, score_text(progress.metrics or {})]


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
    names = (
        "td_error",
        "initial_value",
        "initial_return",
        "action_mse",
        "action_agreement",
        "logged_action_probability",
    )
    return ", ".join(f"{name} {metrics[name]:.4g}" for name in names if name in metrics)


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


def number_text(value: float) -> str:
    """A number with as many digits as one compares by."""
    if abs(value) < NOTHING:
        return "0"
    if not 10 <= abs(value) < 1e6:
        return f"{value:.4g}"
    return f"{value:.1f}" if abs(value) < 1000 else f"{value:.0f}"


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
    """A table on standard output: on a terminal cells wrap so that it fits, and no name is ever cut."""
    console = Console(highlight=False)
    widths = column_widths([head, *rows], console.width if console.is_terminal else None)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, width in zip(head, widths, strict=True):
        table.add_column(wrap(name, width), width=width)
    for row in rows:
        table.add_row(*(Text(wrap(cell, width)) for cell, width in zip(row, widths, strict=True)))
    # A terminal that is narrower than that breaks the lines itself.
    Console(highlight=False, width=max(console.width, sum(widths) + GAP * (len(widths) - 1))).print(table)


def column_widths(rows: Sequence[Sequence[str]], room: int | None) -> list[int]:
    """The widths of columns that fit into `room`: the widest are narrowed, down to words, then to parts of words."""
    columns = list(zip(*rows, strict=True))
    natural = [max(map(cell_len, column)) for column in columns]
    if room is None:
        return natural
    for unit in (WORD, PART):
        least = [max(cell_len(piece) for text in column for piece in unit.findall(text) or [""]) for column in columns]
        widths = _narrowed(natural, least, room)
        if sum(widths) + GAP * (len(widths) - 1) <= room:
            break
    return widths


def _narrowed(widths: list[int], least: list[int], room: int) -> list[int]:
    """Widths of which the widest are reduced until all fit, or none may be reduced."""
    widths = list(widths)
    while sum(widths) + GAP * (len(widths) - 1) > room:
        wide = [number for number, width in enumerate(widths) if width > least[number]]
        if not wide:
            break
        widths[max(wide, key=widths.__getitem__)] -= 1
    return widths


def wrap(text: str, width: int) -> str:
    """Text in lines of this width; a word that is longer is broken after one of its separators."""
    lines = [""]
    for word in WORD.findall(text):
        for number, part in enumerate([word] if cell_len(word) <= width else PART.findall(word)):
            gap = " " if number == 0 and lines[-1] else ""
            if not lines[-1] or cell_len(lines[-1] + gap + part) <= width:
                lines[-1] += gap + part
            else:
                lines.append(part)
    return "\n".join(lines)
