"""Numbers, sizes, durations and names as text."""

from __future__ import annotations

import pytest

from rl_training.core.text import duration_text, first_of, memory_text, number_text, plural, size_text, step_of_name


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.012345678, "-0.01235"),
        (9.87654, "9.877"),
        (123.456, "123.5"),
        (-1234.5, "-1234"),
        (3e9, "3e+09"),
        (float("nan"), "nan"),
    ],
)
def test_numbers_have_the_digits_that_one_compares_by(value: float, text: str) -> None:
    assert number_text(value) == text


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (plural(1, "run"), "1 run"),
        (plural(1200, "run"), "1,200 runs"),
        (first_of(["a", "b"], 3), "a, b"),
        (first_of(["a", "b", "c", "d", "e"], 3), "a, b, c and 2 more"),
        (size_text(1234), "1.23 kB"),
        (size_text(999_000_000), "999 MB"),
        (size_text(5_000_000_000_000_000), "5000 TB"),
        (memory_text(3 << 29), "1.5 GiB"),
        (duration_text(0.2), "1 second"),
        (duration_text(100), "1.7 minutes"),
        (duration_text(3600), "60 minutes"),
        (duration_text(9000), "2.5 hours"),
    ],
)
def test_counts_sizes_and_durations(found: str, text: str) -> None:
    assert found == text


@pytest.mark.parametrize(
    ("name", "step"),
    [("update_000000100.pt", 100), ("step_000000007.pt", 7), ("latest.pt", None), ("update_1.pt.tmp", None)],
)
def test_the_step_in_the_name_of_a_file(name: str, step: int | None) -> None:
    assert step_of_name(name) == step
