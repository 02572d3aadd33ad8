"""What may be said about a policy that was chosen among several, without the luck that made it the choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from rl_training.core.statistics import winners_curse
from rl_training.ope import (
    BETTER,
    CANNOT,
    CrossFit,
    FitOptions,
    OutOfTimeError,
    Support,
    Verdict,
    WeightedEstimate,
    compared,
    weigh_policies,
)
from rl_training.ope import verdicts as claims
from rl_training.selection.estimate import Estimate, Estimates, Progress, judge_policies
from rl_training.selection.evaluation_data import EvaluationData

Basis = Literal["held-out episodes", "corrected"]
Named = Mapping[str, tuple[Any, str | None]]


@dataclass(frozen=True)
class Claim:
    """What may be said about the choice, without the luck that made it the choice."""

    name: str
    basis: Basis
    """Whether the numbers come from episodes that did not choose it, or are corrected for having chosen it."""
    episodes: int
    verdict: Verdict
    reasons: tuple[str, ...]
    value: float | None
    interval: tuple[float, float] | None
    difference: float | None
    """How much better than the data it is."""
    probability_better: float | None
    correction: float = 0.0
    """What was subtracted, because the highest of several estimates is too high on average."""
    weighted: WeightedEstimate | None = None
    """What weights say, by the same episodes; None where the log does not say how probable its actions were."""


def held_out_claim(
    chosen: str,
    named: Named,
    claiming: EvaluationData,
    options: FitOptions,
    *,
    compiled: bool | None = None,
    progress: Progress | None = None,
) -> tuple[Claim, Estimates]:
    """What episodes that did not choose a policy say about it, and the estimates behind that."""
    judged = judge_policies({chosen: named[chosen]}, claiming, options, compiled=compiled, progress=progress)
    if not judged.policies:
        raise OutOfTimeError
    claim = _plain_claim(judged[chosen], "held-out episodes", judged.episodes)
    return _beside_weights(claim, judged[chosen], named[chosen][0], claiming, options, progress=progress), judged


def corrected_claim(
    chosen: str,
    named: Named,
    choosing: EvaluationData,
    options: FitOptions,
    *,
    found: Estimates,
    among: int,
    progress: Progress | None = None,
) -> Claim:
    """What the episodes that chose a policy say about it, minus what choosing it `among` several adds on average."""
    if chosen not in {each.name for each in found.policies}:
        # Real episodes chose one that a first, rough fit had left out.
        found = judge_policies({chosen: named[chosen]}, choosing, options, progress=progress)
    each = found[chosen]
    claim = _plain_claim(each, "corrected", found.episodes) if each.reasons else _corrected(each, found, among)
    return _beside_weights(claim, each, named[chosen][0], choosing, options, progress=progress)


def _plain_claim(each: Estimate, basis: Basis, episodes: int) -> Claim:
    numbers = each.value, each.interval, each.difference, each.probability_better
    return Claim(each.name, basis, episodes, each.verdict, each.reasons, *numbers)


def _corrected(each: Estimate, found: Estimates, among: int) -> Claim:
    """The estimate minus the amount by which the highest of `among` estimates is too high on average."""
    assert each.value is not None and each.interval is not None and each.difference is not None  # noqa: PT018, S101
    differences = np.array([each.raw_value, *each.members]) - np.array([found.behavior_value, *found.behavior_members])
    correction = winners_curse(among) * float(differences[1:].std(ddof=1))
    lowered = differences - correction
    low, high = each.interval
    return Claim(
        name=each.name,
        basis="corrected",
        episodes=found.episodes,
        verdict=claims.judge({each.name: lowered}, {each.name: each.fit_error})[each.name],
        reasons=(),
        value=each.value - correction,
        interval=(low - correction, high - correction),
        difference=each.difference - correction,
        probability_better=claims.probability_above(lowered, error=each.fit_error),
        correction=correction,
    )


def _beside_weights(
    claim: Claim, each: Estimate, policy: Any, data: EvaluationData, options: FitOptions, *, progress: Progress | None
) -> Claim:
    """The claim with what weights say; if that contradicts the fit, the policy is not called better."""
    log = data.log
    if "behavior_log_probs" not in log.dataset.fields:
        return claim
    label = f"{claim.name}, folds of episodes"
    (weighted,) = weigh_policies(
        {claim.name: policy},
        log,
        options.gamma,
        lambda: CrossFit(log, options),
        states_repeat=Support(log, seed=options.seed).missing is not None,
        progress=lambda _: None if progress is None else lambda done, total: progress(label, done, total),
    )
    weighted = compared(weighted, each.interval)
    claim = replace(claim, weighted=weighted)
    own = weighted.headline
    if weighted.agrees is not False or claim.verdict != BETTER or own is None:
        return claim
    numbers = f"{own.value:.4g} by weights, {each.value:.4g} by the fit"
    return replace(claim, verdict=CANNOT, reasons=(f"weights and the fit disagree beyond their intervals ({numbers})",))
