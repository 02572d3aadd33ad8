"""The overview of a search while it works: trials, the time left, the best so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from rich.table import Table

from rl_training.cli.console import LiveDisplay, number_text
from rl_training.cli.sweep_display import CellsDisplay
from rl_training.cli.tune import options_text
from rl_training.experiment import SeedProgress
from rl_training.experiment.tuning import TuneWatcher


class TuneDisplay(LiveDisplay, TuneWatcher):
    """A table that is kept up to date on a terminal; elsewhere, a line for every trial that begins or ends."""

    def __init__(self, *, quiet: bool, to_stderr: bool = False) -> None:
        self.trials, self.metric = 0, ""
        self.outcomes: Counter[str] = Counter()
        self.best: tuple[float, int] | None = None
        self.runs: dict[str, SeedProgress] = {}
        self.checks: list[str] = []
        super().__init__(quiet=quiet, to_stderr=to_stderr)

    def on_begin(self, trials: int, done: int, metric: str) -> None:
        """Remember how much there is to do."""
        self.trials, self.metric = trials, metric
        before = f", of which {done} have ended before" if done else ""
        self.line(f"{trials} trials by {metric}{before}")

    def on_trial(self, number: int, params: Mapping[str, Any]) -> None:
        """Say what a trial tries."""
        self.line(f"trial {number}: {options_text(params)}")

    def on_run(self, progress: SeedProgress) -> None:
        """Show how far a run has come."""
        name = str(progress.name)
        before = self.runs.get(name)
        self.runs[name] = progress
        is_news = self.checks and (before is None or before.status != progress.status)
        if self.is_line_due(name, is_news=bool(is_news)):
            self.line(f"  {'  '.join(CellsDisplay.cells(name, progress))}")

    def on_end(self, number: int, outcome: str, value: float | None) -> None:
        """Say how a trial ended."""
        self.outcomes[outcome] += 1
        if value is not None and outcome == "complete" and (self.best is None or value > self.best[0]):
            self.best = value, number
        score = "" if value is None else f", {self.metric} {number_text(value)}"
        best = "" if self.best is None else f"; best so far {number_text(self.best[0])} (trial {self.best[1]})"
        self.line(f"trial {number} {outcome}{score}{best}")

    def on_check(self, names: list[str]) -> None:
        """Remember which runs compare the best options with the default ones."""
        self.checks, self.runs = names, {}
        self.line(f"{len(names)} runs on fresh seeds, with the best options and with the default ones")

    def table(self) -> Table:
        """The live part of the display."""
        table = Table.grid(padding=(0, 2))
        counts = [f"{count} {outcome}" for outcome, count in self.outcomes.items()]
        best = [] if self.best is None else [f"best so far {number_text(self.best[0])} (trial {self.best[1]})"]
        ended = sum(each.has_ended for each in self.runs.values())
        head = [f"check: {ended} of {len(self.checks)} runs done"] if self.checks else [f"{self.trials} trials"]
        table.add_row("; ".join([*head, *([", ".join(counts)] if counts else []), *best]))
        for name, progress in self.runs.items():
            if not progress.has_ended:
                table.add_row("  ".join(CellsDisplay.cells(name, progress)))
        return table
