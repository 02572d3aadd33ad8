"""Estimates of policies from logged data alone, with verdicts: `estimate`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from rl_training.core.errors import ConfigError
from rl_training.core.machine import configure_machine
from rl_training.core.seeds import forked
from rl_training.ope import (
    CANNOT,
    NO_PROBABILITIES,
    Control,
    FitOptions,
    FitSettings,
    OutOfTimeError,
    Progress,
    Support,
    ValueFit,
    Verdict,
    among_the_best,
    anchored,
    discount_options,
    judge_differences,
    movement,
    policy_inputs,
    probability_above,
    refuse_all,
    refuse_one,
    student_interval,
    weigh_policies,
)
from rl_training.runtime import Split, TrainerState
from rl_training.selection.evaluation_data import (
    TUNED,
    EvaluationData,
    NamedPolicies,
    find_evaluation_data,
    named_policies,
)
from rl_training.selection.folds import find_folds, mean_of_folds
from rl_training.selection.results import Estimate, Estimates
from rl_training.storage import run_of

FEWEST_MEMBERS = 2


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
    accept_audit: bool = False,
    progress: Progress | None = None,
    **fit: Any,
) -> Estimates:
    """Estimate policies from logged data alone: FQE, checked on the logged behaviour, whose value is known.

    `policies` are runs, checkpoints, folders or patterns, functions from observations to native actions (or to
    probabilities of discrete actions), objects with `predict`, a list of these, or a mapping from names to these. They
    are evaluated on `dataset` (a path or an object), else on the data of their runs: on the episodes that trained none
    of them if there are at least ten, unless `split` says otherwise. Runs know the episodes that trained them. Of other
    policies, `held-out` says that the `dataset` did not train them; without it there are no verdicts on them. Runs that
    differ in `validation_fold` alone are judged together, each on the fold that it was not trained on.
    `gamma` is by default 1, no discount, if nearly all episodes terminate; else 1 - 1 / (median length of an episode),
    and at most 0.995. `columns` say what the columns of a table are, as `dataset_columns` does. `action_low` and
    `action_high` are the bounds of continuous actions in a `dataset` on which functions are evaluated; by default they
    follow from the logged actions, as in training. If the log has action probabilities, `weights` adds estimates by
    importance sampling. `accept_audit` allows verdicts although the audit warns of the timing of actions. `fit` are
    further options of FQE, such as `hidden_sizes`.
    """
    named = named_policies(policies, checkpoint)
    folds = find_folds(named) if dataset is None else None
    fit |= {"members": members, "updates": updates, "kappa": kappa}
    configure_machine(threads)
    if folds is not None:
        parts = [folds.data(fold) for fold in range(folds.count)]
        gamma = fit_options(parts[0], gamma, **fit).gamma
        # With one seed, the resampled episodes of all folds would have the same numbers.
        each = [fit_options(part, gamma, seed=seed + fold, **fit) for fold, part in enumerate(parts)]
        settings = [FitSettings(options, compiled, progress) for options in each]
        return mean_of_folds([judge_policies(folds.of(k), part, settings[k]) for k, part in enumerate(parts)])
    bounds = {"action_low": action_low, "action_high": action_high}
    data = find_evaluation_data(named, dataset, split, columns, accept_audit=accept_audit, **bounds)
    own = FitSettings(fit_options(data, gamma, seed=seed, **fit), compiled, progress)
    found = judge_policies(named, data, own)
    if not weights:
        return replace(found, not_weighted="it was not asked for")
    if not data.has_probabilities:
        return replace(found, not_weighted=NO_PROBABILITIES)
    intervals = {each.name: each.interval for each in found.policies}
    acting = {name: named[name].policy for name in intervals}
    weighted = weigh_policies(acting, data.log, own, intervals)
    why = f"the policy may be overfitted to these episodes: {data.relation}"
    doubts = {each.name: (why,) * (each.level == "refuse" and not data.is_held_out) for each in weighted}
    return replace(found, weighted=tuple(replace(e, reasons=(*e.reasons, *doubts[e.name])) for e in weighted))


def fit_options(data: EvaluationData, gamma: float | None, **options: Any) -> FitOptions:
    """The options of FQE on this data, with enough ensemble members for an interval."""
    found = FitOptions(**discount_options(data.log.dataset, gamma), **options)
    if found.members < FEWEST_MEMBERS:
        raise ConfigError(f"an interval needs at least {FEWEST_MEMBERS} members, got {found.members}")
    return found


@dataclass(frozen=True, eq=False)
class _Fits:
    """All fits, and what is needed to judge them."""

    control: Control
    behavior: ValueFit
    policies: dict[str, ValueFit]
    novel_shares: dict[str, float]
    missing: float | None
    """The share of the behaviour policy's own actions that the log lacks, where states repeat."""

    @classmethod
    def of(cls, named: NamedPolicies, data: EvaluationData, settings: FitSettings) -> _Fits:
        """Fit the behaviour, then every policy."""
        log, fits = data.log, dict[str, ValueFit]()
        fitter = settings.fitter(log, len(named) + 1)
        acting = {name: policy_inputs(each.policy, log, name) for name, each in named.items()}
        support = Support(log, seed=settings.options.seed)
        # Before anything is fitted, so that a policy that does not fit the data is refused at once.
        shares = {name: support.novel_share(act) for name, act in acting.items()}
        behavior = fitter.fit_behavior(progress=settings.progress_of("the logged behaviour"))
        returns = fitter.logged_returns()
        control = Control(fitter.mean_values(returns), behavior.values, returns[0])
        with suppress(OutOfTimeError):
            for name, act in acting.items():
                fits[name] = fitter.fit_policy(act, progress=settings.progress_of(name))
        return cls(control, behavior, fits, shares, support.missing)

    def error(self, name: str) -> float:
        """The known error of one policy's estimate."""
        moved = movement(self.policies[name].course - self.behavior.course)
        return math.hypot(self.control.usual_error, moved)

    def estimate(self, name: str, path: str | None, reasons: list[str], verdict: Verdict) -> Estimate:
        """The estimate of one policy; it has no value if there are reasons against one."""
        found, error = self.policies[name], self.error(name)
        values, difference = anchored(self.control, found.values), found.values - self.control.estimated
        return Estimate(
            name=name,
            verdict=verdict,
            reasons=tuple(reasons),
            value=None if reasons else float(values[0]),
            interval=None if reasons else student_interval(values, error=error),
            difference=None if reasons else float(difference[0]),
            probability_better=None if reasons else probability_above(difference, error=error),
            raw_value=float(found.values[0]),
            members=tuple(found.values[1:].tolist()),
            fit_error=error,
            clipped_share=found.clipped_share,
            novel_share=self.novel_shares[name],
            curve=tuple((kappa, each[0]) for kappa, each in found.curve),
            path=path,
        )


