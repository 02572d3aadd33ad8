"""Sweeps: many runs in one folder, continued by the same call."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from rl_training.config import dump_yaml
from rl_training.core.errors import ConfigError
from rl_training.core.files import write_json, write_text
from rl_training.core.machine import configure_machine
from rl_training.data import read_dataset, shared_key
from rl_training.data.files import write_mapped
from rl_training.experiment.manager import ExperimentManager
from rl_training.experiment.pools import ProgressListener, SeedProgress, count_workers
from rl_training.experiment.sweep_spec import PlannedRun, SweepSpec, plan_runs, read_sweep
from rl_training.reports import RESULTS
from rl_training.runtime import Session, open_session, read_options
from rl_training.storage import RunLock, is_finished, is_run, read_metrics

SCORES = ("normalized_score", "return_mean", "fqe_value")
"""Metrics that rank runs: the first that they report counts, and larger is better."""

SHARED_BYTES = 1 << 26
"""Size of the smallest file that runs share in the mapped form."""
SPEC, DATA = "sweep.yaml", ".data"
MEASURED_SECONDS, MOST_SECONDS = 1.5, 20.0
FEWEST_UPDATES, WARM_UP = 20, 5
ENDLESS = 10**9
EARLY_START = 500
"""Steps without updates at the start of an online run that is measured; a whole run has as many as its options say."""


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep, and its outcome."""

    planned: PlannedRun
    progress: SeedProgress

    def to_plain(self) -> dict[str, Any]:
        """Plain values, as `sweep.json` has them."""
        found = self.progress
        return {
            "name": self.planned.name,
            "values": dict(self.planned.values),
            **{name: getattr(found, name) for name in ("seed", "status", "global_step", "metrics", "run_dir", "error")},
        }


def run_sweep(
    spec: SweepSpec | Mapping[str, Any] | str | Path,
    out: str | Path,
    *,
    workers: int = 1,
    ray: str | None = None,
    watcher: ProgressListener | None = None,
) -> list[SweepRun]:
    """Train all runs of a sweep in the folder `out`, by `workers` processes or on the Ray cluster with this address.

    A run that fails does not stop the others. The same call again continues the sweep: it recognises finished runs by
    their options and resumes stopped ones. One sweep at a time can use a folder.
    """
    watcher, spec, out = watcher or ProgressListener(), read_sweep(spec), Path(out)
    if workers < 1:
        raise ConfigError(f"a sweep needs at least one worker, got {workers}")
    runs = keep_names(plan_runs(spec, out), out)
    # A cluster that does not answer is noticed before anything is written.
    count_workers(workers, ray, threads=spec.threads)
    with locked_folder(out):
        write_text(out / SPEC, dump_yaml(json.loads(json.dumps(asdict(spec)))))
        # Reports made meanwhile, or after a kill, need to know which runs belong to the sweep.
        _write_results(out, [SweepRun(run, SeedProgress(run.config.seed, "waiting", run.name)) for run in runs])
        watcher.on_runs(len(runs), scores=SCORES)
        shared = share_data([run for run in runs if not is_run(out / run.name)], out / DATA)
        progress = ExperimentManager().train_all(
            [run.bound for run in runs],
            workers=workers,
            ray=ray,
            threads=spec.threads,
            resume=True,
            shared=shared,
            on_progress=watcher.on_run,
        )
        results = [SweepRun(run, found) for run, found in zip(runs, progress, strict=True)]
        _write_results(out, results)
        if all(each.progress.status == "done" for each in results):
            shutil.rmtree(out / DATA, ignore_errors=True)
    return results


def _write_results(out: Path, results: Sequence[SweepRun]) -> None:
    write_json(out / RESULTS, {"cells": [each.to_plain() for each in results]})


def keep_names(runs: Sequence[PlannedRun], out: Path) -> list[PlannedRun]:
    """The runs under the names that they already have in the folder, perhaps from a smaller sweep."""
    there = {path.name.rpartition("__")[2]: path.name for path in out.iterdir()} if out.is_dir() else {}
    names = [there.get(run.digest, run.name) for run in runs]
    return [replace(run, config=replace(run.config, run_name=name)) for run, name in zip(runs, names, strict=True)]


