"""Choosing among policies by logged data, and by a few real episodes if there are some: `select`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rl_training.compilation import can_compile
from rl_training.core.errors import ConfigError
from rl_training.core.files import write_text
from rl_training.core.machine import configure_machine
from rl_training.ope import (
    BETTER,
    CANNOT,
    EARNED_AFTER,
    LEAST_KAPPA,
    EvaluationLog,
    FitOptions,
    Support,
    ValueFitter,
    Verdict,
    as_inputs,
    default_gamma,
    in_chunks,
    refuse_unsupported,
)
from rl_training.policies import SavedPolicy
from rl_training.runtime import Split
from rl_training.selection.claim import Claim, corrected_claim, held_out_claim
from rl_training.selection.estimate import (
    FEWEST_MEMBERS,
    Estimate,
    Estimates,
    Progress,
    judge_policies,
    judged_data,
    part_of,
)
from rl_training.selection.evaluation_data import EvaluationData, named_policies
from rl_training.selection.ranking import ShuffleControl, shuffle_control
from rl_training.selection.real_episodes import (
    Prior,
    Pull,
    check_can_run,
    logged_returns,
    prior_from_values,
    spend_episodes,
)
from rl_training.storage import find_checkpoints, find_runs, is_run, policy_files, policy_step, run_of

FILE = "selection.json"
"""Where a selection is kept, in the folder of the runs."""
ENOUGH_TO_SPLIT = 100
"""Episodes from which on the value of the choice comes from episodes that did not choose it."""
NO_TIME = "there was no time left to fit its value"
MANY = 8
"""Policies above which not all of them get a good fit."""
FEWEST = 5
SHARE = 0.25
"""The best of so many, and at least the fewest, are on the shortlist."""

Checkpoints = Literal["latest", "all"]
Named = dict[str, tuple[Any, str | None]]


@dataclass(frozen=True)
class Candidate:
    """One policy in the ranking. Values are discounted returns, in the units of logged rewards."""

    name: str
    rank: int | None
    """From 1 on; None for a policy that cannot be judged."""
    value: float | None
    interval: tuple[float, float] | None
    """None for policies that a first, rough fit left out of the shortlist."""
    probability_better: float | None
    verdict: Verdict | None
    """None for policies outside the shortlist."""
    is_among_the_best: bool
    """Whether it is the best by the log, or not distinguishable from it."""
    reasons: tuple[str, ...] = ()
    """Why it cannot be judged."""
    path: str | None = None
    episodes: int = 0
    """Real episodes that were spent on it."""
    believed: float | None = None
    """What its mean return is taken to be after the real episodes, not discounted."""
    believed_std: float | None = None


@dataclass(frozen=True)
class Shortlist:
    """Policies that are worth a good fit, and what is known about the others."""

    named: dict[str, tuple[Any, str | None]]
    differences: dict[str, float] = field(default_factory=dict)
    """Of policies outside the shortlist: the rough difference of their values from the behaviour's."""
    refused: dict[str, list[str]] = field(default_factory=dict)
    """Policies whose actions the log does not back, with the reasons."""


