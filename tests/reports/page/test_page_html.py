"""The page of a report: every tag, class and word that its templates make of a content, and that nothing else is in it.

After a change of a template, rewrite `tests/fixtures/page/*.txt` and read the differences:
`python tests/reports/page/test_page_html.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from page_outline import Page

from rl_training.reports.page.render import render

FOLDER = Path(__file__).parents[2] / "fixtures" / "page"
CASES = ("full", "few", "bare")
"""A content with all that a page can show, one of two policies, and one of runs without estimates and evaluations."""
KEPT = {"tone", "source", "level", "recommended", "estimator", "kind", "first", "second", "profiles"}
"""Words of a content by which templates decide, or which name another part of it."""


def outline(content: dict[str, Any]) -> str:
    """The outline of the page of a content."""
    return "\n".join(Page(render(content)).lines) + "\n"


@pytest.mark.parametrize("case", CASES)
def test_a_page_has_the_tags_classes_and_words_that_it_had(case: str) -> None:
    content = json.loads((FOLDER / f"{case}.json").read_text(encoding="utf-8"))
    assert outline(content) == (FOLDER / f"{case}.txt").read_text(encoding="utf-8")


def test_words_from_outside_are_never_markup() -> None:
    """Every text of a content is hostile."""
    content = json.loads((FOLDER / "full.json").read_text(encoding="utf-8"))
    evil = "</style></title></svg></pre>\"'><script>alert(1)</script><img src=x onerror=alert(2)>"

    def spoil(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: each if name in KEPT else spoil(each) for name, each in value.items()}
        if isinstance(value, list):
            return [spoil(each) for each in value]
        return value + evil if isinstance(value, str) else value

    page = render(spoil(content))
    Page(page)
    assert page.count("alert(1)") > 100
    assert page.count("<script") == page.count("<img") == 0


if __name__ == "__main__":
    for each in CASES:
        text = outline(json.loads((FOLDER / f"{each}.json").read_text(encoding="utf-8")))
        (FOLDER / f"{each}.txt").write_text(text, encoding="utf-8")
