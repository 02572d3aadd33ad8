"""Axes of figures: ranges, ticks, numbers as text, and the frame that a figure is drawn in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

DASH = "\N{EN DASH}"
"""Stands where there is no number."""
WIDTH = 640
"""Width of a figure in its own units, which are pixels on a wide screen."""
UNITS = ((1e9, 1e9, "B"), (1e6, 1e6, "M"), (1e5, 1e3, "k"))
"""From which number on ticks are in billions, millions and thousands, with the unit and its letter."""
SMALLEST_STEP = 1e-4
LONG_TICK = 7
LONGEST_AXIS = 56
"""Letters of the name of an axis."""
EDGE = 44
"""Nearer to the edge than this, a number is not centred, so that all of it is seen."""
LONGEST_NAME = 44
"""Letters of a name in a figure; the table below it has the whole."""


def number(value: float | None) -> str:
    """A number with as many digits as one compares by; a dash where there is none."""
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
    """A name without its middle, where it is too long for a figure."""
    half = (most - 1) // 2
    return name if len(name) <= most else f"{name[:half]}…{name[-half:]}"


def ticks(low: float, high: float, most: int = 6, *, whole: bool = False) -> list[float]:
    """Round numbers within a range, at most so many; `whole` ones, where only these can occur."""
    if not high > low:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    for step in (factor * power for factor in (1, 2, 2.5, 5, 10, 20)):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < most and (not whole or step.is_integer()):
            break
    return [round(place * step, 12) for place in range(first, last + 1)]


def tick_texts(values: Sequence[float]) -> list[str]:
    """Ticks as text: as many digits as tell them apart, and large numbers in thousands, millions or billions."""
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


def text(x: float, y: float, words: str, *, anchor: str = "start", kind: str = "") -> str:
    """Words in a figure, whatever letters they have."""
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
        """Where a value lies from left to right."""
        low, high = self.x_range
        return self.left + (value - low) / (high - low) * (self.width - self.left - self.right)

    def y(self, value: float) -> float:
        """Where a value lies from top to bottom."""
        low, high = self.y_range
        return self.height - self.bottom - (value - low) / (high - low) * (self.height - self.top - self.bottom)

    def axes(self, x_name: str, y_name: str = "", *, has_y: bool = True, whole: bool = False) -> str:
        """Grid, ticks and names of both axes."""
        floor = self.height - self.bottom
        parts = []
        for value, words in self._ticks(*self.x_range):
            x = self.x(value)
            parts.append(f'<path class="grid" d="M{x:.1f} {self.top:.1f}V{floor:.1f}"/>')
            anchor = "start" if x < EDGE else "end" if x > self.width - EDGE else "middle"
            parts.append(text(x, floor + 24, words, anchor=anchor, kind="tick"))
        for value, words in self._ticks(*self.y_range, most=5, whole=whole) if has_y else ():
            y = self.y(value)
            parts.append(f'<path class="grid" d="M{self.left:.1f} {y:.1f}H{self.width - self.right:.1f}"/>')
            parts.append(text(self.left - 8, y + 4, words, anchor="end", kind="tick"))
        parts.append(f'<path class="axis" d="M{self.left:.1f} {floor:.1f}H{self.width - self.right:.1f}"/>')
        middle = (self.left + self.width - self.right) / 2
        parts.append(text(middle, self.height - 8, shortened(x_name, LONGEST_AXIS), anchor="middle", kind="name"))
        if y_name:
            y = (self.top + floor) / 2
            turned = f"translate(14 {y:.1f}) rotate(-90)"
            parts.append(
                f'<g transform="{turned}">{text(0, 0, shortened(y_name, 30), anchor="middle", kind="name y-name")}</g>'
            )
        return "".join(parts)

    def _ticks(self, low: float, high: float, most: int = 6, *, whole: bool = False) -> list[tuple[float, str]]:
        values = ticks(low, high, most, whole=whole)
        if max(map(len, tick_texts(values)), default=0) > LONG_TICK:
            # Long numbers need more room each.
            values = ticks(low, high, 3, whole=whole)
        return list(zip(values, tick_texts(values), strict=True))

    def figure(self, label: str, *parts: str) -> str:
        """The whole figure, with what it shows in words for those who cannot see it."""
        return (
            f'<svg viewBox="0 0 {self.width:g} {self.height:g}" role="img" aria-label="{escape(label)}">'
            f"{''.join(parts)}</svg>"
        )
