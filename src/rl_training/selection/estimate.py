"""The value of policies from logged data alone, and what may be said of them: `estimate`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rl_training.compilation import can_compile
from rl_training.core.errors import ConfigError
from rl_training.core.files import write_text
from rl_training.core.machine import configure_machine
from rl_training.core.seeds import forked
from rl_training.ope import (
    CANNOT,
    EARNED_AFTER,
    NO_PROBABILITIES,
    Control,
    CrossFit,
    EvaluationLog,
    FitOptions,
    OutOfTimeError,
    Support,
    ValueFit,
    ValueFitter,
    Verdict,
    WeightedEstimate,
    as_inputs,
    compared,
    default_gamma,
    in_chunks,
    weigh_policies,
)
from rl_training.ope import verdicts as claims
from rl_training.policies import SavedPolicy
from rl_training.runtime import Split, TrainerState
from rl_training.selection.evaluation_data import EvaluationData, data_given, data_of_runs, named_policies
from rl_training.storage import is_run, run_of

FILE = "estimate.json"
"""Where a run keeps the estimates of its policies."""

FEWEST_MEMBERS = 2

Progress = Callable[[str, int, int], None]
"""Called with what is fitted, the updates done and those to do."""


@dataclass(frozen=True)
class Estimate:
    """What the log says about one policy. Values are discounted returns, in the units of logged rewards."""

    name: str
    verdict: Verdict
    reasons: tuple[str, ...]
    """Why it cannot be judged; empty if it can."""
    value: float | None
    """The logged mean plus the estimated difference from it; None if the policy cannot be judged."""
    interval: tuple[float, float] | None
    """95 % interval of the value. It covers chance in the log and `fit_error`."""
    difference: float | None
    """How much better than the data the policy is."""
    probability_better: float | None
    """The probability that it is better than the data."""
    raw_value: float
    """The estimate by itself, whatever the control says. It is no claim."""
    members: tuple[float, ...]
    """The estimates by members on resampled episodes."""
    fit_error: float
    """The error of the fit that is allowed for: the control's, and how far the estimate still moved at its end."""
    clipped_share: float
    novel_share: float
    """The share of its actions that the log does not back."""
    curve: tuple[tuple[float, float], ...] = ()
    """The estimate at growing kappa."""
    path: str | None = None
    """The checkpoint, if it comes from one."""


@dataclass(frozen=True)
class Estimates:
    """Several policies judged by the same logged episodes."""

    policies: tuple[Estimate, ...]
    best: tuple[str, ...]
    """The policy with the highest value among those that can be judged, and all not distinguishable from it."""
    source: str
    relation: str
    is_held_out: bool
    episodes: int
    rows: int
    logged_return: float
    """Mean return of the logged episodes, not discounted."""
    logged_value: float
    """Mean discounted return of the logged episodes; a cut episode goes on as the behaviour would."""
    logged_std: float
    behavior_value: float
    """What the estimator says of the logged behaviour: the control."""
    behavior_members: tuple[float, ...]
    control_passes: bool
    control_tolerance: float
    gamma: float
    kappa: float
    updates: int
    fit: dict[str, Any] = field(default_factory=dict)
    weighted: tuple[WeightedEstimate, ...] = ()
    """What weights say of each policy, beside the fit; empty where they were not asked for or the log has none."""
    not_weighted: str | None = None
    """Why no policy was weighted."""

    def __getitem__(self, name: str) -> Estimate:
        """The estimate of one policy."""
        found = {each.name: each for each in self.policies}
        if name not in found:
            raise KeyError(f"no policy is called {name!r}; there are {', '.join(found)}")
        return found[name]

    def by_weights(self, name: str) -> WeightedEstimate:
        """What weights say of one policy."""
        found = {each.name: each for each in self.weighted}
        if name not in found:
            others = f"there are {', '.join(found)}"
            raise KeyError(f"no policy {name!r} was weighted: {self.not_weighted or others}")
        return found[name]

    def to_plain(self) -> dict[str, Any]:
        """Plain values, as JSON has them."""
        return asdict(self)

    def save(self) -> list[Path]:
        """Write the estimates beside the runs that policies come from; the files, each named `estimate.json`."""
        by_run: dict[Path, list[Estimate]] = {}
        for each in self.policies:
            run = None if each.path is None else run_of(each.path)
            if run is not None and is_run(run):
                by_run.setdefault(run, []).append(each)
        for run, own in by_run.items():
            names = {each.name for each in own}
            weighted = tuple(each for each in self.weighted if each.name in names)
            text = json.dumps(replace(self, policies=tuple(own), weighted=weighted).to_plain(), indent=1)
            write_text(run / FILE, text + "\n")
        return [run / FILE for run in by_run]


