"""Progress of a run on the terminal: introduction, live display, forecast of disk use."""

from __future__ import annotations

import shutil
import sys
import time
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.table import Table

from rl_training.config import TrainConfig
from rl_training.core.batches import Metrics
from rl_training.core.spaces import ActionSpace, BoxActions
from rl_training.core.text import clock_text, metrics_text, size_text
from rl_training.data import TransitionDataset
from rl_training.envs import Task
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run_data import RunData
from rl_training.runtime.run_options import RunOptions
from rl_training.runtime.schedules import Plan
from rl_training.storage import UPLOADS, policy_path

if TYPE_CHECKING:
    from rl_training.runtime.trainer import Session, TrainerState


LOSSES = ("critic_loss", "actor_loss", "value_loss", "q_mean")

SCORES = ("success_rate", "normalized_score", "return_mean", "td_error", "action_mse")


class _Output(Console):
    """A console that reports a closed pipe, where rich would end the process."""

    def on_broken_pipe(self) -> None:
        """Print nothing from here on."""
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
        """Print the run directory, the introduction and the notes about the data."""
        self.started, self.started_at = time.monotonic(), state.global_step
        self.next_line = self.started + self.every
        for line in (f"{'run':<12}{state.run_dir}", *state.introduction):
            self.say(state, line)
        if state.global_step >= state.total:
            self.say(state, f"all {state.total} {self.unit(state)} are done; set a larger total_timesteps to continue")
        for note in state.notes:
            self.say(state, f"note: {note}")
        if state.compiled and state.update_count >= state.compiled_from:
            self.say(state, "compiling the update; the first one takes a while")
        if self.console.is_terminal:
            self.live = Live(get_renderable=lambda: self.table(state), console=self.console, refresh_per_second=4)
            self.live.start()

    def on_update_end(self, state: TrainerState, metrics: Mapping[str, float]) -> None:
        """Keep the losses and the values that callbacks logged."""
        self.losses = metrics_text(metrics, (*LOSSES, *state.own_metrics))

    def on_each_update(self, state: TrainerState, metrics: Metrics) -> None:
        """Without a terminal, print a line if it is time for one."""
        self._print_if_due(state)

    def on_collect_end(self, state: TrainerState) -> None:
        """Without a terminal, print a line if it is time for one."""
        self._print_if_due(state)

    def _print_if_due(self, state: TrainerState) -> None:
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
        """Leave the last picture standing and print the reason of the end."""
        self.close()
        if state.stop_reason is not None:
            done = f"{state.global_step} {self.unit(state)}"
            self.say(state, f"stopped after {done}: {state.stop_reason}")

    def say(self, state: TrainerState, line: str) -> None:
        """Print a line; a run whose output pipe is closed is saved and ends, as at a closed terminal."""
        try:
            self.console.print(line, markup=False)
        except BrokenPipeError:
            state.interrupt("its output pipe was closed")

    def close(self) -> None:
        """Stop the live display."""
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
        """The unit of timesteps: updates, or environment steps once there are any."""
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


SHOWN_BOUNDS = 3
"""Dimensions of actions whose bounds are shown where they differ."""


def introduce(
    config: TrainConfig,
    options: RunOptions,
    plan: Plan,
    *,
    data: RunData | None,
    task: Task | None,
    compiled_from: int | None = None,
) -> tuple[str, ...]:
    """The lines printed at the start, each with its topic in front."""
    lines = [] if data is None else _data_lines(options, data)
    if task is not None and options.mode != "offline":
        lines.append(("environment", f"{config.env_id}: {task.describe()}"))
    spaces = data.spaces if data is not None else task.spaces if task is not None else None
    if spaces is not None:
        origin = data.origin if data is not None and config.env_id is None else f"as {config.env_id} has them"
        lines.append(("actions", f"{bounds_text(spaces.action)}, {origin}"))
    if options.mode != "offline":
        lines.append(("learning", _learning(plan)))
    lines.append(("evaluation", _evaluation(config, options, data)))
    if compiled_from:
        lines.append(("compilation", f"from update {compiled_from} on; until then, graphs are compiled beside the run"))
    if config.upload_url is not None:
        lines.append(("upload", f"complete checkpoints, to {config.upload_url}"))
    return tuple(f"{word:<12}{text}" for word, text in lines)


def _data_lines(options: RunOptions, data: RunData) -> list[tuple[str, str]]:
    parts = [part for part in (data.dataset, data.dataset.validation) if part is not None]
    rows, episodes = sum(map(len, parts)), sum(_episodes(part) for part in parts)
    average = "" if data.mean_return is None else f", mean return {data.mean_return:.4g}"
    terminated = sum(int(part.dones.sum()) for part in parts)
    name = options.data.dataset_path or options.data.dataset_id or options.data.name()
    return [
        ("data", f"{name}: {rows} transitions in {_count(episodes, 'episode')}{average}"),
        ("ends", f"{_count(terminated, 'episode')} terminated, {episodes - terminated} ended otherwise (time limits)"),
        *(("audit", text) for text in _audit_lines(data)),
    ]


