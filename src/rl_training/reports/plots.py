"""Plots of runs: learning curves and performance profiles."""

from __future__ import annotations

import math
import textwrap
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rl_training.core.errors import ConfigError, import_extra, nearest
from rl_training.core.files import atomic_write
from rl_training.core.statistics import bootstrap_band
from rl_training.reports.compare import MOST_COMPARED, ScoreTable, make_profile, score_rows, score_tables
from rl_training.reports.runs import RunRecord
from rl_training.reports.table import FEWEST_RUNS, by_number, choose_metrics, is_error

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

THIN = 1.0
"""Line width of single runs."""
DATA: dict[str, Any] = {"color": "#555555", "linestyle": (0, (5, 3)), "linewidth": 1.2}
BEGIN: dict[str, Any] = {"color": "#555555", "linestyle": (0, (1, 2)), "linewidth": 1.2}
"""Line styles of the return of the data, and of the timestep where acting begins."""
MOST_COLUMNS = 3
PANEL = (4.2, 3.1)
"""Width and height of a panel in inches, by default."""
LEAST_WIDTH = 7.0
ENOUGH_FOR_INTERVAL = 10
"""The fewest runs for a band that is a bootstrap interval; with fewer, such an interval misses the mean too often."""
PROFILES = "--profiles"
MARGIN = 0.05
"""Room beside the lowest and the highest score of a profile, as a share of their distance."""


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
    figure, all_axes = _make_figure(len(panels), _columns(panels), size)
    names = sorted({line.name for panel in panels for line in panel.lines}, key=by_number)
    styles = dict(zip(names, line_styles(), strict=False))
    fewest = min((len(line.curves) for panel in panels for line in panel.lines if line.has_mean), default=0)
    is_interval = fewest >= ENOUGH_FOR_INTERVAL
    for axes, panel in zip(all_axes, panels, strict=True):
        for place, line in enumerate(panel.lines):
            shift = None if panel.only_step is None else float(place)
            _draw_line(axes, line, styles[line.name], shift, is_interval=is_interval)
        _finish(axes, panel)
    explanation = _explanation(panels, smooth, is_interval=is_interval)
    _finish_figure(figure, _handles(panels, styles), explanation, title=title, is_sized=size is not None)
    return figure


