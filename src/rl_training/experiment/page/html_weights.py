"""The section on estimates by weighting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_training.experiment.page import charts
from rl_training.experiment.page.axes import DASH, number, percent
from rl_training.experiment.page.markup import figure, items, p, section, table

Plain = Mapping[str, Any]

LEVELS = {"proceed": "can be used", "warn": "with care", "refuse": "refused"}


def weights(found: Plain) -> str:
    """Estimates by weighting beside those by the fit, and whether the weights can be trusted."""
    policies = found["policies"]
    said = (
        "The log says how probable its actions were. That gives a second opinion: logged episodes count more where the "
        "policy would have acted the same way. It is shown beside the fit, never instead of it."
    )
    headers = ("policy", "weights", "by weighting", "95 % interval", "by the fit", "both agree")
    rows = [_row(each) for each in policies]
    parts = [p(said), table(headers, rows), _diagnostics(policies)]
    reasons = [f"{each['name']}: {reason}." for each in policies for reason in each["reasons"]]
    parts += [p("About the weights:"), items(reasons)] if reasons else []
    lines = [
        {
            "name": each["name"],
            "colour": place,
            "x": list(range(1, len(sizes) + 1)),
            "y": sizes,
        }
        for place, each in enumerate(policies)
        if len(sizes := each.get("weights", {}).get("effective_sample_sizes") or []) > 1
    ]
    if lines:
        svg = charts.curves(lines, x_name="step of an episode", y_name="effective episodes")
        points = [(line["name"], *point) for line in lines for point in zip(line["x"], line["y"], strict=True)]
        caption = "Effective sample size by step: the number of equally weighted episodes that say as much."
        numbers = table(("policy", "step", "effective episodes"), points)
        parts.append(figure(svg, caption, numbers, before=charts.legend([line["name"] for line in lines])))
    parts += [_histogram(each) for each in policies]
    return section("A second opinion by weighting", *parts)


def _row(each: Plain) -> tuple[str | float | None, ...]:
    values = {value["estimator"]: value for value in each["estimates"]}
    best = values.get(each["recommended"])
    agrees = {None: DASH, True: "yes", False: "no"}[each.get("agrees")]
    fit = None if each["fit"] is None else each["fit"]["value"]
    if best is None:
        return (each["name"], LEVELS[each["level"]], None, DASH, fit, agrees)
    interval = DASH if best["interval"] is None else " to ".join(map(number, best["interval"]))
    return (each["name"], f"{LEVELS[each['level']]} ({best['estimator']})", best["value"], interval, fit, agrees)


def _diagnostics(policies: list[Plain]) -> str:
    rows = [
        (
            each["name"],
            each["weights"].get("episodes"),
            each["weights"].get("effective_sample_size"),
            percent(each["weights"].get("largest_share")),
            each["weights"].get("mean"),
            each["weights"].get("tail_index"),
        )
        for each in policies
        if each.get("weights")
    ]
    headers = ("policy", "episodes", "worth episodes of equal weight", "largest share", "mean weight", "tail index")
    return table(headers, rows) if rows else ""


def _histogram(each: Plain) -> str:
    found = each.get("weights", {}).get("log10_histogram")
    if not found or not found["counts"]:
        return ""
    edges, counts = found["edges"], found["counts"]
    svg = charts.histogram(edges, {"episodes": counts}, axis="weight (power of ten)", unit="episodes", whole=True)
    caption = (
        f"{each['name']}: final weights of the logged episodes; {found['zeros']:,} have weight 0 and are not drawn."
    )
    rows = list(zip(edges[:-1], edges[1:], counts, strict=True))
    return figure(svg, caption, table(("from, power of ten", "to", "episodes"), rows))
