"""Figures as inline SVG: intervals of policies, histograms, curves with bands, agreement; and numbers as text.

Colours are classes of the page's style, so that they follow its theme. A figure needs no other file and no script.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

DASH = "\N{EN DASH}"
"""Replaces a missing number."""
WIDTH = 640
"""Width of a figure in its own units, which are pixels on a wide screen."""
UNITS = ((1e9, 1e9, "B"), (1e6, 1e6, "M"), (1e5, 1e3, "k"))
"""Units of ticks: smallest number with the unit, the unit, and its letter."""
SMALLEST_STEP = 1e-4
LONG_TICK = 7
LONGEST_AXIS = 56
"""The most letters in the name of an axis."""
EDGE = 44
"""Distance from the edge below which a number is not centred, so that it stays visible."""
LONGEST_NAME = 44
"""The most letters of a name in a figure; the table below has the whole name."""
COLOURS = 6
"""Colours of lines; further lines repeat them with dashes."""
ROW = 46
"""Height of a policy in a forest plot: its name stands above its interval."""
BAR_GROUP = 54
"""Height of a group of bars with its name."""
LABEL = 125
"""Half the width for the name of the log's mean, in large letters."""
BESIDE = 4
"""Distance between the intervals of several lines."""
MOST_NAMED = 12
"""The most points of a scatter plot with numbers."""
NEAR = 18
"""Distance between points below which their numbers would overlap."""

Plain = Mapping[str, Any]


def number(value: float | None) -> str:
    """A number with as many digits as a comparison needs; a dash if there is none."""
    if value is None or not math.isfinite(value):
        return DASH
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e7 or size < 1e-4:
        text = f"{value:.2e}"
    elif size >= 100:
        text = f"{value:,.0f}"
    else:
        text = f"{value:.{max(0, 2 - math.floor(math.log10(size)))}f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
    return text.replace("-", "\N{MINUS SIGN}")


def percent(share: float | None) -> str:
    """A share in percent; small ones keep a digit."""
    if share is None:
        return DASH
    value = 100 * share
    return f"{value:.1f}".removesuffix(".0") + " %" if value < 10 else f"{value:.0f} %"


def shortened(name: str, most: int = LONGEST_NAME) -> str:
    """A name without its middle if it is too long for a figure."""
    half = (most - 1) // 2
    return name if len(name) <= most else f"{name[:half]}…{name[-half:]}"


def ticks(low: float, high: float, most: int = 6, *, whole: bool = False) -> list[float]:
    """At most this number of round numbers within a range; `whole` ones if others cannot occur."""
    if not high > low:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    for step in (factor * power for factor in (1, 2, 2.5, 5, 10, 20)):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < most and (not whole or step.is_integer()):
            break
    return [round(place * step, 12) for place in range(first, last + 1)]


def tick_texts(values: Sequence[float]) -> list[str]:
    """Ticks as text, with distinguishing digits; large numbers in thousands, millions or billions."""
    largest = max(map(abs, values), default=0.0)
    unit, letter = next(((unit, letter) for least, unit, letter in UNITS if largest >= least), (1.0, ""))
    step = (values[1] - values[0] if len(values) > 1 else largest or 1.0) / unit
    if step < SMALLEST_STEP:
        return [number(value) for value in values]
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    # A step such as 2.5 has a digit more than its size says.
    digits += not math.isclose(step * 10**digits, round(step * 10**digits), rel_tol=1e-9)
    texts = [f"{value / unit:,.{digits}f}".replace("-", "\N{MINUS SIGN}") for value in values]
    return ["0" if value == 0 else f"{each}{letter}" for value, each in zip(values, texts, strict=True)]


def span(values: Sequence[float], *, margin: float = 0.05) -> tuple[float, float]:
    """A range that holds all values with some room; never empty."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return 0.0, 1.0
    low, high = min(finite), max(finite)
    room = margin * (high - low) or 0.5 * abs(low) or 0.5
    return low - room, high + room


def element(name: str, kind: str, **attributes: float | str) -> str:
    """An SVG element with a class of the page's style; numbers have one decimal."""
    texts = (f'{key}="{each if isinstance(each, str) else f"{each:.1f}"}"' for key, each in attributes.items())
    return f'<{name} class="{kind}" {" ".join(texts)}/>'