def _make_figure(count: int, columns: int, size: tuple[float, float] | None) -> tuple[Figure, list[Axes]]:
    """A figure with this number of panels."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    rows = math.ceil(count / columns)
    default = (max(LEAST_WIDTH, PANEL[0] * columns), PANEL[1] * rows)
    figure = Figure(figsize=size or default, layout=ConstrainedLayoutEngine(w_pad=0.08))
    return figure, [figure.add_subplot(rows, columns, number) for number in range(1, count + 1)]


def _columns(panels: Sequence[Panel]) -> int:
    """The number of columns: a few metrics of one task stand side by side."""
    counts = set(Counter(panel.task for panel in panels).values())
    if len(counts) == 1 and 1 < max(counts) <= MOST_COLUMNS:
        return max(counts)
    return _default_columns(len(panels))


def _default_columns(count: int) -> int:
    return 2 if count == 4 else min(count, MOST_COLUMNS)


def _draw_line(axes: Axes, line: PlotLine, style: dict[str, Any], place: float | None, *, is_interval: bool) -> None:
    """The mean and its band, and single runs; in a panel with one timestep, `place` is the position on the axis."""
    if line.has_mean:
        mean, low, high = line.mean_and_band(is_interval=is_interval)
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
    """A style without a line, with a different marker for every line style."""
    marker = style["marker"] or MARKERS[1 + LINE_STYLES.index(style["linestyle"])]
    return {**style, "marker": marker, "linestyle": ""}


def _every(steps: Numbers) -> int:
    """The distance between markers, so that there are about ten."""
    return max(len(steps) // 10, 1)


def _finish(axes: Axes, panel: Panel) -> None:
    """Add lines for comparison and the names of the axes."""
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
    """The meaning of lines and bands, for the legend."""
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
    """The entries of the legend, by label."""
    from matplotlib.lines import Line2D

    handles = {}
    for name, style in styles.items():
        lines = [line for panel in panels for line in panel.lines if line.name == name]
        counts = sorted({len(line.curves) for line in lines})
        label = f"{name}, n = {' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))}"
        looks = _point(style) if all(line.is_point for line in lines) else style
        width = None if any(line.has_mean for line in lines) else THIN
        handles[label] = Line2D([], [], **looks, linewidth=width)
    if any(panel.data_return is not None for panel in panels):
        handles["data"] = Line2D([], [], **DATA)
    if any(panel.acts_from and panel.only_step is None for panel in panels):
        handles["acting begins"] = Line2D([], [], **BEGIN)
    return handles


Numbers: TypeAlias = "NDArray[np.float64]"

UPDATES, STEPS, BOTH = "updates", "environment steps", "updates, then environment steps"
MIXED = "updates or environment steps, as each run counts"


@dataclass(frozen=True)
class Curve:
    """The evaluations of one run."""

    steps: Numbers
    values: Numbers

    def outside(self, first: float, last: float) -> list[Curve]:
        """The parts before and after a range, each joined to it."""
        low, high = np.interp([first, last], self.steps, self.values)
        before, after = self.steps < first, self.steps > last
        parts = [
            Curve(np.append(self.steps[before], first), np.append(self.values[before], low)),
            Curve(np.append(last, self.steps[after]), np.append(high, self.values[after])),
        ]
        return [part for part in parts if len(part.steps) > 1]


@dataclass(frozen=True)
class PlotLine:
    """The runs of one algorithm and variant."""

    name: str
    curves: list[Curve]
    steps: Numbers
    """Every evaluated timestep that lies within all runs. Empty below three runs."""
    values: Numbers
    """A row per run, a column per timestep, interpolated between the run's own evaluations."""

    @property
    def has_mean(self) -> bool:
        """Whether there are enough runs with common timesteps for a mean and a band."""
        return len(self.steps) > 0

    def mean_and_band(self, *, is_interval: bool) -> tuple[Numbers, Numbers, Numbers]:
        """The mean over runs, and the ends of its 95 % interval or of the range of runs."""
        low, high = bootstrap_band([self.values]) if is_interval else (self.values.min(axis=0), self.values.max(axis=0))
        return self.values.mean(axis=0), low, high

    @property
    def is_point(self) -> bool:
        """Whether there is one timestep only."""
        return len(self.steps) == 1 or all(len(curve.steps) == 1 for curve in self.curves)

    @property
    def rests(self) -> list[Curve]:
        """The parts of runs outside their common timesteps; without a mean, the whole runs."""
        if not self.has_mean:
            return self.curves
        return [part for curve in self.curves for part in curve.outside(self.steps[0], self.steps[-1])]


@dataclass(frozen=True)
class Panel:
    """All lines of one task and metric."""

    task: str
    metric: str
    lines: list[PlotLine]
    axis: str
    """The unit of its timesteps."""
    acts_from: tuple[int, ...]
    """Timesteps where runs begin to act after updates on data alone."""
    data_return: float | None
    """Mean return of the data, if all runs have the same and the metric is a return."""

    @property
    def only_step(self) -> float | None:
        """The timestep of all evaluations, if they have only one."""
        steps = {float(step) for line in self.lines for curve in line.curves for step in curve.steps}
        return steps.pop() if len(steps) == 1 else None


def make_panels(records: Sequence[RunRecord], *, metrics: Sequence[str] = (), smooth: int = 1) -> list[Panel]:
    """The panels of a picture, task by task; values are averages over `smooth` evaluations."""
    parts: dict[tuple[str, str], dict[str, list[RunRecord]]] = {}
    for group, metric, members in choose_metrics(records, metrics):
        if having := [record for record in members if record.curve(metric)]:
            parts.setdefault((group.task, metric), {})[group.name] = having
    tasks = sorted({task for task, _ in parts})
    return [_panel(*key, parts[key], smooth) for task in tasks for key in parts if key[0] == task]


