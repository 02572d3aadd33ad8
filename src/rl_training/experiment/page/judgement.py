"""Sections of a report about how good policies are: the verdict, the candidates, controls, agreement, weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rl_training.experiment.claims import (
    BETTER,
    CANNOT,
    LEAST_KAPPA,
    MOST_CLIPPED,
    MOST_NOVEL,
    WORSE,
    probability_text,
    simultaneous,
    verdict_text,
)
from rl_training.experiment.page.axes import number
from rl_training.experiment.page.checkpoints import checkpoints, doubts, left_out
from rl_training.experiment.page.gathering import RETURN, Material, Plain
from rl_training.experiment.page.naming import step_of
from rl_training.experiment.ranking import regret_at_k, spearman
from rl_training.experiment.report import RunRecord

FEWEST_COMPARED = 3
"""The fewest policies for which a rank correlation is shown."""


def verdict(material: Material, said: str | None = None) -> Plain:
    """The answer in one sentence, and what it rests on; `said` takes the place of the sentence."""
    policies = candidates(material).get("policies", [])
    standing = _standing(material, policies)
    sentence, advice, tone = _sentence(material, policies, standing)
    data: Plain = next(filter(None, (record.metadata.get("data") for record in material.records)), {})
    return {
        "sentence": said or sentence,
        "advice": advice,
        "tone": tone,
        "chosen": _chosen(material, standing),
        "logged_return": _logged_return(material, data),
        "refused": [{"name": each["name"], "reasons": each["reasons"]} for each in policies if each["reasons"]],
        "date": datetime.now().astimezone().isoformat(timespec="minutes"),
        "fingerprint": data.get("fingerprint"),
        "notes": [*material.notes, *doubts(material)],
    }


def _standing(material: Material, policies: Sequence[Plain]) -> Plain | None:
    """What is known of the chosen policy: by the claim, if there is one, else by what it was chosen by."""
    own = next((each for each in policies if each["policy"] == material.choice.policy), None)
    if own is None or material.estimates is None:
        return None
    found = {**own, "logged_value": material.estimates["logged_value"], "basis": None}
    if material.claim is not None:
        names = ("value", "interval", "difference", "probability_better", "verdict", "reasons", "logged_value", "basis")
        found |= {name: material.claim[name] for name in names} | {"episodes": material.claim["episodes"]}
        found["reasons"] = list(found["reasons"])
        found["verdict_text"] = verdict_text(found["verdict"])
        found["probability_text"] = _probability(found["probability_better"])
    return found


def _probability(value: float | None) -> str | None:
    return None if value is None else probability_text(value)


def _chosen(material: Material, standing: Plain | None) -> Plain | None:
    run = material.choice.run
    if run is None:
        return None
    return {"name": material.chosen_name, "run": str(run), "why": material.choice.why, "estimate": standing}


def _logged_return(material: Material, data: Mapping[str, Any]) -> float | None:
    if material.estimates is not None:
        return float(material.estimates["logged_return"])
    return None if data.get("return_mean") is None else float(data["return_mean"])


def _sentence(material: Material, policies: Sequence[Plain], chosen: Plain | None) -> tuple[str, str, str]:
    """The answer, what to do, and its tone: good, open or bad."""
    if not policies:
        return _without_estimates(material)
    judged = [each for each in policies if not each["reasons"]]
    if not judged:
        count = "This policy" if len(policies) == 1 else f"None of these {len(policies)} policies"
        negated = "cannot" if len(policies) == 1 else "can"
        advice = "Do not decide by this report. The reasons are listed below, and each says what would have to change."
        return f"{count} {negated} be judged by this log.", advice, "bad"
    if chosen is None and material.choice.file is not None:
        name = material.choice.file.name
        advice = f"Estimate this checkpoint: rl-training estimate {material.choice.file}"
        return f"How good {name} is has not been estimated from the log; other policies have been.", advice, "open"
    if chosen is None or chosen["verdict"] == CANNOT:
        name = "The chosen policy" if chosen is None else chosen["name"]
        return f"{name} cannot be judged by this log, though others can.", "Decide among those that can.", "open"
    return _of_chosen(judged, chosen)


def _of_chosen(judged: Sequence[Plain], chosen: Plain) -> tuple[str, str, str]:
    value, logged = number(chosen["value"]), number(chosen["logged_value"])
    low, high = map(number, chosen["interval"])
    numbers = f"its estimated value is {value} (95 % interval {low} to {high}), that of the log is {logged}"
    if chosen["basis"] == "held-out episodes":
        numbers = f"on {chosen['episodes']:,} episodes that did not choose it, {numbers}"
    elif chosen["basis"] is not None:
        numbers = f"corrected for having been chosen, {numbers}"
    others = [each["name"] for each in judged if each["among_best"] and each["policy"] != chosen["policy"]]
    same = ""
    if others and chosen["among_best"]:
        count = "One other policy is" if len(others) == 1 else f"{len(others)} other policies are"
        same = f" {count} not distinguishable from it."
    elif others:
        same = f" {others[0]} has a higher estimate."
    if chosen["verdict"] == BETTER:
        advice = "Try it in a few real episodes before it takes over; the last section says what was not examined."
        return f"{chosen['name']} is better than the data: {numbers}.{same}", advice, "good"
    if chosen["verdict"] == WORSE:
        return (
            f"{chosen['name']} is worse than the data: {numbers}.{same}",
            "Keep what is done today, or train again with other data or options.",
            "bad",
        )
    return (
        f"{chosen['name']} is not distinguishable from the data: {numbers}.{same}",
        "There is no reason in this log to change what is done today. More episodes, or a few real ones, could tell.",
        "open",
    )


def _without_estimates(material: Material) -> tuple[str, str, str]:
    runs = " ".join(str(record.path) for record in material.records[:3])
    more = " ..." if len(material.records) > 3 else ""
    advice = f"Estimate the policies first: rl-training estimate {runs}{more}"
    sentence = "How good these policies are has not been estimated from the log."
    scores = {record.path: curve[-1][1] for record in material.records if (curve := record.curve(RETURN))}
    run = material.choice.run
    if run is not None and run in scores:
        said = f"{material.names[run]} returned {number(scores[run])} on average at its last evaluation"
        sentence += f" In the environment, {said}."
    return sentence, advice, "open"


def candidates(material: Material) -> Plain:
    """All estimated policies, the best first, those that cannot be judged last."""
    found = material.estimates
    if found is None:
        return {
            "missing": "No estimates: nothing says how good the policies are against the data.",
            "command": f"rl-training estimate {' '.join(str(record.path) for record in material.records)}",
        }
    judged, members = sum(each["interval"] is not None for each in found["policies"]), len(found["behavior_members"])
    policies = [
        {
            "name": material.name_of(each),
            "policy": each["name"],
            "run": str(material.policies.get(each["name"], each["name"])),
            "value": each["value"],
            "interval": each["interval"],
            "simultaneous_interval": None
            if each["interval"] is None
            else simultaneous(each["value"], each["interval"], policies=judged, members=members),
            "difference": each["difference"],
            "probability_better": each["probability_better"],
            "probability_text": _probability(each["probability_better"]),
            "verdict": each["verdict"],
            "verdict_text": verdict_text(each["verdict"]),
            "among_best": each["name"] in found["best"],
            "reasons": list(each["reasons"]),
            "novel_share": each["novel_share"],
        }
        for each in found["policies"]
    ]
    error = 2 * found["logged_std"] / math.sqrt(max(found["episodes"], 1))
    return {
        "policies": sorted(policies, key=lambda each: (each["value"] is None, -(each["value"] or 0.0))),
        "not_estimated": sorted(
            material.names[record.path] for record in material.records if record.path not in material.policies.values()
        ),
        "intervals": {
            "interval": "95 % for each policy by itself",
            "simultaneous_interval": f"95 % for all {judged} judged policies together (Student quantile at "
            f"1 - 0.05 / (2 * {judged}), {members - 1} degrees of freedom)",
        }
        if judged
        else None,
        "left_out": [material.name_of(each) for each in left_out(material)],
        "logged_value": found["logged_value"],
        "logged_band": [found["logged_value"] - error, found["logged_value"] + error],
        "gamma": found["gamma"],
        "source": found["source"],
        "relation": found["relation"],
        "episodes": found["episodes"],
        "horizon": round(1 / (1 - found["gamma"])),
        "most_novel": MOST_NOVEL,
    }


def controls(material: Material) -> Plain:
    """Whether the estimator can be trusted: the behaviour's estimate, convergence, values at their bounds."""
    found = material.estimates
    if found is None:
        missing = "There is nothing to control before policies have been estimated."
        return {"missing": missing, "checkpoints": checkpoints(material)}
    return {
        "logged_value": found["logged_value"],
        "behavior_value": found["behavior_value"],
        "behavior_members": list(found["behavior_members"]),
        "tolerance": found["control_tolerance"],
        "passes": found["control_passes"],
        "kappa": found["kappa"],
        "least_kappa": LEAST_KAPPA,
        "most_clipped": MOST_CLIPPED,
        "updates": found["updates"],
        "members": len(found["behavior_members"]),
        "policies": [
            {
                "name": material.name_of(each),
                "curve": [list(point) for point in each["curve"] if all(map(math.isfinite, point))],
                "clipped_share": each["clipped_share"],
                "raw_value": each["raw_value"],
            }
            for each in found["policies"]
        ],
        "checkpoints": checkpoints(material),
    }


