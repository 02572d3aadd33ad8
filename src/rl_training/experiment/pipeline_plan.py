"""How long a pipeline trains and fits: as many updates as are asked for, or as fit into the time that is given."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rl_training.config import TrainConfig
from rl_training.experiment.candidates import Candidate
from rl_training.experiment.claims import LEAST_KAPPA
from rl_training.experiment.estimation import estimate
from rl_training.experiment.manager import ExperimentManager
from rl_training.experiment.pipeline_config import PipelineConfig, Workspace
from rl_training.experiment.pipeline_data import Parts
from rl_training.runtime.artifacts import read_metrics
from rl_training.runtime.fitting import FitOptions
from rl_training.types import UserError

KAPPA = 5.0
FEWEST_FIT_UPDATES = 2000
"""Updates of a fit where few would do for its horizon: rewards have to be learned too."""
WARMUP = 300
"""Updates of a run by which its speed is measured, and of a fit."""
FEWEST_UPDATES = 100
MOST_UPDATES = 1_000_000
ESTIMATES_SHARE = 0.6
"""The share of the time that estimates may take; beyond it, fits stop earlier, but not before they can be judged."""
TRAINING_SHARE = 0.2
"""The share of the time that training gets in any case."""
START_SECONDS = 6.0
"""What it takes to start a run in a process of its own."""
LAST_SECONDS = 15.0
"""What it takes to export a policy and to write the report."""
LATE_FACTOR = 1.1
LATE = (
    "this takes longer than the time that was given: a value can be judged only after that many updates; "
    "fewer seeds, fewer algorithms or a smaller gamma would shorten it"
)
PLAN = "plan.json"


@dataclass(frozen=True)
class Plan:
    """How many updates each run and each fit makes, and what that is expected to take."""

    updates: int
    fit_updates: int
    runs: int
    fits: int
    training_seconds: float | None = None
    """None where the updates were given and nothing was measured."""
    estimates_seconds: float | None = None
    speeds: dict[str, float] | None = None
    """Updates per second of each candidate, as measured."""
    seconds: float | None = None
    """The time that was given for everything."""

    def describe(self) -> list[str]:
        """The plan in sentences."""
        training = f"{self.runs} runs of {self.updates:,} updates"
        fitting = f"{self.fits} fits of {self.fit_updates:,} updates"
        if self.training_seconds is None or self.estimates_seconds is None:
            return [training, fitting]
        return [
            f"{training}, about {minutes_text(self.training_seconds)}",
            f"{fitting}, about {minutes_text(self.estimates_seconds)}",
            *([LATE] if self.seconds is not None and self._expected() > LATE_FACTOR * self.seconds else []),
        ]

    def _expected(self) -> float:
        return (self.training_seconds or 0.0) + (self.estimates_seconds or 0.0)


def minutes_text(seconds: float) -> str:
    """A duration as one says it."""
    if seconds < 90:
        return f"{max(round(seconds), 1)} seconds"
    return f"{seconds / 60:.1f} minutes" if seconds < 600 else f"{round(seconds / 60)} minutes"


def run_config(space: Workspace, parts: Parts, candidate: Candidate, seed: int, updates: int) -> TrainConfig:
    """The configuration of one run of a pipeline."""
    config = space.config
    kwargs: dict[str, Any] = {
        "dataset_path": str(parts.path("train")),
        "normalize_obs": True,
        "validation_fraction": 0.0,
        "eval_interval": None,
        "accept_audit": config.accept_audit,
        **parts.space,
        **candidate.options,
        **config.algo_kwargs,
    }
    return TrainConfig(
        algo=candidate.algo,
        env_id=config.env_id,
        seed=seed,
        total_timesteps=updates,
        output_dir=str(space.out / "runs"),
        run_name=candidate.run_name(seed),
        checkpoint_interval=max(1000, min(10_000, updates // 10)),
        algo_kwargs=kwargs,
    )


def make_plan(space: Workspace, parts: Parts, candidates: Sequence[Candidate], workers: int, began: float) -> Plan:
    """The plan of a pipeline, which keeps it once it is made; `began` is when the time began to run."""

    def make() -> dict[str, Any]:
        config, runs = space.config, len(candidates) * len(space.config.seeds)
        can_judge = parts.facts.can_improve
        fits = (runs + 1 + 3 * parts.has_claim) if can_judge else 0
        fit_updates = fit_length(config, parts.gamma, KAPPA)
        if config.updates is not None or config.time is None:
            return asdict(Plan(config.updates or FEWEST_UPDATES, fit_updates, runs, fits))
        speeds, fit_speed = _measure(space, parts, candidates, workers, can_judge=can_judge)
        seconds = 60 * config.time
        fit_updates = _affordable(config, parts.gamma, most=ESTIMATES_SHARE * seconds * fit_speed / max(fits, 1))
        estimates = fits * fit_updates / fit_speed
        left = (
            seconds - (time.monotonic() - began) - estimates - LAST_SECONDS - START_SECONDS * math.ceil(runs / workers)
        )
        training = max(left, TRAINING_SHARE * seconds)
        per_update = len(config.seeds) * sum(1 / speed for speed in speeds.values()) / min(workers, runs)
        updates = _rounded(training / per_update)
        return asdict(Plan(updates, fit_updates, runs, fits, updates * per_update, estimates, speeds, seconds))

    plain = dict(space.stage(PLAN, make))
    plain.pop("made_from")
    return Plan(**plain)


def fit_length(config: PipelineConfig, gamma: float, kappa: float) -> int:
    """The updates of a fit: those asked for, or as many as kappa needs."""
    if config.fit_updates is not None:
        return config.fit_updates
    return max(FitOptions(gamma=gamma, kappa=kappa).num_updates, FEWEST_FIT_UPDATES)


def _affordable(config: PipelineConfig, gamma: float, *, most: float) -> int:
    """The updates of a fit that may take so many, but never so few that nothing could be judged."""
    full = fit_length(config, gamma, KAPPA)
    least = fit_length(config, gamma, LEAST_KAPPA + 0.1)
    return int(min(full, max(least, most)))


def _rounded(updates: float) -> int:
    """A number of updates with two digits, within bounds."""
    digits = 10 ** max(math.floor(math.log10(max(updates, 1))) - 1, 0)
    return int(min(max(updates // digits * digits, FEWEST_UPDATES), MOST_UPDATES))


def _measure(
    space: Workspace, parts: Parts, candidates: Sequence[Candidate], workers: int, *, can_judge: bool
) -> tuple[dict[str, float], float]:
    """Updates per second of each candidate, side by side as they will run, and of a fit."""
    folder = space.out / ".warmup"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        seed = space.config.seeds[0]
        configs = [
            replace(
                run_config(space, parts, each, seed, WARMUP), output_dir=str(folder), log_interval=100, eval_episodes=1
            )
            for each in candidates
        ]
        results = ExperimentManager().train_all(configs, workers=workers)
        failed = [f"{each.name}: {each.error}" for each in results if each.status == "failed"]
        if failed:
            raise UserError("\n".join(failed))
        speeds = {each.name: _speed(folder / each.run_name(seed)) for each in candidates}
        fit_speed = _fit_speed(space, parts, folder / candidates[0].run_name(seed)) if can_judge else 1.0
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return speeds, fit_speed


def _speed(run: Path) -> float:
    """The speed at the end of a run: the first updates are slower."""
    rows = [row["updates_per_second"] for row in read_metrics(run) if "updates_per_second" in row]
    return float(rows[-1])


def _fit_speed(space: Workspace, parts: Parts, run: Path) -> float:
    moments: list[tuple[float, int]] = []
    estimate(
        {"warmup": str(run)},
        str(parts.path("selection")),
        gamma=parts.gamma,
        members=space.config.members,
        updates=WARMUP,
        progress=lambda name, done, _: moments.append((time.monotonic(), done)) if name == "warmup" else None,
    )
    (first, before), (last, after) = moments[0], moments[-1]
    return max((after - before) / max(last - first, 1e-6), 1.0)
