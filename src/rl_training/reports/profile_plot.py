"""Performance profiles as a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_training.core.errors import ConfigError
from rl_training.core.statistics import Numbers
from rl_training.reports.compare import MOST_COMPARED, ScoreTable, make_profile, score_rows, score_tables
from rl_training.reports.plots import (
    LEAST_WIDTH,
    MOST_COLUMNS,
    PANEL,
    check_picture,
    finish_picture,
    line_styles,
    save_picture,
)
from rl_training.reports.runs import RunRecord
from rl_training.reports.table import by_number, is_error

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OPTION = "--profiles"
MARGIN = 0.05
"""Room beside the lowest and the highest score, as a share of their distance."""


def plot_profiles(
    records: Sequence[RunRecord],
    path: str | Path,
    *,
    metrics: Sequence[str] = (),
    title: str | None = None,
    size: tuple[float, float] | None = None,
) -> None:
    """Performance profiles as a picture: for every score, the share of runs whose last score is above it.

    There is a panel per task and metric, and one for all tasks where their scores can be put together. A band is the
    95 % bootstrap interval, where there are three runs or more of each task.
    """
    path = Path(path)
    check_picture(path, OPTION)
    tables = score_tables(score_rows(records, metrics))
    if not tables:
        raise ConfigError(f"these runs have no score for {OPTION}; name a metric with --metric")
    for table in tables:
        if is_error(table.metric):
            raise ConfigError(f"{OPTION} shows scores of which more is better, and {table.metric} is an error")
    save_picture(path, lambda: _draw(tables, title, size), option=OPTION)


def _draw(tables: Sequence[ScoreTable], title: str | None, size: tuple[float, float] | None) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.lines import Line2D

    columns = 2 if len(tables) == 4 else min(len(tables), MOST_COLUMNS)
    rows = math.ceil(len(tables) / columns)
    width, height = size or (max(LEAST_WIDTH, PANEL[0] * columns), PANEL[1] * rows)
    figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.08))
    names = sorted({name for table in tables for name in table.best()}, key=by_number)
    styles = dict(zip(names, line_styles(), strict=False))
    for number, table in enumerate(tables, start=1):
        _draw_table(figure.add_subplot(rows, columns, number), table, styles)
    handles = {name: Line2D([], [], **styles[name]) for name in names}
    finish_picture(figure, handles, _explanation(tables), title=title, is_sized=size is not None)
    return figure


def _draw_table(axes: Axes, table: ScoreTable, styles: dict[str, dict[str, Any]]) -> None:
    shown = table.best()
    thresholds = np.unique(np.concatenate([scores for name in shown for scores in table.groups[name]]))
    room = MARGIN * float(thresholds[-1] - thresholds[0]) or 1.0
    edges = np.array([thresholds[0] - room, *thresholds, thresholds[-1] + room])
    for name in shown:
        shares, low, high = make_profile(table.groups[name], thresholds)
        axes.plot(edges, _levels(shares), **styles[name], drawstyle="steps-post")
        if low is not None and high is not None:
            band = {"step": "post", "color": styles[name]["color"], "alpha": 0.15, "linewidth": 0}
            axes.fill_between(edges, _levels(low), _levels(high), **band)
    axes.set(
        title=table.task, xlabel=f"score to reach ({table.metric})", ylabel="share of runs above", ylim=(-0.03, 1.03)
    )


def _levels(shares: Numbers) -> Numbers:
    """A profile from below the lowest score, where all runs are above, to beyond the highest."""
    return np.array([1.0, *shares, shares[-1]])


def _explanation(tables: Sequence[ScoreTable]) -> str:
    """What lines and bands are, in the words of the legend."""
    bands = "band: 95 % bootstrap interval, where there are three runs or more"
    most = max(len(table.groups) for table in tables)
    kept = f"; of {most}, the {MOST_COMPARED} with the highest IQM" if most > MOST_COMPARED else ""
    return f"line: share of runs whose last score is above; {bands}{kept}"
