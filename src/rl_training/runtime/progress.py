"""The progress of a run, on a terminal or in a log file."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.table import Table

from rl_training.core.batches import Metrics
from rl_training.core.text import clock_text, metrics_text
from rl_training.runtime.callbacks import Callback

if TYPE_CHECKING:
    from rl_training.runtime.trainer import TrainerState

LOSSES = ("critic_loss", "actor_loss", "value_loss", "q_mean")
SCORES = ("success_rate", "normalized_score", "return_mean", "td_error", "action_mse")


class _Output(Console):
    """A console that reports when nobody reads it any more, where rich would end the process."""

    def on_broken_pipe(self) -> None:
        """Say nothing from here on."""
        self.quiet = True
        raise BrokenPipeError


class ProgressCallback(Callback):
    """Updates done, speed, time left, last losses, last and best evaluation.

    On a terminal one picture is kept up to date. Elsewhere every evaluation prints a line, and between evaluations
    there is a line every `every` seconds. It goes to standard output, or to standard error.
    """

    def __init__(self, console: Console | None = None, *, every: float = 10.0, to_stderr: bool = False) -> None:
        file = sys.stderr if to_stderr else sys.stdout
        self.console = console or _Output(file=file, highlight=False, soft_wrap=True)
        self.every, self.next_line = every, 0.0
        self.live: Live | None = None
        self.losses = ""
        self.evaluation = ""
        self.started_at = 0
        self.started = 0.0

    def on_train_start(self, state: TrainerState) -> None:
        """Say where the run is, what it learns from, and what was noticed about its data."""
        self.started, self.started_at = time.monotonic(), state.global_step
        self.next_line = self.started + self.every
        for line in (f"{'run':<12}{state.run_dir}", *state.introduction):
            self.say(state, line)
        if state.global_step >= state.total:
            self.say(state, f"all {state.total} {self.unit(state)} are done; a larger total_timesteps would go on")
        for note in state.notes:
            self.say(state, f"note: {note}")
        if state.compiled and state.update_count >= state.compiled_from:
            self.say(state, "compiling the update; the first one takes a while")
        if self.console.is_terminal:
            self.live = Live(get_renderable=lambda: self.table(state), console=self.console, refresh_per_second=4)
            self.live.start()

    def on_update_end(self, state: TrainerState, metrics: Mapping[str, float]) -> None:
        """Keep the losses, and what callbacks logged."""
        self.losses = metrics_text(metrics, (*LOSSES, *state.own_metrics))

    def on_each_update(self, state: TrainerState, metrics: Metrics) -> None:
        """Without a terminal, print a line if it is time for one."""
        self.print_if_due(state)

    def on_collect_end(self, state: TrainerState) -> None:
        """Without a terminal, print a line if it is time for one."""
        self.print_if_due(state)

    def print_if_due(self, state: TrainerState) -> None:
        """A line of progress, unless there was one not long ago."""
        if self.live is None and time.monotonic() >= self.next_line:
            self.next_line = time.monotonic() + self.every
            pace = f"{self.speed(state):.0f} {self.unit(state)}/s, {self.time_left(state)} left"
            self.say(state, f"{self.count(state)}  {pace}  {self.losses}".rstrip())

    def on_eval_end(self, state: TrainerState, metrics: Mapping[str, float]) -> None:
        """Keep the evaluation; without a terminal, print a line."""
        self.evaluation = metrics_text(metrics, SCORES)
        if state.best_score is not None:
            self.evaluation += f"  best {state.best_score:.4g} at {state.best_step}"
        if self.live is None:
            self.say(state, f"{self.count(state)}  evaluation  {self.evaluation}")

    def on_train_end(self, state: TrainerState) -> None:
        """Leave the last picture standing and say why it ended."""
        self.close()
        if state.stop_reason is not None:
            done = f"{state.global_step} {self.unit(state)}"
            self.say(state, f"stopped after {done}: {state.stop_reason}")

    def say(self, state: TrainerState, line: str) -> None:
        """Print a line; a run whose output nobody reads any more is saved and ends, as at a closed terminal."""
        try:
            self.console.print(line, markup=False)
        except BrokenPipeError:
            state.interrupt("nobody reads its output any more")

    def close(self) -> None:
        """Give the terminal back."""
        if self.live is not None:
            self.live.stop()

    def table(self, state: TrainerState) -> Table:
        """The live display."""
        table = Table.grid(padding=(0, 2))
        done = min(state.global_step / state.total, 1.0)
        bar = "━" * int(30 * done) + "╺" + "─" * (29 - int(30 * done)) if done < 1 else "━" * 30
        pace = f"{self.speed(state):.0f} {self.unit(state)}/s  {self.time_left(state)} left"
        table.add_row(state.algorithm.name, f"{bar}  {self.count(state)}  {pace}")
        table.add_row("losses", self.losses or "-")
        table.add_row("evaluation", self.evaluation or "-")
        return table

    def unit(self, state: TrainerState) -> str:
        """What is counted: updates, or steps of an environment once there are any."""
        return "steps" if state.env_steps else "updates"

    def count(self, state: TrainerState) -> str:
        """Timesteps done of all."""
        return f"{state.global_step:>{len(str(state.total))}}/{state.total}"

    def speed(self, state: TrainerState) -> float:
        """Timesteps per second since the start, evaluations included."""
        return (state.global_step - self.started_at) / max(time.monotonic() - self.started, 1e-9)

    def time_left(self, state: TrainerState) -> str:
        """The time to the end at this speed."""
        speed = self.speed(state)
        return clock_text(max(state.total - state.global_step, 0) / speed) if speed > 0 else "?"
