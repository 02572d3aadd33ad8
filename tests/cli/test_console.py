"""Tables on a terminal."""

from __future__ import annotations

import pytest

from rl_training.cli.display.console import print_table, score_text


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard output passes for a terminal of 36 columns."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "36")


HEAD = ["option", "meaning"]


@pytest.mark.usefixtures("terminal")
def test_cells_are_folded_so_that_a_table_fits_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(HEAD, [["learning_rate", "the schedule of the [actor's] learning rate"]])

    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()[1:]] == [
        "learning_rate  the schedule of the",
        "               [actor's] learning",
        "               rate",
    ]


@pytest.mark.usefixtures("terminal")
def test_no_letter_of_a_long_name_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(HEAD, [["x" * 60, "[not markup]"]])

    assert sum(line.count("x") for line in capsys.readouterr().out.splitlines()) == 60


def test_without_a_terminal_every_row_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [["a_b_c " * 30, "words " * 40]]

    print_table(HEAD, rows)

    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [HEAD, "".join(rows[0]).split()]


@pytest.mark.usefixtures("terminal")
def test_the_widest_column_is_narrowed_first(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["algorithm", "idea"], [["td3_bc/pendulum", "a column of more words than there is room for"]])

    assert "td3_bc/pendulum  a column of more" in [line.rstrip() for line in capsys.readouterr().out.splitlines()]


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
