"""The section of a report on training: learning curves, scores over seeds, options that differ."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from rl_training.experiment.curves import Panel, make_panels
from rl_training.experiment.page.gathering import Material, Plain
from rl_training.experiment.plot import ENOUGH_FOR_INTERVAL
from rl_training.experiment.report import (
    FEWEST_RUNS,
    RunRecord,
    choose_metrics,
    options_that_differ,
    summarize,
)
from rl_training.experiment.statistics import (
    bootstrap_band,
    improvement_interval,
    interquartile_mean,
    probability_of_improvement,
    score_profile,
)
from rl_training.types import ConfigError

MOST_POINTS = 200
"""Points of a curve that are kept: more would not be seen."""
EVALUATIONS = ("normalized_score", "return_mean")
"""Metrics that are scores in an environment."""
FEWEST_SEEDS = 2
"""Runs of an algorithm from which on its scores are a distribution."""
MOST_COMPARED = 6
"""Algorithms and variants that are compared in pairs, those with the highest scores."""


def training(material: Material) -> Plain:
    """Learning curves over seeds, last scores, and options that differ between runs."""
    records = material.records
    plain: Plain = {"runs": len(records), "options": _options(material), "alarms": _alarms(material)}
    try:
        panels, rows = make_panels(records), summarize(records)
    except ConfigError as error:
        return {**plain, "missing": f"There are no learning curves: {error}."}
    return {**plain, "scores": rows, "panels": [_panel(each) for each in panels], "seeds": _seeds(records)}


def _alarms(material: Material) -> list[Plain]:
    """What guards have found, by run and time."""
    return [
        {"run": material.names[record.path], **alarm._asdict()}
        for record in material.records
        for alarm in record.alarms
    ]


def _seeds(records: Sequence[RunRecord]) -> list[Plain]:
    """Per task, how the last scores of several seeds are distributed, and how probably one beats another.

    Definitions are those of rliable: a performance profile is the share of runs whose score is above a threshold, and
    the probability of improvement counts equal scores half.
    """
    tasks: dict[tuple[str, str], dict[str, list[float]]] = {}
    for (algo, task, variant), metric, members in choose_metrics(records):
        scores = [curve[-1][1] for record in members if (curve := record.curve(metric))]
        if metric in EVALUATIONS and len(scores) >= FEWEST_SEEDS:
            tasks.setdefault((task, metric), {})[f"{algo}, {variant}" if variant else algo] = scores
    return [_compared(*key, groups) for key, groups in tasks.items() if len(groups) > 1]


def _compared(task: str, metric: str, groups: dict[str, list[float]]) -> Plain:
    best = sorted(groups, key=lambda name: -interquartile_mean(groups[name]))[:MOST_COMPARED]
    thresholds = np.unique(np.concatenate([groups[name] for name in best]))
    return {
        "task": task,
        "metric": metric,
        "groups_in_all": len(groups),
        "thresholds": thresholds.tolist(),
        "profiles": [_profile(name, groups[name], thresholds) for name in best],
        "improvements": [
            {
                "first": first,
                "second": second,
                "probability": probability_of_improvement(groups[first], groups[second]),
                "interval": improvement_interval(groups[first], groups[second])
                if min(len(groups[first]), len(groups[second])) >= FEWEST_RUNS
                else None,
            }
            for first, second in combinations(best, 2)
        ],
    }


def _profile(name: str, scores: list[float], thresholds: NDArray[np.float64]) -> Plain:
    """The share of runs above each threshold, with its band over resampled runs where there are enough."""
    above = score_profile(scores, thresholds)
    low, high = bootstrap_band(above) if len(scores) >= FEWEST_RUNS else (None, None)
    return {
        "name": name,
        "scores": scores,
        "shares": above.mean(axis=0).tolist(),
        "low": None if low is None else low.tolist(),
        "high": None if high is None else high.tolist(),
    }


def _options(material: Material) -> Plain:
    """Options that differ between runs which have them; runs with the same options stand together."""
    found = options_that_differ([record.config for record in material.records])
    names = [name for name in found[0] if len({each[name] for each in found} - {"None"}) > 1]
    groups: dict[tuple[str, ...], list[RunRecord]] = {}
    for record, values in zip(material.records, found, strict=True):
        groups.setdefault((record.config.algo, *(values[name] for name in names)), []).append(record)
    plain = [
        {
            "name": material.names[same[0].path] if len(same) == 1 else f"{algo} ({len(same)} runs)",
            "runs": [material.names[record.path] for record in same],
            "values": [None if value == "None" else value for value in values],
        }
        for (algo, *values), same in groups.items()
    ]
    return {"names": names, "groups": plain}


def _panel(panel: Panel) -> Plain:
    lines = []
    for place, line in enumerate(panel.lines):
        common = {"name": line.name, "colour": place, "runs": len(line.curves)}
        if line.has_mean:
            is_interval = len(line.curves) >= ENOUGH_FOR_INTERVAL
            low, high = (
                bootstrap_band(line.values) if is_interval else (line.values.min(axis=0), line.values.max(axis=0))
            )
            kept = _kept(len(line.steps))
            mean = line.values.mean(axis=0)
            found = {"x": line.steps[kept], "y": mean[kept], "low": low[kept], "high": high[kept]}
            lines.append({**common, **{name: values.tolist() for name, values in found.items()}})
        else:
            for curve in line.curves:
                kept = _kept(len(curve.steps))
                values = {"x": curve.steps[kept].tolist(), "y": curve.values[kept].tolist()}
                lines.append({**common, "thin": True, **values})
    return {
        "task": panel.task,
        "metric": panel.metric,
        "axis": panel.axis,
        "data_return": panel.data_return,
        "band": "95 % interval of the mean"
        if any(each["runs"] >= ENOUGH_FOR_INTERVAL for each in lines)
        else "lowest to highest run",
        "lines": lines,
    }


def _kept(count: int) -> NDArray[np.int64]:
    return np.unique(np.linspace(0, count - 1, min(count, MOST_POINTS)).round().astype(np.int64))