def estimate(
    policies: Any,
    dataset: Any = None,
    *,
    gamma: float | None = None,
    members: int = 10,
    updates: int | None = None,
    kappa: float = 5.0,
    split: Split = "auto",
    checkpoint: str = "latest.pt",
    seed: int = 0,
    columns: Mapping[str, Any] | None = None,
    action_low: Sequence[float] | None = None,
    action_high: Sequence[float] | None = None,
    weights: bool = True,
    compiled: bool | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    **fit: Any,
) -> Estimates:
    """How good policies are, from logged data alone: FQE, tried first on the logged behaviour, whose value is known.

    `policies` are runs, checkpoints, folders or patterns, functions from observations to native actions (for choices,
    also to their probabilities), objects with `predict`, a list of these, or a mapping from names to these. They are
    judged on `dataset` (a path or an object), else on the data of their runs: on held-out episodes if there are at
    least ten, unless `split` says otherwise. Of a `dataset`, `held-out` says that no policy was trained on it. `gamma`
    is by default 1 - 1 / (median length of an episode), and at most 0.995. `columns` say what the columns of a table
    are, as `dataset_columns` does. `action_low` and `action_high` are the bounds of continuous actions in a `dataset`
    that functions are judged on; by default they follow from the logged actions, as in training. Where the log says
    how probable its actions were, policies are judged by `weights` too. `fit` are further options of the fit, such as
    `hidden_sizes`.
    """
    named = named_policies(policies, checkpoint)
    data = judged_data(named, dataset, split, columns, action_low=action_low, action_high=action_high)
    log = data.log
    if gamma is None:
        gamma = default_gamma(log.bounds)
    options = FitOptions(gamma=gamma, members=members, updates=updates, kappa=kappa, seed=seed, **fit)
    if members < FEWEST_MEMBERS:
        raise ConfigError(f"an interval needs at least {FEWEST_MEMBERS} members, got {members}")
    configure_machine(threads)
    fitter = _fitter(named, log, options, compiled=compiled)
    fits = _Fits.of(fitter, named, progress)
    found = _judge(fits, data, options, {name: path for name, (_, path) in named.items()})
    if not weights:
        return replace(found, not_weighted="it was not asked for")
    return _with_weights(found, {name: policy for name, (policy, _) in named.items()}, fits, fitter, progress)


def judged_data(
    named: Mapping[str, tuple[Any, str | None]],
    dataset: Any,
    split: Split,
    columns: Mapping[str, Any] | None,
    **bounds: Sequence[float] | None,
) -> EvaluationData:
    """The episodes to judge policies by: those of a dataset that is given, else those of their runs."""
    saved = [each for each, _ in named.values() if isinstance(each, SavedPolicy)]
    if saved and any(bound is not None for bound in bounds.values()):
        raise ConfigError("action_low and action_high come from the runs: leave them out")
    if dataset is not None:
        return data_given(dataset, saved, columns, is_held_out=split == "held-out", **bounds)
    if len(saved) < len(named):
        raise ConfigError("a function does not say which data it is to be judged on: pass dataset=")
    return data_of_runs(saved, split)


def _with_weights(
    found: Estimates, policies: Mapping[str, Any], fits: _Fits, fitter: ValueFitter, progress: Progress | None
) -> Estimates:
    """The estimates with those by weights beside them, where the log allows it."""
    log, options = fitter.log, fitter.options
    if "behavior_log_probs" not in log.dataset.fields:
        return replace(found, not_weighted=NO_PROBABILITIES)
    weighted = weigh_policies(
        policies,
        log,
        options.gamma,
        lambda: CrossFit(log, options),
        states_repeat=fits.missing is not None,
        progress=lambda name: part_of(progress, f"{name}, folds of episodes"),
    )
    return replace(found, weighted=tuple(compared(each, found[each.name].interval) for each in weighted))


@dataclass(frozen=True, eq=False)
class _Fits:
    """All fits, and what is needed to judge them."""

    control: Control
    behavior: ValueFit
    policies: dict[str, ValueFit]
    novel_shares: dict[str, float]
    missing: float | None
    """The share of the behaviour's own actions that the log lacks, where states repeat."""

    @classmethod
    def of(cls, fitter: ValueFitter, named: Mapping[str, tuple[Any, str | None]], progress: Progress | None) -> _Fits:
        """Fit the behaviour, then every policy."""
        log = fitter.log
        acting = {name: as_inputs(policy, log, name) for name, (policy, _) in named.items()}
        support = Support(log, seed=fitter.options.seed)
        # Before anything is fitted, so that a policy that does not fit the data is refused at once.
        shares = {name: support.novel_share(in_chunks(act, log.dataset.obs)) for name, act in acting.items()}
        behavior = fitter.fit_behavior(progress=part_of(progress, "the logged behaviour"))
        control = _control(fitter, behavior)
        fits: dict[str, ValueFit] = {}
        with suppress(OutOfTimeError):
            for name, act in acting.items():
                fits[name] = fitter.fit_policy(act, progress=part_of(progress, name))
        return cls(control, behavior, fits, shares, support.missing)

    def error(self, name: str) -> float:
        """What is known of the error of one policy's fit."""
        moved = claims.movement(self.policies[name].course - self.behavior.course)
        return math.hypot(self.control.error, moved)


