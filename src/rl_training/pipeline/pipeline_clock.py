"""The time of a pipeline: how it was spent, also by calls that were stopped, and how much is left."""

from __future__ import annotations

import json
import time
from pathlib import Path

from rl_training.core.files import write_text
from rl_training.core.text import duration_text
from rl_training.storage.run_directory import read_json

FILE = "time.json"
WRITE_SECONDS = 5.0
"""Time between two writes; what a kill may lose."""
LEAST_SHOWN = 0.5
"""Seconds below which a stage is not mentioned."""


class Clock:
    """Counts the seconds of each stage, in all calls together; time between two calls does not count."""

    def __init__(self, folder: Path, minutes: float | None, began: float | None = None) -> None:
        self.path, self.minutes = folder / FILE, minutes
        self.seconds: dict[str, float] = {str(name): float(value) for name, value in read_json(self.path).items()}
        self.stage: str | None = None
        self.since = self.written = time.monotonic() if began is None else began

    def enter(self, stage: str) -> None:
        """A stage begins, and the one before it ends."""
        if self.stage is not None:
            self._write()
        self.stage = stage

    def tick(self) -> None:
        """Write the time down, if that was not done a moment ago."""
        if time.monotonic() - self.written >= WRITE_SECONDS:
            self._write()

    def stop(self) -> dict[str, float]:
        """Write the time down; the seconds of all stages."""
        self._write()
        return dict(self.seconds)

    def _write(self) -> None:
        now, stage = time.monotonic(), str(self.stage)
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self.since
        self.since = self.written = now
        write_text(self.path, json.dumps(self.seconds, indent=1) + "\n")

    @property
    def spent(self) -> float:
        """The seconds of all stages up to this moment."""
        return sum(self.seconds.values()) + time.monotonic() - self.since

    @property
    def left(self) -> float | None:
        """The seconds that are left, below 0 if it has taken longer; None without a limit."""
        return None if self.minutes is None else 60 * self.minutes - self.spent


def describe_times(seconds: dict[str, float], minutes: float | None) -> str:
    """How the time was spent, in a sentence."""
    total = duration_text(sum(seconds.values()))
    given = "" if minutes is None else f" of {duration_text(60 * minutes)}"
    parts = [f"{stage} {duration_text(value)}" for stage, value in seconds.items() if value >= LEAST_SHOWN]
    return f"{total}{given}: {', '.join(parts)}"
