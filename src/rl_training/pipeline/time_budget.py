"""The runs and estimates of a pipeline, and how long they may take; the time that was spent."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from rl_training.config import TrainConfig
from rl_training.core.files import write_json
from rl_training.core.machine import one_thread
from rl_training.core.text import duration_text, plural
from rl_training.data import load_transition_dataset
from rl_training.ope import LEAST_KAPPA, FitOptions, OutOfTimeError, ValueFitter
from rl_training.pipeline.candidates import CLONES, AlgorithmCandidate, is_clone
from rl_training.pipeline.config import PipelineConfig, Workspace
from rl_training.pipeline.splits import DataSplits
from rl_training.selection import data_given
from rl_training.storage import read_json

KAPPA = 5.0

LEARNED_UPDATES = 2000
"""Updates of an estimate with a short horizon, which also has to learn the rewards; half of them are the least."""

MOST_UPDATES = 1_000_000

CLONE_PASSES, CLONE_UPDATES = 50, 5000
"""Passes over the data, and the fewest updates, after which a clone does not improve. With a time limit, it leaves the
rest of its time to the others."""

BATCH = 256

MEMBERS, FEW_MEMBERS = 10, 5
"""Ensemble members for resampled episodes, and how many if time is short; intervals are then wider."""

SHORTER = (1, 2, 4)
"""Divisors of the horizon if time is short: the updates of an estimate shrink alike."""

LEAST_GAMMA = 0.95
"""The least discount if time is short, a horizon of 20 steps; it may be smaller only if it always would be."""

ESTIMATES_SHARE = 0.5
"""The share of the time for estimates; beyond it, they stop earlier, but not before policies can be judged."""

TRAINING_SHARE, LEAST_TRAINING = 0.25, 0.15
"""The share of the time for training, and the least if even one policy can hardly be judged."""

MARGIN = 1.2
"""The factor by which fits may be slower than measured, since other processes use the machine too."""

LAST_SECONDS = 20.0
"""The time to export a policy and to write the report."""

MEASURED_SECONDS, MEASURED_UPDATES = 2.0, 400
"""The most seconds and updates for which the speed of a fit is measured."""

LONG_RUN, LONG_FITS = 120.0, 300.0
"""Seconds from which compilation pays: of a run, and of all fits together."""

PLAN = "plan.json"


@dataclass(frozen=True)
class TimeBudget:
    """The runs to train and to judge, and how long that may take."""

    runs: tuple[str, ...]
    judged: tuple[str, ...]
    """The runs whose values are estimated, in this order."""
    left_out: tuple[str, ...]
    """Runs for which there is no time."""
    gamma: float
    """The discount of the estimates."""
    members: int
    fits: int
    """All fits: of the judged runs, of the logged behaviour, and for the claim."""
    fit_updates: int
    """Updates of a fit; with a time limit, the expected ones."""
    updates: int | None = None
    """Updates of each run; None with a time limit."""
    run_seconds: float = 0.0
    """The approximate time of each run, with a time limit."""
    fits_seconds: float = 0.0
    """The time that is reserved for all fits."""
    seconds: float | None = None
    """The time limit for everything."""
    shortened_from: float | None = None
    """The discount of the estimates with more time, if it was lowered."""

    def describe(self) -> list[str]:
        """The plan in sentences."""
        runs, fits = plural(len(self.runs), "run"), plural(self.fits, "fit")
        fitting = f"{fits} of {'about ' * (self.updates is None)}{self.fit_updates:,} updates to estimate values"
        fitting += f", each also on {self.members} resampled logs"
        if self.updates is not None:
            return [f"{runs} of {self.updates:,} updates", *([fitting] if self.fits else [])]
        lines = [f"{runs} of about {duration_text(self.run_seconds)} each"]
        if self.fits:
            lines.append(f"{fitting}: about {duration_text(self.fits_seconds)}")
        if self.shortened_from is not None:
            steps, before = (round(1 / (1 - gamma)) for gamma in (self.gamma, self.shortened_from))
            lines.append(f"horizon {steps} steps (discount {self.gamma:g}): the time is too short for {before} steps")
        if self.left_out:
            names = ", ".join(self.left_out)
            lines.append(
                f"the time is too short for {names}: an estimate needs more updates than fit into it; "
                f"more --minutes{' or a smaller --gamma' * (self.gamma > LEAST_GAMMA)} would allow more runs"
            )
        return lines


def run_config(
    space: Workspace, splits: DataSplits, candidate: AlgorithmCandidate, seed: int, budget: TimeBudget
) -> TrainConfig:
    """The configuration of one run of a pipeline."""
    config = space.config
    total = _longest(splits, candidate) if budget.updates is None else budget.updates
    is_short = budget.updates is None and budget.run_seconds < LONG_RUN
    # Longer runs lose more if they are killed, but each checkpoint leaves a file.
    interval = 20 * budget.run_seconds if budget.updates is None else min(10_000, budget.updates // 10)
    kwargs: dict[str, Any] = {
        "dataset_path": str(splits.path("train")),
        "normalize_obs": True,
        "validation_fraction": 0.0,
        "eval_interval": None,
        "accept_audit": config.accept_audit,
        **({"compile": "never"} if is_short else {}),
        **splits.space,
        **candidate.options,
        **config.algo_kwargs,
    }
    return TrainConfig(
        algo=candidate.algo,
        env_id=config.env_id,
        seed=seed,
        total_timesteps=total,
        output_dir=str(space.out / "runs"),
        run_name=candidate.run_name(seed),
        checkpoint_interval=max(1000, int(interval)),
        algo_kwargs=kwargs,
    )


def _longest(splits: DataSplits, candidate: AlgorithmCandidate) -> int:
    """The most updates of a run, also if there is time left."""
    if candidate.name not in CLONES:
        return MOST_UPDATES
    return min(max(CLONE_UPDATES, CLONE_PASSES * splits.facts.rows // BATCH), MOST_UPDATES)


def make_budget(
    space: Workspace, splits: DataSplits, candidates: Sequence[AlgorithmCandidate], workers: int, clock: Clock
) -> TimeBudget:
    """The time budget of a pipeline, made once and stored."""
    config, can_judge = space.config, splits.facts.can_improve

    def make() -> dict[str, Any]:
        # All candidates with one seed come before those with the next, so seeds are left out first if time is short.
        names = tuple(each.run_name(seed) for seed in config.seeds for each in candidates)
        fits = len(names) + _fixed_fits(splits) if can_judge else 0
        length, members = fit_length(splits, config, splits.gamma, KAPPA), config.members or MEMBERS
        judged = names if can_judge else ()
        found = TimeBudget(names, judged, (), splits.gamma, members, fits, length, config.updates)
        if clock.left is not None and can_judge:
            found = _budget_by_time(config, splits, names, workers, clock)
        elif clock.left is not None:
            run_seconds = max(clock.left - LAST_SECONDS, 1.0) / math.ceil(len(names) / workers)
            found = replace(found, run_seconds=run_seconds, seconds=60 * (config.time or 0.0))
        return asdict(found)

    plain = dict(space.stage(PLAN, make))
    plain.pop("made_from")
    plain |= {name: tuple(plain[name]) for name in ("runs", "judged", "left_out")}
    return TimeBudget(**plain)


def _budget_by_time(
    config: PipelineConfig, splits: DataSplits, names: tuple[str, ...], workers: int, clock: Clock
) -> TimeBudget:
    """The budget with as many runs as can be judged in the time, at least one beside the clone."""
    seconds, fixed = 60 * (config.time or 0), _fixed_fits(splits)
    gamma, members, speed, most = _means(config, splits, len(names), clock)
    judged, runs = names, names
    if most < len(names):
        # The clone is always trained, since it may have to be exported, but it need not be judged.
        clone, learners = names[0], [name for name in names if not is_clone(name)]
        judged = tuple(learners[: max(most, 1)]) or (clone,)
        runs = tuple(dict.fromkeys([clone, *judged]))
    fits = len(judged) + fixed
    length = between(ESTIMATES_SHARE * seconds * speed / fits, splits, config, gamma)
    training = max((clock.left or 0.0) - LAST_SECONDS - fits * length / speed, LEAST_TRAINING * seconds)
    return TimeBudget(
        runs=runs,
        judged=judged,
        left_out=tuple(name for name in names if name not in runs),
        gamma=gamma,
        members=members,
        fits=fits,
        fit_updates=length,
        run_seconds=training / math.ceil(len(runs) / workers),
        fits_seconds=fits * length / speed,
        seconds=seconds,
        shortened_from=None if gamma == splits.gamma else splits.gamma,
    )


def _means(config: PipelineConfig, splits: DataSplits, runs: int, clock: Clock) -> tuple[float, int, float, int]:
    """Discount and ensemble members of the fits, their speed, and how many runs can be judged in the time.

    If the time is too short, first there are fewer members, then a shorter horizon, until one run of every candidate
    can be judged. Options that the user has set stay.
    """
    room = (clock.left or 0.0) - LAST_SECONDS - TRAINING_SHARE * 60 * (config.time or 0)
    is_fixed = config.gamma is not None or config.fit_updates is not None
    gammas = [round(1 - shorter * (1 - splits.gamma), 4) for shorter in SHORTER[: 1 if is_fixed else None]]
    counts = (MEMBERS, FEW_MEMBERS) if config.members is None else (config.members,)
    speeds: dict[int, float] = {}
    for gamma in [gammas[0], *(each for each in gammas[1:] if each >= LEAST_GAMMA)]:
        for members in counts if gamma == gammas[0] else counts[-1:]:
            if members not in speeds:
                speeds[members] = fit_speed(splits.path("selection"), gamma, members) / MARGIN
            updates = fit_length(splits, config, gamma, LEAST_KAPPA + 0.1)
            most = int(room * speeds[members] / updates) - _fixed_fits(splits)
            if most >= (runs if members == counts[0] and gamma == gammas[0] else runs // len(config.seeds)):
                return gamma, members, speeds[members], most
    return gamma, members, speeds[members], most


def training_seconds(budget: TimeBudget, clock: Clock) -> float | None:
    """The time for training from now on; None without a time limit."""
    if clock.left is None:
        return None
    least = LEAST_TRAINING * (budget.seconds or 0.0) - clock.seconds.get("training", 0.0)
    return max(clock.left - LAST_SECONDS - budget.fits_seconds, least, 1.0)


def _fixed_fits(splits: DataSplits) -> int:
    """Fits beside those of the runs: of the behaviour, for the claim, and for importance sampling."""
    return 1 + 2 * splits.has_claim + splits.has_probabilities


def fit_length(splits: DataSplits, config: PipelineConfig, gamma: float, kappa: float) -> int:
    """The updates of an estimate: those asked for, or as many as kappa needs."""
    if config.fit_updates is not None:
        return config.fit_updates
    learned = LEARNED_UPDATES if kappa >= KAPPA else LEARNED_UPDATES // 2
    return max(FitOptions(gamma=gamma, episode_steps=splits.episode_steps, kappa=kappa).num_updates, learned)


def between(updates: float, splits: DataSplits, config: PipelineConfig, gamma: float) -> int:
    """The updates, at least as many as a judgement needs and at most as many as are of use."""
    shortest, longest = (fit_length(splits, config, gamma, kappa) for kappa in (LEAST_KAPPA + 0.1, KAPPA))
    return int(min(max(updates, shortest), longest))


def fit_speed(path: Path, gamma: float, members: int) -> float:
    """Updates per second of a fit, measured now."""
    dataset, moments = load_transition_dataset(path), list[tuple[float, int]]()
    if not dataset.is_discrete:
        # The speed is the same for any actions, and the bounds may not follow from the log.
        dataset = dataset.map_actions(torch.zeros_like)
    log = data_given(dataset, []).log

    def note(done: int, _: int) -> None:
        moments.append((time.monotonic(), done))
        if moments[-1][0] - moments[0][0] > MEASURED_SECONDS:
            raise OutOfTimeError

    with one_thread(), suppress(OutOfTimeError):
        fitter = ValueFitter(log, FitOptions(gamma=gamma, episode_steps=1, members=members, updates=MEASURED_UPDATES))
        fitter.fit_behavior(progress=note)
    (first, before), (last, after) = moments[0], moments[-1]
    return max((after - before) / max(last - first, 1e-6), 1.0)


FILE = "time.json"

WRITE_SECONDS = 5.0
"""Time between two writes, which a killed process may lose."""

LEAST_SHOWN = 0.5
"""Seconds below which a stage is not mentioned."""


class Clock:
    """The seconds of each stage, in all calls together; time between two calls does not count."""

    def __init__(self, folder: Path, minutes: float | None, began: float | None = None) -> None:
        self.path, self.minutes = folder / FILE, minutes
        self.seconds: dict[str, float] = {str(name): float(value) for name, value in read_json(self.path).items()}
        self.stage: str | None = None
        self.since = self.written = time.monotonic() if began is None else began

    def enter(self, stage: str) -> None:
        """Begin a stage; the previous one ends."""
        if self.stage is not None:
            self._write()
        self.stage = stage

    def tick(self) -> None:
        """Write the time, unless it was just written."""
        if time.monotonic() - self.written >= WRITE_SECONDS:
            self._write()

    def stop(self) -> dict[str, float]:
        """Write the time; the seconds of all stages."""
        self._write()
        return dict(self.seconds)

    def _write(self) -> None:
        now, stage = time.monotonic(), str(self.stage)
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self.since
        self.since = self.written = now
        write_json(self.path, self.seconds, indent=1)

    @property
    def spent(self) -> float:
        """The seconds of all stages up to now."""
        return sum(self.seconds.values()) + time.monotonic() - self.since

    @property
    def left(self) -> float | None:
        """The remaining seconds, below 0 after the limit; None without a limit."""
        return None if self.minutes is None else 60 * self.minutes - self.spent


def describe_times(seconds: dict[str, float], minutes: float | None) -> str:
    """The time of each stage, in a sentence."""
    total = duration_text(sum(seconds.values()))
    given = "" if minutes is None else f" of {duration_text(60 * minutes)}"
    parts = [f"{stage} {duration_text(value)}" for stage, value in seconds.items() if value >= LEAST_SHOWN]
    return f"{total}{given}: {', '.join(parts)}"