@dataclass(frozen=True)
class Selection:
    """Policies ranked by a log, the choice among them, and what may be said about it."""

    candidates: tuple[Candidate, ...]
    """In the order of their ranks; those that cannot be judged come last."""
    best: tuple[str, ...]
    """The best by the log, and all that are not distinguishable from it."""
    chosen: str | None
    """By the log, or by the real episodes if there were some; None if nothing can be judged."""
    claim: Claim | None
    pulls: tuple[Pull, ...]
    """The real episodes, in their order."""
    budget: int
    """Real episodes that might have been spent."""
    estimates: Estimates
    """What the log says about the policies on the shortlist."""
    shuffled: ShuffleControl | None = None
    """How much of the ranking is left with shuffled rewards; None if that was not asked for, or policies are few."""

    def __getitem__(self, name: str) -> Candidate:
        """One of the policies."""
        found = {each.name: each for each in self.candidates}
        if name not in found:
            raise KeyError(f"no policy is called {name!r}; there are {', '.join(found)}")
        return found[name]

    def to_plain(self) -> dict[str, Any]:
        """Plain values, as JSON has them."""
        return asdict(self)

    def folder(self) -> Path | None:
        """The folder of the runs, the run itself if there is only one, or None if they share none."""
        runs = {None if each.path is None else run_of(each.path) for each in self.candidates}
        if any(run is None or not is_run(run) for run in runs):
            return None
        folders = {run.parent for run in runs if run is not None}
        return runs.pop() if len(runs) == 1 else folders.pop() if len(folders) == 1 else None

    def save(self, path: str | Path | None = None) -> Path | None:
        """Write everything to a file, by default `selection.json` in the folder of the runs, if they share one."""
        folder = self.folder()
        place = Path(path) if path is not None else None if folder is None else folder / FILE
        if place is not None:
            write_text(place, json.dumps(self.to_plain(), indent=1) + "\n")
        return place


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
    shuffle: bool = False,
    progress: Progress | None = None,
    tell: Callable[[Pull], None] = lambda pull: None,
    **fit: Any,
) -> Selection:
    """Rank policies by logged data, choose one, and say what may be said about the choice.

    `runs`, `dataset`, `gamma`, `members`, `split`, `columns`, bounds and `fit` are as in `estimate`. Of each run, the
    latest checkpoint is a candidate, or with `checkpoints="all"` every policy file but that of timestep 0. Up to
    `episodes` real episodes are spent in the environment of the runs, or in `env`; `tell` is called after each. With
    `shuffle`, the policies are ranked by shuffled rewards too, as a control of the ranking.
    """
    if episodes < 0:
        raise ConfigError(f"episodes must be at least 0, got {episodes}")
    named = candidates_in(runs, checkpoints)
    # Before anything is fitted, so that a mistake costs no time.
    runnable = check_can_run({name: policy for name, (policy, _) in named.items()}, env) if episodes else {}
    data = judged_data(named, dataset, split, columns, action_low=action_low, action_high=action_high)
    if gamma is None:
        gamma = default_gamma(data.log.bounds)
    options = FitOptions(gamma=gamma, members=members, seed=seed, **fit)
    if members < FEWEST_MEMBERS:
        raise ConfigError(f"an interval needs at least {FEWEST_MEMBERS} members, got {members}")
    configure_machine(threads)
    choosing, claiming = _halves(data, seed)
    spent: dict[str, Any] = {"episodes": episodes, "runnable": runnable, "env": env, "tell": tell}
    found = choose(named, choosing, options, compiled=compiled, progress=progress, **spent)
    if shuffle:
        found = replace(found, shuffled=_shuffle(named, found.estimates, choosing.log, options, progress))
    if found.chosen is None:
        return found
    if claiming is not None:
        claim, _ = held_out_claim(found.chosen, named, claiming, options, progress=progress)
    else:
        among = sum(each.rank is not None for each in found.candidates)
        claim = corrected_claim(
            found.chosen, named, choosing, options, found=found.estimates, among=among, progress=progress
        )
    return replace(found, claim=claim)


def _shuffle(
    named: Named, found: Estimates, log: EvaluationLog, options: FitOptions, progress: Progress | None
) -> ShuffleControl | None:
    values = {each.name: each.value for each in found.policies if each.value is not None}
    return shuffle_control({name: policy for name, (policy, _) in named.items()}, values, log, options, progress)


def choose(
    named: Named,
    choosing: EvaluationData,
    options: FitOptions,
    *,
    episodes: int = 0,
    runnable: Mapping[str, SavedPolicy] | None = None,
    env: Any = None,
    compiled: bool | None = None,
    progress: Progress | None = None,
    tell: Callable[[Pull], None] = lambda pull: None,
) -> Selection:
    """Rank policies by these episodes and choose one, about which nothing is claimed yet.

    Up to `episodes` real episodes of the `runnable` policies are spent on the choice.
    """
    short = make_shortlist(named, choosing, options, compiled=compiled, progress=progress)
    found = judge_policies(short.named, choosing, options, compiled=compiled, progress=progress)
    ranked = _ranked(named, found, short)
    pulls: list[Pull] = []
    if episodes:
        prior = _prior(ranked, choosing.log, found)
        rule, pulls = spend_episodes(runnable or {}, prior, episodes, env=env, seed=options.seed, tell=tell)
        ranked = _with_episodes(ranked, prior, rule.counts, rule.means, rule.deviations)
    chosen = pulls[-1].best if pulls else preferred(found)
    return Selection(ranked, found.best, chosen, None, tuple(pulls), episodes, found)


