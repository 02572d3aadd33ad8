"""Pieces of a page. All words that come from outside pass through `escape` here, or in the text of figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from rl_training.experiment.page.axes import number

SHORT = 22
"""Letters of a cell up to which it stays on one line."""


def p(words: str, kind: str = "") -> str:
    """A paragraph."""
    return f'<p class="{kind}">{escape(words)}</p>' if kind else f"<p>{escape(words)}</p>"


def code(words: str) -> str:
    """A command or another text to copy."""
    return f"<pre>{escape(words)}</pre>"


def items(texts: Iterable[str]) -> str:
    """A list."""
    return f"<ul>{''.join(f'<li>{escape(each)}</li>' for each in texts)}</ul>"


def facts(found: Mapping[str, str]) -> str:
    """Names with what is known, side by side where there is room."""
    pairs = (f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in found.items())
    return f'<dl class="facts">{"".join(pairs)}</dl>'


def table(headers: Sequence[str], rows: Iterable[Sequence[str | float | None]]) -> str:
    """A table; numbers stand on the right."""
    cells = [list(row) for row in rows]
    is_number = [all(not isinstance(row[place], str) for row in cells) for place in range(len(headers))]
    kinds = [' class="n"' if each and cells else "" for each in is_number]
    head = "".join(f"<th{kind}>{escape(name)}</th>" for kind, name in zip(kinds, headers, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f"<td{kind or _short(value)}>{_cell(value)}</td>" for kind, value in zip(kinds, row, strict=True))
        + "</tr>"
        for row in cells
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _short(value: str | float | None) -> str:
    """Short cells stay on one line; long ones without a space, such as sums of files, break anywhere."""
    if not isinstance(value, str):
        return ""
    return ' class="short"' if len(value) <= SHORT else ' class="mono"' if " " not in value else ""


def _cell(value: str | float | None) -> str:
    return escape(value) if isinstance(value, str) else escape(number(value))


def figure(svg: str, caption: str, numbers: str, *, before: str = "") -> str:
    """A figure with its caption, and its numbers as a table that opens on request."""
    return (
        f"<figure>{before}{svg}<figcaption>{escape(caption)}</figcaption>"
        f"<details><summary>The numbers of this figure</summary>{numbers}</details></figure>"
    )


def section(title: str, *parts: str, kind: str = "") -> str:
    """A part of the page with its title."""
    return f'<section class="{kind}"><h2>{escape(title)}</h2>{"".join(parts)}</section>\n'
