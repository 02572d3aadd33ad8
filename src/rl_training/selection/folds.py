"""Cross-fitting: one policy per fold of the episodes, each judged on the fold that had no part in its training."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rl_training.core.errors import ConfigError
from rl_training.ope import CANNOT, Floats, among_the_best, judge_differences, probability_above
from rl_training.policies import SavedPolicy
from rl_training.runtime import bind_options
from rl_training.selection.evaluation_data import EvaluationData, NamedPolicies, NamedPolicy, data_of_runs
from rl_training.selection.results import Estimate, Estimates


@dataclass(frozen=True)
class Folds:
    """Groups of policies that differ in the fold of episodes they were not trained on, by a name for each group."""

    groups: Mapping[str, Sequence[NamedPolicy]]
    count: int

    def of(self, fold: int) -> NamedPolicies:
        """The policy of each group that was not trained on this fold."""
        return {name: policies[fold] for name, policies in self.groups.items()}

    def data(self, fold: int) -> EvaluationData:
        """The episodes of this fold."""
        return data_of_runs([each.policy for each in self.of(fold).values()], "held-out")


def find_folds(named: NamedPolicies) -> Folds | None:
    """The groups among some policies; None if none was trained on folds."""
    found: dict[str, dict[int, tuple[str, NamedPolicy]]] = {}
    counts = set()
    for name, each in named.items():
        data = bind_options(each.policy.config).data if isinstance(each.policy, SavedPolicy) else None
        counts.add(None if data is None else data.validation_folds)
        if data is not None and data.validation_folds is not None:
            config = each.policy.config.to_plain()
            options = {**config["algo_kwargs"], "validation_fold": None}
            key = json.dumps([config["algo"], config["seed"], options], sort_keys=True, default=str)
            found.setdefault(key, {})[data.validation_fold] = name, each
    if not found:
        return None
    count = max(each or 0 for each in counts)
    if counts != {count} or any(len(group) < count for group in found.values()):
        have = ", ".join(named)
        raise ConfigError(f"cross-fitting needs a run for each of the {count} folds (validation_fold), got {have}")
    groups = {f"{group[0][0]} and the other folds": [group[k][1] for k in range(count)] for group in found.values()}
    return Folds(groups, count)


def mean_of_folds(parts: Sequence[Estimates]) -> Estimates:
    """Estimates of what training gives on this much data: means over folds, weighted by their episodes.

    A group of policies cannot be judged if one of them cannot.
    """
    shares = np.array([part.episodes for part in parts]) / sum(part.episodes for part in parts)
    groups = [[part[each.name] for part in parts] for each in parts[0].policies]
    policies = [_mean(group, parts, shares) for group in groups]
    behavior = _array([_with_members(part.behavior_value, part.behavior_members) for part in parts], shares)
    above = {each.name: _with_members(each.raw_value, each.members) - behavior for each in policies if not each.reasons}
    errors = {each.name: each.fit_error for each in policies}
    verdicts = judge_differences(above, errors)
    names = ("logged_return", "logged_value", "logged_std", "control_tolerance")
    numbers: dict[str, Any] = {name: float(shares @ [getattr(part, name) for part in parts]) for name in names}
    return replace(
        parts[0],
        policies=tuple(replace(each, verdict=verdicts.get(each.name, CANNOT)) for each in policies),
        best=tuple(among_the_best(above, errors)),
        relation="each policy is judged on the fold that it was not trained on",
        episodes=sum(part.episodes for part in parts),
        rows=sum(part.rows for part in parts),
        behavior_value=float(behavior[0]),
        behavior_members=tuple(behavior[1:].tolist()),
        control_passes=all(part.control_passes for part in parts),
        not_weighted="policies of several folds are judged by FQE alone",
        **numbers,
    )


def _with_members(value: float, members: Sequence[float]) -> Floats:
    return np.array([value, *members])


def _array(folds: Sequence[Floats], shares: Floats) -> Floats:
    found: Floats = shares @ np.array(folds)
    return found


def _mean(group: Sequence[Estimate], parts: Sequence[Estimates], shares: Floats) -> Estimate:
    """The mean of one policy per fold. Folds have no episode in common, so their errors are independent."""
    values = _array([_with_members(each.raw_value, each.members) for each in group], shares)
    names = ("clipped_share", "novel_share")
    numbers: dict[str, Any] = {name: float(shares @ [getattr(each, name) for each in group]) for name in names}
    numbers |= {"raw_value": float(values[0]), "members": tuple(values[1:].tolist()), "curve": (), "path": None}
    error = math.hypot(*(shares * [each.fit_error for each in group]))
    reasons = tuple(f"fold {fold}: {reason}" for fold, each in enumerate(group) for reason in each.reasons)
    own = replace(group[0], **numbers, fit_error=error, reasons=reasons)
    if reasons:
        return replace(own, value=None, interval=None, difference=None, probability_better=None)
    value, difference = (float(shares @ [getattr(each, name) for each in group]) for name in ("value", "difference"))
    half = math.hypot(*(shares * [(each.interval[1] - each.interval[0]) / 2 for each in group if each.interval]))
    behavior = _array([_with_members(part.behavior_value, part.behavior_members) for part in parts], shares)
    above = probability_above(values - behavior, error=error)
    interval = value - half, value + half
    return replace(own, value=value, interval=interval, difference=difference, probability_better=above)
