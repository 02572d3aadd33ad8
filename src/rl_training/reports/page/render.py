"""The page of a report, with the functions that the templates in `assets/page` need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from string import ascii_uppercase
from typing import Any

from rl_training.core.text import fill_template, value_text
from rl_training.ope import BETTER, WORSE
from rl_training.reports.page import charts
from rl_training.reports.page.charts import DASH, LONGEST_NAME, number, percent, span

Plain = Mapping[str, Any]

SHORT = 22
"""The most letters of a cell on one line."""
MOST_DRAWN = 6
"""The most runs in a figure of checkpoints."""


def render(content: Plain) -> str:
    """The page as HTML, which loads nothing and runs nothing."""
    return fill_template("page.html", {"content": content}, filters=FILTERS, helpers=HELPERS)


def interval(ends: Sequence[float] | None) -> str:
    """An interval in words."""
    return DASH if ends is None else " to ".join(map(number, ends))


def width(words: str) -> str:
    """The class of a cell: short cells stay on one line; long ones without a space break anywhere."""
    return "short" if len(words) <= SHORT else "" if " " in words else "mono"


def step_time(median: float, low: float, high: float) -> str:
    """The time of a step, in the unit of the timestamps."""
    return number(median) if low == high else f"{number(median)} ({number(low)} to {number(high)} in 90 %)"


def names_by_text(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The names that each text is about, so that a text for several names appears once."""
    names: dict[str, list[str]] = {}
    for name, text in pairs:
        names.setdefault(text, []).append(name)
    return {text: ", ".join(each) for text, each in names.items()}


def reasons(refused: Sequence[Plain]) -> list[str]:
    """The policies without a verdict, by reason."""
    found = names_by_text((each["name"], reason) for each in refused for reason in each["reasons"])
    return [f"{names}: {reason}." for reason, names in found.items()]


def remarks(curves: Sequence[Plain]) -> list[str]:
    """The conclusions about the checkpoints of each run."""
    return [
        f"{names}: {said}" for said, names in names_by_text((each["name"], each["said"]) for each in curves).items()
    ]


def log_facts(found: Plain) -> dict[str, str]:
    """The size of the log, its returns, the ends of its episodes, and the time of a step."""
    shown = {name: f"{found[name]:,}" for name in ("rows", "episodes") if found[name] is not None}
    if lengths := found.get("lengths"):
        same = lengths["shortest"] == lengths["longest"]
        between = f"{lengths['shortest']:,} to {lengths['longest']:,}, median {lengths['median']:,.0f}"
        shown["steps of an episode"] = f"{lengths['longest']:,}" if same else between
    if found["return_mean"] is not None:
        shown["mean return"] = number(found["return_mean"])
        shown["standard deviation"] = number(found["return_std"])
    if ends := found.get("ends"):
        shown["terminated / cut"] = f"{ends['terminated']:,} / {ends['cut']:,}"
    if times := found["step_times"]:
        shown["time of a step"] = step_time(*(times[name] for name in ("median", "low", "high")))
    return shown


def bundle_facts(found: Plain) -> dict[str, str]:
    """Input, output and latency of an exported policy."""
    action, novelty = found["action"] or {}, found["novelty"] or {}
    shown = {"folder": found["folder"]}
    if found["input"]:
        shown["input"] = f"obs, {found['input']['obs']['type']}, {found['input']['obs']['shape'][-1]} numbers"
    if "low" in action:
        shown["action"] = "; ".join(map(interval, zip(action["low"], action["high"], strict=True)))
    elif "count" in action:
        shown["action"] = f"one of {action['count']} discrete actions"
    if times := found["control_interval"]:
        quantiles = (times[name] for name in ("median", "quantile_0.05", "quantile_0.95"))
        shown["time between actions"] = step_time(*quantiles)
    shown["novelty score"] = "yes" if novelty.get("available") else "no"
    latencies = found["latency_us"] if isinstance(found["latency_us"], Mapping) else {}
    numbers = {name: number(value) for name, value in latencies.items() if isinstance(value, float)}
    return shown | {f"time per call, {name}": f"{value} µs" for name, value in numbers.items()}


def line(name: str, colour: int, points: Iterable[Sequence[float]], **more: Any) -> Plain:
    """A line of a figure through points."""
    x, y = zip(*points, strict=True)
    return {"name": name, "colour": colour, "x": x, "y": y, **more}


def fit_lines(found: Plain) -> list[Plain]:
    """The FQE estimate of each policy during its training."""
    return [line(each["name"], place, each["curve"]) for place, each in enumerate(found["policies"]) if each["curve"]]


def sample_size_lines(found: Plain) -> list[Plain]:
    """The effective sample size of each policy by the step of an episode."""
    lines = []
    for place, each in enumerate(found["policies"]):
        sizes = each.get("weights", {}).get("effective_sample_sizes") or []
        if len(sizes) > 1:
            lines.append(line(each["name"], place, enumerate(sizes, start=1)))
    return lines


