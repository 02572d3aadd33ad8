"""The section of a report on training: learning curves, scores over seeds, options that differ."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from rl_training.experiment.curves import Panel, make_panels
from rl_training.experiment.improvement import improvement
from rl_training.experiment.page.gathering import Material, Plain
from rl_training.experiment.plot import ENOUGH_FOR_INTERVAL
from rl_training.experiment.report import RunRecord, is_one_sweep, options_that_differ, summarize
from rl_training.experiment.scores import EVALUATIONS, ScoreTable, make_profile, score_rows, score_tables
from rl_training.experiment.statistics import Numbers, bootstrap_band
from rl_training.types import ConfigError

MOST_POINTS = 200
"""Points of a curve that are kept: more would not be seen."""
FEWEST_SEEDS = 2
"""Runs of an algorithm from which on its scores are a distribution."""


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
    the probability of improvement counts equal scores half. Tasks that can be put together come first, as one.
    """
    rows = [row for row in score_rows(records) if row.metric in EVALUATIONS and len(row.scores) >= FEWEST_SEEDS]
    return [_compared(table) for table in score_tables(rows) if len(table.groups) > 1]


def _compared(table: ScoreTable) -> Plain:
    best = table.best()
    thresholds = np.unique(np.concatenate([scores for name in best for scores in table.groups[name]]))
    return {
        "task": table.task,
        "metric": table.metric,
        "groups_in_all": len(table.groups),
        "thresholds": thresholds.tolist(),
        "profiles": [_profile(name, table.groups[name], thresholds) for name in best],
        "improvements": [
            improvement(pair, table.metric, table.tasks, *(table.groups[name] for name in pair)).to_plain()
            for pair in combinations(best, 2)
        ],
    }


def _profile(name: str, tasks: list[list[float]], thresholds: Numbers) -> Plain:
    """The share of runs above each threshold, with its band over resampled runs where there are enough."""
    shares, low, high = make_profile(tasks, thresholds)
    return {
        "name": name,
        "scores": [score for scores in tasks for score in scores],
        "shares": shares.tolist(),
        "low": None if low is None else low.tolist(),
        "high": None if high is None else high.tolist(),
    }


def _options(material: Material) -> Plain:
    """Options that differ between runs which have them; runs with the same options stand together.

    What varied in a sweep is left out: the table of scores has a column for each.
    """
    found = options_that_differ([record.config for record in material.records])
    varied = {name for record in material.records if record.swept for name in record.swept.columns}
    if not is_one_sweep(material.records):
        varied = set()
    names = [name for name in found[0] if name not in varied and len({each[name] for each in found} - {"None"}) > 1]
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
