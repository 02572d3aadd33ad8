"""The overview of a sweep while it works: how many runs are done, which are running, the time left, the best."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

from rich.table import Table

from rl_training.cli.console import LiveDisplay, number_text, score_text
from rl_training.cli.pipeline_display import bar_text
from rl_training.experiment import SeedProgress
from rl_training.experiment.sweep_spec import Cell
from rl_training.experiment.sweeping import SweepWatcher

MOST_ROWS = 12
"""Runs that are shown at a time, beside those that failed."""
SURE_SHARE = 0.1
"""Parts of a run that must have been done before the time left is more than a guess."""
SCORES = ("normalized_score", "return_mean", "fqe_value")
"""What the best run so far is found by: the first that runs report, and larger is better."""


class CellsDisplay(LiveDisplay, SweepWatcher):
    """A table that is kept up to date on a terminal; elsewhere, a line for every run that begins or ends."""

    def __init__(self, *, quiet: bool, to_stderr: bool = False) -> None:
        self.runs: dict[str, SeedProgress | None] = {}
        self.begun = time.monotonic()
        self.work_before = 0.0
        self.best: tuple[float, str] | None = None
        super().__init__(quiet=quiet, to_stderr=to_stderr)

    def __exit__(self, *_: object) -> None:
        super().__exit__(*_)
        if self.live is None and self.runs:
            self.line(self.overview())

    def on_cells(self, cells: Sequence[Cell]) -> None:
        """Remember which runs there are."""
        self.runs = dict.fromkeys(cell.name for cell in cells)
        self.begun = time.monotonic()
        self.line(f"{len(cells)} runs")

    def on_run(self, progress: SeedProgress) -> None:
        """Show how far a run has come."""
        name = str(progress.name)
        before, self.runs[name] = self.runs.get(name), progress
        metrics = progress.metrics or {}
        scores = [metrics[score] for score in SCORES if score in metrics]
        if scores and (self.best is None or scores[0] > self.best[0]):
            self.best = scores[0], name
        if before is None:
            # What earlier calls did says nothing about the speed of this one.
            self.work_before += _share(progress)
            if progress.has_ended:
                return
        is_news = before is None or before.status != progress.status
        if is_news and progress.status == "failed":
            self.line(f"{name}  failed: {(progress.error or '').splitlines()[-1]}")
        elif self.is_line_due(name, is_news=is_news):
            self.line(f"{self.overview()}  {'  '.join(self.cells(name, progress))}")

    def table(self) -> Table:
        """The live part of the display."""
        table = Table.grid(padding=(0, 2))
        table.add_row(self.overview())
        running = [(name, each) for name, each in self.runs.items() if each is not None and not each.has_ended]
        for name, progress in running[:MOST_ROWS]:
            table.add_row("  ".join(self.cells(name, progress)))
        if len(running) > MOST_ROWS:
            table.add_row(f"and {len(running) - MOST_ROWS} more")
        return table

    def overview(self) -> str:
        """How many runs there are in each state, the time left, and the best score so far."""
        counts = Counter("waiting" if each is None else each.status for each in self.runs.values())
        parts = [f"{counts[status]} {status}" for status in ("done", "running", "waiting", "interrupted", "failed")]
        shown = [part for part in parts if not part.startswith("0 ")]
        return "; ".join([", ".join(shown), *self._time_left(), *self._best()])

    def _time_left(self) -> list[str]:
        done = sum(_share(each) for each in self.runs.values() if each is not None)
        made, left = done - self.work_before, len(self.runs) - done
        passed = time.monotonic() - self.begun
        if made < SURE_SHARE or left <= 0:
            return []
        return [f"{timedelta(seconds=round(passed * left / made))} left"]

    def _best(self) -> list[str]:
        return [] if self.best is None else [f"best so far {number_text(self.best[0])} ({self.best[1]})"]

    @staticmethod
    def cells(name: str, progress: SeedProgress) -> list[str]:
        """The line of one run."""
        done, total = progress.global_step, progress.total
        parts = [bar_text(done, total), f"{done:,} of {total:,}"] if not progress.has_ended else [progress.status]
        return [name, *parts, score_text(progress.metrics or {})]


def _share(progress: SeedProgress) -> float:
    """How much of a run is done, from 0 to 1; there is nothing more to do for one that has ended."""
    if progress.has_ended:
        return 1.0
    return progress.global_step / progress.total if progress.total else 0.0
