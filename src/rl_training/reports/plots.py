"""Learning curves: which values are drawn over which timesteps, and how."""

from __future__ import annotations

import math
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rl_training.core.errors import ConfigError, import_extra, nearest
from rl_training.core.files import atomic_write
from rl_training.core.statistics import bootstrap_band
from rl_training.reports.runs import RunRecord
from rl_training.reports.table import FEWEST_RUNS, by_number, choose_metrics

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
        low, high = bootstrap_band([line.values]) if is_interval else (line.values.min(axis=0), line.values.max(axis=0))
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
class Line:
    """The runs of one algorithm and variant."""

    name: str
    curves: list[Curve]
    steps: Numbers
    """Where all runs have values: every timestep at which one of them was evaluated. Empty below three runs."""
    values: Numbers
    """A row per run, a column per timestep, interpolated between the run's own evaluations."""

    @property
    def has_mean(self) -> bool:
        """Whether there are runs enough, with timesteps in common, for a mean and a band."""
        return len(self.steps) > 0

    @property
    def is_point(self) -> bool:
        """Whether there is one timestep only."""
        return len(self.steps) == 1 or all(len(curve.steps) == 1 for curve in self.curves)

    @property
    def rests(self) -> list[Curve]:
        """What some runs have beyond the timesteps that all have; without a mean, the runs themselves."""
        if not self.has_mean:
            return self.curves
        return [part for curve in self.curves for part in curve.outside(self.steps[0], self.steps[-1])]


@dataclass(frozen=True)
class Panel:
    """All lines of one task and metric."""

    task: str
    metric: str
    lines: list[Line]
    axis: str
    """What its timesteps are."""
    acts_from: tuple[int, ...]
    """Where runs begin to act after updates on data alone."""
    data_return: float | None
    """Mean return of the data, where all runs have the same and the metric is a return."""

    @property
    def only_step(self) -> float | None:
        """The timestep of all evaluations, if there is one for all."""
        steps = {float(step) for line in self.lines for curve in line.curves for step in curve.steps}
        return steps.pop() if len(steps) == 1 else None


def make_panels(records: Sequence[RunRecord], *, metrics: Sequence[str] = (), smooth: int = 1) -> list[Panel]:
    """The panels of a picture, task by task; values are averages over `smooth` evaluations."""
    parts: dict[tuple[str, str], dict[str, list[RunRecord]]] = {}
    for group, metric, members in choose_metrics(records, metrics):
        having = [record for record in members if record.curve(metric)]
        if having:
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
    """A curve whose values are averages over the last `smooth` evaluations; the first have as many as there are."""
    steps, values = np.array(curve, dtype=np.float64).T
    means = [values[max(end - smooth, 0) : end].mean() for end in range(1, len(values) + 1)]
    return Curve(steps, np.array(means))


def make_line(name: str, curves: list[Curve]) -> Line:
    """Runs on the timesteps that lie within all of them, so that a value is interpolated but never extrapolated."""
    first, last = max(curve.steps[0] for curve in curves), min(curve.steps[-1] for curve in curves)
    steps = np.unique(np.concatenate([curve.steps for curve in curves]))
    steps = steps[(steps >= first) & (steps <= last)] if len(curves) >= FEWEST_RUNS else steps[:0]
    values = np.stack([np.interp(steps, curve.steps, curve.values) for curve in curves])
    return Line(name, curves, steps, values)


FORMATS: dict[str, dict[str, None]] = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
"""Endings of pictures, with the metadata to leave out: the same runs make the same file."""

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
"""The palette of Okabe and Ito, which colour-blind people can tell apart, without its yellow: too pale on white."""

LINE_STYLES = ("-", "--", "-.", ":")

MARKERS = ("", "o", "s", "^", "D", "v", "x")

STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "figure.titlesize": 11,
    "legend.fontsize": 9,
    "legend.title_fontsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.8,
    "lines.markersize": 4,
    "svg.hashsalt": "rl-training",
    # A name may contain dollar signs, and is no formula.
    "text.parse_math": False,
}

FEWEST_LETTERS = 10
"""Names in the legend are not broken into shorter lines than this."""

LEAST_PANEL = (1.0, 0.75)
"""Below these inches the axes of a panel show nothing."""


def save_picture(path: Path, draw: Callable[[], Figure], *, option: str = "--plot") -> None:
    """Draw a figure in the looks of all pictures, and write it; `option` is what asked for it."""
    mpl = import_extra("matplotlib", "plot", option)
    import_extra("matplotlib.style", "plot", option)
    # The reader's own settings would make another picture of the same runs.
    with mpl.style.context(["default", STYLE]):
        figure = draw()
        with atomic_write(path) as temporary:
            ending = path.suffix.lower()
            figure.savefig(temporary, format=ending[1:], dpi=150, metadata=FORMATS[ending])


def check_picture(path: Path, option: str = "--plot") -> None:
    """Refuse a picture of an unknown kind, or in a folder that is not there."""
    if path.suffix.lower() not in FORMATS:
        known = f"expected one of the endings {', '.join(FORMATS)}"
        raise ConfigError(f"{option} {str(path)!r}: {known}{nearest(path.suffix.lower(), FORMATS)}")
    if not path.parent.is_dir():
        raise ConfigError(f"{option} {str(path)!r}: the folder {str(path.parent)!r} does not exist")


def line_styles() -> Iterator[dict[str, Any]]:
    """Colours first, then other line styles, then markers: 196 lines that differ, and from there on again."""
    while True:
        for marker, style, colour in product(MARKERS, LINE_STYLES, COLOURS):
            yield {"color": colour, "linestyle": style, "marker": marker}


def finish_picture(
    figure: Figure, handles: dict[str, Line2D], explanation: str, *, title: str | None, is_sized: bool
) -> None:
    """Add title and legend; a figure whose size was not given grows by what they need."""
    width, height = figure.get_size_inches()
    if title is not None:
        figure.suptitle(textwrap.fill(title, max(int(width * 11), 10)))
    legend_height = _add_legend(figure, handles, explanation)
    if not is_sized:
        figure.set_size_inches(width, height + legend_height + (0.3 if title else 0))
    _check_room(figure)


def _add_legend(figure: Figure, handles: dict[str, Line2D], explanation: str) -> float:
    """The legend below all panels, in as many columns as fit; long names get several lines. Its height in inches."""
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