def agreement(material: Material) -> Plain | None:
    """Estimates beside returns in an environment, where there are both."""
    found = material.estimates
    if found is None:
        return None
    points = []
    runs = {record.path: record for record in material.records}
    for each in found["policies"]:
        record = runs.get(material.policies.get(each["name"]))  # type: ignore[arg-type]
        returned = None if record is None or each["value"] is None else _return_at(record, each["path"])
        if returned is not None:
            points.append({"name": material.name_of(each), "estimate": each["value"], "found": returned})
    if not points:
        return None
    scale = _units(material, found)
    for point in points:
        in_units = (
            None if scale is None else found["logged_return"] + scale * (point["estimate"] - found["logged_value"])
        )
        point["estimated_return"] = in_units
    enough = len(points) >= FEWEST_COMPARED
    truth, guesses = [point["found"] for point in points], [point["estimate"] for point in points]
    rank = spearman(truth, guesses) if enough else math.nan
    return {
        "points": points,
        "spearman": rank if math.isfinite(rank) else None,
        "regret_at_1": regret_at_k(truth, guesses, 1) if enough else None,
        "scale": scale,
    }


def _return_at(record: RunRecord, path: str) -> float | None:
    """What a checkpoint of a run returned in the environment; of the latest, at the last evaluation."""
    curve = record.curve(RETURN)
    is_latest = Path(path).stem == "latest" and curve
    return curve[-1][1] if is_latest else dict(curve).get(step_of(path, record) or 0)