def _fitter(named: Mapping[str, Any], log: EvaluationLog, options: FitOptions, *, compiled: bool | None) -> ValueFitter:
    """What fits the values of these policies and of the behaviour, compiled if that pays."""
    if compiled is None:
        compiled = options.num_updates * (len(named) + 1) >= EARNED_AFTER
    return ValueFitter(log, options, compiled=can_compile(compiled))


def judge_policies(
    named: Mapping[str, tuple[Any, str | None]],
    data: EvaluationData,
    options: FitOptions,
    *,
    compiled: bool | None = None,
    progress: Progress | None = None,
) -> Estimates:
    """What these episodes say about policies that are named already, by the fit alone.

    If `progress` raises `OutOfTimeError`, that policy and those after it are left out.
    """
    fitter = _fitter(named, data.log, options, compiled=compiled)
    return _judge(_Fits.of(fitter, named, progress), data, options, {name: path for name, (_, path) in named.items()})


def part_of(progress: Progress | None, name: str) -> Callable[[int, int], None] | None:
    """What one fit calls with its updates, so that `progress` is told its name too."""
    return None if progress is None else lambda done, total: progress(name, done, total)


def _control(fitter: ValueFitter, behavior: ValueFit) -> Control:
    """The behaviour's estimate beside its logged returns."""
    returns = fitter.logged_returns()
    return Control(fitter.mean_values(returns), behavior.values, returns[0])


def _judge(fits: _Fits, data: EvaluationData, options: FitOptions, paths: Mapping[str, str | None]) -> Estimates:
    """Words and numbers for all policies."""
    control, log, kappa = fits.control, data.log, options.reached_kappa
    low, high = (end / (1 - options.gamma) for end in log.reward_range)
    for_all = claims.refuse_all(control, kappa=kappa, episodes=len(log.bounds), is_held_out=data.is_held_out)
    reasons = {
        name: for_all
        + claims.refuse_one(
            control,
            found.values,
            clipped=found.clipped_share,
            bounds=(low, high),
            novel=fits.novel_shares[name],
            missing=fits.missing,
        )
        for name, found in fits.policies.items()
    }
    judged = {name: found.values for name, found in fits.policies.items() if not reasons[name]}
    errors = {name: fits.error(name) for name in judged}
    verdicts = claims.judge({name: each - control.estimated for name, each in judged.items()}, errors)
    values = {name: claims.anchored(control, each) for name, each in judged.items()}
    return Estimates(
        policies=tuple(
            replace(_estimate(name, fits, reasons[name], verdicts.get(name, CANNOT)), path=paths[name])
            for name in fits.policies
        ),
        best=tuple(claims.among_the_best(values, errors)),
        source=data.source,
        relation=data.relation,
        is_held_out=data.is_held_out,
        episodes=len(log.bounds),
        rows=len(log.dataset),
        logged_return=float(log.dataset.episode_returns().mean()),
        logged_value=float(control.logged[0]),
        logged_std=control.std,
        behavior_value=float(control.estimated[0]),
        behavior_members=tuple(control.estimated[1:].tolist()),
        control_passes=control.passes,
        control_tolerance=control.tolerance,
        gamma=options.gamma,
        kappa=kappa,
        updates=options.num_updates,
        fit=asdict(options),
    )


def _estimate(name: str, fits: _Fits, reasons: list[str], verdict: Verdict) -> Estimate:
    """One policy; it has no value where there are reasons against one."""
    found = fits.policies[name]
    values, difference = claims.anchored(fits.control, found.values), found.values - fits.control.estimated
    error = fits.error(name)
    return Estimate(
        name=name,
        verdict=verdict,
        reasons=tuple(reasons),
        value=None if reasons else float(values[0]),
        interval=None if reasons else claims.student_interval(values, error=error),
        difference=None if reasons else float(difference[0]),
        probability_better=None if reasons else claims.probability_above(difference, error=error),
        raw_value=float(found.values[0]),
        members=tuple(found.values[1:].tolist()),
        fit_error=error,
        clipped_share=found.clipped_share,
        novel_share=fits.novel_shares[name],
        curve=tuple((kappa, each[0]) for kappa, each in found.curve),
    )


LOWER_BOUND = "fqe_lower"
"""The metric: a discounted return in the units of logged rewards, which the policy has at least, at 97.5 %."""

MEMBERS = 5
"""Fits to resampled episodes, as many as an interval needs."""


def lower_bound(state: TrainerState, *, threads: int | None = None) -> dict[str, float]:
    """The bound for the policy as it is, from held-out episodes; nothing where the data cannot judge it.

    It takes seconds to minutes. No random numbers are drawn from the run's generators.
    """

    with TemporaryDirectory() as folder, forked(0, state.policy.obs_mean.device):
        path = Path(folder, "policy.pt")
        state.save(path)
        found = estimate(str(path), members=MEMBERS, weights=False, threads=threads)
    interval = next(iter(found.policies)).interval
    return {} if interval is None else {LOWER_BOUND: float(interval[0])}
