"""What the runs of a sweep would cost, by the speed of a moment of the first run of each algorithm."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from rl_training.compilation.performance import configure_machine
from rl_training.experiment.sweep_spec import Cell
from rl_training.runtime.assembly import open_session
from rl_training.runtime.run_options import read_options
from rl_training.runtime.trainer import Session
from rl_training.storage.find import is_finished, is_run
from rl_training.storage.run_directory import read_metrics

MEASURED_SECONDS, MOST_SECONDS = 1.5, 20.0
FEWEST_UPDATES, WARM_UP = 20, 5
ENDLESS = 10**9
EARLY_START = 500
"""Steps without updates at the start of an online run that is measured; a whole run has as many as it asks for."""


class Speed(NamedTuple):
    """How fast the runs of an algorithm are, by the first of them that has something left to do."""

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
        about = {name: getattr(self, name) for name in ("status", "steps", "steps_per_second", "seconds")}
        return {"name": self.cell.name, "values": dict(self.cell.values), **about}


def estimate_costs(
    cells: Sequence[Cell], *, threads: int, tell: Callable[[str], None] = lambda text: None
) -> list[Cost]:
    """What each run would cost, without compilation; one that has ended costs nothing."""
    configure_machine(threads)
    speeds: dict[str, Speed] = {}
    found = []
    for cell in cells:
        algo, left, total = cell.config.algo, _steps_left(cell), cell.config.total_timesteps
        if not left:
            found.append(Cost(cell, "done", 0, None, 0.0))
            continue
        if algo not in speeds:
            tell(f"measuring {cell.name}")
            speeds[algo] = measure(cell)
        start, pace, evaluation = speeds[algo]
        evaluations = 1 + left // (cell.options.controls.eval_interval or ENDLESS)
        seconds = start + left / pace + evaluations * evaluation
        found.append(Cost(cell, "to do" if left == total else "half done", left, pace, seconds))
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
        if not session.next_updates():
            session.collect()
        session.learn(min(session.next_updates(), stop - state.update_count))


def _steps_left(cell: Cell) -> int:
    run, total = Path(cell.config.output_dir, cell.name), cell.config.total_timesteps
    if not is_run(run):
        return total
    if is_finished(run):
        return 0
    rows = read_metrics(run)
    return max(total - int(rows[-1]["global_step"]) if rows else total, 1)
