"""The overview of a pipeline while it works: stages, runs, fits, time left."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta

from rich.table import Table

from rl_training.cli.console import LiveDisplay
from rl_training.cli.select import pull_text
from rl_training.experiment import SeedProgress
from rl_training.experiment.pipeline import STAGES, Watcher
from rl_training.experiment.pipeline_plan import Plan
from rl_training.experiment.spending import Pull

BAR = 24
"""The width of a bar of progress."""
TITLES = {
    "data": "audit and split of the data",
    "plan": "plan",
    "training": "training",
    "selection": "choice, on selection episodes",
    "claim": "claim, on claim episodes",
    "export": "export",
    "report": "report",
}


class PipelineDisplay(LiveDisplay, Watcher):
    """A table that is kept up to date on a terminal; elsewhere, lines."""

    def __init__(self, *, quiet: bool, to_stderr: bool = False) -> None:
        self.stage = STAGES[0]
        self.runs: dict[str, SeedProgress | None] = {}
        self.fit: tuple[str, int, int] | None = None
        self.fits, self.fits_done = 1, 0
        self.begun: dict[str, tuple[float, int]] = {}
        super().__init__(quiet=quiet, to_stderr=to_stderr)

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
        self.runs = dict.fromkeys(names)

    def on_run(self, progress: SeedProgress) -> None:
        """Show how far a run has come."""
        name = str(progress.name)
        before, self.runs[name] = self.runs.get(name), progress
        self.begun.setdefault(name, (time.monotonic(), progress.global_step))
        is_news = before is None or before.status != progress.status
        if self.is_line_due(name, is_news=is_news):
            self.line(f"  {'  '.join(self.cells(name))}")

    def on_fits(self, count: int) -> None:
        """Remember how many fits there will be."""
        self.fits = count

    def on_fit(self, name: str, done: int, total: int) -> None:
        """Show how far a fit has come."""
        if self.fit is not None and self.fit[0] != name:
            self.fits_done += 1
        self.fit = (name, done, total)
        self.begun.setdefault("fits", (time.monotonic(), done))
        if self.is_line_due("fits"):
            self.line(f"  {self.fit_text()}")

    def on_pull(self, pull: Pull) -> None:
        """Print what a real episode told."""
        self.line(f"  {pull_text(pull)}")

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
        if progress.status == "done":
            return [name, "done", bar_text(1, 1), f"{progress.global_step:,} updates"]
        done, total = progress.global_step, progress.total
        begin, first = self.begun.get(name, (time.monotonic(), done))
        if progress.seconds is None:
            cells = [bar_text(done, total), f"{done:,} of {total:,} updates", _left(begin, done - first, total - done)]
        else:
            passed = min(time.monotonic() - begin, progress.seconds)
            cells = [bar_text(passed, progress.seconds), f"{done:,} updates", _time_left(progress.seconds - passed)]
        return [name, progress.status, *cells]

    def fit_text(self) -> str:
        """Which fit it is, how far it is, and the time to the end of the last one."""
        if self.fit is None:
            return ""
        name, done, total = self.fit
        begin, first = self.begun["fits"]
        made = self.fits_done * total + done - first
        left = _left(begin, made, (self.fits - self.fits_done) * total - done)
        number = f"fit {self.fits_done + 1} of {max(self.fits, self.fits_done + 1)}"
        return f"{number}, {name}  {bar_text(done, total)}  {done:,} of {total:,} updates  {left}"

    def _number(self, stage: str) -> str:
        return f"{STAGES.index(stage) + 1}/{len(STAGES)}"


def bar_text(done: float, total: float) -> str:
    """A bar as long as what is done."""
    filled = BAR if total <= 0 else min(int(BAR * done / total), BAR)
    return "━" * filled + "─" * (BAR - filled)


def _left(begin: float, made: int, to_do: int) -> str:
    """The time to the end at the speed so far."""
    if made <= 0 or to_do <= 0:
        return ""
    return _time_left((time.monotonic() - begin) * to_do / made)


def _time_left(seconds: float) -> str:
    return f"{timedelta(seconds=round(seconds))} left"
