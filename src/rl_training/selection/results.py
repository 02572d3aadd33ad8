"""Results of `estimate` and `select`: records, and their files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter, ValidationError

from rl_training.core.errors import ConfigError
from rl_training.core.files import write_json
from rl_training.ope import FitOptions, Verdict, WeightedEstimate
from rl_training.selection.ranking import ShuffleControl
from rl_training.selection.real_episodes import Pull
from rl_training.storage import first_mistake, is_run, run_of

ESTIMATES_FILE = "estimate.json"
"""The estimates of a run's policies, in its directory."""
SELECTION_FILE = "selection.json"
"""A selection, in the folder of the runs."""

Basis = Literal["held-out episodes", "selection episodes"]
Plain = dict[str, Any]


Record = TypeVar("Record", "Estimate", "PolicyCandidate", WeightedEstimate)


def _of_policy(name: str, records: Iterable[Record]) -> Record:
    found = {each.name: each for each in records}
    if name not in found:
        raise KeyError(f"no policy is called {name!r}; there are {', '.join(found)}")
    return found[name]


@dataclass(frozen=True)
class Estimate:
    """The estimate of one policy from a log. Values are discounted returns, in the units of logged rewards."""

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
    """The FQE estimate by itself, also if the policy cannot be judged. It is no claim."""
    members: tuple[float, ...]
    """The estimates of the ensemble members on resampled episodes."""
    fit_error: float
    """The accepted error of FQE: that of the control, and how far the estimate still moved at its end."""
    clipped_share: float
    novel_share: float
    """The share of its actions that the log does not back."""
    curve: tuple[tuple[float, float], ...] = ()
    """The estimate at growing kappa."""
    path: str | None = None
    """The checkpoint, if it comes from one."""


@dataclass(frozen=True)
class Estimates:
    """Estimates of several policies from the same logged episodes."""

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
    """Mean discounted return of the logged episodes; a truncated episode continues as the behaviour policy would."""
    logged_std: float
    behavior_value: float
    """The estimate of the logged behaviour: the control."""
    behavior_members: tuple[float, ...]
    control_passes: bool
    control_tolerance: float
    gamma: float
    kappa: float
    updates: int
    fit: dict[str, Any] = field(default_factory=dict)
    weighted: tuple[WeightedEstimate, ...] = ()
    """Estimates by importance sampling; empty if they were not asked for or the log has no action probabilities."""
    not_weighted: str | None = None
    """Why there are no estimates by importance sampling."""

    def __getitem__(self, name: str) -> Estimate:
        """The estimate of one policy."""
        return _of_policy(name, self.policies)

    def by_weights(self, name: str) -> WeightedEstimate:
        """The estimate of one policy by importance sampling."""
        if self.not_weighted is not None:
            raise KeyError(f"no policy has an importance sampling estimate: {self.not_weighted}")
        return _of_policy(name, self.weighted)

    def to_plain(self) -> dict[str, Any]:
        """Plain values, as JSON has them."""
        return asdict(self)

    def save(self) -> list[Path]:
        """Write the estimates into the runs that policies come from; the files, each named `estimate.json`."""
        by_run: dict[Path, list[Estimate]] = {}
        for each in self.policies:
            run = None if each.path is None else run_of(each.path)
            if run is not None and is_run(run):
                by_run.setdefault(run, []).append(each)
        for run, own in by_run.items():
            names = {each.name for each in own}
            weighted = tuple(each for each in self.weighted if each.name in names)
            write_json(run / ESTIMATES_FILE, replace(self, policies=tuple(own), weighted=weighted).to_plain())
        return [run / ESTIMATES_FILE for run in by_run]


@dataclass(frozen=True)
class PolicyCandidate:
    """One policy in the ranking. Values are discounted returns, in the units of logged rewards."""

    name: str
    rank: int | None
    """From 1 on; None for a policy that cannot be judged."""
    value: float | None
    interval: tuple[float, float] | None
    """None for policies outside the shortlist."""
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
    """Its expected return after the real episodes, not discounted."""
    believed_std: float | None = None


@dataclass(frozen=True)
class Claim:
    """The claim about the selected policy."""

    name: str
    basis: Basis
    """Whether the numbers come from episodes that had no part in the choice; others allow no verdict."""
    episodes: int
    verdict: Verdict
    reasons: tuple[str, ...]
    value: float | None
    interval: tuple[float, float] | None
    difference: float | None
    """How much better than the data it is."""
    probability_better: float | None
    weighted: WeightedEstimate | None = None
    """The estimate by importance sampling on the same episodes; None if the log has no action probabilities."""


@dataclass(frozen=True)
class Selection:
    """Policies ranked by a log, the selected one, and the claim about it."""

    candidates: tuple[PolicyCandidate, ...]
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
    """The estimates of the policies on the shortlist."""
    shuffled: ShuffleControl | None = None
    """The shuffle control of the ranking; None if it was not asked for, or policies are few."""

    def __getitem__(self, name: str) -> PolicyCandidate:
        """One of the policies."""
        return _of_policy(name, self.candidates)

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
        place = Path(path) if path is not None else None if folder is None else folder / SELECTION_FILE
        if place is not None:
            write_json(place, self.to_plain())
        return place


@cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def check_estimates(values: Mapping[str, Any], source: str) -> Plain:
    """Plain values, if `estimate` may have written them."""
    found = _checked(values, Estimates, "estimate", source)
    return {**found, "fit": _checked(found["fit"], FitOptions, "estimate", f"{source}, fit")}


def check_selection(values: Mapping[str, Any], source: str) -> Plain:
    """Plain values, if `select` may have written them."""
    found = _checked(values, Selection, "select", source)
    return {**found, "estimates": check_estimates(found["estimates"], f"{source}, estimates")}


def _checked(values: Mapping[str, Any], kind: type, command: str, source: str) -> Plain:
    try:
        found = _adapter(kind).validate_python(dict(values))
    except ValidationError as error:
        expected = f"expected what this version of rl-training {command} writes"
        raise ConfigError(f"{source}: {first_mistake(error)}; {expected}") from None
    plain: Plain = json.loads(json.dumps(asdict(found)))
    return plain
