"""Tables on a terminal."""

from __future__ import annotations

import pytest

from rl_training.cli.display.console import column_widths, print_table, score_text, wrap


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard output passes for a terminal of 36 columns."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "36")


HEAD = ["option", "meaning"]


@pytest.mark.usefixtures("terminal")
def test_cells_wrap_so_that_a_table_fits_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(HEAD, [["actor_learning_rate_schedule", "the schedule of the actor's learning rate"]])

    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()[1:]] == [
        "actor_learning_    the schedule of",
        "rate_schedule      the actor's",
        "                   learning rate",
    ]


@pytest.mark.usefixtures("terminal")
def test_a_table_gets_wider_than_the_terminal_before_a_word_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    name = "x" * 60

    print_table(HEAD, [[name, "[not markup]"]])

    assert f"{name}  [not" in capsys.readouterr().out


def test_without_a_terminal_every_row_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [["a_b_c " * 30, "words " * 40]]

    print_table(HEAD, rows)

    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [HEAD, "".join(rows[0]).split()]


@pytest.mark.parametrize(
    ("room", "widths"),
    [(None, [12, 25]), (39, [12, 25]), (30, [12, 16]), (24, [12, 10]), (22, [12, 8]), (18, [8, 8]), (1, [5, 6])],
)
def test_the_widest_column_is_narrowed_first_and_words_before_names(room: int | None, widths: list[int]) -> None:
    assert column_widths([["name_of_it/b", "a column of the six words"], ["", ""]], room) == widths


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("one two three", 7, ["one two", "three"]),
        ("one two_three", 7, ["one", "two_", "three"]),
        ("a=1, b.c/d", 5, ["a=1,", "b.c/d"]),
        ("tau=-0.005, a.b", 5, ["tau=", "-0.005,", "a.b"]),
        ("gamma.5e-3.x", 5, ["gamma.5e-3.", "x"]),
        ("", 5, [""]),
        ("unbroken", 3, ["unbroken"]),
    ],
)
def test_lines_break_at_spaces_and_long_names_after_their_separators(text: str, width: int, lines: list[str]) -> None:
    assert wrap(text, width).split("\n") == lines


@pytest.mark.parametrize(
    ("mean", "std", "text"),
    [
        (-150.25, 12.0, "return -150.2 ± 12.0"),
        (0.00463, 0.0679, "return 0.0046 ± 0.068"),
        (0.0, 0.0, "return 0.0 ± 0.0"),
    ],
)
def test_small_returns_such_as_rates_of_clicks_are_not_rounded_to_nothing(mean: float, std: float, text: str) -> None:
    assert score_text({"return_mean": mean, "return_std": std}) == text
