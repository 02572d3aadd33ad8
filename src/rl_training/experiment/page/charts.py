"""Figures as inline SVG: intervals of policies, histograms, curves with bands, agreement.

Colours are classes of the page's style, so that they follow its theme. A figure needs no other file and no script.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from rl_training.experiment.page.axes import Frame, path, shortened, span, text

COLOURS = 6
"""Lines that are told apart by colour; more begin again with dashes."""
ROW = 46
"""Height of a policy in a forest plot: its name stands above its interval."""
CHOICE = 54
"""Height of a choice: its name stands above its bars."""
LABEL = 125
"""Half the width that the name of the log's mean may need, in large letters."""
BESIDE = 4
"""How far apart the intervals of several lines stand."""
MOST_NAMED = 12
"""Points of a scatter plot that are numbered."""

NEAR = 18
"""Points nearer to each other than this would have their numbers on top of each other."""

Plain = Mapping[str, Any]


def forest(
    rows: Sequence[Plain],
    *,
    level: float,
    label: str,
    band: tuple[float, float],
    axis: str,
    said: str,
    within: Sequence[float] = (),
) -> str:
    """A value with its interval per row, beside a level to compare with, on an axis that also holds `within`.

    A row has a `name`, a `value` and an `interval`, each of which may be missing: what has no value is grey and has no
    point. Rows that are `among_best` are shaded.
    """
    ends = [end for each in rows if each["value"] is not None for end in (each["value"], *(each["interval"] or ()))]
    x_range = span([*ends, *band, level, *within])
    height = 34 + ROW * len(rows) + 60
    frame = Frame(x_range, (0, 1), height=height, left=1, right=1, top=34)
    floor = height - frame.bottom
    low, high = frame.x(band[0]), frame.x(band[1])
    middle = frame.x(level)
    anchor = "start" if middle < LABEL else "end" if middle > frame.width - LABEL else "middle"
    parts = [
        f'<rect class="log-band" x="{low:.1f}" y="{frame.top}" width="{high - low:.1f}" height="{floor - frame.top}"/>',
        frame.axes(axis, has_y=False),
        f'<path class="log-line" d="M{middle:.1f} {frame.top - 6}V{floor}"/>',
        text(middle, 20, label, anchor=anchor, kind="tick"),
    ]
    for place, each in enumerate(rows):
        parts.append(_forest_row(frame, each, frame.top + ROW * place))
    return frame.figure(said, *parts)


def _forest_row(frame: Frame, each: Plain, top: float) -> str:
    is_judged = each["value"] is not None
    label = text(frame.left + 10, top + 19, shortened(each["name"]), kind="label" if is_judged else "grey")
    if not is_judged:
        return label + text(frame.left + 10, top + 37, "cannot be judged", kind="grey")
    low, high = (frame.x(end) for end in each["interval"] or (each["value"], each["value"]))
    x, y = frame.x(each["value"]), top + 33
    shade = (
        f'<rect class="best" x="{frame.left}" y="{top + 3}" width="{frame.width - frame.left - frame.right}" '
        f'height="{ROW - 4}" rx="4"/>'
        if each.get("among_best")
        else ""
    )
    bar = f'<path class="interval" d="M{low:.1f} {y}H{high:.1f}M{low:.1f} {y - 5}v10M{high:.1f} {y - 5}v10"/>'
    bar = bar if each["interval"] else ""
    return f'{shade}{label}{bar}<circle class="point" cx="{x:.1f}" cy="{y}" r="5.5"/>'


def histogram(
    edges: Sequence[float], series: Mapping[str, Sequence[float]], *, axis: str, unit: str, whole: bool = False
) -> str:
    """Bars of one or two series over the same bins; the second is drawn as an outline, so that both are seen."""
    tallest = max((value for values in series.values() for value in values), default=0) or 1
    frame = Frame((edges[0], edges[-1]), (0, tallest * 1.08), height=230)
    parts = [frame.axes(axis, unit, whole=whole)]
    floor = frame.y(0)
    for place, values in enumerate(series.values()):
        if place == 0:
            for low, high, value in zip(edges[:-1], edges[1:], values, strict=True):
                x, width, y = frame.x(low), frame.x(high) - frame.x(low), frame.y(value)
                parts.append(
                    f'<rect class="bar" x="{x + 0.5:.1f}" y="{y:.1f}" width="{max(width - 1, 0.5):.1f}" '
                    f'height="{floor - y:.1f}"/>'
                )
        else:
            steps = [(frame.x(edges[0]), floor)]
            for low, high, value in zip(edges[:-1], edges[1:], values, strict=True):
                steps += [(frame.x(low), frame.y(value)), (frame.x(high), frame.y(value))]
            parts.append(f'<path class="outline" d="{path([*steps, (frame.x(edges[-1]), floor)])}"/>')
    return frame.figure(f"Histogram of {axis}: {' and '.join(series)}.", *parts)


def bars(names: Sequence[str], series: Mapping[str, Sequence[float]], *, axis: str) -> str:
    """Shares of choices, one group of bars per choice."""
    tallest = max((value for values in series.values() for value in values), default=0) or 1
    frame = Frame((0, tallest * 1.08), (0, 1), height=72 + CHOICE * len(names), left=14)
    parts = [frame.axes(axis, has_y=False)]
    for place, name in enumerate(names):
        top = frame.top + CHOICE * place
        parts.append(text(frame.left, top + 18, shortened(name), kind="label"))
        for row, values in enumerate(series.values()):
            width = frame.x(values[place]) - frame.left
            kind = "bar" if row == 0 else "bar second"
            y = top + 25 + 12 * row
            parts.append(f'<rect class="{kind}" x="{frame.left}" y="{y}" width="{width:.1f}" height="10"/>')
    return frame.figure(f"{axis}: {' and '.join(series)}.", *parts)


