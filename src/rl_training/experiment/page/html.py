"""The content of a report as one page: how good policies are. Other sections are in `html_evidence`."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from rl_training.experiment.page import charts
from rl_training.experiment.page.axes import DASH, number, percent
from rl_training.experiment.page.html_checkpoints import checkpoint_control
from rl_training.experiment.page.html_evidence import SECTIONS as EVIDENCE
from rl_training.experiment.page.html_training import training
from rl_training.experiment.page.html_weights import weights
from rl_training.experiment.page.markup import code, facts, figure, items, p, section, table
from rl_training.experiment.page.style import STYLE

Plain = Mapping[str, Any]

ORDER = (
    "candidates",
    "log",
    "controls",
    "agreement",
    "weights",
    "risk",
    "behavior",
    "training",
    "real_episodes",
    "handover",
    "limits",
)
"""Sections after the verdict, in the order of what a reader decides with them."""
WORDS = {"better than the data": "good", "worse than the data": "bad"}


def render(content: Plain) -> str:
    """The page. It loads nothing and runs nothing."""
    judged = {"candidates": candidates, "controls": controls, "agreement": agreement, "weights": weights}
    sections = {**EVIDENCE, **judged, "training": training}
    parts = [answer(content["verdict"], content["candidates"])]
    parts += [sections[name](content[name]) for name in ORDER if content.get(name) is not None]
    title, date = escape(content["title"]), escape(content["verdict"]["date"][:10])
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        # An empty icon, or browsers ask the server for one.
        f'<link rel="icon" href="data:,"><title>{title}</title><style>{STYLE}</style></head>\n'
        f"<body><main><header><p>Report on policies learned from logged data, <time>{date}</time></p>"
        f"<h1>{title}</h1></header>\n{''.join(parts)}</main></body></html>\n"
    )


def answer(found: Plain, rest: Plain) -> str:
    """The verdict: a sentence, the numbers in it, what was refused and why."""
    parts = [f'<p class="sentence">{escape(found["sentence"])}</p>', p(found["advice"])]
    chosen = found["chosen"]
    estimate = None if chosen is None else chosen["estimate"]
    numbers = {}
    if estimate is not None and estimate["value"] is not None:
        low, high = map(number, estimate["interval"])
        numbers = {
            "estimated value": number(estimate["value"]),
            "95 % interval": f"{low} to {high}",
            "value of the log": number(estimate["logged_value"]),
            "probability better": estimate["probability_text"],
        }
    parts.append(facts(numbers) if numbers else "")
    if chosen is not None:
        parts.append(p(f"Policy: {chosen['name']}, because {chosen['why']}. Run: {chosen['run']}", "soft small"))
    if "gamma" in rest:
        ahead = f"it looks about {rest['horizon']:,} steps ahead (discount {rest['gamma']:g})"
        text = f"A value is a discounted return: {ahead}."
        if found["logged_return"] is not None:
            judged_by = f"the {rest['episodes']:,} episodes that policies were judged by"
            text += f" Not discounted, {judged_by} returned {number(found['logged_return'])} on average."
        parts.append(p(text, "soft small"))
    if found["refused"]:
        parts.append(_refused(found["refused"]))
    if found["notes"]:
        parts.append(items(found["notes"]))
    if found["fingerprint"]:
        parts.append(p(f"Fingerprint of the data: {found['fingerprint']}", "soft small"))
    return f'<section class="answer {found["tone"]}">{"".join(parts)}</section>\n'


def _refused(refused: list[Plain]) -> str:
    """Who cannot be judged and why; a reason that several share is said once."""
    by_reason: dict[str, list[str]] = {}
    for each in refused:
        for reason in each["reasons"]:
            by_reason.setdefault(reason, []).append(each["name"])
    texts = [f"{', '.join(names)}: {reason}." for reason, names in by_reason.items()]
    return p("What cannot be judged, and why:") + items(texts)


def candidates(found: Plain) -> str:
    """Estimated values with intervals, and who is not distinguishable from the best."""
    title = "How the policies compare"
    if "missing" in found:
        return section(title, p(found["missing"]), p("This command fills the section:"), code(found["command"]))
    policies = found["policies"]
    axis = "estimated value (discounted return); more is better"
    logged = number(found["logged_value"])
    svg = charts.forest(
        [{**each, "interval": each["simultaneous_interval"]} for each in policies],
        level=found["logged_value"],
        label=f"mean of the log {logged}",
        band=tuple(found["logged_band"]),
        axis=axis,
        said=f"Estimated values of {len(policies)} policies with intervals; the log's mean is {logged}.",
    )
    headers = ("policy", "value", "interval", "for all", "probability better", "verdict", "novel actions", "run")
    rows = [
        (
            each["name"],
            each["value"],
            _range(each["interval"]),
            _range(each["simultaneous_interval"]),
            each["probability_text"] or DASH,
            each["verdict_text"],
            percent(each["novel_share"]),
            each["run"],
        )
        for each in policies
    ]
    caption = (
        f"Points are estimates. {_kind_of_bars(found)} The grey band is the mean of the log, give or take two standard "
        "errors. Shaded policies are not distinguishable from the best."
    )
    if any(each["value"] is None for each in policies):
        caption += " Grey ones cannot be judged."
    parts = [
        p(
            f"Estimated from {found['episodes']:,} logged episodes of {found['source']}, without running any policy "
            f"({found['relation']})."
        ),
        figure(svg, caption, table(headers, rows)),
        _words(policies),
    ]
    if found["left_out"]:
        names = ", ".join(found["left_out"])
        parts.append(p(f"Left out after a rough fit, which put them below these: {names}.", "soft"))
    if found["not_estimated"]:
        parts.append(p(f"Not estimated: {', '.join(found['not_estimated'])}.", "soft"))
    return section(title, *parts)


def _kind_of_bars(found: Plain) -> str:
    """What the intervals of the figure cover."""
    count = sum(each["interval"] is not None for each in found["policies"])
    if count < 2:
        return "The bar is its 95 % interval." if count else ""
    return (
        f"Bars are simultaneous 95 % intervals: in 95 % of logs all {count} hold together. They are wider than those "
        "in the table, which are for each policy by itself."
    )


def _range(interval: list[float] | None) -> str:
    return DASH if interval is None else " to ".join(map(number, interval))


def _words(policies: list[Plain]) -> str:
    """The ranking in words: the best, those not distinguishable from it, and what each is against the data."""
    best = [each["name"] for each in policies if each["among_best"]]
    parts = []
    if len(best) > 1:
        same = f"Highest estimate: {best[0]}. Not distinguishable from it: {', '.join(best[1:])}."
        parts.append(p(f"{same} Choose among these by other reasons, or with a few real episodes."))
    elif best and len(policies) > 1:
        parts.append(p(f"{best[0]} has the highest estimate, and no other policy comes near it by chance."))
    rows = []
    for each in policies:
        numbers = each["value"], _range(each["interval"]), each["probability_text"] or DASH
        rows.append((each["name"], *numbers, each["verdict"]))
    shown = table(("policy", "value", "95 % interval, by itself", "probability better", "against the data"), rows)
    for words, kind in WORDS.items():
        shown = shown.replace(f'<td class="short">{words}</td>', f'<td class="short {kind}-word">{words}</td>')
    meaning = (
        "“Better” and “worse” are said only where chance would lead to it in at most 5 % of logs, for all policies "
        "together. “Not distinguishable” means that this log cannot tell."
    )
    return "".join([*parts, shown, p(meaning, "soft small")])


def controls(found: Plain) -> str:
    """Is the estimator right where the answer is known, and has it come to rest?"""
    title, along = "Can the estimates be trusted?", checkpoint_control(found["checkpoints"])
    if "missing" in found:
        return section(title, p(found["missing"]), along)
    error = abs(found["behavior_value"] - found["logged_value"])
    verdict = "It passes" if found["passes"] else "It fails"
    said = (
        f"The estimator was first tried on the logged behaviour, whose value is known. {verdict}: it says "
        f"{number(found['behavior_value'])}, the log has {number(found['logged_value'])}, an error of {number(error)} "
        f"where up to {number(found['tolerance'])} is accepted."
    )
    lines = [
        {"name": each["name"], "colour": place, "x": [x for x, _ in each["curve"]], "y": [y for _, y in each["curve"]]}
        for place, each in enumerate(found["policies"])
        if each["curve"]
    ]
    parts = [p(said)]
    if lines:
        least = found["least_kappa"]
        svg = charts.curves(lines, x_name="kappa (progress of the fit)", y_name="estimate", mark=least)
        caption = (
            f"The estimate during the fit. It should be level at the end; before the dotted line (kappa {least:g}) it "
            f"is refused. The fit ended at kappa {found['kappa']:.1f}."
        )
        points = [(line["name"], *point) for line in lines for point in zip(line["x"], line["y"], strict=True)]
        names = charts.legend([line["name"] for line in lines])
        parts.append(figure(svg, caption, table(("policy", "kappa", "estimate"), points), before=names))
    clipped = max((each["clipped_share"] for each in found["policies"]), default=0.0)
    parts.append(
        p(
            f"At most {percent(clipped)} of the fitted values ran into the bounds of what is possible "
            f"({percent(found['most_clipped'])} are accepted). The intervals come from {found['members']} further "
            "fits to resampled episodes."
        )
    )
    return section(title, *parts, along)


def agreement(found: Plain) -> str:
    """Estimates beside what was found in an environment."""
    points = found["points"]
    rows = [
        (str(place), each["name"], each["estimate"], each["estimated_return"], each["found"])
        for place, each in enumerate(points, start=1)
    ]
    numbers = table(("number", "policy", "estimated value", "as a return", "return found"), rows)
    words = ["These runs were also evaluated in an environment, so that estimates can be compared with what happened."]
    if found["spearman"] is not None:
        words.append(
            f"The rank correlation is {found['spearman']:.2f} over {len(points)} policies (1: same order; below ten "
            f"policies it proves little). Taking the highest estimate loses {percent(found['regret_at_1'])} of the "
            "range of returns."
        )
    if found["scale"] is None:
        return section("Do estimates agree with what happened?", p(" ".join(words)), numbers)
    drawn = [{"x": each["found"], "y": each["estimated_return"]} for each in points]
    svg = charts.scatter(drawn, x_name="return found in the environment", y_name="estimated return")
    caption = (
        "A point on the dashed line is estimated exactly. Estimated values are discounted; here they are stretched to "
        "returns of whole episodes by how much both differ in the log, so that order matters more than distance."
    )
    return section("Do estimates agree with what happened?", p(" ".join(words)), figure(svg, caption, numbers))
