"""The section on training: learning curves, scores over seeds, options that differ."""

from __future__ import annotations

from collections.abc import Mapping
from string import ascii_uppercase
from typing import Any

from rl_training.experiment.page import charts
from rl_training.experiment.page.axes import DASH, LONGEST_NAME, number, percent, span
from rl_training.experiment.page.markup import figure, items, p, section, table
from rl_training.experiment.sweep_folder import value_text

Plain = Mapping[str, Any]

ACTIONS = {"warn": "went on", "rollback": "went back to an earlier checkpoint"}
EVEN = 0.5
"""The probability of improvement where neither is better."""


def training(found: Plain) -> str:
    """Learning curves with bands over seeds, and options that differ."""
    parts = [p(found["missing"])] if "missing" in found else [_panel(panel) for panel in found["panels"]]
    parts += [_scores(found["scores"])] if found.get("scores") else []
    for each in found.get("seeds", ()):
        parts += [_profiles(each), _improvements(each)]
    if found["alarms"]:
        parts.append(_alarms(found["alarms"]))
    options = found["options"]
    if options["names"]:
        groups = options["groups"]
        headers = ["option", *(each["name"] for each in groups)]
        rows = [
            (name, *(each["values"][place] or DASH for each in groups)) for place, name in enumerate(options["names"])
        ]
        parts.append(f"<h3>Options that differ</h3>{table(headers, rows)}")
    return section("How training went", *parts)


def _alarms(alarms: list[Plain]) -> str:
    """What guards have found during training."""
    rows = [(each["run"], each["global_step"], each["message"], ACTIONS.get(each["action"], DASH)) for each in alarms]
    told = p("Guards have found something wrong during training. Read this before you trust the policy of such a run.")
    return f"<h3>Alarms</h3>{told}{table(('run', 'timestep', 'what was found', 'what the run did'), rows)}"


def _panel(panel: Plain) -> str:
    lines, level = panel["lines"], panel["data_return"]
    names = {line["colour"]: f"{line['name']}, {line['runs']} run{'s' * (line['runs'] > 1)}" for line in lines}
    svg = charts.curves(lines, x_name=panel["axis"], y_name=panel["metric"], level=level)
    rows = [
        (line["name"], *point)
        for line in lines
        for point in zip(line["x"], line["y"], line.get("low", line["y"]), line.get("high", line["y"]), strict=True)
    ]
    caption = f"{panel['task']}: {panel['metric']} during training."
    has_band = any(line.get("low") for line in lines)
    caption += f" Lines are means over runs, bands {panel['band']}." if has_band else " Each line is one run."
    caption += " The dashed line is the mean return of the data." if level is not None else ""
    numbers = table(("algorithm", panel["axis"], "mean", "low", "high"), rows)
    return figure(svg, caption, numbers, before=charts.legend(list(names.values())))


def _scores(scores: list[Plain]) -> str:
    """A row per group of runs; in a sweep, a column for each option that varied."""
    is_sweep = all("values" in each for each in scores)
    varied = list(dict.fromkeys(name for each in scores for name in each["values"])) if is_sweep else []
    # The many columns of a sweep need the room.
    is_one_metric = is_sweep and len({each["metric"] for each in scores}) == 1
    rows = [
        (
            *(value_text(each["values"][name]) if name in each["values"] else DASH for name in varied),
            *([] if varied else [", ".join(filter(None, (each["algo"], each["variant"])))]),
            *([] if is_one_metric else [each["metric"]]),
            each["runs"],
            each["last"],
            each["best"],
            each["iqm"],
            DASH if each["interval"] is None else " to ".join(map(number, each["interval"])),
        )
        for each in scores
    ]
    measures = ("runs", "last", "best", "IQM" if varied else "interquartile mean", "95 % interval")
    found = table((*(varied or ["algorithm"]), *([] if is_one_metric else ["metric"]), *measures), rows)
    return p(f"Scores by {scores[0]['metric']}; IQM is the interquartile mean:") + found if is_one_metric else found


def _profiles(found: Plain) -> str:
    """The share of runs above each score: who reaches what, and how surely."""
    profiles, thresholds = found["profiles"], found["thresholds"]
    low, high = span(thresholds)
    lines = []
    for place, each in enumerate(profiles):
        line: dict[str, Any] = {"name": each["name"], "colour": place}
        line["x"] = [low, *(edge for threshold in thresholds for edge in (threshold, threshold)), high]
        for name, key in (("y", "shares"), ("low", "low"), ("high", "high")):
            if each[key] is not None:
                # Below the lowest score all runs are above; from a score on, those that are above it.
                levels = [1.0, *each[key]]
                line[name] = [level for level in levels for _ in range(2)]
        lines.append(line)
    svg = charts.curves(lines, x_name=f"score to reach ({found['metric']})", y_name="share of runs above")
    rows = [
        (each["name"], threshold, percent(share), *(DASH if end is None else percent(end[place]) for end in ends))
        for each in profiles
        for ends in [(each["low"], each["high"])]
        for place, (threshold, share) in enumerate(zip(thresholds, each["shares"], strict=True))
    ]
    caption = (
        f"Performance profiles on {found['task']}: the share of runs whose last score is above the score on the axis. "
        "A line further up and to the right is better. Where lines cross, neither is better throughout."
    )
    if any(each["low"] is not None for each in profiles):
        caption += " Bands are 95 % intervals over seeds."
    names = [f"{each['name']}, {len(each['scores'])} runs" for each in profiles]
    numbers = table(("algorithm", "score", "share of runs above", "from", "to"), rows)
    return "<h3>How scores spread over seeds</h3>" + figure(svg, caption, numbers, before=charts.legend(names))


def _improvements(found: Plain) -> str:
    """How probably a run of one algorithm scores higher than one of another."""
    names = {each["name"]: each["name"] for each in found["profiles"]}
    if 2 * max(map(len, names)) + len(" over ") > LONGEST_NAME:
        # Two names that do not fit into the figure stand above it, under a letter each.
        names = dict(zip(names, ascii_uppercase, strict=False))
    rows = [
        {
            "name": f"{names[each['first']]} over {names[each['second']]}",
            "value": each["probability"],
            "interval": each["interval"],
        }
        for each in found["improvements"]
    ]
    svg = charts.forest(
        rows,
        level=EVEN,
        label="neither is better",
        band=(EVEN, EVEN),
        axis="probability that a run of the first scores higher",
        said=f"Probabilities of improvement for {len(rows)} pairs.",
        within=(0, 1),
    )
    numbers = table(
        ("first", "second", "probability", "95 % interval", "what it means"),
        [
            (
                each["first"],
                each["second"],
                each["probability"],
                DASH if each["interval"] is None else " to ".join(map(number, each["interval"])),
                each["meaning"],
            )
            for each in found["improvements"]
        ],
    )
    caption = (
        f"Probability of improvement on {found['task']}: the share of pairs of runs in which the first scores higher; "
        "equal scores count half. "
    )
    if any(each["interval"] for each in found["improvements"]):
        caption += "Bars are 95 % intervals over seeds; pairs with fewer than three runs have none."
    else:
        caption += "Two runs each are too few for intervals."
    if found["groups_in_all"] > len(found["profiles"]):
        caption += f" The best {len(found['profiles'])} of {found['groups_in_all']} are compared."
    caption += " The numbers below say in words which pairs can be told apart."
    letters = [f"{letter}: {name}" for name, letter in names.items() if letter != name]
    return figure(svg, caption, numbers, before=items(letters) if letters else "")