def _units(material: Material, found: Mapping[str, Any]) -> float | None:
    """How much return, not discounted, goes with one unit of discounted value, by how much both differ in the log."""
    if material.data is None or not found["logged_std"]:
        return None
    returns = material.data.log.dataset.episode_returns()
    return float(returns.std()) / float(found["logged_std"]) if len(returns) > 1 else None


def weights(material: Material) -> Plain | None:
    """Estimates by weighting, where the log says how probable its actions were."""
    if material.estimates is None:
        return None
    found, fits = material.estimates.get("weighted"), {each["name"]: each for each in material.estimates["policies"]}
    claim = (material.selection or {}).get("claim") or {}
    if not found and claim.get("weighted"):
        # A selection weighs its choice alone, by the episodes of the claim, and its fit is the claim's.
        found = [claim["weighted"]]
        fits[claim["name"]] = {**fits.get(claim["name"], {}), **claim}
    if not found:
        return None
    return {
        "policies": [
            {**each, "name": material.name_of(fits.get(each["name"], each)), "fit": _fit(fits.get(each["name"]))}
            for each in found
        ]
    }


def _fit(estimate: Mapping[str, Any] | None) -> Plain | None:
    """The estimate by the fit, to stand beside those by weights."""
    return None if estimate is None else {"value": estimate["value"], "interval": estimate["interval"]}
