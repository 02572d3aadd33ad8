"""The value of a run's checkpoints along training, and whether it jumps: a fit that failed stands out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from rl_training.experiment.page.axes import number
from rl_training.experiment.page.gathering import RETURN, Material, Plain, runs_of
from rl_training.experiment.page.naming import step_of
from rl_training.experiment.report import RunRecord
from rl_training.runtime.fitting import default_gamma
from rl_training.runtime.policy_value import VALUE

FEWEST = 2
"""Checkpoints of a run from which on there is a curve."""
SAME_HORIZON = 1.1
"""How much farther one of two discounts may look ahead, if values are to be compared."""


def checkpoints(material: Material) -> list[Plain]:
    """A curve per run with the values of at least two checkpoints.

    Values are those of `estimate` or `select`, if these judged several checkpoints of the run, else those that the run
    measured while it was trained.
    """
    found = []
    for record in material.records:
        own = _estimated(material, record)
        points, source = (own, "estimates") if len(_with_value(own)) >= FEWEST else (_measured(record), "training")
        if len(_with_value(points)) >= FEWEST:
            found.append(_curve(material, record, points, source, own))
    return found


def doubts(material: Material) -> list[str]:
    """What the values of its neighbours say against the fit of the chosen policy."""
    return [
        f"The fit of the chosen policy is in doubt. {curve['said']}"
        for curve in checkpoints(material)
        if any(curve["chosen_step"] in (jump["from"], jump["to"]) for jump in curve["jumps"] if not jump["is_real"])
    ]


def _estimated(material: Material, record: RunRecord) -> list[Plain]:
    """What `select` or `estimate` found for checkpoints of a run, in the order of their timesteps."""
    judged: Sequence[Mapping[str, Any]] = () if material.estimates is None else material.estimates["policies"]
    judged = [*judged, *left_out(material)]
    own, points = runs_of(judged, [record]), dict[int, Plain]()
    for each in judged:
        if each["name"] in own and (step := step_of(each["path"], record)) is not None:
            points[step] = {"step": step, "value": each["value"], "interval": each["interval"], "policy": each["name"]}
    return [points[step] for step in sorted(points)]


def left_out(material: Material) -> list[Plain]:
    """Candidates of the selection that have a rough value only: a rough fit left them out of the shortlist."""
    if material.selection is None or material.selection["estimates"] is not material.estimates:
        return []
    candidates = material.selection["candidates"]
    return [each for each in candidates if each["value"] is not None and each["interval"] is None]


def _measured(record: RunRecord) -> list[Plain]:
    """What the run itself measured from the log, which has no interval."""
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
        "said": _words(points, width, jumps),
    }


def _usual_width(material: Material, own: Sequence[Plain]) -> float | None:
    """The width of a run's estimated interval, by which its own measurements are judged.

    They have the default discount. With another one, values and intervals are of another size.
    """
    widths = [width for point in own if (width := _width(point)) is not None]
    if not widths or material.data is None or material.estimates is None:
        return None
    horizons = [1 / (1 - gamma) for gamma in (default_gamma(material.data.log.bounds), material.estimates["gamma"])]
    return widths[-1] if max(horizons) <= SAME_HORIZON * min(horizons) else None


def _width(point: Mapping[str, Any]) -> float | None:
    return None if point["interval"] is None else float(point["interval"][1] - point["interval"][0])


def _jumps(points: Sequence[Plain], width: float | None, returns: Mapping[int, float]) -> list[Plain]:
    """Neighbours whose values differ by more than an interval is wide: their intervals do not even touch."""
    found = []
    for before, after in pairwise(points):
        widths = [_width(before), _width(after)]
        known = [each for each in widths if each is not None]
        allowed = width if width is not None else sum(known) / 2 if len(known) == len(widths) else None
        change = after["value"] - before["value"]
        if allowed is not None and abs(change) > allowed:
            steps = {"from": before["step"], "to": after["step"]}
            both = [returns[step] for step in steps.values() if step in returns]
            returned = both[1] - both[0] if len(both) == len(steps) else None
            found.append({**steps, "change": change, "width": allowed, **_in_environment(change, allowed, returned)})
    return found


def _in_environment(change: float, allowed: float, returned: float | None) -> Plain:
    """How much the return changed, and whether it jumped as the value did: then the policy changed, not only the fit.

    Both are None where the environment does not say. A return is not discounted, so that it changes more than a value.
    """
    is_real = None if returned is None else returned * change > 0 and abs(returned) > allowed
    return {"return_change": returned, "is_real": is_real}


def _words(points: Sequence[Plain], width: float | None, jumps: Sequence[Plain]) -> str:
    """What the curve says of the fits."""
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
        return f"{text} One of the two fits has failed, unless the policy itself changed that much."
    returned = f"the return in the environment changed by {number(jump['return_change'])}"
    if jump["is_real"]:
        return f"{text} The policy itself changed: {returned} as well."
    return f"{text} One of the two fits has failed: {returned} only."
