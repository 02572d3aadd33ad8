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

from rl_training.reports.page.charts import number, percent, shortened, span, tick_texts, ticks
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


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-142.4, "\N{MINUS SIGN}142"),
        (12345.6, "12,346"),
        (0.5, "0.5"),
        (9.876, "9.88"),
        (0.00123, "0.00123"),
        (3e9, "3.00e+09"),
        (None, "\N{EN DASH}"),
        (float("nan"), "\N{EN DASH}"),
        (20, "20"),
    ],
)
def test_numbers_have_the_digits_that_one_compares_by(value: float | None, text: str) -> None:
    assert number(value) == text


def test_shares_are_percent_with_a_digit_where_they_are_small() -> None:
    assert [percent(share) for share in (0, 0.0123, 0.05, 0.5, None)] == ["0 %", "1.2 %", "5 %", "50 %", "\N{EN DASH}"]


@pytest.mark.parametrize(
    ("low", "high", "most", "expected"),
    [
        (0, 10, 6, [0, 2, 4, 6, 8, 10]),
        (-283, -40, 6, [-250, -200, -150, -100, -50]),
        (0.1, 0.32, 5, [0.1, 0.15, 0.2, 0.25, 0.3]),
        (3, 3, 5, [3]),
    ],
)
def test_ticks_are_round_and_few(low: float, high: float, most: int, expected: list[float]) -> None:
    assert ticks(low, high, most) == pytest.approx(expected)


def test_ticks_of_counts_are_whole() -> None:
    assert ticks(0, 2.2, 5, whole=True) == [0, 1, 2]


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([0, 2.5, 5], ["0", "2.5", "5.0"]),
        ([-12345.5, -12345, -12344.5], ["-12,345.5", "-12,345.0", "-12,344.5"]),
        ([0, 200_000], ["0", "200k"]),
        ([1_000_000, 1_200_000], ["1.0M", "1.2M"]),
        ([0.1, 0.15, 0.2], ["0.10", "0.15", "0.20"]),
        ([50, 100], ["50", "100"]),
        ([0, 1e-6], ["0", "1.00e-06"]),
        ([7], ["7"]),
        ([0], ["0"]),
    ],
)
def test_ticks_have_the_digits_that_tell_them_apart(values: list[float], texts: list[str]) -> None:
    assert tick_texts(values) == [each.replace("-", "\N{MINUS SIGN}") for each in texts]


def test_a_range_is_never_empty() -> None:
    for values in ([], [0.0], [5.0, 5.0], [float("inf"), 1.0]):
        low, high = span(values)
        assert low < high


def test_long_names_lose_their_middle() -> None:
    assert shortened("a" * 60) == "a" * 21 + "…" + "a" * 21
    assert shortened("short") == "short"
