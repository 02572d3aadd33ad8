"""How a pipeline ends: which policy is handed over, and what may be said of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rl_training.ope.verdicts import BETTER, CANNOT, verdict_text
from rl_training.pipeline.candidates import is_clone
from rl_training.pipeline.splits import Parts
from rl_training.selection.select import NO_TIME

CLONED = "The clone of the logged behaviour is exported, marked as such."


@dataclass(frozen=True)
class Ending:
    """The policy that is handed over, and the statement about it."""

    sentence: str
    chosen: str
    is_clone: bool
    beats_the_data: bool
    claim_on: str


def conclude(
    parts: Parts, selection: Mapping[str, Any] | None, claim: Mapping[str, Any] | None, *, clone: str
) -> Ending:
    """The ending. A policy is handed over as better only if the claim about it says so."""
    on = claim_text(parts)
    if selection is None:
        return Ending(f"Nothing can be called better: {_why_not(parts)}. {CLONED}", clone, True, False, on)
    if claim is None:
        return Ending(f"{_not_judged(selection)} {CLONED}", clone, True, False, on)
    name = claim["name"]
    if claim["verdict"] == BETTER:
        return Ending(f"{name} is better than the data, {_basis(parts, claim)}.", name, is_clone(name), True, on)
    is_refused = claim["verdict"] == CANNOT
    said = f"it cannot be judged: {claim['reasons'][0]}" if is_refused else f"it is {verdict_text(claim['verdict'])}"
    doubt = f"{name} was chosen, and {_basis(parts, claim)}, {said}"
    return Ending(f"Nothing is shown to beat the data: {doubt}. {CLONED}", clone, True, False, on)


def _basis(parts: Parts, claim: Mapping[str, Any]) -> str:
    """By which episodes something is said about the choice."""
    if parts.has_claim:
        return f"on {parts.episodes['claim']:,} episodes that neither training nor the choice has seen"
    lowered = ", with its value lowered for that" if claim["correction"] else ""
    return f"on selection data (the same {parts.episodes['selection']} episodes chose it{lowered})"


def claim_text(parts: Parts) -> str:
    """Which episodes a claim is about."""
    return "claim episodes" if parts.has_claim else "selection data"


def _why_not(parts: Parts) -> str:
    return "all rewards are the same" if parts.facts.has_rewards else "the data has no rewards"


def _not_judged(selection: Mapping[str, Any]) -> str:
    """That no policy can be judged, with the first reason."""
    reason = next(reason for each in selection["candidates"] for reason in each["reasons"])
    if reason == NO_TIME:
        return "The time was over before the first policy could be judged."
    return f"No policy can be judged by this log: {reason}."
