"""The claim about the selected policy, corrected for selection."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from rl_training.core.statistics import winners_curse
from rl_training.ope import (
    BETTER,
    CANNOT,
    FitSettings,
    OutOfTimeError,
    judge_differences,
    probability_above,
    weigh_policies,
)
from rl_training.selection.estimate import judge_policies
from rl_training.selection.evaluation_data import EvaluationData, NamedPolicies
from rl_training.selection.results import Basis, Claim, Estimate, Estimates, Selection


def held_out_claim(
    chosen: str, named: NamedPolicies, data: EvaluationData, settings: FitSettings
) -> tuple[Claim, Estimates]:
    """The claim from episodes that did not select the policy, and the estimates behind it."""
    found = judge_policies({chosen: named[chosen]}, data, settings)
    if not found.policies:
        raise OutOfTimeError
    each = found[chosen]
    claim = _plain_claim(each, "held-out episodes", found.episodes)
    return _checked_by_weights(claim, each, named[chosen].policy, data, settings), found


def corrected_claim(selection: Selection, named: NamedPolicies, data: EvaluationData, settings: FitSettings) -> Claim:
    """The claim from the episodes that selected the policy, minus the expected overestimate of the best of several."""
    chosen, found = str(selection.chosen), selection.estimates
    if chosen not in {each.name for each in found.policies}:
        # Real episodes selected a policy outside the shortlist.
        found = judge_policies({chosen: named[chosen]}, data, settings)
    each = found[chosen]
    ranked = sum(candidate.rank is not None for candidate in selection.candidates)
    claim = _plain_claim(each, "corrected", found.episodes) if each.reasons else _corrected(each, found, ranked)
    return _checked_by_weights(claim, each, named[chosen].policy, data, settings)


def _plain_claim(each: Estimate, basis: Basis, episodes: int) -> Claim:
    numbers = each.value, each.interval, each.difference, each.probability_better
    return Claim(each.name, basis, episodes, each.verdict, each.reasons, *numbers)


def _corrected(each: Estimate, found: Estimates, among: int) -> Claim:
    """The estimate minus the expected overestimate of the highest of `among` estimates."""
    assert each.value is not None and each.interval is not None and each.difference is not None  # noqa: PT018, S101
    differences = np.array([each.raw_value, *each.members]) - np.array([found.behavior_value, *found.behavior_members])
    correction = winners_curse(among) * float(differences[1:].std(ddof=1))
    lowered = differences - correction
    low, high = each.interval
    return replace(
        _plain_claim(each, "corrected", found.episodes),
        verdict=judge_differences({each.name: lowered}, {each.name: each.fit_error})[each.name],
        value=each.value - correction,
        interval=(low - correction, high - correction),
        difference=each.difference - correction,
        probability_better=probability_above(lowered, error=each.fit_error),
        correction=correction,
    )


def _checked_by_weights(
    claim: Claim, each: Estimate, policy: Any, data: EvaluationData, settings: FitSettings
) -> Claim:
    """The claim with the estimate by importance sampling; if FQE contradicts that, the policy is not called better."""
    if not data.has_probabilities:
        return claim
    (weighted,) = weigh_policies({claim.name: policy}, data.log, settings, {claim.name: each.interval})
    claim, own = replace(claim, weighted=weighted), weighted.headline
    if weighted.agrees is not False or claim.verdict != BETTER or own is None:
        return claim
    numbers = f"{own.value:.4g} by importance sampling, {each.value:.4g} by FQE"
    reason = f"importance sampling and FQE disagree beyond their intervals ({numbers})"
    return replace(claim, verdict=CANNOT, reasons=(reason,))