def colours_of(curves: Sequence[Plain]) -> dict[str, int]:
    """The colours of the runs that are drawn, the chosen one among them."""
    first = sorted(curves, key=lambda curve: not curve["is_chosen"])[:MOST_DRAWN]
    return {curve["name"]: place for place, curve in enumerate(each for each in curves if each in first)}


def value_lines(curves: Sequence[Plain], source: str) -> list[Plain]:
    """The values of checkpoints from one source, for the runs that are drawn."""
    colours, lines = colours_of(curves), []
    for curve in curves:
        known = [point for point in curve["points"] if point["value"] is not None]
        if curve["source"] == source and curve["name"] in colours:
            points, bars = ([(each["step"], each["value"]) for each in known], [each["interval"] for each in known])
            lines.append(line(curve["name"], colours[curve["name"]], points, bars=bars))
    return lines


def return_lines(curves: Sequence[Plain]) -> list[Plain]:
    """Returns in the environment, for the runs that are drawn."""
    colours = colours_of(curves)
    lines = []
    for curve in curves:
        points = [(each["step"], each["value"]) for each in curve["returns"]]
        if curve["name"] in colours and len(points) > 1:
            lines.append(line(curve["name"], colours[curve["name"]], points, bars=[None] * len(points)))
    return lines


def groups(lines: Sequence[Plain]) -> list[Plain]:
    """Lines by their colour, each with the number of its runs in its name."""
    named = {each["colour"]: f"{each['name']}, {each['runs']} run{'s' * (each['runs'] > 1)}" for each in lines}
    return [{"name": name, "colour": colour} for colour, name in named.items()]


def score_table(scores: Sequence[Plain]) -> Plain:
    """Headers and rows of a table with a row per group of runs; in a sweep, a column for each option that varied."""
    is_sweep = all("values" in each for each in scores)
    varied = list(dict.fromkeys(name for each in scores for name in each["values"])) if is_sweep else []
    # The many columns of a sweep need the room.
    is_one_metric = is_sweep and len({each["metric"] for each in scores}) == 1
    metric = [] if is_one_metric else ["metric"]
    rows = [
        (
            *(value_text(each["values"][name]) if name in each["values"] else DASH for name in varied),
            *([] if varied else [", ".join(filter(None, (each["algo"], each["variant"])))]),
            *(each[name] for name in (*metric, "runs", "last", "best", "iqm")),
            interval(each["interval"]),
        )
        for each in scores
    ]
    measures = ("runs", "last", "best", "IQM" if varied else "interquartile mean", "95 % interval")
    headers = [*(varied or ["algorithm"]), *metric, *measures]
    return {"metric": scores[0]["metric"] if is_one_metric else None, "headers": headers, "rows": rows}


def profile_lines(found: Plain) -> list[Plain]:
    """The share of runs above each score, with its band."""
    low, high = span(found["thresholds"])
    x = [low, *(edge for threshold in found["thresholds"] for edge in (threshold, threshold)), high]
    lines: list[Plain] = []
    for place, each in enumerate(found["profiles"]):
        ends = {"y": each["shares"], "low": each["low"], "high": each["high"]}
        known = {name: shares for name, shares in ends.items() if shares is not None}
        # Below the lowest score all runs are above; from a score on, those that are above it.
        levels = {name: [level for level in (1.0, *shares) for _ in range(2)] for name, shares in known.items()}
        lines.append({"name": each["name"], "colour": place, "runs": len(each["scores"]), "x": x, **levels})
    return lines


def short_names(found: Plain) -> dict[str, str]:
    """Names of algorithms in a figure of pairs, or letters if two names do not fit into it."""
    names = [each["name"] for each in found["profiles"]]
    fit = 2 * max(map(len, names)) + len(" over ") <= LONGEST_NAME
    return dict(zip(names, names if fit else ascii_uppercase, strict=False))


def letters(found: Plain) -> list[str]:
    """The meaning of letters in a figure of pairs."""
    return [f"{letter}: {name}" for name, letter in short_names(found).items() if letter != name]


def improvement_rows(found: Plain) -> list[Plain]:
    """The rows of the figure of pairs, with short names."""
    names = short_names(found)
    return [
        {**each, "name": f"{names[each['first']]} over {names[each['second']]}", "value": each["probability"]}
        for each in found["improvements"]
    ]


FUNCTIONS = (number, percent, interval, width, reasons, remarks, groups, letters, log_facts, bundle_facts, score_table)
FILTERS: dict[str, Any] = {each.__name__: each for each in FUNCTIONS} | {
    "line_style": charts.style,
    "thousands": "{:,}".format,
}
LINES = (fit_lines, sample_size_lines, value_lines, return_lines, profile_lines, improvement_rows)
HELPERS: dict[str, Any] = {each.__name__: each for each in LINES} | {
    "zip": zip,
    "charts": charts,
    "DASH": DASH,
    "BETTER": BETTER,
    "WORSE": WORSE,
    "LOGGED": "logged",
    "CHOSEN": "chosen by the policy",
    "STEP": "training step of the checkpoint",
}
"""Functions and constants of the templates, as filters and by name."""
