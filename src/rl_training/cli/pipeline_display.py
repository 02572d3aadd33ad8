"""The overview of a pipeline while it works: stages, runs, fits, time left."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta

from rich.console import Console
from rich.live import Live
from rich.table import Table
from typing_extensions import Self

from rl_training.experiment import SeedProgress
from rl_training.experiment.pipeline import STAGES, Watcher
from rl_training.experiment.pipeline_plan import Plan

BAR = 24
"""The width of a bar of progress."""
LINE_SECONDS = 10.0
"""Time between two lines about the same run or fit, where there is no terminal."""
TITLES = {
    "data": "audit and split of the data",
    "plan": "plan",
    "training": "training",
    "selection": "choice, on selection episodes",
    "claim": "claim, on claim episodes",
    "export": "export",
    "report": "report",
}


class PipelineDisplay(Watcher):
    """A table that is kept up to date on a terminal; elsewhere, lines."""

    def __init__(self, *, quiet: bool, to_stderr: bool = False) -> None:
        self.console = Console(highlight=False, soft_wrap=True, quiet=quiet, stderr=to_stderr)
        self.stage = STAGES[0]
        self.runs: dict[str, SeedProgress | None] = {}
        self.plan: Plan | None = None
        self.fit: tuple[str, int, int] | None = None
        self.fits, self.fits_done = 1, 0
        self.begun: dict[str, tuple[float, int]] = {}
        self.next_lines: dict[str, float] = {}
        self.live = Live(get_renderable=self.table, console=self.console) if self.console.is_terminal else None

    def __enter__(self) -> Self:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def on_stage(self, stage: str) -> None:
        """Go to the next stage."""
        self.stage, self.fit, self.fits_done, self.begun = stage, None, 0, {}
        if self.live is None:
            self.line(f"{self._number(stage)}  {TITLES[stage]}")

    def on_news(self, stage: str, lines: Sequence[str]) -> None:
        """Print what stays on the screen."""
        for text in lines:
            self.line(f"  {text}")

    def on_runs(self, names: Sequence[str], plan: Plan) -> None:
        """Remember which runs there will be."""
        self.runs, self.plan = dict.fromkeys(names), plan

    def on_run(self, progress: SeedProgress) -> None:
        """Show how far a run has come."""
        name = str(progress.name)
        before, self.runs[name] = self.runs.get(name), progress
        self.begun.setdefault(name, (time.monotonic(), progress.global_step))
        is_news = before is None or before.status != progress.status
        if self.live is None and (self._is_due(name) or is_news):
            self.line(f"  {'  '.join(self.cells(name))}".rstrip())

    def on_fits(self, count: int) -> None:
        """Remember how many fits there will be."""
        self.fits = count

    def on_fit(self, name: str, done: int, total: int) -> None:
        """Show how far a fit has come."""
        if self.fit is not None and self.fit[0] != name:
            self.fits_done += 1
        self.fit = (name, done, total)
        self.begun.setdefault("fits", (time.monotonic(), done))
        if self.live is None and self._is_due("fits"):
            self.line(f"  {self.fit_text()}")

    def line(self, text: str) -> None:
        """A line that stays."""
        self.console.print(text, markup=False)

    def table(self) -> Table:
        """The live part of the display."""
        table = Table.grid(padding=(0, 2))
        table.add_row(self._number(self.stage), TITLES[self.stage])
        if self.stage == "training":
            for name in self.runs:
                table.add_row("", *self.cells(name))
        elif self.fit is not None:
            table.add_row("", self.fit_text())
        return table

    def cells(self, name: str) -> list[str]:
        """The line of one run."""
        progress = self.runs[name]
        if progress is None:
            return [name, "waiting"]
        if progress.status == "failed":
            return [name, "failed", (progress.error or "").splitlines()[-1]]
        total = progress.total or (self.plan.updates if self.plan else 0)
        done = total if progress.status == "done" else progress.global_step
        cells = [name, progress.status, bar_text(done, total), f"{done}/{total}"]
        begin, first = self.begun.get(name, (time.monotonic(), done))
        return cells if progress.status == "done" else [*cells, _left(begin, done - first, total - done)]

    def fit_text(self) -> str:
        """Which fit it is, how far it is, and the time to the end of the last one."""
        if self.fit is None:
            return ""
        name, done, total = self.fit
        begin, first = self.begun["fits"]
        made = self.fits_done * total + done - first
        left = _left(begin, made, (self.fits - self.fits_done) * total - done)
        return f"fit {self.fits_done + 1} of {self.fits}, {name}  {bar_text(done, total)}  {done}/{total}  {left}"

    def _number(self, stage: str) -> str:
        return f"{STAGES.index(stage) + 1}/{len(STAGES)}"

    def _is_due(self, name: str) -> bool:
        if time.monotonic() < self.next_lines.get(name, 0.0):
            return False
        self.next_lines[name] = time.monotonic() + LINE_SECONDS
        return True


def bar_text(done: int, total: int) -> str:
    """A bar as long as what is done."""
    filled = BAR if total <= 0 else min(BAR * done // total, BAR)
    return "━" * filled + "─" * (BAR - filled)


def _left(begin: float, made: int, to_do: int) -> str:
    """The time to the end at the speed so far."""
    if made <= 0 or to_do <= 0:
        return ""
    return f"{timedelta(seconds=round((time.monotonic() - begin) * to_do / made))} left"
