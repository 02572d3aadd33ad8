"""Select a policy by logged data, and by a few real episodes if there are some: `select`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rl_training.core.errors import ConfigError
from rl_training.core.machine import configure_machine
from rl_training.ope import (
    BETTER,
    CANNOT,
    LEAST_KAPPA,
    FitSettings,
    Progress,
    Support,
    policy_inputs,
    refuse_unsupported,
)
from rl_training.runtime import Split
from rl_training.selection.claim import claim_without_choice, held_out_claim
from rl_training.selection.estimate import fit_options, judge_policies
from rl_training.selection.evaluation_data import EvaluationData, NamedPolicies, find_evaluation_data, named_policies
from rl_training.selection.ranking import shuffle_control
from rl_training.selection.real_episodes import (
    NormalSelection,
    Prior,
    Pull,
    RealEpisodes,
    logged_returns,
    prior_from_values,
)
from rl_training.selection.results import Estimates, PolicyCandidate, Selection
from rl_training.storage import find_checkpoints, find_runs, policy_files, policy_step

NO_TIME = "there was no time left to fit its value"
"""Stored in selection.json, where the pipeline recognises it."""
MANY = 8
"""Policies above which only a shortlist gets a full estimate."""
FEWEST = 5
SHARE = 0.25
"""The share of policies on the shortlist, and the fewest."""

Checkpoints = Literal["latest", "all"]


@dataclass(frozen=True)
class Shortlist:
    """Policies that get a full estimate, and what is known about the others."""

    named: NamedPolicies
    differences: dict[str, float] = field(default_factory=dict)
    """Of policies outside the shortlist: the rough difference of their values from the behaviour's."""
    refused: dict[str, list[str]] = field(default_factory=dict)
    """Policies whose actions the log does not back, with the reasons."""


def select(
    runs: Any,
    dataset: Any = None,
    *,
    checkpoints: Checkpoints = "latest",
    episodes: int = 0,
    env: Any = None,
    gamma: float | None = None,
    members: int = 10,
    split: Split = "auto",
    seed: int = 0,
    columns: Mapping[str, Any] | None = None,
    action_low: Sequence[float] | None = None,
    action_high: Sequence[float] | None = None,
    compiled: bool | None = None,
    threads: int | None = None,
    accept_audit: bool = False,
    shuffle: bool = False,
    progress: Progress | None = None,
    tell: Callable[[Pull], None] = lambda pull: None,
    **fit: Any,
) -> Selection:
    """Rank policies by logged data, select one, and make a claim about it.

    `runs`, `dataset`, `gamma`, `members`, `split`, `columns`, bounds, `accept_audit` and `fit` are as in `estimate`. Of
    each run, the latest checkpoint is a candidate, or with `checkpoints="all"` every policy file but that of timestep
    0. Up to `episodes` real episodes are spent in the environment of the runs, or in `env`; `tell` is called after
    each. With `shuffle`, the policies are also ranked by shuffled rewards, as a control of the ranking.
    """
    named = candidates_in(runs, checkpoints)
    policies = {name: each.policy for name, each in named.items()}
    # Before anything is fitted, so that a mistake costs no time.
    real = RealEpisodes.up_to(episodes, policies, env, tell)
    bounds = {"action_low": action_low, "action_high": action_high}
    data = find_evaluation_data(named, dataset, split, columns, accept_audit=accept_audit, **bounds)
    settings = FitSettings(fit_options(data, gamma, members=members, seed=seed, **fit), compiled, progress)
    configure_machine(threads)
    first, second = data.halves(seed) if len(named) > 1 else (data, None)
    found = choose(named, first, settings, real)
    if shuffle:
        values = {each.name: each.value for each in found.estimates.policies if each.value is not None}
        found = replace(found, shuffled=shuffle_control(policies, values, first.log, settings))
    if found.chosen is None:
        return found
    if second is not None:
        return replace(found, claim=held_out_claim(found.chosen, named, second, settings)[0])
    return replace(found, claim=claim_without_choice(found, named, first, settings))


def choose(
    named: NamedPolicies, data: EvaluationData, settings: FitSettings, real: RealEpisodes | None = None
) -> Selection:
    """Rank policies by these episodes and select one, by real episodes if there are some; without a claim."""
    short, real = make_shortlist(named, data, settings), real or RealEpisodes()
    found = judge_policies(short.named, data, settings)
    ranked = _ranked(named, found, short)
    pulls: list[Pull] = []
    if real.budget:
        prior = _prior(ranked, data, found)
        rule, pulls = real.spend(prior, settings.options.seed)
        ranked = _with_episodes(ranked, prior, rule)
    chosen = pulls[-1].best if pulls else preferred(found)
    return Selection(ranked, found.best, chosen, None, tuple(pulls), real.budget, found)