def curves(
    lines: Sequence[Plain], *, x_name: str, y_name: str, level: float | None = None, mark: float | None = None
) -> str:
    """Lines with bands. A line has `x`, `y` and, if it has a band, `low` and `high`; single runs are `thin`.

    A line with `bars` has dots and, where a bar is not None, an interval at each of its points. `level` is a value to
    compare with, `mark` a place on the x axis.
    """
    xs = [x for line in lines for x in line["x"]] + ([] if mark is None else [mark])
    ys = [y for line in lines for name in ("y", "low", "high") for y in line.get(name) or ()]
    ys += [end for line in lines for bar in line.get("bars") or () for end in bar or ()]
    low, high = min(xs), max(xs)
    x_range = (low, high) if high > low else span([low])
    frame = Frame(x_range, span([*ys, *([] if level is None else [level])]), height=290)
    parts = [frame.axes(x_name, y_name)]
    if level is not None:
        y = frame.y(level)
        parts.append(f'<path class="log-line" d="M{frame.left} {y:.1f}H{frame.width - frame.right}"/>')
    if mark is not None:
        x = frame.x(mark)
        parts.append(f'<path class="mark" d="M{x:.1f} {frame.top}V{frame.height - frame.bottom}"/>')
    for line in lines:
        if line.get("low"):
            upper = list(zip(line["x"], line["high"], strict=True))
            lower = list(zip(line["x"], line["low"], strict=True))[::-1]
            around = [(frame.x(x), frame.y(y)) for x, y in upper + lower]
            parts.append(f'<path class="band {style(line["colour"])}" d="{path(around, is_closed=True)}"/>')
    for line in lines:
        points = [(frame.x(x), frame.y(y)) for x, y in zip(line["x"], line["y"], strict=True)]
        thin = " thin" if line.get("thin") else ""
        if len(points) == 1:
            parts.append(
                f'<circle class="dot {style(line["colour"])}" cx="{points[0][0]:.1f}" cy="{points[0][1]:.1f}" r="4"/>'
            )
        else:
            parts.append(f'<path class="line {style(line["colour"])}{thin}" d="{path(points)}"/>')
        parts.append(_bars(frame, line, points))
    return frame.figure(
        f"{y_name} against {x_name} for {', '.join(dict.fromkeys(line['name'] for line in lines))}.", *parts
    )


def _bars(frame: Frame, line: Plain, points: Sequence[tuple[float, float]]) -> str:
    """Dots and intervals at the points of a line; those of several lines stand side by side."""
    parts = []
    for (x, y), bar in zip(points, line.get("bars") or (), strict=False):
        shifted = x + BESIDE * line["colour"]
        if bar is not None:
            low, high = map(frame.y, bar)
            ends = f"M{shifted - 3:.1f} {low:.1f}h6M{shifted - 3:.1f} {high:.1f}h6"
            parts.append(
                f'<path class="line thin {style(line["colour"])}" d="M{shifted:.1f} {low:.1f}V{high:.1f}{ends}"/>'
            )
        parts.append(f'<circle class="dot {style(line["colour"])}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>')
    return "".join(parts)


def style(place: int) -> str:
    """The classes of the line at a place: a colour, then dashes."""
    dashes = place // COLOURS % 3
    return f"c{place % COLOURS}" + (f" dash{dashes}" if dashes else "")


def legend(names: Sequence[str] | Mapping[str, int]) -> str:
    """Colours and names, as a list that breaks where it must; a mapping says which colour each has."""
    places = names if isinstance(names, Mapping) else {name: place for place, name in enumerate(names)}
    items = (
        f'<li><svg viewBox="0 0 28 10" aria-hidden="true"><path class="line {style(place)}" d="M1 5H27"/></svg>'
        f"{escape(name)}</li>"
        for name, place in places.items()
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


def scatter(points: Sequence[Plain], *, x_name: str, y_name: str) -> str:
    """Estimates against what was found by running the policies, with the diagonal on which both are equal."""
    both = span([value for each in points for value in (each["x"], each["y"])], margin=0.08)
    frame = Frame(both, both, height=440)
    low, high = both
    parts = [
        frame.axes(x_name, y_name),
        f'<path class="log-line" d="M{frame.x(low):.1f} {frame.y(low):.1f}L{frame.x(high):.1f} {frame.y(high):.1f}"/>',
    ]
    drawn: list[tuple[float, float]] = []
    for place, each in enumerate(points, start=1):
        x, y = frame.x(each["x"]), frame.y(each["y"])
        parts.append(f'<circle class="point" cx="{x:.1f}" cy="{y:.1f}" r="5"/>')
        if len(points) <= MOST_NAMED:
            # The numbers of points that lie together stand on both sides.
            is_near = sum(abs(x - other[0]) < NEAR and abs(y - other[1]) < NEAR for other in drawn)
            left = is_near % 2 == 1
            parts.append(
                text(x - 8 if left else x + 8, y + 4, str(place), anchor="end" if left else "start", kind="tick")
            )
        drawn.append((x, y))
    return frame.figure(f"{y_name} against {x_name} for {len(points)} policies.", *parts)
