"""Pictures of a search: its history, and which options mattered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.reports.plots import COLOURS, save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT, BAR = 7.0, 4.0, 0.45
"""Inches of a picture, and of a bar with its name."""


def draw_history(trials: Sequence[Any], metric: str, path: Path) -> None:
    """The score of every trial, and the best so far."""
    complete = [each for each in trials if each.state.name == "COMPLETE"]
    pruned = [each for each in trials if each.state.name == "PRUNED" and each.value is not None]
    numbers, values = [each.number for each in complete], [each.value for each in complete]

    def draw(axes: Axes) -> None:
        from matplotlib.ticker import MaxNLocator

        axes.plot(numbers, values, "o", color=COLOURS[0], label="complete")
        if pruned:
            places = [each.number for each in pruned], [each.value for each in pruned]
            axes.plot(*places, "x", color="#777777", label="pruned, at its last evaluation")
        axes.step(numbers, list(accumulate(values, max)), where="post", color=COLOURS[1], label="best so far")
        axes.set(xlabel="trial", ylabel=metric)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend()

    _draw(draw, path, HEIGHT)


def draw_importances(importances: Mapping[str, float], path: Path) -> None:
    """The importance of each option for good trials; no picture if it is not known."""
    if not importances:
        return
    names = [name.removeprefix("algo_kwargs.") for name in reversed(list(importances))]

    def draw(axes: Axes) -> None:
        axes.barh(names, list(reversed(list(importances.values()))), color=COLOURS[0])
        axes.set(xlabel="importance for being among the good trials (PED-ANOVA)", xlim=(0, 1))

    _draw(draw, path, 1 + BAR * len(importances))


def _draw(draw: Callable[[Axes], None], path: Path, height: float) -> None:
    def figure() -> Figure:
        from matplotlib.figure import Figure

        made = Figure(figsize=(WIDTH, height), layout="constrained")
        draw(made.add_subplot())
        return made

    save_picture(path, figure, option="the picture of a search")