def make_shortlist(named: NamedPolicies, data: EvaluationData, settings: FitSettings) -> Shortlist:
    """All policies, if they are few; else the best quarter, and at least five, by FQE with one network."""
    if len(named) <= MANY:
        return Shortlist(named)
    acting = {name: policy_inputs(each.policy, data.log, name) for name, each in named.items()}
    support = Support(data.log, seed=settings.options.seed)
    reasons = {name: refuse_unsupported(support.novel_share(act), support.missing) for name, act in acting.items()}
    backed = [name for name, why in reasons.items() if not why]
    rough = replace(settings, options=replace(settings.options, members=0, kappa=LEAST_KAPPA))
    fitter = rough.fitter(data.log, len(backed) + 1)
    progress = rough.progress_of("first look at the logged behaviour")
    behavior = float(fitter.fit_behavior(progress=progress).values[0])
    differences = {}
    for name in backed:
        found = fitter.fit_policy(acting[name], progress=rough.progress_of(f"first look at {name}"))
        differences[name] = float(found.values[0]) - behavior
    ordered = sorted(backed, key=lambda name: -differences[name])
    kept = ordered[: max(FEWEST, math.ceil(SHARE * len(named)))]
    # With nothing to keep, the full estimate gives the reasons why nothing can be judged.
    names = kept or list(named)[:1]
    return Shortlist(
        {name: named[name] for name in names},
        {name: differences[name] for name in ordered if name not in names},
        {name: why for name, why in reasons.items() if why and name not in names},
    )


def preferred(found: Estimates) -> str | None:
    """The policy to select by the log: among those not distinguishable from the best, the one with the highest value
    that is better than the data; if none is, the one with the highest value.
    """
    better = [name for name in found.best if found[name].verdict == BETTER]
    return next(iter([*better, *found.best]), None)


def candidates_in(runs: Any, checkpoints: Checkpoints) -> NamedPolicies:
    """Policies by name, with the files that they come from."""
    if checkpoints not in ("latest", "all"):
        raise ConfigError(f"checkpoints must be latest or all, got {checkpoints!r}")
    if checkpoints == "latest" or isinstance(runs, Mapping):
        return named_policies(runs)
    given = runs if isinstance(runs, Sequence) and not isinstance(runs, str) else [runs]
    return named_policies([path for each in given for path in _policies_at(each)])


def _policies_at(name: Any) -> list[Any]:
    """All policy files of the runs that a name stands for; anything else is a candidate itself."""
    if not isinstance(name, (str, Path)) or Path(name).is_file():
        return [name]
    files = []
    for run in find_runs([name]):
        own = [path for path in policy_files(run) if policy_step(path)]
        # Runs of older versions, and runs before their first checkpoint, have no policy files.
        files += own or find_checkpoints([run])
    return files


def _ranked(named: NamedPolicies, found: Estimates, short: Shortlist) -> tuple[PolicyCandidate, ...]:
    """All candidates: those on the shortlist, then those with a rough value only, then those that were refused."""
    judged = sorted((each for each in found.policies if each.value is not None), key=lambda each: -(each.value or 0.0))
    rough = sorted(short.differences, key=lambda name: -short.differences[name])
    reasons = {each.name: each.reasons for each in found.policies if each.value is None}
    candidates = []
    for rank, each in enumerate(judged, start=1):
        numbers = each.value, each.interval, each.probability_better, each.verdict
        candidates.append(PolicyCandidate(each.name, rank, *numbers, is_among_the_best=each.name in found.best))
    if judged:
        for rank, name in enumerate(rough, start=1 + len(judged)):
            value = found.logged_value + short.differences[name]
            candidates.append(PolicyCandidate(name, rank, value, None, None, None, is_among_the_best=False))
    else:
        reasons |= dict.fromkeys(rough, ("no policy with a higher rough value can be judged",))
    reasons |= {name: tuple(why) for name, why in short.refused.items()}
    fitted = {each.name for each in found.policies}
    reasons |= {name: (NO_TIME,) for name in short.named if name not in fitted}
    candidates += [not_judged(name, why) for name, why in reasons.items()]
    return tuple(replace(each, path=named[each.name].path) for each in candidates)


def not_judged(name: str, reasons: tuple[str, ...]) -> PolicyCandidate:
    """A candidate that cannot be judged."""
    return PolicyCandidate(name, None, None, None, None, CANNOT, is_among_the_best=False, reasons=reasons)


def _prior(ranked: Sequence[PolicyCandidate], data: EvaluationData, found: Estimates) -> Prior:
    """The expected returns of the candidates; the same for all if the log can judge none of them."""
    values = {each.name: each.value for each in ranked if each.value is not None}
    if values:
        return prior_from_values(values, data.log, gamma=found.gamma, logged_value=found.logged_value)
    mean, spread = logged_returns(data.log)
    return Prior({each.name: mean for each in ranked}, spread, is_flat=True)


def _with_episodes(
    ranked: Sequence[PolicyCandidate], prior: Prior, rule: NormalSelection
) -> tuple[PolicyCandidate, ...]:
    """The candidates with the beliefs after the real episodes."""
    columns = zip(prior.means, rule.counts.tolist(), rule.means.tolist(), rule.deviations.tolist(), strict=True)
    known = {name: {"episodes": count, "believed": mean, "believed_std": std} for name, count, mean, std in columns}
    return tuple(replace(each, **known.get(each.name, {})) for each in ranked)