def _panel(task: str, metric: str, groups: dict[str, list[RunRecord]], smooth: int) -> Panel:
    lines = [
        make_line(name, [smoothed(record.curve(metric), smooth) for record in members])
        for name, members in groups.items()
    ]
    records = [record for members in groups.values() for record in members]
    starts = {record.acts_from for record in records}
    axes = {UPDATES if start is None else BOTH if start else STEPS for start in starts}
    returns = {record.data_return for record in records}
    return Panel(
        task,
        metric,
        lines,
        axis=axes.pop() if len(axes) == 1 else MIXED,
        acts_from=tuple(sorted(start for start in starts if start)),
        data_return=returns.pop() if metric == "return_mean" and len(returns) == 1 else None,
    )


def smoothed(curve: Sequence[tuple[int, float]], smooth: int) -> Curve:
    """A curve of averages over the last `smooth` evaluations, or over fewer at the start."""
    steps, values = np.array(curve, dtype=np.float64).T
    means = [values[max(end - smooth, 0) : end].mean() for end in range(1, len(values) + 1)]
    return Curve(steps, np.array(means))


def make_line(name: str, curves: list[Curve]) -> PlotLine:
    """A line over the timesteps that lie within all runs, so that values are interpolated but never extrapolated."""
    first, last = max(curve.steps[0] for curve in curves), min(curve.steps[-1] for curve in curves)
    steps = np.unique(np.concatenate([curve.steps for curve in curves]))
    steps = steps[(steps >= first) & (steps <= last)] if len(curves) >= FEWEST_RUNS else steps[:0]
    values = np.stack([np.interp(steps, curve.steps, curve.values) for curve in curves])
    return PlotLine(name, curves, steps, values)


FORMATS: dict[str, dict[str, None]] = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
"""Endings of picture files, with the metadata to leave out: the same runs make the same file."""
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
"""The palette of Okabe and Ito, which colour-blind people can tell apart, without its yellow: too pale on white."""
LINE_STYLES = ("-", "--", "-.", ":")
MARKERS = ("", "o", "s", "^", "D", "v", "x")
STYLE = str(resources.files("rl_training") / "assets" / "plots.mplstyle")
FEWEST_LETTERS = 10
"""The shortest lines into which names in the legend are broken."""
LEAST_PANEL = (1.0, 0.75)
"""The smallest width and height of a panel in inches."""


def save_picture(path: Path, draw: Callable[[], Figure], *, option: str = "--plot") -> None:
    """Draw a figure in the common style, and write it; `option` names the user's request in errors."""
    mpl = import_extra("matplotlib", "plot", option)
    import_extra("matplotlib.style", "plot", option)
    # The user's own settings would make another picture of the same runs.
    with mpl.style.context(["default", STYLE]):
        figure, ending = draw(), path.suffix.lower()
        with atomic_write(path) as temporary:
            figure.savefig(temporary, format=ending[1:], dpi=150, metadata=FORMATS[ending])


def check_picture(path: Path, option: str = "--plot") -> None:
    """Refuse a picture of an unknown kind, or in a missing folder."""
    if path.suffix.lower() not in FORMATS:
        known = f"expected one of the endings {', '.join(FORMATS)}"
        raise ConfigError(f"{option} {str(path)!r}: {known}{nearest(path.suffix.lower(), FORMATS)}")
    if not path.parent.is_dir():
        raise ConfigError(f"{option} {str(path)!r}: the folder {str(path.parent)!r} does not exist")


def line_styles() -> Iterator[dict[str, Any]]:
    """Styles of lines: first colours vary, then line styles, then markers; they repeat after 196 lines."""
    while True:
        for marker, style, colour in product(MARKERS, LINE_STYLES, COLOURS):
            yield {"color": colour, "linestyle": style, "marker": marker}


