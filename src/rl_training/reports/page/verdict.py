"""Sections of a report on the value of policies: verdict, candidates, controls, agreement, importance weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from rl_training.ope import (
    BETTER,
    CANNOT,
    LEAST_KAPPA,
    MOST_CLIPPED,
    MOST_NOVEL,
    SAME,
    VALUE,
    WORSE,
    discount_options,
    horizon_text,
    probability_text,
    simultaneous,
    verdict_text,
)
from rl_training.reports.page.charts import number
from rl_training.reports.page.gather import RETURN, Material, Plain, pick, runs_of, step_of
from rl_training.reports.runs import RunRecord
from rl_training.selection import regret_at_k, spearman

ADVICE = {
    BETTER: (
        "Try it in a few real episodes before it takes over; the last section says what was not examined.",
        "good",
    ),
    WORSE: ("Keep what is done today, or train again with other data or options.", "bad"),
    SAME: (
        "There is no reason in this log to change what is done today. More episodes, or a few real ones, could tell.",
        "open",
    ),
}
"""Advice for each verdict on the chosen policy, and its tone."""
FEWEST_COMPARED = 3
"""The fewest policies for which a rank correlation is shown."""
FEWEST = 2
"""The fewest checkpoints for a curve."""
SAME_HORIZON = 1.1
"""The largest ratio of two horizons, 1 / (1 - discount), with comparable values."""


def verdict(material: Material, said: str | None = None) -> Plain:
    """The verdict in one sentence, and its basis; `said` replaces the sentence."""
    policies = candidates(material).get("policies", [])
    standing = _standing(material, policies)
    sentence, advice, tone = _sentence(material, policies, standing)
    run = material.choice.run
    why = "it was chosen by the pipeline" if material.pipeline else material.choice.why
    data: Plain = next(filter(None, (record.metadata.get("data") for record in material.records)), {})
    return {
        "sentence": said or sentence,
        "advice": advice,
        "tone": tone,
        "chosen": None
        if run is None
        else {"name": material.chosen_name, "run": str(run), "why": why, "estimate": standing},
        "logged_return": data.get("return_mean") if material.estimates is None else material.estimates["logged_return"],
        "refused": [{"name": each["name"], "reasons": each["reasons"]} for each in policies if each["reasons"]],
        "date": datetime.now().astimezone().isoformat(timespec="minutes"),
        "fingerprint": data.get("fingerprint"),
        "notes": [*material.notes, *doubts(material)],
    }


def _standing(material: Material, policies: Sequence[Plain]) -> Plain | None:
    """The values of the chosen policy: of the claim if there is one, else of the estimates."""
    own = next((each for each in policies if each["policy"] == material.choice.policy), None)
    if own is None or material.estimates is None:
        return None
    horizon = horizon_text(material.estimates["gamma"])
    found = {**own, "logged_value": material.estimates["logged_value"], "basis": None, "horizon": horizon}
    found["part"] = material.pipeline.get("part", "")
    if material.claim is not None:
        names = ("value", "interval", "difference", "probability_better", "verdict", "reasons", "logged_value", "basis")
        found |= {name: material.claim[name] for name in names} | {"episodes": material.claim["episodes"]}
        found |= {"reasons": list(found["reasons"]), **_texts(found)}
        found["part"] = "claim episodes" if found["basis"] == "held-out episodes" else "selection episodes"
    return found


def _texts(found: Plain) -> Plain:
    """The verdict on a policy and the probability behind it, in words."""
    better = found["probability_better"]
    probability = None if better is None else probability_text(better)
    return {"verdict_text": verdict_text(found["verdict"]), "probability_text": probability}


def _sentence(material: Material, policies: Sequence[Plain], chosen: Plain | None) -> tuple[str, str, str]:
    """The verdict in a sentence, the advice, and the tone: good, open or bad."""
    if not policies:
        return _without_estimates(material)
    judged = [each for each in policies if not each["reasons"]]
    if not judged:
        subject = "This policy cannot" if len(policies) == 1 else f"None of these {len(policies)} policies can"
        advice = "Do not decide by this report. The reasons are listed below, and each says what would have to change."
        return f"{subject} be judged by this log.", advice, "bad"
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
        numbers = f"on {chosen['episodes']:,} episodes that were not used to choose it, {numbers}"
    others = [each["name"] for each in judged if each["among_best"] and each["policy"] != chosen["policy"]]
    same = ""
    if others and chosen["among_best"]:
        count = "One other policy is" if len(others) == 1 else f"{len(others)} other policies are"
        same = f" {count} not distinguishable from it."
    elif others:
        same = f" {others[0]} has a higher estimate."
    verdict = f"{chosen['name']} is {verdict_text(chosen['verdict'])} {chosen['horizon']}"
    return f"{verdict}: {numbers}.{same}", *ADVICE[chosen["verdict"]]


def _without_estimates(material: Material) -> tuple[str, str, str]:
    runs = [str(record.path) for record in material.records]
    advice = f"Estimate the policies first: rl-training estimate {' '.join([*runs[:3], *['...'] * (len(runs) > 3)])}"
    sentence = "How good these policies are has not been estimated from the log."
    scores = {record.path: curve[-1][1] for record in material.records if (curve := record.curve(RETURN))}
    run = material.choice.run
    if run is not None and run in scores:
        said = f"{material.names[run]} returned {number(scores[run])} on average at its last evaluation"
        sentence += f" In the environment, {said}."
    return sentence, advice, "open"


def candidates(material: Material) -> Plain:
    """All estimated policies, the best first, those without a verdict last."""
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
            **pick(each, "value", "interval", "difference", "probability_better", "verdict", "novel_share"),
            **_texts(each),
            "simultaneous_interval": None
            if each["interval"] is None
            else simultaneous(each["value"], each["interval"], policies=judged, members=members),
            "among_best": each["name"] in found["best"],
            "reasons": list(each["reasons"]),
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
        **pick(found, "gamma", "source", "relation", "episodes"),
        "horizon": horizon_text(found["gamma"]),
        "most_novel": MOST_NOVEL,
    }


def controls(material: Material) -> Plain:
    """Checks of the estimator: the estimate of the behaviour policy, convergence, values at their bounds."""
    found = material.estimates
    if found is None:
        missing = "There is nothing to control before policies have been estimated."
        return {"missing": missing, "checkpoints": checkpoints(material)}
    return {
        **pick(found, "logged_value", "behavior_value", "behavior_members"),
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
                **pick(each, "clipped_share", "raw_value"),
            }
            for each in found["policies"]
        ],
        "checkpoints": checkpoints(material),
    }


def agreement(material: Material) -> Plain | None:
    """Estimates beside returns in an environment, if there are both."""
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
        above = point["estimate"] - found["logged_value"]
        point["estimated_return"] = None if scale is None else found["logged_return"] + scale * above
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
    """The return of a checkpoint in the environment; for the latest, at the last evaluation."""
    curve = record.curve(RETURN)
    is_latest = Path(path).stem == "latest" and curve
    return curve[-1][1] if is_latest else dict(curve).get(step_of(path, record) or 0)


def _units(material: Material, found: Mapping[str, Any]) -> float | None:
    """Undiscounted return per unit of discounted value, from the standard deviations of both in the log."""
    if material.data is None or not found["logged_std"]:
        return None
    returns = material.data.log.dataset.episode_returns()
    return float(returns.std()) / float(found["logged_std"]) if len(returns) > 1 else None


def weights(material: Material) -> Plain | None:
    """Importance-sampling estimates, if the log has action probabilities."""
    if material.estimates is None:
        return None
    found, fits = material.estimates.get("weighted"), {each["name"]: each for each in material.estimates["policies"]}
    claim = (material.selection or {}).get("claim") or {}
    if not found and claim.get("weighted"):
        # A selection has weights for the chosen policy only, on the episodes of the claim, beside the claim's estimate.
        found = [claim["weighted"]]
        fits[claim["name"]] = {**fits.get(claim["name"], {}), **claim}
    if not found:
        return None
    policies = []
    for each in found:
        fit = fits.get(each["name"])
        beside = None if fit is None else pick(fit, "value", "interval")
        policies.append({**each, "name": material.name_of(fit or each), "fit": beside})
    return {"policies": policies}


def checkpoints(material: Material) -> list[Plain]:
    """A curve per run with the values of at least two checkpoints.

    Values are those of `estimate` or `select`, if they cover several checkpoints of the run, else those measured during
    training.
    """
    found = []
    for record in material.records:
        own = _estimated(material, record)
        points, source = (own, "estimates") if len(_with_value(own)) >= FEWEST else (_measured(record), "training")
        if len(_with_value(points)) >= FEWEST:
            found.append(_curve(material, record, points, source, own))
    return found


def doubts(material: Material) -> list[str]:
    """Warnings that the values of neighbouring checkpoints contradict the estimate of the chosen policy."""
    return [
        f"The FQE estimate of the chosen policy is in doubt. {curve['said']}"
        for curve in checkpoints(material)
        if any(curve["chosen_step"] in (jump["from"], jump["to"]) for jump in curve["jumps"] if not jump["is_real"])
    ]


def _estimated(material: Material, record: RunRecord) -> list[Plain]:
    """The values of checkpoints by `select` or `estimate`, in the order of their timesteps."""
    policies = [*(() if material.estimates is None else material.estimates["policies"]), *left_out(material)]
    own, points = runs_of(policies, [record]), dict[int, Plain]()
    for each in policies:
        if each["name"] in own and (step := step_of(each["path"], record)) is not None:
            points[step] = {"step": step, **pick(each, "value", "interval"), "policy": each["name"]}
    return [points[step] for step in sorted(points)]


def left_out(material: Material) -> list[Plain]:
    """Candidates of the selection with a rough value only, which left them out of the shortlist."""
    if material.selection is None or material.selection["estimates"] is not material.estimates:
        return []
    candidates = material.selection["candidates"]
    return [each for each in candidates if each["value"] is not None and each["interval"] is None]


def _measured(record: RunRecord) -> list[Plain]:
    """The values that the run measured from the log during training, which have no interval."""
    values = {row["global_step"]: row[VALUE] for row in record.rows if VALUE in row and row["kind"] != "estimate"}
    return [{"step": step, "value": values[step], "interval": None, "policy": None} for step in sorted(values)]


def _with_value(points: Sequence[Plain]) -> list[Plain]:
    return [point for point in points if point["value"] is not None]


def _curve(material: Material, record: RunRecord, points: list[Plain], source: str, own: Sequence[Plain]) -> Plain:
    width = _usual_width(material, own) if source == "training" else None
    returns, chosen = dict(record.curve(RETURN)), material.choice.policy
    jumps = _jumps(_with_value(points), width, returns)
    return {
        "name": material.names[record.path],
        "source": source,
        "is_chosen": record.path == material.choice.run,
        "points": points,
        "chosen_step": next((each["step"] for each in points if each["policy"] and each["policy"] == chosen), None),
        "width": width,
        "returns": [{"step": step, "value": returns[step]} for step in sorted(returns)],
        "jumps": jumps,
        "said": _conclusion(points, width, jumps),
    }


def _usual_width(material: Material, own: Sequence[Plain]) -> float | None:
    """The width of a run's estimated interval, as a yardstick for its own measurements.

    Those have the default discount; with another one, values and intervals are of another size.
    """
    widths = [width for point in own if (width := _width(point)) is not None]
    if not widths or material.data is None or material.estimates is None:
        return None
    both = discount_options(material.data.log.dataset)["gamma"], material.estimates["gamma"]
    horizons = [1 / max(1 - gamma, 1e-9) for gamma in both]
    return widths[-1] if max(horizons) <= SAME_HORIZON * min(horizons) else None


def _width(point: Mapping[str, Any]) -> float | None:
    return None if point["interval"] is None else float(point["interval"][1] - point["interval"][0])


def _jumps(points: Sequence[Plain], width: float | None, returns: Mapping[int, float]) -> list[Plain]:
    """Neighbouring checkpoints with values further apart than their intervals are wide, so that these do not touch."""
    found = []
    for before, after in pairwise(points):
        widths = [each for each in (_width(before), _width(after)) if each is not None]
        allowed = width if width is not None else sum(widths) / 2 if len(widths) == 2 else None
        change, first, last = after["value"] - before["value"], before["step"], after["step"]
        if allowed is not None and abs(change) > allowed:
            returned = returns[last] - returns[first] if first in returns and last in returns else None
            # If the return jumped like the value, the policy changed, not only its estimate. A return is not
            # discounted, so that it changes more than a value.
            is_real = None if returned is None else returned * change > 0 and abs(returned) > allowed
            sizes = {"change": change, "width": allowed, "return_change": returned}
            found.append({"from": first, "to": last, **sizes, "is_real": is_real})
    return found


def _conclusion(points: Sequence[Plain], width: float | None, jumps: Sequence[Plain]) -> str:
    """The conclusion from a curve about its estimates."""
    if width is None and sum(point["interval"] is not None for point in points) < FEWEST:
        return (
            "These values have no intervals, so a jump cannot be told from chance. The command rl-training select RUN "
            "--checkpoints all gives them intervals."
        )
    if not jumps:
        return "No value jumps from one checkpoint to the next by more than its interval."
    return " ".join(map(_jump_text, jumps))


def _jump_text(jump: Mapping[str, Any]) -> str:
    text = (
        f"From step {jump['from']:,} to {jump['to']:,} the value changes by {number(jump['change'])}, more than its "
        f"interval is wide ({number(jump['width'])})."
    )
    if jump["is_real"] is None:
        return f"{text} One of the two estimates has failed, unless the policy itself changed that much."
    returned = f"the return in the environment changed by {number(jump['return_change'])}"
    if jump["is_real"]:
        return f"{text} The policy itself changed: {returned} as well."
    return f"{text} One of the two estimates has failed: {returned} only."