def judge_policies(named: NamedPolicies, data: EvaluationData, settings: FitSettings) -> Estimates:
    """Estimates of policies from these episodes by FQE alone, with verdicts.

    If the progress function raises `OutOfTimeError`, that policy and those after it are left out.
    """
    fits, options, log = _Fits.of(named, data, settings), settings.options, data.log
    control, kappa = fits.control, options.reached_kappa
    for_all = refuse_all(control, kappa=kappa, episodes=len(log.bounds), untrusted=data.untrusted)
    reasons = {
        name: for_all
        + refuse_one(
            control,
            found.values,
            clipped=found.clipped_share,
            bounds=log.value_range(options.gamma),
            novel=fits.novel_shares[name],
            missing=fits.missing,
        )
        for name, found in fits.policies.items()
    }
    judged = {name: found.values for name, found in fits.policies.items() if not reasons[name]}
    errors = {name: fits.error(name) for name in judged}
    known = judge_differences({name: each - control.estimated for name, each in judged.items()}, errors)
    values = {name: anchored(control, each) for name, each in judged.items()}
    return Estimates(
        policies=tuple(
            fits.estimate(name, named[name].path, why, known.get(name, CANNOT)) for name, why in reasons.items()
        ),
        best=tuple(among_the_best(values, errors)),
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


LOWER_BOUND = "fqe_lower"
"""The metric: the lower end of the 95 % interval of the value, a discounted return in the units of logged rewards."""

MEMBERS = 5
"""Ensemble members for resampled episodes, enough for an interval."""


def lower_bound(state: TrainerState, *, threads: int | None = None) -> dict[str, float]:
    """The lower bound of the present policy from held-out episodes; empty if the data cannot judge it.

    These are half of the held-out episodes: the others judge what the bound has chosen. It takes seconds to minutes.
    The random generators of the run are not used.
    """

    with TemporaryDirectory() as folder, forked(0, state.policy.obs_mean.device):
        path = Path(folder, "policy.pt")
        state.save(path)
        interval = _judge_half(named_policies(str(path)), 0, threads).policies[0].interval
    return {} if interval is None else {LOWER_BOUND: float(interval[0])}


@dataclass(frozen=True)
class Comparison:
    """Two groups of policies, compared by a log."""

    p_value: float
    """Two-sided, of equal mean values; chance in the log is taken into account, that of training is not."""
    reasons: tuple[str, ...]
    """Why some of the policies cannot be judged."""


def compare_groups(first: Sequence[str], second: Sequence[str], *, threads: int | None = None) -> Comparison:
    """Compare the mean values of two groups of runs on the held-out episodes that `lower_bound` has not used."""
    found = _judge_half(named_policies([*first, *second]), 1, threads)
    reasons = tuple(f"{each.name}: {each.reasons[0]}" for each in found.policies if each.reasons)
    own = {str(run_of(str(each.path))): each for each in found.policies}
    groups = [[own[str(run_of(str(name)))] for name in names] for names in (first, second)]
    means = [np.mean([[each.raw_value, *each.members] for each in group], axis=0) for group in groups]
    above = probability_above(means[0] - means[1], error=max(each.fit_error for each in found.policies))
    return Comparison(2 * min(above, 1 - above), reasons)


def _judge_half(named: NamedPolicies, number: int, threads: int | None) -> Estimates:
    """Estimates on one half of the held-out episodes of runs; on all where there are too few for halves."""
    data = find_evaluation_data(named, None, "auto")
    configure_machine(threads)
    half = data.halves(0)[number] or replace(data, relation=TUNED)
    return judge_policies(named, half, FitSettings(fit_options(half, None, members=MEMBERS)))