def _finish_figure(
    figure: Figure, handles: dict[str, Line2D], explanation: str, *, title: str | None, is_sized: bool
) -> None:
    """Add title and legend; a figure without a given size grows by their height."""
    width, height = figure.get_size_inches()
    if title is not None:
        figure.suptitle(textwrap.fill(title, max(int(width * 11), 10)))
    legend_height = _add_legend(figure, handles, explanation)
    if not is_sized:
        figure.set_size_inches(width, height + legend_height + (0.3 if title else 0))
    _check_room(figure)


def plot_profiles(
    records: Sequence[RunRecord],
    path: str | Path,
    *,
    metrics: Sequence[str] = (),
    title: str | None = None,
    size: tuple[float, float] | None = None,
) -> None:
    """Performance profiles as a picture: for every score, the share of runs whose last score is above it.

    There is a panel per task and metric, and one for all tasks if their scores can be pooled. A band is the 95 %
    bootstrap interval, if there are three runs or more of each task.
    """
    path = Path(path)
    check_picture(path, PROFILES)
    tables = score_tables(score_rows(records, metrics))
    if not tables:
        raise ConfigError(f"these runs have no score for {PROFILES}; name a metric with --metric")
    if errors := [table.metric for table in tables if is_error(table.metric)]:
        raise ConfigError(f"{PROFILES} shows scores of which more is better, and {errors[0]} is an error")
    save_picture(path, lambda: _draw_profiles(tables, title, size), option=PROFILES)


def _draw_profiles(tables: Sequence[ScoreTable], title: str | None, size: tuple[float, float] | None) -> Figure:
    from matplotlib.lines import Line2D

    figure, all_axes = _make_figure(len(tables), _default_columns(len(tables)), size)
    names = sorted({name for table in tables for name in table.best()}, key=by_number)
    styles = dict(zip(names, line_styles(), strict=False))
    for axes, table in zip(all_axes, tables, strict=True):
        _draw_table(axes, table, styles)
    handles = {name: Line2D([], [], **styles[name]) for name in names}
    most = max(len(table.groups) for table in tables)
    kept = f"; of {most}, the {MOST_COMPARED} with the highest IQM" if most > MOST_COMPARED else ""
    bands = "band: 95 % bootstrap interval, where there are three runs or more"
    explanation = f"line: share of runs whose last score is above; {bands}{kept}"
    _finish_figure(figure, handles, explanation, title=title, is_sized=size is not None)
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


def _add_legend(figure: Figure, handles: dict[str, Line2D], explanation: str) -> float:
    """Add the legend below all panels, in as many columns as fit, and return its height in inches."""
    room, columns, letters = figure.get_figwidth() - 0.2, min(len(handles), 4), max(map(len, [*handles, explanation]))
    while True:
        legend = figure.legend(
            handles.values(),
            [textwrap.fill(label, letters, break_on_hyphens=False) for label in handles],
            title=textwrap.fill(explanation, letters),
            loc="outside lower center",
            ncols=columns,
            frameon=False,
            handlelength=2.6,
        )
        extent = legend.get_window_extent()
        if extent.width <= room * figure.dpi or letters <= FEWEST_LETTERS:
            return float(extent.height / figure.dpi)
        legend.remove()
        if columns > 1:
            columns -= 1
        else:
            letters = max(min(letters - 1, int(letters * room * figure.dpi / extent.width)), FEWEST_LETTERS)


def _check_room(figure: Figure) -> None:
    """Refuse a size that leaves no room for curves."""
    width, height = figure.get_size_inches()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure.draw_without_rendering()
    boxes = [axes.get_position() for axes in figure.axes]
    is_small = any(box.width * width < LEAST_PANEL[0] or box.height * height < LEAST_PANEL[1] for box in boxes)
    if is_small or any("constrained_layout not applied" in str(warning.message) for warning in caught):
        raise ConfigError(
            f"a picture of {width:g}x{height:g} inches leaves no room for curves beside legend and labels; "
            "make it larger, or leave its size out"
        )