@contextmanager
def locked_folder(out: Path) -> Iterator[None]:
    """Make a folder if it is missing, and keep other sweeps out of it during the block."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = RunLock(out)
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}") from None
    try:
        yield
    finally:
        lock.release()


def share_data(runs: Sequence[PlannedRun], folder: Path) -> dict[str, str]:
    """Write large files that several runs read in the mapped form, once; their places by `shared_key`."""
    specs = [spec for run in runs for spec in (run.options.data, *run.options.data.dataset_mix)]
    keys = [(key, spec) for spec in specs if (key := shared_key(spec)) is not None]
    used = Counter(key for key, _ in keys)
    shared: dict[str, str] = {}
    for key, spec in keys:
        if used[key] < 2 or key in shared or Path(str(spec.dataset_path)).stat().st_size < SHARED_BYTES:
            continue
        path = folder / hashlib.blake2b(key.encode(), digest_size=8).hexdigest()
        if not path.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            write_mapped(read_dataset(spec), path)
        shared[key] = str(path.resolve())
    return shared


class RunSpeed(NamedTuple):
    """The speed of an algorithm, measured on its first unfinished run."""

    start: float
    """Seconds before the first step: reading the data, building the networks."""
    steps_per_second: float
    evaluation: float
    """Seconds of one evaluation."""


@dataclass(frozen=True)
class Cost:
    """The estimated cost of a run."""

    planned: PlannedRun
    status: str
    steps: int
    """Remaining timesteps."""
    steps_per_second: float | None
    seconds: float

    def to_plain(self) -> dict[str, Any]:
        """Plain values."""
        about = {name: getattr(self, name) for name in ("status", "steps", "steps_per_second", "seconds")}
        return {"name": self.planned.name, "values": dict(self.planned.values), **about}


def estimate_costs(
    runs: Sequence[PlannedRun], *, threads: int, tell: Callable[[str], None] = lambda text: None
) -> list[Cost]:
    """Estimate the cost of each run, without compilation; finished runs cost nothing."""
    configure_machine(threads)
    speeds: dict[str, RunSpeed] = {}
    costs = []
    for run in runs:
        algo, left = run.config.algo, _steps_left(run)
        if not left:
            costs.append(Cost(run, "done", 0, None, 0.0))
            continue
        if algo not in speeds:
            tell(f"measuring {run.name}")
            speeds[algo] = measure_speed(run)
        start, pace, evaluation = speeds[algo]
        evaluations = 1 + left // (run.options.controls.eval_interval or ENDLESS)
        status = "to do" if left == run.config.total_timesteps else "half done"
        costs.append(Cost(run, status, left, pace, start + left / pace + evaluations * evaluation))
    return costs


def total_seconds(costs: Sequence[Cost], workers: int) -> float:
    """The time of all runs, each begun by the first idle worker."""
    ends = [0.0] * workers
    for cost in costs:
        ends[ends.index(min(ends))] += cost.seconds
    return max(ends)


def measure_speed(run: PlannedRun) -> RunSpeed:
    """Measure a run in its first seconds, in a temporary folder."""
    kwargs: dict[str, Any] = {**run.config.algo_kwargs, "compile": "never"}
    if run.options.mode != "offline" and (run.options.online.learning_starts or 0) > EARLY_START:
        kwargs["learning_starts"] = EARLY_START
    with TemporaryDirectory() as folder:
        config = replace(run.config, output_dir=folder, total_timesteps=ENDLESS, algo_kwargs=kwargs)
        begin = time.perf_counter()
        session = open_session(*read_options(config))
        start = time.perf_counter() - begin
        with session.resources:
            _advance(session, updates=WARM_UP)
            before, begin = session.state.global_step, time.perf_counter()
            while time.perf_counter() - begin < MEASURED_SECONDS:
                _advance(session, updates=FEWEST_UPDATES)
            end = time.perf_counter()
            speed = (session.state.global_step - before) / (end - begin)
            session.evaluate()
            return RunSpeed(start, speed, time.perf_counter() - end)


def _advance(session: Session, *, updates: int) -> None:
    """Train for this many updates, or until the time for measuring is over."""
    state, end = session.state, time.perf_counter() + MOST_SECONDS
    stop = state.update_count + updates
    while state.update_count < stop and time.perf_counter() < end:
        if not session.next_updates():
            session.collect()
        session.learn(min(session.next_updates(), stop - state.update_count))


def _steps_left(run: PlannedRun) -> int:
    path, total = Path(run.config.output_dir, run.name), run.config.total_timesteps
    if not is_run(path):
        return total
    if is_finished(path):
        return 0
    rows = read_metrics(path)
    return max(total - int(rows[-1]["global_step"]), 1) if rows else total