def make_shortlist(
    named: Named,
    data: EvaluationData,
    options: FitOptions,
    *,
    compiled: bool | None = None,
    progress: Progress | None = None,
) -> Shortlist:
    """All policies, if they are few; else the best quarter, and at least five, by a fit with one member."""
    if len(named) <= MANY:
        return Shortlist(dict(named))
    log = data.log
    acting = {name: as_inputs(policy, log, name) for name, (policy, _) in named.items()}
    support = Support(log, seed=options.seed)
    shares = {name: support.novel_share(in_chunks(act, log.dataset.obs)) for name, act in acting.items()}
    reasons = {name: refuse_unsupported(share, support.missing) for name, share in shares.items()}
    backed = [name for name, why in reasons.items() if not why]
    rough = replace(options, members=0, kappa=LEAST_KAPPA)
    if compiled is None:
        compiled = rough.num_updates * (len(backed) + 1) >= EARNED_AFTER
    fitter = ValueFitter(log, rough, compiled=can_compile(compiled))
    behavior = float(fitter.fit_behavior(progress=part_of(progress, "first look at the logged behaviour")).values[0])
    differences = {
        name: float(fitter.fit_policy(acting[name], progress=part_of(progress, f"first look at {name}")).values[0])
        - behavior
        for name in backed
    }
    ordered = sorted(backed, key=lambda name: -differences[name])
    kept = ordered[: max(FEWEST, math.ceil(SHARE * len(named)))]
    # With nothing to keep, the good fit says for itself why nothing can be judged.
    names = kept or list(named)[:1]
    return Shortlist(
        {name: named[name] for name in names},
        {name: differences[name] for name in ordered if name not in names},
        {name: why for name, why in reasons.items() if why and name not in names},
    )


def preferred(found: Estimates) -> str | None:
    """The choice by the log: of the policies that are not distinguishable from the best, the one with the highest value
    among those that are better than the data; if none is, the one with the highest value.
    """
    better = [name for name in found.best if found[name].verdict == BETTER]
    return next(iter([*better, *found.best]), None)


def candidates_in(runs: Any, checkpoints: Checkpoints) -> Named:
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
        # A run that was made before there were policy files, or that has not come to its first checkpoint.
        files += own or find_checkpoints([run])
    return files


def _halves(data: EvaluationData, seed: int) -> tuple[EvaluationData, EvaluationData | None]:
    """Episodes that choose, and others for what is said about the choice; all and none where there are few."""
    count = len(data.log.bounds)
    if count < ENOUGH_TO_SPLIT:
        return data, None
    order = np.random.default_rng([seed, count]).permutation(count)
    first, second = (np.sort(part).tolist() for part in np.array_split(order, 2))
    return _part(data, first), _part(data, second)


def _part(data: EvaluationData, episodes: Sequence[int]) -> EvaluationData:
    log = data.log
    return replace(data, log=EvaluationLog(log.dataset.take_episodes(episodes), log.spaces))


def _ranked(named: Named, found: Estimates, short: Shortlist) -> tuple[Candidate, ...]:
    """All candidates: those on the shortlist, then those with a rough value only, then those that were refused."""
    judged = sorted((each for each in found.policies if each.value is not None), key=lambda each: -(each.value or 0.0))
    rough = sorted(short.differences, key=lambda name: -short.differences[name])
    candidates = [_on_shortlist(each, rank, found) for rank, each in enumerate(judged, start=1)]
    reasons = {each.name: each.reasons for each in found.policies if each.value is None}
    if judged:
        values = {name: found.logged_value + short.differences[name] for name in rough}
        for rank, name in enumerate(rough, start=1 + len(judged)):
            candidates.append(Candidate(name, rank, values[name], None, None, None, is_among_the_best=False))
    else:
        reasons |= dict.fromkeys(rough, ("no policy with a higher rough value can be judged",))
    reasons |= {name: tuple(why) for name, why in short.refused.items()}
    fitted = {each.name for each in found.policies}
    reasons |= {name: (NO_TIME,) for name in short.named if name not in fitted}
    for name, why in reasons.items():
        candidates.append(Candidate(name, None, None, None, None, CANNOT, is_among_the_best=False, reasons=why))
    return tuple(replace(each, path=named[each.name][1]) for each in candidates)


def _on_shortlist(each: Estimate, rank: int, found: Estimates) -> Candidate:
    numbers = each.value, each.interval, each.probability_better
    return Candidate(each.name, rank, *numbers, each.verdict, is_among_the_best=each.name in found.best)


def _prior(ranked: Sequence[Candidate], log: EvaluationLog, found: Estimates) -> Prior:
    """What is expected of the candidates' returns; of all alike, where the log can judge none of them."""
    values = {each.name: each.value for each in ranked if each.value is not None}
    if values:
        return prior_from_values(values, log, gamma=found.gamma, logged_value=found.logged_value)
    mean, spread = logged_returns(log)
    return Prior({each.name: mean for each in ranked}, spread, is_flat=True)


def _with_episodes(
    ranked: Sequence[Candidate], prior: Prior, counts: Any, means: Any, deviations: Any
) -> tuple[Candidate, ...]:
    known = {name: k for k, name in enumerate(prior.means)}
    return tuple(
        each
        if (k := known.get(each.name)) is None
        else replace(each, episodes=int(counts[k]), believed=float(means[k]), believed_std=float(deviations[k]))
        for each in ranked
    )
