"""How a pipeline ends: which policy is handed over, and what may be said of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rl_training.experiment.candidates import is_clone
from rl_training.experiment.claims import BETTER, CANNOT, verdict_text
from rl_training.experiment.pipeline_data import Parts

CLONED = "The clone of the logged behaviour is exported, marked as such."


@dataclass(frozen=True)
class Ending:
    """The policy that is handed over, and the statement about it."""

    sentence: str
    chosen: str
    is_clone: bool
    beats_the_data: bool
    claim_on: str


def pick(estimates: Mapping[str, Any] | None) -> str | None:
    """The run with the highest value among those that are better than the data; None if there is none."""
    policies = [] if estimates is None else estimates["policies"]
    better = [each for each in policies if each["verdict"] == BETTER]
    return max(better, key=lambda each: float(each["value"]))["name"] if better else None


def conclude(
    parts: Parts,
    estimates: Mapping[str, Any] | None,
    claim: Mapping[str, Any] | None,
    picked: str | None,
    *,
    clone: str,
) -> Ending:
    """The ending. A policy is handed over as better only if the claim says so."""
    on = claim_text(parts)
    if estimates is None:
        return Ending(f"Nothing can be called better: {_why_not(parts)}. {CLONED}", clone, True, False, on)
    if picked is None:
        return Ending(f"{_nothing_beats(estimates)} {CLONED}", clone, True, False, on)
    if claim is None:
        count = parts.episodes["selection"]
        mark = f"on selection data: the same {count} episodes chose it, which favours it"
        return Ending(f"{picked} is better than the data, {mark}.", picked, is_clone(picked), True, on)
    found = next(each for each in claim["policies"] if each["name"] == picked)
    if found["verdict"] == BETTER:
        unseen = f"on {parts.episodes['claim']} episodes that neither training nor the choice has seen"
        return Ending(f"{picked} is better than the data, {unseen}.", picked, is_clone(picked), True, on)
    is_refused = found["verdict"] == CANNOT
    said = f"it cannot be judged: {found['reasons'][0]}" if is_refused else f"it is {verdict_text(found['verdict'])}"
    doubt = f"{picked} was better on the selection episodes, but on the claim episodes {said}"
    return Ending(f"Nothing is shown to beat the data: {doubt}. {CLONED}", clone, True, False, on)


def claim_text(parts: Parts) -> str:
    """Which episodes a claim is about."""
    return "claim episodes" if parts.has_claim else "selection data"


def _why_not(parts: Parts) -> str:
    return "all rewards are the same" if parts.facts.has_rewards else "the data has no rewards"


def _nothing_beats(estimates: Mapping[str, Any]) -> str:
    """Why no policy is chosen, in a sentence."""
    policies = estimates["policies"]
    judged = [each for each in policies if each["verdict"] != CANNOT]
    if not judged:
        reasons = list(dict.fromkeys(reason for each in policies for reason in each["reasons"]))
        return f"No policy can be judged by this log: {reasons[0]}."
    others = len(policies) - len(judged)
    kept = f", and {others} cannot be judged" if others else ""
    count = f"the {len(judged)} policies that can be judged" if others else f"the {len(judged)} policies"
    return f"Nothing beats the data: none of {count} is better than the data{kept}."
