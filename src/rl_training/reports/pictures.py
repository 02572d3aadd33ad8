"""What pictures have in common: their looks, a legend below all panels, and the file."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.core.errors import ConfigError, import_extra, nearest
from rl_training.core.files import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

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
