"""Learning curves as a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.core.errors import ConfigError
from rl_training.core.statistics import bootstrap_band
from rl_training.reports.curves import Line, Numbers, Panel, make_panels
from rl_training.reports.pictures import (
    LINE_STYLES,
    MARKERS,
    STYLE,
    check_picture,
    finish_picture,
    line_styles,
    save_picture,
)
from rl_training.reports.table import RunRecord, by_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

THIN = 1.0
"""The width of lines of single runs."""
DATA: dict[str, Any] = {"color": "#555555", "linestyle": (0, (5, 3)), "linewidth": 1.2}
BEGIN: dict[str, Any] = {"color": "#555555", "linestyle": (0, (1, 2)), "linewidth": 1.2}
"""The return of the data, and where acting begins."""
MOST_COLUMNS = 3
PANEL = (4.2, 3.1)
"""Width and height of a panel in inches, where the size of the picture is not given."""
LEAST_WIDTH = 7.0
ENOUGH_FOR_INTERVAL = 10
"""With fewer runs, a bootstrap interval covers the mean far less often than it says; the band is their range then."""


def plot_curves(
    records: Sequence[RunRecord],
    path: str | Path,
    *,
    metrics: Sequence[str] = (),
    smooth: int = 1,
    title: str | None = None,
    size: tuple[float, float] | None = None,
) -> None:
    """Learning curves as a picture: a panel per task and metric, a line per algorithm and variant.

    A line is the mean over runs, with a band, where there are three runs or more. Fewer are drawn one by one.
    `smooth` is the number of evaluations in a moving average, and `size` is width and height in inches.
    """
    path = Path(path)
    check_picture(path)
    if smooth < 1:
        raise ConfigError(f"smooth must be >= 1, got {smooth}")
    panels = make_panels(records, metrics=metrics, smooth=smooth)
    save_picture(path, lambda: _draw(panels, smooth, title, size))


def _draw(panels: Sequence[Panel], smooth: int, title: str | None, size: tuple[float, float] | None) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    columns = _columns(panels)
    rows = math.ceil(len(panels) / columns)
    width, height = size or (max(LEAST_WIDTH, PANEL[0] * columns), PANEL[1] * rows)
    figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.08))
    names = sorted({line.name for panel in panels for line in panel.lines}, key=by_number)
    styles = dict(zip(names, line_styles(), strict=False))
    fewest = min((len(line.curves) for panel in panels for line in panel.lines if line.has_mean), default=0)
    is_interval = fewest >= ENOUGH_FOR_INTERVAL
    for number, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, columns, number)
        for place, line in enumerate(panel.lines):
            shift = None if panel.only_step is None else float(place)
            _draw_line(axes, line, styles[line.name], shift, is_interval=is_interval)
        _finish(axes, panel)
    explanation = _explanation(panels, smooth, is_interval=is_interval)
    finish_picture(figure, _handles(panels, styles), explanation, title=title, is_sized=size is not None)
    return figure


def _columns(panels: Sequence[Panel]) -> int:
    """Columns of panels: the metrics of a task stand side by side, where there are a few for every task."""
    tasks = [panel.task for panel in panels]
    counts = {tasks.count(task) for task in tasks}
    if len(counts) == 1 and 1 < max(counts) <= MOST_COLUMNS:
        return max(counts)
    return 2 if len(panels) == 4 else min(len(panels), MOST_COLUMNS)


def _draw_line(axes: Axes, line: Line, style: dict[str, Any], place: float | None, *, is_interval: bool) -> None:
    """The mean and its band, and single runs; `place` takes the place of the timestep where a panel has only one."""
    if line.has_mean:
        mean = line.values.mean(axis=0)
        low, high = bootstrap_band(line.values) if is_interval else (line.values.min(axis=0), line.values.max(axis=0))
        if line.is_point:
            # A band over one timestep would have no width.
            where = line.steps if place is None else [place]
            axes.errorbar(where, mean, [mean - low, high - mean], **_point(style), capsize=3, elinewidth=1.2)
        else:
            axes.plot(line.steps, mean, **style, markevery=_every(line.steps))
            axes.fill_between(line.steps, low, high, color=style["color"], alpha=0.18, linewidth=0)
    for curve in line.rests:
        if len(curve.steps) == 1:
            axes.plot(curve.steps if place is None else [place], curve.values, **_point(style))
        else:
            axes.plot(curve.steps, curve.values, **style, linewidth=THIN, markevery=_every(curve.steps))


def _point(style: dict[str, Any]) -> dict[str, Any]:
    """A style without a line, in which lines that differ in their style differ in their marker."""
    marker = style["marker"] or MARKERS[1 + LINE_STYLES.index(style["linestyle"])]
    return {**style, "marker": marker, "linestyle": ""}


def _every(steps: Numbers) -> int:
    """Every how many points a marker is drawn: about ten times in all."""
    return max(len(steps) // 10, 1)


def _finish(axes: Axes, panel: Panel) -> None:
    """What is drawn for comparison, and the names of the axes."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    if panel.data_return is not None:
        axes.axhline(panel.data_return, **DATA)
    for step in panel.acts_from if panel.only_step is None else ():
        axes.axvline(step, **BEGIN)
    axes.set(title=panel.task, xlabel=panel.axis, ylabel=panel.metric)
    if panel.only_step is None:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    else:
        # Points at one timestep would hide each other: they stand side by side.
        axes.set(xlabel=f"{panel.axis}: {panel.only_step:,.0f}", xticks=[], xlim=(-1, len(panel.lines)))


def _explanation(panels: Sequence[Panel], smooth: int, *, is_interval: bool) -> str:
    """What lines and bands are, in the words of the legend."""
    lines = [line for panel in panels for line in panel.lines]
    band = "95 % bootstrap interval of the mean" if is_interval else "lowest to highest run"
    single = [curve for line in lines for curve in line.rests]
    parts = {
        f"line: mean of n runs; band: {band}": any(line.has_mean and not line.is_point for line in lines),
        f"point and bar: mean of n runs, {band}": any(line.has_mean and line.is_point for line in lines),
        "thin line: one run": any(len(curve.steps) > 1 for curve in single),
        "point: one run": any(len(curve.steps) == 1 for curve in single),
        f"moving average over {smooth} evaluations": smooth > 1,
    }
    return "; ".join(part for part, is_there in parts.items() if is_there)


def _handles(panels: Sequence[Panel], styles: dict[str, dict[str, Any]]) -> dict[str, Line2D]:
    """What the legend shows, by its words."""
    from matplotlib.lines import Line2D

    handles = {}
    for name, style in styles.items():
        lines = [line for panel in panels for line in panel.lines if line.name == name]
        counts = sorted({len(line.curves) for line in lines})
        label = f"{name}, n = {' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))}"
        looks = _point(style) if all(line.is_point for line in lines) else style
        width = STYLE["lines.linewidth"] if any(line.has_mean for line in lines) else THIN
        handles[label] = Line2D([], [], **looks, linewidth=width)
    if any(panel.data_return is not None for panel in panels):
        handles["data"] = Line2D([], [], **DATA)
    if any(panel.acts_from and panel.only_step is None for panel in panels):
        handles["acting begins"] = Line2D([], [], **BEGIN)
    return handles
