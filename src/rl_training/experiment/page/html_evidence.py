"""The content of a report as one page: the log, risk, actions, training, real episodes, hand-over, limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rl_training.experiment.page import charts
from rl_training.experiment.page.axes import DASH, number, percent
from rl_training.experiment.page.markup import code, facts, figure, items, p, section, table

Plain = Mapping[str, Any]

TWO_KINDS = ("logged", "chosen by the policy")


def log(found: Plain) -> str:
    """The log: what is in it."""
    known = {"rows": found["rows"], "episodes": found["episodes"]}
    shown = {name: f"{value:,}" for name, value in known.items() if value is not None}
    if found.get("lengths"):
        lengths = found["lengths"]
        same = lengths["shortest"] == lengths["longest"]
        between = f"{lengths['shortest']:,} to {lengths['longest']:,}, median {lengths['median']:,.0f}"
        shown["steps of an episode"] = f"{lengths['longest']:,}" if same else between
    if found["return_mean"] is not None:
        shown["mean return"] = number(found["return_mean"])
        shown["standard deviation"] = number(found["return_std"])
    if found.get("ends"):
        shown["terminated / cut"] = f"{found['ends']['terminated']:,} / {found['ends']['cut']:,}"
    if found["step_times"]:
        shown["time of a step"] = _time(*(found["step_times"][name] for name in ("median", "low", "high")))
    parts = [p(f"Source: {found['source']}", "soft small")] if found.get("source") else []
    parts.append(facts(shown))
    if found.get("source") and found["return_mean"] is None:
        parts.append(p("The data has no rewards, so nothing in it says what is good.", "soft"))
    if found.get("why_no_data"):
        parts.append(p(f"The log itself could not be read here: {found['why_no_data']}.", "soft"))
    if found.get("returns"):
        edges, counts = found["returns"]["edges"], found["returns"]["counts"]
        svg = charts.histogram(edges, {"episodes": counts}, axis="return of an episode", unit="episodes", whole=True)
        rows = list(zip(edges[:-1], edges[1:], counts, strict=True))
        caption = "Returns of the logged episodes, not discounted: what the policies are compared with."
        parts.append(figure(svg, caption, table(("from", "to", "episodes"), rows)))
    parts.append(_audit(found["audit"]))
    if found["notes"]:
        parts.append(items(found["notes"]))
    return section("The log", *parts)


def _time(median: float, low: float, high: float) -> str:
    """How long a step takes, in the unit of the timestamps."""
    return number(median) if low == high else f"{number(median)} ({number(low)} to {number(high)} in 90 %)"


def _audit(audit: Plain | None) -> str:
    if audit is None:
        return p("The data was not audited. This command looks for mistakes in it: rl-training data audit DATA", "soft")
    if not audit["findings"]:
        return p("The checks that training makes of its data found nothing unusual.")
    said = "The checks that training makes of its data found the following."
    if audit["accepted"]:
        said = "The checks that training makes of its data failed, and the data was accepted all the same."
    texts = [f"{each['verdict']}: {each['message']}. {each['advice']}".strip() for each in audit["findings"]]
    return p(said) + items(texts)


def risk(found: Plain) -> str:
    """How bad a bad episode is."""
    title = "How bad can an episode get?"
    if "missing" in found:
        return section(title, p(found["missing"]))
    parts = [
        p("A mean hides bad episodes. Estimates are of means only, so the spread is shown for returns that happened.")
    ]
    if found["returns"]:
        columns = found["returns"]
        rows = [
            ("episodes", *(each["episodes"] for each in columns)),
            ("worst episode", *(each["worst"] for each in columns)),
            (f"mean of the worst {percent(found['worst_share'])}", *(each["worst_mean"] for each in columns)),
        ]
        for share in columns[0]["quantiles"]:
            name = "half of the episodes are below" if share == "0.5" else f"{percent(float(share))} are below"
            rows.append((name, *(each["quantiles"][share] for each in columns)))
        parts.append(table(["return of an episode", *(each["of"] for each in columns)], rows))
    if found["evaluations"]:
        parts.append(p("The last evaluation of each run in its environment:"))
        rows = [
            (each["name"], each["episodes"], each["mean"], each["std"], each["min"], each["max"])
            for each in found["evaluations"]
        ]
        parts.append(table(("policy", "episodes", "mean", "standard deviation", "worst", "best"), rows))
    return section(title, *parts)


def behavior(found: Plain) -> str:
    """How far the policy leaves the data."""
    title = "What the policy would do differently"
    if "missing" in found:
        return section(title, p(found["missing"]))
    of = "" if found["rows"] == found["rows_of_log"] else f" of {found['rows_of_log']:,}"
    parts = [
        p(
            f"{found['policy']} was asked what it would have done in {found['rows']:,}{of} logged situations. Its "
            "choices are compared with what was done."
        )
    ]
    if found["kind"] == "discrete":
        parts.append(_choices(found))
    else:
        parts.append(_dimensions(found))
    parts.append(_novelty(found["novelty"]))
    parts.append(_most_different(found))
    return section(title, *parts)


def _choices(found: Plain) -> str:
    choices = found["choices"]
    series = dict(zip(TWO_KINDS, (choices["logged"], choices["chosen"]), strict=True))
    svg = charts.bars(choices["names"], series, axis="share of situations")
    rows = [
        (name, percent(logged), percent(chosen))
        for name, logged, chosen in zip(choices["names"], choices["logged"], choices["chosen"], strict=True)
    ]
    differs = percent(found["mean_difference"])
    caption = f"Grey: logged; coloured: the policy. It differs from the log in {differs} of situations."
    return figure(svg, caption, table(("choice", *TWO_KINDS), rows))


def _dimensions(found: Plain) -> str:
    dimensions = found["dimensions"]
    figures = []
    for each in dimensions:
        series = dict(zip(TWO_KINDS, (each["logged"]["shares"], each["chosen"]["shares"]), strict=True))
        svg = charts.histogram(each["edges"], series, axis=each["name"], unit="share")
        rows = [
            (low, high, *map(percent, pair))
            for low, high, *pair in zip(each["edges"][:-1], each["edges"][1:], *series.values(), strict=True)
        ]
        figures.append(
            figure(svg, f"{each['name']}. Grey: logged; line: the policy.", table(("from", "to", *TWO_KINDS), rows))
        )
    rows = [
        (each["name"], kind, side["mean"], side["std"], percent(side["at_bound"]), side["change"])
        for each in dimensions
        for kind, side in zip(TWO_KINDS, (each["logged"], each["chosen"]), strict=True)
    ]
    headers = ("action", "", "mean", "standard deviation", "at a bound", "change per step")
    said = f"On average an action differs from the logged one by {percent(found['mean_difference'])} of its range."
    if found["dimensions_in_all"] > len(dimensions):
        said += f" The first {len(dimensions)} of {found['dimensions_in_all']} dimensions are shown."
    kind = "two" if len(figures) > 1 else ""
    return p(said) + f'<div class="{kind}">{"".join(figures)}</div>' + table(headers, rows)


def _novelty(found: Plain | None) -> str:
    if found is None:
        return p("The log has too few episodes to say how far the policy leaves it.", "soft")
    series = dict(zip(TWO_KINDS, (found["logged"]["shares"], found["chosen"]["shares"]), strict=True))
    svg = charts.histogram(found["edges"], series, axis="distance from the log (above 1: unusual)", unit="share")
    edges = zip(found["edges"][:-1], found["edges"][1:], *series.values(), strict=True)
    rows = [(low, high, percent(logged), percent(chosen)) for low, high, logged, chosen in edges]
    said = (
        f"How far it leaves the data: {percent(found['chosen']['beyond'])} of the policy's actions are farther from "
        f"everything logged than usual, against {percent(found['logged']['beyond'])} of the logged ones."
    )
    caption = (
        f"Distance of situation and action from the log, in {found['episodes']:,} episodes that the measure was not "
        "made from. Grey: logged; line: the policy. Estimates are worth little where the policy is far from the log."
    )
    return p(said) + figure(svg, caption, table(("from", "to", *TWO_KINDS), rows))


def _most_different(found: Plain) -> str:
    different = found["most_different"]
    if not different["rows"]:
        return p("The policy does what was logged, everywhere.")
    names = different["actions"]
    headers = ["episode", "step", *(f"{name}, logged" for name in names), *(f"{name}, policy" for name in names)]
    rows = [
        (each["episode"], each["step"], *each["logged"], *each["chosen"], *each["observation"])
        for each in different["rows"]
    ]
    said = "Where it differs most, one situation per episode. Someone who knows the task should look at these."
    return f"<h3>Situations to look at</h3>{p(said)}" + table([*headers, *different["features"]], rows)


def real_episodes(found: Plain) -> str:
    """What real episodes were spent on."""
    pulls = found["pulls"]
    last = pulls[-1]
    said = (
        f"{len(pulls)} of {found['budget']} real episodes were spent, each on the policy that mattered most. Taken in "
        f"the end: {last['best']}; the probability that another is better is at most {percent(last['doubt'])}."
    )
    line = {"name": "return", "colour": 0, "x": [each["number"] for each in pulls]}
    line["y"] = [each["best_believed"] for each in pulls]
    svg = charts.curves([line], x_name="real episodes spent", y_name="believed return of the choice")
    rows = [
        (each["number"], each["name"], each["episode_return"], each["best"], each["best_believed"]) for each in pulls
    ]
    numbers = table(("episode", "policy", "return", "best so far", "its believed return"), rows)
    caption = "What the mean return of the policy that would be taken is believed to be, after each episode."
    by_policy = [
        (
            each["name"],
            len(each["returns"]),
            sum(each["returns"]) / len(each["returns"]),
            each["believed"],
            each["believed_std"],
        )
        for each in found["policies"]
    ]
    headers = ("policy", "episodes", "mean return", "believed mean", "give or take")
    return section("Real episodes", p(said), figure(svg, caption, numbers), table(headers, by_policy))


def handover(found: Plain) -> str:
    """The exported folder."""
    rows = [(each["name"], each["bytes"], each["sha256"]) for each in found["files"]]
    action, novelty = found["action"] or {}, found["novelty"] or {}
    shown = {"folder": found["folder"]}
    if found["input"]:
        shown["input"] = f"obs, {found['input']['obs']['type']}, {found['input']['obs']['shape'][-1]} numbers"
    if "low" in action:
        bounds = zip(action["low"], action["high"], strict=True)
        shown["action"] = "; ".join(f"{number(low)} to {number(high)}" for low, high in bounds)
    elif "count" in action:
        shown["action"] = f"one of {action['count']} choices"
    if times := found["control_interval"]:
        shown["time between actions"] = _time(*(times[name] for name in ("median", "quantile_0.05", "quantile_0.95")))
    shown["support score"] = "yes" if novelty.get("available") else "no"
    latencies = found["latency_us"] if isinstance(found["latency_us"], Mapping) else {}
    shown |= {
        f"time per call, {name}": f"{number(value)} µs" for name, value in latencies.items() if isinstance(value, float)
    }
    example = (
        'import numpy as np, onnxruntime\n\nsession = onnxruntime.InferenceSession("policy.onnx")\n'
        'action = session.run(["action"], {"obs": obs.astype(np.float32)})[0]'
    )
    return section(
        "Hand-over",
        p(
            "The policy as a folder that runs without the training software. policy.json describes it and has the sums "
            "of the other files. check.py says whether they are unchanged and the policy still answers the same."
        ),
        facts(shown),
        table(("file", "bytes", "sha256"), rows),
        _input_ranges(found["observation"]),
        code(found["check"]),
        code(example),
    )


def _input_ranges(observation: Plain) -> str:
    """What the data had in each number of an observation: outside, the policy has learned nothing."""
    ranges = observation["ranges"]
    if not ranges:
        return ""
    names = observation["names"] or [f"observation {place}" for place in range(len(ranges["min"]))]
    rows = list(zip(names, ranges["min"], ranges["max"], strict=True))
    numbers = table(("input", "smallest in the data", "largest"), rows)
    return f"<details><summary>Ranges of the inputs</summary>{numbers}</details>"


def limits(found: Plain) -> str:
    """What was not examined; commands and versions."""
    names = dict.fromkeys([*found["trained_with"], *found["reported_with"]])
    rows = [(name, found["trained_with"].get(name, DASH), found["reported_with"].get(name, DASH)) for name in names]
    return section(
        "Limits, commands and versions",
        items(found["limits"]),
        "<h3>Commands</h3>",
        *(code(command) for command in found["commands"]),
        "<h3>Versions</h3>",
        table(("package", "runs", "this report"), rows),
        p(f"Python {found['python']} on {found['platform']}.", "soft small"),
    )


SECTIONS: dict[str, Callable[[Plain], str]] = {
    "log": log,
    "risk": risk,
    "behavior": behavior,
    "real_episodes": real_episodes,
    "handover": handover,
    "limits": limits,
}
"""Sections by their key in the content."""