def _audit_lines(data: RunData) -> list[str]:
    """Findings of the cheap checks that the notes of the dataset do not mention."""
    found = data.audit.get("findings", ())
    if not found:
        return ["nothing unusual in a quick look; `rl-training data audit` looks closer"]
    told = " ".join(data.dataset.notes)
    return [f"{each['verdict']}: {each['message']}; {each['advice']}" for each in found if each["message"] not in told]


def _episodes(part: TransitionDataset) -> int:
    return int(part.episode_ends.sum())


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def bounds_text(actions: ActionSpace) -> str:
    """The kind of actions, and their bounds."""
    if not isinstance(actions, BoxActions):
        return str(actions)
    pairs = list(dict.fromkeys(zip(actions.low, actions.high, strict=True)))
    shown = [f"[{low:g}, {high:g}]" for low, high in pairs[:SHOWN_BOUNDS]]
    more = ", ..." if len(pairs) > SHOWN_BOUNDS else ""
    return f"{actions} within {', '.join(shown)}{more}"


def _learning(plan: Plan) -> str:
    if plan.pretrain:
        return f"{plan.pretrain} updates on the data, then with {_count(plan.total - plan.pretrain, 'step')}"
    starts = f"from step {plan.learning_starts} on" if plan.learning_starts else "from the first step on"
    acting = f", with random actions for {plan.random_steps} steps" if plan.random_steps else ""
    return f"{starts}{acting}; {plan.updates} updates in all"


def _evaluation(config: TrainConfig, options: RunOptions, data: RunData | None) -> str:
    interval, unit = options.controls.eval_interval, "updates" if options.mode == "offline" else "steps"
    when = "at the end" if interval is None else f"every {interval} {unit}, and at the end"
    parts = []
    if config.env_id is not None:
        parts.append(f"{_count(config.eval_episodes, 'episode')} in {config.env_id}")
    held_out = None if data is None else data.dataset.validation
    if held_out is not None:
        parts.append(f"diagnostics on {_count(_episodes(held_out), 'episode')} held out ({len(held_out)} transitions)")
    return f"{' and '.join(parts)}, {when}" if parts else "none: there is no environment, and nothing is held out"


def foresee(session: Session) -> int:
    """The estimated size of the finished run in bytes, extrapolated from its latest checkpoint."""
    config, plan = session.config, session.plan
    count = plan.total // config.checkpoint_interval + 2
    kept = count if config.keep_checkpoints == "all" else min(config.keep_checkpoints, count)
    has_best = session.best_metric is not None
    return (kept + has_best) * session.checkpoint_bytes + count * _policy_bytes(session) + _replay_bytes(session)


def introduce_disk_use(session: Session) -> None:
    """Add the sizes of a checkpoint and of the run to the introduction, and a note if the disk is too small."""
    total, free = foresee(session), shutil.disk_usage(session.run.path).free
    # Files that are being uploaded come and go, and are links.
    kept = (path for path in session.run.path.iterdir() if path.name != UPLOADS)
    taken = sum(path.stat().st_size for each in kept for path in (each, *each.rglob("*")) if path.is_file())
    sizes = f"a checkpoint takes {size_text(session.checkpoint_bytes)}, the run about {size_text(total)}"
    session.state.introduction = (*session.state.introduction, f"{'disk':<12}{sizes}; {size_text(free)} are free")
    if total - taken > free:
        short = f"the run takes about {size_text(total - taken)} more, and {size_text(free)} are free"
        advice = "make room, or choose a larger checkpoint_interval or a smaller keep_checkpoints"
        session.state.notes = (*session.state.notes, f"{short} at {session.run.path}: {advice}")


def warn_of_full_disk(session: Session) -> None:
    """Warn if the next checkpoint does not fit on the disk, once until there is room again."""
    # A checkpoint is written beside the one before it, and its policy file first.
    needed = session.checkpoint_bytes + _policy_bytes(session)
    free = shutil.disk_usage(session.run.path).free
    if free < needed and not session.is_disk_short:
        room = f"{size_text(free)} are free, and the next checkpoint needs {size_text(needed)}"
        warnings.warn(f"{session.run.path}: {room}: make room, or the run ends there", stacklevel=3)
    session.is_disk_short = free < needed


def _policy_bytes(session: Session) -> int:
    path = policy_path(session.run.path, session.state.global_step)
    return path.stat().st_size if path.is_file() else 0


def _replay_bytes(session: Session) -> int:
    """The rows of the buffer; the best checkpoint may need as many again, which have been overwritten since."""
    if session.store is None:
        return 0
    buffer, steps = session.store.buffer, max(session.plan.total - session.plan.pretrain, 0)
    row = sum(column[:1].nbytes for column in buffer.fields.values())
    capacity = session.options.online.buffer_capacity
    overwritten = min(capacity, max(steps - capacity, 0)) if session.best_metric is not None else 0
    return (min(capacity, steps) + overwritten) * row
