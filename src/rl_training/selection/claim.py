"""The claim about the selected policy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rl_training.ope import (
    BETTER,
    CANNOT,
    FitSettings,
    OutOfTimeError,
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


def claim_without_choice(
    selection: Selection, named: NamedPolicies, data: EvaluationData, settings: FitSettings
) -> Claim:
    """The claim from all episodes. If they selected the policy among several, they say nothing more about it."""
    chosen, found = str(selection.chosen), selection.estimates
    if len(named) > 1:
        reason = f"the same {found.episodes} episodes selected it among {len(named)}, which makes its value too high"
        return Claim(chosen, "selection episodes", found.episodes, CANNOT, (reason,), None, None, None, None)
    claim = _plain_claim(found[chosen], "held-out episodes", found.episodes)
    return _checked_by_weights(claim, found[chosen], named[chosen].policy, data, settings)


def _plain_claim(each: Estimate, basis: Basis, episodes: int) -> Claim:
    numbers = each.value, each.interval, each.difference, each.probability_better
    return Claim(each.name, basis, episodes, each.verdict, each.reasons, *numbers)


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
