"""The runs and estimates of a pipeline, and how long they may take; the time that was spent."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from rl_training.config import TrainConfig, read_mapping
from rl_training.core.files import write_json
from rl_training.core.machine import one_thread
from rl_training.core.text import duration_text, plural
from rl_training.data import load_transition_dataset
from rl_training.ope import LEAST_KAPPA, FitOptions, OutOfTimeError, ValueFitter, horizon_text
from rl_training.pipeline.candidates import CLONES, AlgorithmCandidate, in_order_of_worth, is_clone
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

SHORTER = (0.99, 0.98, 0.95, 0.9, 0.8)
"""Discounts that are proposed if the time is too short for the one that was asked for, which is never changed."""

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
    """The discount of the estimates, which does not depend on the time."""
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
    too_short: str | None = None
    """Why no policy can be judged in the time, if that is so."""

    def describe(self) -> list[str]:
        """The plan in sentences."""
        runs, fits = plural(len(self.runs), "run"), plural(self.fits, "fit")
        fitting = f"{fits} of {'about ' * (self.updates is None)}{self.fit_updates:,} updates to estimate values "
        fitting += f"{horizon_text(self.gamma)}, each also on {self.members} resampled logs"
        if self.updates is not None:
            return [f"{runs} of {self.updates:,} updates", *([fitting] if self.fits else [])]
        lines = [f"{runs} of about {duration_text(self.run_seconds)} each"]
        if self.fits:
            lines.append(f"{fitting}: about {duration_text(self.fits_seconds)}")
        if self.too_short is not None:
            lines.append(f"no policy can be judged: {self.too_short}")
        elif self.left_out:
            names = ", ".join(self.left_out)
            lines.append(
                f"the time is too short for {names}: an estimate needs more updates than fit into it; more --minutes, "
                "in the same folder too, allow more runs"
            )
        return lines


def run_config(
    space: Workspace, splits: DataSplits, candidate: AlgorithmCandidate, seed: int, budget: TimeBudget
) -> TrainConfig:
    """The configuration of one run of a pipeline."""
    config = space.config
    total = _longest(splits, candidate) if budget.updates is None else budget.updates
    before = space.out / "runs" / candidate.run_name(seed) / "config.yaml"
    is_short = budget.updates is None and budget.run_seconds < LONG_RUN
    if before.is_file():
        # A run that has begun keeps its options, whatever time it now has.
        is_short = read_mapping(before)["algo_kwargs"].get("compile") == "never"
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
        names = in_order_of_worth(candidates, config.seeds)
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

    stored, names = space.stage(PLAN, make), {each.name for each in fields(TimeBudget)}
    plain = {name: value for name, value in stored.items() if name in names}
    plain |= {name: tuple(plain[name]) for name in ("runs", "judged", "left_out")}
    return TimeBudget(**plain)


def _budget_by_time(
    config: PipelineConfig, splits: DataSplits, names: tuple[str, ...], workers: int, clock: Clock
) -> TimeBudget:
    """The budget with as many runs as can be judged in the time; the clone is trained in any case."""
    seconds, fixed, gamma = 60 * (config.time or 0.0), _fixed_fits(splits), splits.gamma
    shortest, left = fit_length(splits, config, gamma, LEAST_KAPPA + 0.1), (clock.left or 0.0) - LAST_SECONDS
    # With less time before, a part of the training was done already.
    trained = min(clock.seconds.get("training", 0.0), LEAST_TRAINING * seconds)
    for members in (MEMBERS, FEW_MEMBERS) if config.members is None else (config.members,):
        speed = fit_speed(splits.path("selection"), gamma, members) / MARGIN
        most = int((left + trained - TRAINING_SHARE * seconds) * speed / shortest) - fixed
        if most >= len(names):
            break
    room = (left + trained - LEAST_TRAINING * seconds) * speed / (1 + fixed)
    judged = names[: max(most, int(room >= shortest))]
    # The clone may have to be handed over.
    runs = tuple(dict.fromkeys([next(filter(is_clone, names)), *judged]))
    fits = len(judged) + fixed if judged else 0
    length = between(ESTIMATES_SHARE * seconds * speed / max(fits, 1), splits, config, gamma)
    training = max(left - fits * length / speed, LEAST_TRAINING * seconds - trained)
    needed = (seconds - left - trained + (1 + fixed) * shortest / speed) / (1 - TRAINING_SHARE)
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
        too_short=None if judged else _too_short(splits, config, gamma, needed, room),
    )


def _too_short(splits: DataSplits, config: PipelineConfig, gamma: float, needed: float, room: float) -> str:
    """The seconds that one judgement needs, and a discount for which as many updates as there is room for suffice."""
    why = f"about {duration_text(needed)} would be needed for values {horizon_text(gamma)}"
    shorter = [each for each in SHORTER if each < gamma and fit_length(splits, config, each, LEAST_KAPPA + 0.1) <= room]
    return f"{why}; --gamma {shorter[0]:g} asks a shorter question" if shorter else why


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
