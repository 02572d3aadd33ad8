"""Progress display of runs and FQE estimates, for sweeps, searches and pipelines."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, Task, TextColumn
from rich.table import Column

from rl_training.cli.display.console import score_text
from rl_training.core.signals import INTERRUPTED
from rl_training.core.text import clock_text, number_text
from rl_training.experiment import ProgressListener, SeedProgress

if TYPE_CHECKING:
    from typing_extensions import Self

LINE_SECONDS = 10.0
"""Time between two lines of one bar, without a terminal."""
SPEED_SECONDS = 600.0
"""The period over which speeds are averaged to estimate the time left."""
BAR = 24
"""The width of a bar."""
RUNS = "runs"
"""The name of the bar of all runs together."""
TITLES = {
    "data": "audit and split of the data",
    "plan": "plan",
    "training": "training",
    "selection": "selection, on selection episodes",
    "claim": "claim, on claim episodes",
    "export": "export",
    "report": "report",
}
"""The stages of a pipeline, in their order."""


class ProgressDisplay(ProgressListener):
    """Lines for what has begun or ended, and bars for current work.

    Without a terminal, a line every few seconds takes the place of each bar.
    """

    def __init__(self, *, quiet: bool, to_stderr: bool = False) -> None:
        self.console = Console(highlight=False, soft_wrap=True, quiet=quiet, stderr=to_stderr)
        self.bars = Progress(
            TextColumn(""),
            BarColumn(BAR),
            TextColumn("{task.description}  {task.fields[text]}", markup=False, table_column=Column(overflow="fold")),
            console=self.console,
            get_time=time.monotonic,
            speed_estimate_period=SPEED_SECONDS,
        )
        self.rows: dict[str, Task] = {}
        self.runs: dict[str, SeedProgress] = {}
        self.next_lines: dict[str, float] = {}
        self.best = ""
        self.on_runs(0)
        self.on_fits(1)

    def __enter__(self) -> Self:
        if self.console.is_terminal and not self.console.quiet:
            self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.on_runs(0)
        if self.bars.live.is_started:
            self.bars.stop()

    def on_stage(self, stage: str) -> None:
        """Print the name of the stage of a pipeline that begins."""
        self.on_runs(0)
        self.console.print(f"{[*TITLES].index(stage) + 1}/{len(TITLES)}  {TITLES[stage]}")

    def on_news(self, lines: Sequence[str]) -> None:
        """Print lines about what is done."""
        for line in lines:
            self.console.print(f"  {line}", markup=False)

    def on_runs(self, count: int, names: Sequence[str] = (), scores: Sequence[str] = ()) -> None:
        """Print the outcome of the previous runs, and begin with others."""
        if self.runs:
            self.on_news(["; ".join(filter(None, [self.counts(), self.best]))])
        for name in [*self.rows]:
            self.bars.remove_task(self.rows.pop(name).id)
        self.runs, self.count, self.scores = {}, count, scores
        self.work_before, self.best, self.best_score = 0.0, "", -math.inf
        if count > 1:
            self._row(RUNS, f"{count} waiting")
        for name in names:
            self._row(name, "waiting")

    def on_run(self, progress: SeedProgress) -> None:
        """Show the progress of a run."""
        name, metrics = str(progress.name), progress.metrics or {}
        is_known, is_new = name in self.rows, name not in self.runs
        self.runs[name] = progress
        score = next((metrics[each] for each in self.scores if each in metrics), -math.inf)
        if score > self.best_score:
            self.best_score, self.best = score, f"best so far {number_text(score)} ({name})"
        if is_new:
            # What earlier calls did says nothing about the speed of this one.
            self.work_before += _share(progress)
        if not progress.has_ended:
            self._show_run(name, progress, is_new=is_new)
        elif is_known or not is_new or progress.status != "done":
            # Of a large sweep, runs that earlier calls have done are counted and not named.
            reason = (progress.error or "").splitlines()[-1:]
            told = reason or [f"{progress.global_step:,} steps", *filter(None, [score_text(metrics)])]
            self.on_news(["  ".join([name, progress.status, *told])])
            if is_known:
                self.bars.remove_task(self.rows.pop(name).id)
        if self.count > 1:
            done = sum(map(_share, self.runs.values()))
            self._show(RUNS, done - self.work_before, self.count - self.work_before, self.counts(), self.best)

    def on_fits(self, count: int) -> None:
        """Remember the number of FQE estimates to come."""
        self.fits, self.fit, self.fitted = count, "", -1

    def on_fit(self, name: str, done: int, total: int) -> None:
        """Show the progress of an FQE estimate."""
        self.fitted += name != self.fit
        self.fit, fits = name, max(self.fits, self.fitted + 1)
        text = f"{self.fitted + 1} of {fits}: {name}, {done:,} of {total:,} updates"
        self._show("fits", self.fitted * total + done, fits * total, text)

    def counts(self) -> str:
        """The number of runs in each state, as text."""
        counts = Counter(each.status for each in self.runs.values())
        waiting = self.count - len(self.runs)
        shown = [f"{count} {status}" for status, count in sorted(counts.items(), key=lambda item: item[0] == "running")]
        return ", ".join([*shown, *([f"{waiting} waiting"] if waiting > 0 else [])])

    def _show_run(self, name: str, progress: SeedProgress, *, is_new: bool) -> None:
        done, total, text = float(progress.global_step), float(progress.total), f"{progress.global_step:,}"
        row, score = self._row(name), score_text(progress.metrics or {})
        if is_new:
            self.bars.reset(row.id)
        if progress.seconds is None:
            text = f"{text} of {progress.total:,}"
        else:
            # A limited time ends the run, however many steps it has made.
            done, total = min(row.elapsed or 0.0, progress.seconds), progress.seconds
        self._show(name, done, total, f"{text} steps", score, is_new=is_new)

    def _row(self, name: str, text: str = "") -> Task:
        """The bar of this name; a new one if there is none."""
        if name not in self.rows:
            self.bars.add_task(name, total=1, text=text)
            self.rows[name] = self.bars.tasks[-1]
        return self.rows[name]

    def _show(self, name: str, done: float, total: float, text: str, score: str = "", *, is_new: bool = False) -> None:
        """Move a bar; without a terminal, print a line if the run is new or the last line is some time ago."""
        row, now = self._row(name), time.monotonic()
        self.bars.update(row.id, total=total, completed=done)
        left = f"{clock_text(row.time_remaining)} left" if row.time_remaining else ""
        shown = "  ".join(filter(None, [text, left, score]))
        self.bars.update(row.id, text=shown)
        if not self.console.is_terminal and (is_new or now >= self.next_lines.get(name, 0.0)):
            self.next_lines[name] = now + LINE_SECONDS
            self.on_news([f"{name}  {shown}"])


@contextmanager
def shown(*, quiet: bool, as_json: bool) -> Iterator[ProgressDisplay]:
    """Display progress during a block; if it is interrupted, tell the user how to continue."""
    try:
        with ProgressDisplay(quiet=quiet, to_stderr=as_json) as display:
            yield display
    except KeyboardInterrupt:
        tell_interrupt()


def tell_interrupt() -> NoReturn:
    """Tell the user how to continue, and end as an interrupted command does."""
    print("interrupted; run the same command to continue", file=sys.stderr)
    raise typer.Exit(INTERRUPTED) from None


def _share(progress: SeedProgress) -> float:
    """The finished share of a run; 1 for a run that has ended, however it did."""
    if progress.has_ended:
        return 1.0
    return progress.global_step / progress.total if progress.total else 0.0
