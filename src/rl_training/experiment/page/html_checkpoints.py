"""The checkpoint control: values along training, beside returns in the environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rl_training.experiment.page import charts
from rl_training.experiment.page.markup import figure, items, p, table

Plain = Mapping[str, Any]

MOST_DRAWN = 6
"""Runs in a figure; more would cover each other."""


def checkpoint_control(curves: Sequence[Plain]) -> str:
    """Values of checkpoints, whether they jump, and what the checkpoints returned; nothing where there are none."""
    if not curves:
        return ""
    said = (
        "The value of a policy should change smoothly while it is trained. A jump from one checkpoint to the next by "
        "more than the interval marks a fit that failed, unless the return in the environment jumps with it."
    )
    first = sorted(curves, key=lambda curve: not curve["is_chosen"])[:MOST_DRAWN]
    drawn = [curve for curve in curves if curve in first]
    parts = ["<h3>Along training</h3>", p(said), items(curve["said"] for curve in curves), _values(curves, drawn)]
    with_returns = [curve for curve in drawn if len(curve["returns"]) > 1]
    return "".join(parts) + (_returns(with_returns, drawn) if with_returns else "")


def _values(curves: Sequence[Plain], drawn: Sequence[Plain]) -> str:
    lines = []
    for place, curve in enumerate(drawn):
        known = [point for point in curve["points"] if point["value"] is not None]
        line = {"name": curve["name"], "colour": place, "bars": [point["interval"] for point in known]}
        lines.append({**line, "x": [each["step"] for each in known], "y": [each["value"] for each in known]})
    svg = charts.curves(lines, x_name="training step of the checkpoint", y_name="estimated value")
    rows = [
        (curve["name"], point["step"], point["value"], *(point["interval"] or (None, None)), _origin(curve, point))
        for curve in curves
        for point in curve["points"]
    ]
    caption = "Estimated value of each checkpoint."
    if any(point["interval"] for curve in drawn for point in curve["points"]):
        caption += " Bars are 95 % intervals, each by itself."
    if len(curves) > len(drawn):
        caption += f" {len(drawn)} of {len(curves)} runs are drawn."
    headers = ("run", "step", "value", "from", "to", "by")
    return figure(svg, caption, table(headers, rows), before=charts.legend([line["name"] for line in lines]))


def _origin(curve: Plain, point: Plain) -> str:
    """Which fit a value comes from."""
    if point["value"] is None:
        return "cannot be judged"
    if curve["source"] == "training":
        return "a small fit during training"
    return "the estimate" if point["interval"] else "a rough fit"


def _returns(curves: Sequence[Plain], drawn: Sequence[Plain]) -> str:
    colours = {curve["name"]: place for place, curve in enumerate(drawn)}
    lines = [
        {
            "name": curve["name"],
            "colour": colours[curve["name"]],
            "bars": [None] * len(curve["returns"]),
            "x": [each["step"] for each in curve["returns"]],
            "y": [each["value"] for each in curve["returns"]],
        }
        for curve in curves
    ]
    svg = charts.curves(lines, x_name="training step of the checkpoint", y_name="return found")
    rows = [(line["name"], *point) for line in lines for point in zip(line["x"], line["y"], strict=True)]
    caption = (
        "What the same runs returned in the environment, in the same colours. Returns are not discounted, so that the "
        "shape is to be compared, not the height."
    )
    return figure(svg, caption, table(("run", "step", "mean return"), rows))
