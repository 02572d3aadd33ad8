"""What a pipeline trains and judges, and for how long: as it is asked to, or as the time that is given allows."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from rl_training.config import TrainConfig
from rl_training.core.files import write_text
from rl_training.core.machine import one_thread
from rl_training.core.text import duration_text, plural
from rl_training.data import load_transition_dataset
from rl_training.ope import LEAST_KAPPA, FitOptions, OutOfTimeError, ValueFitter
from rl_training.pipeline.candidates import CLONES, Candidate, is_clone
from rl_training.pipeline.config import PipelineConfig, Workspace
from rl_training.pipeline.splits import Parts
from rl_training.selection import data_given
from rl_training.storage import read_json

KAPPA = 5.0

LEARNED_UPDATES = 2000
"""Updates of a fit where few would do for its horizon: rewards have to be learned too. Half of them are the least."""

MOST_UPDATES = 1_000_000

CLONE_PASSES, CLONE_UPDATES = 50, 5000
"""Passes over the data, and the fewest updates, after which a clone has learned all it can. Where the time ends runs,
it leaves the rest of its time to the others."""

BATCH = 256

MEMBERS, FEW_MEMBERS = 10, 5
"""Fits to resampled episodes, and how many where time is short; intervals are then wider."""

SHORTER = (1, 2, 4)
"""By how much values may look less far ahead where time is short: the updates of a fit shrink alike."""

LEAST_GAMMA = 0.95
"""Values look at least 20 steps ahead, however short the time is, unless they would not with more time either."""

ESTIMATES_SHARE = 0.5
"""The share of the time that estimates may take; beyond it, fits stop earlier, but not before they can be judged."""

TRAINING_SHARE, LEAST_TRAINING = 0.25, 0.15
"""The share of the time that is kept for training, and the least where even one policy can hardly be judged."""

MARGIN = 1.2
"""By how much fits may be slower than measured, since others use the machine too."""

LAST_SECONDS = 20.0
"""What it takes to export a policy and to write the report."""

MEASURED_SECONDS, MEASURED_UPDATES = 2.0, 400
"""How long, and for how many updates at most, the speed of a fit is measured."""

LONG_RUN, LONG_FITS = 120.0, 300.0
"""Seconds from which a run, and all fits together, are worth being compiled."""

PLAN = "plan.json"


@dataclass(frozen=True)
class Plan:
    """Which runs are trained and judged, and how long that may take."""

    runs: tuple[str, ...]
    judged: tuple[str, ...]
    """The runs whose values are fitted, in this order."""
    left_out: tuple[str, ...]
    """Runs for which the time is too short."""
    gamma: float
    """The discount of the estimates."""
    members: int
    fits: int
    """Fits in all: of the judged runs, of the logged behaviour, and for the claim."""
    fit_updates: int
    """Updates of a fit; where the time is given, what is expected."""
    updates: int | None = None
    """Updates of each run; None where the time ends runs."""
    run_seconds: float = 0.0
    """About what each run has, where the time ends it."""
    fits_seconds: float = 0.0
    """The time that is kept for all fits."""
    seconds: float | None = None
    """The time that was given for everything."""
    shortened_from: float | None = None
    """The discount that the estimates would have with more time."""

    def describe(self) -> list[str]:
        """The plan in sentences."""
        runs, fits = plural(len(self.runs), "run"), plural(self.fits, "fit")
        fitting = f"{fits} of {'about ' * (self.updates is None)}{self.fit_updates:,} updates to estimate values"
        fitting += f", each on {self.members} resampled logs too"
        if self.updates is not None:
            return [f"{runs} of {self.updates:,} updates", *([fitting] if self.fits else [])]
        lines = [f"{runs} of about {duration_text(self.run_seconds)} each"]
        if self.fits:
            lines.append(f"{fitting}: about {duration_text(self.fits_seconds)}")
        if self.shortened_from is not None:
            steps, before = (round(1 / (1 - gamma)) for gamma in (self.gamma, self.shortened_from))
            ahead = f"values look {steps} steps ahead (discount {self.gamma:g})"
            lines.append(f"{ahead}: the time is too short to look {before} steps ahead")
        if self.left_out:
            names = ", ".join(self.left_out)
            lines.append(
                f"the time is too short for {names}: an estimate needs more updates than fit into it; "
                f"more --minutes{' or a smaller --gamma' * (self.gamma > LEAST_GAMMA)} would allow more runs"
            )
        return lines


def run_config(space: Workspace, parts: Parts, candidate: Candidate, seed: int, plan: Plan) -> TrainConfig:
    """The configuration of one run of a pipeline."""
    config = space.config
    total = _longest(parts, candidate) if plan.updates is None else plan.updates
    is_short = plan.updates is None and plan.run_seconds < LONG_RUN
    # With the time, what a kill may lose grows; with each checkpoint, a file stays.
    interval = 20 * plan.run_seconds if plan.updates is None else min(10_000, plan.updates // 10)
    kwargs: dict[str, Any] = {
        "dataset_path": str(parts.path("train")),
        "normalize_obs": True,
        "validation_fraction": 0.0,
        "eval_interval": None,
        "accept_audit": config.accept_audit,
        **({"compile": "never"} if is_short else {}),
        **parts.space,
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


def _longest(parts: Parts, candidate: Candidate) -> int:
    """The updates after which a run ends even if it has time."""
    if candidate.name not in CLONES:
        return MOST_UPDATES
    return min(max(CLONE_UPDATES, CLONE_PASSES * parts.facts.rows // BATCH), MOST_UPDATES)


def make_plan(space: Workspace, parts: Parts, candidates: Sequence[Candidate], workers: int, clock: Clock) -> Plan:
    """The plan of a pipeline, which keeps it once it is made."""

    def make() -> dict[str, Any]:
        config, minutes = space.config, space.config.time or 0.0
        # All candidates with one seed come before those with the next: if time is short, seeds are left out first.
        names = tuple(each.run_name(seed) for seed in config.seeds for each in candidates)
        can_judge = parts.facts.can_improve
        fits = len(names) + _fixed_fits(parts) if can_judge else 0
        length, members = fit_length(config, parts.gamma, KAPPA), config.members or MEMBERS
        if config.updates is not None or clock.left is None:
            return asdict(
                Plan(names, names if can_judge else (), (), parts.gamma, members, fits, length, config.updates)
            )
        if can_judge:
            return asdict(_plan_by_time(space.config, parts, names, workers, clock))
        run_seconds = max(clock.left - LAST_SECONDS, 1.0) / math.ceil(len(names) / workers)
        return asdict(Plan(names, (), (), parts.gamma, members, 0, length, None, run_seconds, seconds=60 * minutes))

    plain = dict(space.stage(PLAN, make))
    plain.pop("made_from")
    plain |= {name: tuple(plain[name]) for name in ("runs", "judged", "left_out")}
    return Plan(**plain)


def _plan_by_time(config: PipelineConfig, parts: Parts, names: tuple[str, ...], workers: int, clock: Clock) -> Plan:
    """As many runs as can be judged in the time, at least one beside the clone."""
    seconds, fixed = 60 * (config.time or 0), _fixed_fits(parts)
    gamma, members, speed, most = _means(config, parts, len(names), clock)
    judged, runs = names, names
    if most < len(names):
        # The clone is trained in any case, since it may have to be exported, but it need not be judged.
        clone, learners = names[0], [name for name in names if not is_clone(name)]
        judged = tuple(learners[: max(most, 1)]) or (clone,)
        runs = tuple(dict.fromkeys([clone, *judged]))
    fits = len(judged) + fixed
    length = between(ESTIMATES_SHARE * seconds * speed / fits, config, gamma)
    training = max((clock.left or 0.0) - LAST_SECONDS - fits * length / speed, LEAST_TRAINING * seconds)
    return Plan(
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
        shortened_from=None if gamma == parts.gamma else parts.gamma,
    )


def _means(config: PipelineConfig, parts: Parts, runs: int, clock: Clock) -> tuple[float, int, float, int]:
    """Discount and members of the fits, their speed, and how many runs can be judged in the time.

    Where it is too short, first there are fewer members, then values look less far ahead, until one run of every
    candidate can be judged. What the user has asked for stays.
    """
    room = (clock.left or 0.0) - LAST_SECONDS - TRAINING_SHARE * 60 * (config.time or 0)
    is_fixed = config.gamma is not None or config.fit_updates is not None
    gammas = [round(1 - shorter * (1 - parts.gamma), 4) for shorter in SHORTER[: 1 if is_fixed else None]]
    counts = (MEMBERS, FEW_MEMBERS) if config.members is None else (config.members,)
    speeds: dict[int, float] = {}
    for gamma in [gammas[0], *(each for each in gammas[1:] if each >= LEAST_GAMMA)]:
        for members in counts if gamma == gammas[0] else counts[-1:]:
            if members not in speeds:
                speeds[members] = fit_speed(parts.path("selection"), gamma, members) / MARGIN
            updates = fit_length(config, gamma, LEAST_KAPPA + 0.1)
            most = int(room * speeds[members] / updates) - _fixed_fits(parts)
            if most >= (runs if members == counts[0] and gamma == gammas[0] else runs // len(config.seeds)):
                return gamma, members, speeds[members], most
    return gamma, members, speeds[members], most


def training_seconds(plan: Plan, clock: Clock) -> float | None:
    """What training has at this moment; None where a number of updates ends it."""
    if clock.left is None:
        return None
    least = LEAST_TRAINING * (plan.seconds or 0.0) - clock.seconds.get("training", 0.0)
    return max(clock.left - LAST_SECONDS - plan.fits_seconds, least, 1.0)


def _fixed_fits(parts: Parts) -> int:
    """Fits beside those of the runs: of the behaviour, for the claim, and for weights."""
    return 1 + 2 * parts.has_claim + parts.has_probabilities


def fit_length(config: PipelineConfig, gamma: float, kappa: float) -> int:
    """The updates of a fit: those asked for, or as many as kappa needs."""
    if config.fit_updates is not None:
        return config.fit_updates
    learned = LEARNED_UPDATES if kappa >= KAPPA else LEARNED_UPDATES // 2
    return max(FitOptions(gamma=gamma, kappa=kappa).num_updates, learned)


def between(updates: float, config: PipelineConfig, gamma: float) -> int:
    """So many updates of a fit, but not so few that nothing could be judged, nor more than are of use."""
    shortest, longest = (fit_length(config, gamma, kappa) for kappa in (LEAST_KAPPA + 0.1, KAPPA))
    return int(min(max(updates, shortest), longest))


def fit_speed(path: Path, gamma: float, members: int) -> float:
    """Updates per second of a fit, as fast as this machine is at the moment."""
    dataset, moments = load_transition_dataset(path), list[tuple[float, int]]()
    if not dataset.is_discrete:
        # The speed is the same for any actions, and the log alone may not tell their bounds.
        dataset = dataset.map_actions(torch.zeros_like)
    log = data_given(dataset, []).log

    def note(done: int, _: int) -> None:
        moments.append((time.monotonic(), done))
        if moments[-1][0] - moments[0][0] > MEASURED_SECONDS:
            raise OutOfTimeError

    with one_thread(), suppress(OutOfTimeError):
        fitter = ValueFitter(log, FitOptions(gamma=gamma, members=members, updates=MEASURED_UPDATES))
        fitter.fit_behavior(progress=note)
    (first, before), (last, after) = moments[0], moments[-1]
    return max((after - before) / max(last - first, 1e-6), 1.0)


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
