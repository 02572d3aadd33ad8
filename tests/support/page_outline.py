"""What a page of a report is made of, as lines of text."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = {"meta", "link"}
SHAPES = {"path", "rect", "circle"}


class Page(HTMLParser):
    """The outline of a page: a line per element with its class and words, a line per row and per figure.

    It must be well formed, and neither load nor run anything.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.lines: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)
        self.close()
        assert self.stack == []
        assert self.addresses == ["data:,"]
        assert not re.search(r"@import|url\(|https?://", text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        assert tag != "script"
        assert not any(name.startswith("on") for name in found), found
        self.addresses += [found[name] for name in ("src", "href", "xlink:href", "action") if name in found]
        kind = f"{tag}.{found['class'].replace(' ', '.')}" if found.get("class") else tag
        if tag in ("td", "th"):
            self.lines[-1] += f"  [{kind}]"
        elif "svg" not in self.stack and tag not in SHAPES:
            self.lines.append(
                f"{'  ' * len(self.stack)}{kind}{' ' + found['aria-label'] if 'aria-label' in found else ''}"
            )
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in SHAPES, tag

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        words = " ".join(data.split())
        if words and self.stack[-1] != "style":
            self.lines[-1] += f" {words}"
