"""Estimates of policies from logged data alone, with verdicts: `estimate`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

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
from rl_training.selection.evaluation_data import EvaluationData, NamedPolicies, find_evaluation_data, named_policies
from rl_training.selection.results import Estimate, Estimates

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
    progress: Progress | None = None,
    **fit: Any,
) -> Estimates:
    """Estimate policies from logged data alone: FQE, checked on the logged behaviour, whose value is known.

    `policies` are runs, checkpoints, folders or patterns, functions from observations to native actions (or to
    probabilities of discrete actions), objects with `predict`, a list of these, or a mapping from names to these. They
    are evaluated on `dataset` (a path or an object), else on the data of their runs: on held-out episodes if there are
    at least ten, unless `split` says otherwise. For a `dataset`, `held-out` says that no policy was trained on it.
    `gamma` is by default 1, no discount, if nearly all episodes terminate; else 1 - 1 / (median length of an episode),
    and at most 0.995. `columns` say what the columns of a
    table are, as `dataset_columns` does. `action_low` and `action_high` are the bounds of continuous actions in a
    `dataset` on which functions are evaluated; by default they follow from the logged actions, as in training. If the
    log has action probabilities, `weights` adds estimates by importance sampling. `fit` are further options of FQE,
    such as `hidden_sizes`.
    """
    named = named_policies(policies, checkpoint)
    data = find_evaluation_data(named, dataset, split, columns, action_low=action_low, action_high=action_high)
    options = fit_options(data, gamma, members=members, updates=updates, kappa=kappa, seed=seed, **fit)
    configure_machine(threads)
    settings = FitSettings(options, compiled, progress)
    found = judge_policies(named, data, settings)
    if not weights:
        return replace(found, not_weighted="it was not asked for")
    if not data.has_probabilities:
        return replace(found, not_weighted=NO_PROBABILITIES)
    intervals = {each.name: each.interval for each in found.policies}
    acting = {name: named[name].policy for name in intervals}
    return replace(found, weighted=weigh_policies(acting, data.log, settings, intervals))


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
    for_all = refuse_all(control, kappa=kappa, episodes=len(log.bounds), is_held_out=data.is_held_out)
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

    It takes seconds to minutes. The random generators of the run are not used.
    """

    with TemporaryDirectory() as folder, forked(0, state.policy.obs_mean.device):
        path = Path(folder, "policy.pt")
        state.save(path)
        found = estimate(str(path), members=MEMBERS, weights=False, threads=threads)
    interval = next(iter(found.policies)).interval
    return {} if interval is None else {LOWER_BOUND: float(interval[0])}