def text(x: float, y: float, words: str, *, anchor: str = "start", kind: str = "") -> str:
    """An SVG text, escaped."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{escape(words)}</text>'


def path(points: Sequence[tuple[float, float]], *, is_closed: bool = False) -> str:
    """The `d` of a line through points."""
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points) + ("Z" if is_closed else "")


@dataclass(frozen=True)
class Frame:
    """The part of a figure that data is drawn in, with the ranges of its axes."""

    x_range: tuple[float, float]
    y_range: tuple[float, float]
    width: float = WIDTH
    height: float = 260
    left: float = 96
    right: float = 30
    top: float = 12
    bottom: float = 60

    def x(self, value: float) -> float:
        """The horizontal position of a value."""
        low, high = self.x_range
        return self.left + (value - low) / (high - low) * (self.width - self.left - self.right)

    def y(self, value: float) -> float:
        """The vertical position of a value."""
        low, high = self.y_range
        return self.height - self.bottom - (value - low) / (high - low) * (self.height - self.top - self.bottom)

    def axes(self, x_name: str, y_name: str = "", *, has_y: bool = True, whole: bool = False) -> str:
        """Grid, ticks and names of both axes."""
        floor = self.height - self.bottom
        parts = []
        for value, words in self._ticks(*self.x_range):
            x = self.x(value)
            parts.append(element("path", "grid", d=f"M{x:.1f} {self.top:.1f}V{floor:.1f}"))
            anchor = "start" if x < EDGE else "end" if x > self.width - EDGE else "middle"
            parts.append(text(x, floor + 24, words, anchor=anchor, kind="tick"))
        for value, words in self._ticks(*self.y_range, most=5, whole=whole) if has_y else ():
            y = self.y(value)
            parts.append(element("path", "grid", d=f"M{self.left:.1f} {y:.1f}H{self.width - self.right:.1f}"))
            parts.append(text(self.left - 8, y + 4, words, anchor="end", kind="tick"))
        parts.append(element("path", "axis", d=f"M{self.left:.1f} {floor:.1f}H{self.width - self.right:.1f}"))
        middle = (self.left + self.width - self.right) / 2
        parts.append(text(middle, self.height - 8, shortened(x_name, LONGEST_AXIS), anchor="middle", kind="name"))
        if y_name:
            y = (self.top + floor) / 2
            name = text(0, 0, shortened(y_name, 30), anchor="middle", kind="name y-name")
            parts.append(f'<g transform="translate(14 {y:.1f}) rotate(-90)">{name}</g>')
        return "".join(parts)

    def _ticks(self, low: float, high: float, most: int = 6, *, whole: bool = False) -> list[tuple[float, str]]:
        values = ticks(low, high, most, whole=whole)
        if max(map(len, tick_texts(values)), default=0) > LONG_TICK:
            # Long numbers need more room each.
            values = ticks(low, high, 3, whole=whole)
        return list(zip(values, tick_texts(values), strict=True))

    def figure(self, label: str, *parts: str) -> str:
        """The whole figure, with a description for screen readers."""
        about = f'viewBox="0 0 {self.width:g} {self.height:g}" role="img" aria-label="{escape(label)}"'
        return f"<svg {about}>{''.join(parts)}</svg>"


def forest(
    rows: Sequence[Plain],
    *,
    level: float,
    label: str,
    band: tuple[float, float],
    axis: str,
    said: str,
    interval: str = "interval",
    within: Sequence[float] = (),
) -> str:
    """A value with its interval per row, beside a level for comparison, on an axis that includes `within`.

    A row has a `name`, a `value` and, under the key `interval`, an interval; both may be missing. A row without a value
    is grey and has no point. Rows that are `among_best` are shaded.
    """
    ends = [end for each in rows if each["value"] is not None for end in (each["value"], *(each[interval] or ()))]
    height = 34 + ROW * len(rows) + 60
    frame = Frame(span([*ends, *band, level, *within]), (0, 1), height=height, left=1, right=1, top=34)
    floor, low, high, middle = height - frame.bottom, frame.x(band[0]), frame.x(band[1]), frame.x(level)
    anchor = "start" if middle < LABEL else "end" if middle > frame.width - LABEL else "middle"
    parts = [
        element("rect", "log-band", x=low, y=frame.top, width=high - low, height=floor - frame.top),
        frame.axes(axis, has_y=False),
        element("path", "log-line", d=f"M{middle:.1f} {frame.top - 6}V{floor}"),
        text(middle, 20, label, anchor=anchor, kind="tick"),
    ]
    for place, each in enumerate(rows):
        parts.append(_forest_row(frame, each, each[interval], frame.top + ROW * place))
    return frame.figure(said, *parts)


def _forest_row(frame: Frame, each: Plain, ends: Sequence[float] | None, top: float) -> str:
    left, has_value = frame.left + 10, each["value"] is not None
    label = text(left, top + 19, shortened(each["name"]), kind="label" if has_value else "grey")
    if not has_value:
        return label + text(left, top + 37, "cannot be judged", kind="grey")
    y, parts = top + 33, [label]
    if each.get("among_best"):
        width = frame.width - frame.left - frame.right
        parts.insert(0, element("rect", "best", x=frame.left, y=top + 3, width=width, height=ROW - 4, rx=4))
    if ends:
        low, high = map(frame.x, ends)
        line = f"M{low:.1f} {y}H{high:.1f}M{low:.1f} {y - 5}v10M{high:.1f} {y - 5}v10"
        parts.append(element("path", "interval", d=line))
    return "".join([*parts, element("circle", "point", cx=frame.x(each["value"]), cy=y, r=5.5)])


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
                x, y, width = frame.x(low) + 0.5, frame.y(value), frame.x(high) - frame.x(low) - 1
                parts.append(element("rect", "bar", x=x, y=y, width=max(width, 0.5), height=floor - y))
        else:
            steps = [(frame.x(edges[0]), floor)]
            for low, high, value in zip(edges[:-1], edges[1:], values, strict=True):
                steps += [(frame.x(low), frame.y(value)), (frame.x(high), frame.y(value))]
            parts.append(element("path", "outline", d=path([*steps, (frame.x(edges[-1]), floor)])))
    return frame.figure(f"Histogram of {axis}: {' and '.join(series)}.", *parts)


def bars(names: Sequence[str], series: Mapping[str, Sequence[float]], *, axis: str) -> str:
    """Shares of discrete actions, one group of bars per action."""
    tallest = max((value for values in series.values() for value in values), default=0) or 1
    frame = Frame((0, tallest * 1.08), (0, 1), height=72 + BAR_GROUP * len(names), left=14)
    parts = [frame.axes(axis, has_y=False)]
    for place, name in enumerate(names):
        top = frame.top + BAR_GROUP * place
        parts.append(text(frame.left, top + 18, shortened(name), kind="label"))
        for row, values in enumerate(series.values()):
            width = frame.x(values[place]) - frame.left
            kind = "bar" if row == 0 else "bar second"
            parts.append(element("rect", kind, x=frame.left, y=top + 25 + 12 * row, width=width, height=10))
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
        parts.append(element("path", "log-line", d=f"M{frame.left} {frame.y(level):.1f}H{frame.width - frame.right}"))
    if mark is not None:
        parts.append(element("path", "mark", d=f"M{frame.x(mark):.1f} {frame.top}V{frame.height - frame.bottom}"))
    for line in lines:
        if line.get("low"):
            upper = list(zip(line["x"], line["high"], strict=True))
            lower = list(zip(line["x"], line["low"], strict=True))[::-1]
            around = [(frame.x(x), frame.y(y)) for x, y in upper + lower]
            parts.append(element("path", f"band {style(line['colour'])}", d=path(around, is_closed=True)))
    for line in lines:
        points = [(frame.x(x), frame.y(y)) for x, y in zip(line["x"], line["y"], strict=True)]
        colour, thin = style(line["colour"]), " thin" if line.get("thin") else ""
        if len(points) == 1:
            parts.append(element("circle", f"dot {colour}", cx=points[0][0], cy=points[0][1], r=4))
        else:
            parts.append(element("path", f"line {colour}{thin}", d=path(points)))
        parts.append(_bars(frame, line, points))
    names = ", ".join(dict.fromkeys(line["name"] for line in lines))
    return frame.figure(f"{y_name} against {x_name} for {names}.", *parts)


def _bars(frame: Frame, line: Plain, points: Sequence[tuple[float, float]]) -> str:
    """Dots and intervals at the points of a line; those of several lines stand side by side."""
    parts, colour = [], style(line["colour"])
    for (x, y), bar in zip(points, line.get("bars") or (), strict=False):
        if bar is not None:
            shifted, low, high = x + BESIDE * line["colour"], *map(frame.y, bar)
            ends = f"M{shifted - 3:.1f} {low:.1f}h6M{shifted - 3:.1f} {high:.1f}h6"
            parts.append(element("path", f"line thin {colour}", d=f"M{shifted:.1f} {low:.1f}V{high:.1f}{ends}"))
        parts.append(element("circle", f"dot {colour}", cx=x, cy=y, r=3.5))
    return "".join(parts)


def style(place: int) -> str:
    """The classes of the line at a place: a colour, then dashes."""
    dashes = place // COLOURS % 3
    return f"c{place % COLOURS}" + (f" dash{dashes}" if dashes else "")


def scatter(points: Sequence[tuple[float, float]], *, x_name: str, y_name: str) -> str:
    """Estimates against returns in the environment, with the diagonal where both are equal."""
    both = span([value for point in points for value in point], margin=0.08)
    frame = Frame(both, both, height=440)
    diagonal = path([(frame.x(end), frame.y(end)) for end in both])
    parts = [frame.axes(x_name, y_name), element("path", "log-line", d=diagonal)]
    drawn: list[tuple[float, float]] = []
    for place, point in enumerate(points, start=1):
        x, y = frame.x(point[0]), frame.y(point[1])
        parts.append(element("circle", "point", cx=x, cy=y, r=5))
        if len(points) <= MOST_NAMED:
            # The numbers of neighbouring points stand on alternate sides.
            near = sum(abs(x - other[0]) < NEAR and abs(y - other[1]) < NEAR for other in drawn)
            shift, anchor = (-8, "end") if near % 2 else (8, "start")
            parts.append(text(x + shift, y + 4, str(place), anchor=anchor, kind="tick"))
        drawn.append((x, y))
    return frame.figure(f"{y_name} against {x_name} for {len(points)} policies.", *parts)
