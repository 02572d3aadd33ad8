"""The checkpoint control: values along training, beside returns in the environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from rl_training.experiment.page import charts
from rl_training.experiment.page.markup import figure, items, p, table

Plain = Mapping[str, Any]

STEP = "training step of the checkpoint"
MOST_DRAWN = 6
"""Runs in a figure; more would cover each other."""
SOURCES = {
    "estimates": "Estimated value of each checkpoint.",
    "training": "Value of each checkpoint by the small fits that the runs made during training, with the default "
    "discount. They are not to be compared with the estimates.",
}
"""Where values come from, with what the captions of their figures say."""


def checkpoint_control(curves: Sequence[Plain]) -> str:
    """Values of checkpoints, whether they jump, and what the checkpoints returned; nothing where there are none."""
    if not curves:
        return ""
    said = (
        "The value of a policy should change smoothly while it is trained. A jump from one checkpoint to the next by "
        "more than the interval marks a fit that failed, unless the return in the environment jumps with it."
    )
    first = sorted(curves, key=lambda curve: not curve["is_chosen"])[:MOST_DRAWN]
    colours = {curve["name"]: place for place, curve in enumerate(each for each in curves if each in first)}
    parts = ["<h3>Along training</h3>", p(said), items(_said(curves))]
    for source in SOURCES:
        own = [curve for curve in curves if curve["source"] == source]
        parts.append(_values(source, own, colours) if own else "")
    return "".join([*parts, _returns(curves, colours)])


def _said(curves: Sequence[Plain]) -> list[str]:
    """What is said of each run; what is said of several, once."""
    names: dict[str, list[str]] = {}
    for curve in curves:
        names.setdefault(curve["said"], []).append(curve["name"])
    return [f"{', '.join(runs)}: {said}" for said, runs in names.items()]


def _values(source: str, curves: Sequence[Plain], colours: Mapping[str, int]) -> str:
    lines = []
    for curve in curves:
        if curve["name"] in colours:
            known = [point for point in curve["points"] if point["value"] is not None]
            line = {
                "name": curve["name"],
                "colour": colours[curve["name"]],
                "bars": [each["interval"] for each in known],
            }
            lines.append({**line, "x": [each["step"] for each in known], "y": [each["value"] for each in known]})
    rows = [
        (curve["name"], point["step"], point["value"], *(point["interval"] or (None, None)), _origin(curve, point))
        for curve in curves
        for point in curve["points"]
    ]
    numbers = table(("run", "step", "value", "from", "to", "by"), rows)
    if not lines:
        return f"<details><summary>{escape(SOURCES[source])}</summary>{numbers}</details>"
    caption, bars = SOURCES[source], [bar for line in lines for bar in line["bars"]]
    if any(bars):
        caption += " Bars are 95 % intervals, each by itself."
        caption += "" if all(bars) else " Values without a bar are of a rough fit."
    if len(curves) > len(lines):
        caption += f" {len(lines)} of {len(curves)} runs are drawn."
    svg = charts.curves(lines, x_name=STEP, y_name="estimated value")
    return figure(svg, caption, numbers, before=_legend(lines))


def _legend(lines: Sequence[Plain]) -> str:
    return charts.legend({line["name"]: line["colour"] for line in lines})


def _origin(curve: Plain, point: Plain) -> str:
    """Which fit a value comes from."""
    if point["value"] is None:
        return "cannot be judged"
    if curve["source"] == "training":
        return "a small fit during training"
    return "the estimate" if point["interval"] else "a rough fit"


def _returns(curves: Sequence[Plain], colours: Mapping[str, int]) -> str:
    """What the runs returned in the environment, where they have one."""
    lines = [
        {
            "name": curve["name"],
            "colour": colours[curve["name"]],
            "bars": [None] * len(curve["returns"]),
            "x": [each["step"] for each in curve["returns"]],
            "y": [each["value"] for each in curve["returns"]],
        }
        for curve in curves
        if curve["name"] in colours and len(curve["returns"]) > 1
    ]
    if not lines:
        return ""
    svg = charts.curves(lines, x_name=STEP, y_name="return found")
    rows = [(line["name"], *point) for line in lines for point in zip(line["x"], line["y"], strict=True)]
    caption = (
        "What the same runs returned in the environment, in the same colours. Returns are not discounted, so that the "
        "shape is to be compared, not the height."
    )
    return figure(svg, caption, table(("run", "step", "mean return"), rows), before=_legend(lines))
