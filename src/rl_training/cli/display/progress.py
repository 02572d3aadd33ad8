"""The display of runs and fits while a sweep, a search or a pipeline works."""

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
"""Time between two lines about the same thing, where there is no terminal."""
SPEED_SECONDS = 600.0
"""How far back speeds look, by which the time left is found."""
BAR = 24
"""The width of a bar."""
RUNS = "runs"
"""The name of the bar of all runs together."""
TITLES = {
    "data": "audit and split of the data",
    "plan": "plan",
    "training": "training",
    "selection": "choice, on selection episodes",
    "claim": "claim, on claim episodes",
    "export": "export",
    "report": "report",
}
"""The stages of a pipeline, in their order."""


class ProgressDisplay(ProgressListener):
    """What has begun or ended, as lines that stay; what is being worked on, as bars on a terminal.

    Elsewhere than on a terminal, lines say now and then how far it is.
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
        """Say which stage of a pipeline begins."""
        self.on_runs(0)
        self.console.print(f"{[*TITLES].index(stage) + 1}/{len(TITLES)}  {TITLES[stage]}")

    def on_news(self, lines: Sequence[str]) -> None:
        """Say what the user wants to know."""
        for line in lines:
            self.console.print(f"  {line}", markup=False)

    def on_runs(self, count: int, names: Sequence[str] = (), scores: Sequence[str] = ()) -> None:
        """Say what came of the runs before, and begin with others."""
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
        """Show how far a run has come."""
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
            self._show_run(name, progress, is_news=is_new)
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
        """Remember how many fits there will be."""
        self.fits, self.fit, self.fitted = count, "", -1

    def on_fit(self, name: str, done: int, total: int) -> None:
        """Show how far the fits have come."""
        self.fitted += name != self.fit
        self.fit, fits = name, max(self.fits, self.fitted + 1)
        text = f"{self.fitted + 1} of {fits}: {name}, {done:,} of {total:,} updates"
        self._show("fits", self.fitted * total + done, fits * total, text)

    def counts(self) -> str:
        """How many runs are in each state."""
        counts = Counter(each.status for each in self.runs.values())
        waiting = self.count - len(self.runs)
        shown = [f"{count} {status}" for status, count in sorted(counts.items(), key=lambda item: item[0] == "running")]
        return ", ".join([*shown, *([f"{waiting} waiting"] if waiting > 0 else [])])

    def _show_run(self, name: str, progress: SeedProgress, *, is_news: bool) -> None:
        done, total, score = progress.global_step, progress.total, score_text(progress.metrics or {})
        row = self._row(name)
        if is_news:
            self.bars.reset(row.id)
        if progress.seconds is None:
            self._show(name, done, total, f"{done:,} of {total:,} steps", score, is_news=is_news)
        else:
            # Its time ends it, whatever its steps are.
            passed = min(row.elapsed or 0.0, progress.seconds)
            self._show(name, passed, progress.seconds, f"{done:,} steps", score, is_news=is_news)

    def _row(self, name: str, text: str = "") -> Task:
        """The bar of this name, which is made if there is none."""
        if name not in self.rows:
            self.bars.add_task(name, total=1, text=text)
            self.rows[name] = self.bars.tasks[-1]
        return self.rows[name]

    def _show(self, name: str, done: float, total: float, text: str, score: str = "", *, is_news: bool = False) -> None:
        """Move a bar; without a terminal, print a line if there is news, or the last one was a while ago."""
        row, now = self._row(name), time.monotonic()
        self.bars.update(row.id, total=total, completed=done)
        left = f"{clock_text(row.time_remaining)} left" if row.time_remaining else ""
        shown = "  ".join(filter(None, [text, left, score]))
        self.bars.update(row.id, text=shown)
        if not self.console.is_terminal and (is_news or now >= self.next_lines.get(name, 0.0)):
            self.next_lines[name] = now + LINE_SECONDS
            self.on_news([f"{name}  {shown}"])


@contextmanager
def shown(*, quiet: bool, as_json: bool, rest: str) -> Iterator[ProgressDisplay]:
    """A display while something works; one that is interrupted says that the same command does the rest."""
    try:
        with ProgressDisplay(quiet=quiet, to_stderr=as_json) as display:
            yield display
    except KeyboardInterrupt:
        tell_interrupt(rest)


def tell_interrupt(rest: str) -> NoReturn:
    """Say that the same command does the rest, and end as an interrupted command does."""
    print(f"interrupted; the same command goes on {rest}", file=sys.stderr)
    raise typer.Exit(INTERRUPTED) from None


def _share(progress: SeedProgress) -> float:
    """How much of a run is done, from 0 to 1; there is nothing more to do for one that has ended."""
    if progress.has_ended:
        return 1.0
    return progress.global_step / progress.total if progress.total else 0.0
