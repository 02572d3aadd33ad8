"""What the runs of a sweep would cost, by the speed of a few seconds of each kind of run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rl_training.experiment.sweep_spec import Cell
from rl_training.runtime.artifacts import read_metrics
from rl_training.runtime.assembly import open_session
from rl_training.runtime.finding import is_finished, is_run
from rl_training.runtime.options import read_options
from rl_training.runtime.performance import configure_machine
from rl_training.runtime.trainer import Session

MEASURED_SECONDS, MOST_SECONDS = 1.5, 20.0
FEWEST_UPDATES, WARM_UP = 20, 5
MOST_MEASURED = 20
"""Kinds of runs that are measured; others of the same algorithm are taken to be as fast on average."""
ENDLESS = 10**9
EARLY_START = 500
"""Steps without updates at the start of an online run that is measured; a whole run has as many as it asks for."""


@dataclass(frozen=True)
class Speed:
    """How fast a run is."""

    start: float
    """Seconds before the first step: reading the data, building the networks."""
    steps_per_second: float
    evaluation: float
    """Seconds of one evaluation."""


@dataclass(frozen=True)
class Cost:
    """What a run would cost."""

    cell: Cell
    status: str
    steps: int
    """Timesteps that are left to do."""
    steps_per_second: float | None
    seconds: float

    def to_plain(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "name": self.cell.name,
            "values": dict(self.cell.values),
            "status": self.status,
            "steps": self.steps,
            "steps_per_second": self.steps_per_second,
            "seconds": self.seconds,
        }


def estimate_costs(
    cells: Sequence[Cell], *, threads: int, tell: Callable[[str], None] = lambda text: None
) -> list[Cost]:
    """What each run would cost, without compilation; one that has ended costs nothing."""
    configure_machine(threads)
    speeds: dict[tuple[str, str], Speed] = {}
    found = []
    for cell in cells:
        kind, left = (cell.config.algo, cell.group), _steps_left(cell)
        if left and kind not in speeds and len(speeds) < MOST_MEASURED:
            tell(f"measuring {cell.name}")
            speeds[kind] = measure(cell)
        found.append(_cost(cell, left, speeds.get(kind) or _usual(speeds, cell)))
    return found


def total_seconds(costs: Sequence[Cost], workers: int) -> float:
    """The time of all runs: each begins when the first worker has nothing to do."""
    ends = [0.0] * workers
    for cost in costs:
        ends[ends.index(min(ends))] += cost.seconds
    return max(ends)


def measure(cell: Cell) -> Speed:
    """Let a run work for a moment, in a folder that is thrown away."""
    kwargs: dict[str, Any] = {**cell.config.algo_kwargs, "compile": "never"}
    if cell.options.mode != "offline" and (cell.options.online.learning_starts or 0) > EARLY_START:
        kwargs["learning_starts"] = EARLY_START
    with TemporaryDirectory() as folder:
        config = replace(cell.config, output_dir=folder, total_timesteps=ENDLESS, algo_kwargs=kwargs)
        begin = time.perf_counter()
        session = open_session(*read_options(config))
        start = time.perf_counter() - begin
        with session.resources:
            _advance(session, updates=WARM_UP)
            before, begin = session.state.global_step, time.perf_counter()
            while time.perf_counter() - begin < MEASURED_SECONDS:
                _advance(session, updates=FEWEST_UPDATES)
            passed = time.perf_counter() - begin
            speed = (session.state.global_step - before) / passed
            begin = time.perf_counter()
            session.evaluate()
            return Speed(start, speed, time.perf_counter() - begin)


def _advance(session: Session, *, updates: int) -> None:
    """Train until this many updates were made, unless that takes too long."""
    state, end = session.state, time.perf_counter() + MOST_SECONDS
    stop = state.update_count + updates
    while state.update_count < stop and time.perf_counter() < end:
        due = session.next_updates()
        if not due:
            session.collect()
            due = session.next_updates()
        session.learn(min(due, stop - state.update_count))


def _steps_left(cell: Cell) -> int:
    run, total = Path(cell.config.output_dir, cell.name), cell.config.total_timesteps
    if not is_run(run):
        return total
    if is_finished(run):
        return 0
    rows = read_metrics(run)
    return max(total - int(rows[-1]["global_step"]) if rows else total, 1)


def _cost(cell: Cell, left: int, speed: Speed | None) -> Cost:
    if not left or speed is None:
        return Cost(cell, "to do" if left else "done", left, None, 0.0)
    interval = cell.options.controls.eval_interval
    evaluations = 1 + (0 if interval is None else left // interval)
    seconds = speed.start + left / speed.steps_per_second + evaluations * speed.evaluation
    status = "to do" if left == cell.config.total_timesteps else "half done"
    return Cost(cell, status, left, speed.steps_per_second, seconds)


def _usual(speeds: dict[tuple[str, str], Speed], cell: Cell) -> Speed | None:
    """The speed of runs of the same algorithm, or else of all that were measured."""
    same = [speed for (algo, _), speed in speeds.items() if algo == cell.config.algo] or list(speeds.values())
    if not same:
        return None
    means = {name: statistics.fmean(getattr(each, name) for each in same) for name in Speed.__dataclass_fields__}
    return Speed(**means)
