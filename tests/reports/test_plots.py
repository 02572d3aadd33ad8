"""Learning curves as a picture: what is in it, and what is refused."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from run_directories import make_run, returns

from rl_training.core.errors import ConfigError, MissingExtraError
from rl_training.reports import plots as plot
from rl_training.reports.plots import line_styles, plot_curves
from rl_training.reports.runs import RunRecord, read_runs

VALUES = (1.0, 2.0, 4.0)


def _records(folder: Path, runs: int = 3, **options: Any) -> list[RunRecord]:
    for seed in range(runs):
        make_run(folder, seed, returns(*(seed + value for value in VALUES)), **options)
    return read_runs(folder)


def _texts(path: Path) -> list[str]:
    """All words of an SVG picture, each of which stands as a comment beside its outlines."""
    return re.findall(r"<!-- (.*?) -->", path.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize(("ending", "start"), [("png", b"\x89PNG\r\n"), ("svg", b"<?xml"), ("PDF", b"%PDF")])
def test_the_same_runs_make_the_same_picture_in_the_format_of_its_ending(
    tmp_path: Path, ending: str, start: bytes
) -> None:
    pytest.importorskip("matplotlib")
    records, first, second = _records(tmp_path / "runs"), tmp_path / f"a.{ending}", tmp_path / f"b.{ending}"

    plot_curves(records, first)
    plot_curves(records, second)

    assert first.read_bytes().startswith(start)
    assert first.read_bytes() == second.read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"runs", first.name, second.name}


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        (1, "thin line: one run"),
        (2, "thin line: one run"),
        (3, "line: mean of n runs; band: lowest to highest run"),
        (10, "line: mean of n runs; band: 95 % bootstrap interval of the mean"),
    ],
)
def test_the_picture_says_what_its_lines_and_bands_are(tmp_path: Path, runs: int, words: str) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "curves.svg"

    plot_curves(_records(tmp_path / "runs", runs), path)

    assert {words, f"bc, n = {runs}", "Task-v0", "return_mean", "updates"} <= set(_texts(path))


def test_title_smoothing_data_and_the_begin_of_acting_are_said(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "curves.svg"
    rows = [{"return_mean": value, "env_steps": steps} for value, steps in zip(VALUES, (0, 0, 100), strict=True)]
    make_run(tmp_path / "runs", 0, rows, data_return=2.5)

    plot_curves(read_runs(tmp_path / "runs"), path, smooth=2, title="Three $values$", size=(6, 4))

    assert {
        "Three $values$",
        "thin line: one run; moving average over 2 evaluations",
        "updates, then environment steps",
        "data",
        "acting begins",
    } <= set(_texts(path))
    assert re.search(r'width="432pt" height="288pt"', path.read_text(encoding="utf-8"))


def test_runs_that_were_evaluated_once_are_points_with_bars(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "curves.svg"
    for seed in range(3):
        make_run(tmp_path / "runs", seed, returns(float(seed)))
    make_run(tmp_path / "runs", 0, returns(1.0), algo="iql")

    plot_curves(read_runs(tmp_path / "runs"), path)

    assert {"point and bar: mean of n runs, lowest to highest run; point: one run", "updates: 100"} <= set(_texts(path))


def test_long_names_are_wrapped_and_not_cut(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "curves.svg"
    for number in range(2):
        _records(tmp_path / "runs", algo_kwargs={"dataset_path": f"/{'folder/' * 40}log{number}.npz"})

    plot_curves(read_runs(tmp_path / "runs"), path)

    words = "".join("".join(_texts(path)).split())
    for number in range(2):
        assert f"bc,dataset_path=/{'folder/' * 40}log{number}.npz,n=3" in words


def test_many_lines_all_look_different() -> None:
    looks = [tuple(style.values()) for _, style in zip(range(196), line_styles(), strict=False)]
    points = [tuple(plot._point(style).values()) for _, style in zip(range(28), line_styles(), strict=False)]

    assert len(set(looks)) == 196
    assert len(set(points)) == 28


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("curves.pgn", r"expected one of the endings .png, .svg, .pdf; did you mean '.png'\?"),
        ("curves", "expected one of the endings .png, .svg, .pdf$"),
        ("nowhere/curves.png", "the folder '.*nowhere' does not exist"),
    ],
)
def test_a_file_that_cannot_be_a_picture_is_refused(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"--plot '.*{name}': {words}"):
        plot_curves(_records(tmp_path / "runs"), tmp_path / name)


@pytest.mark.parametrize("size", [(3.0, 1.0), (0.5, 4.0)])
def test_a_size_without_room_for_curves_is_refused(tmp_path: Path, size: tuple[float, float]) -> None:
    pytest.importorskip("matplotlib")

    with pytest.raises(ConfigError, match=f"a picture of {size[0]:g}x{size[1]:g} inches leaves no room for curves"):
        plot_curves(_records(tmp_path / "runs"), tmp_path / "curves.png", size=size)
    assert not (tmp_path / "curves.png").exists()


def test_a_moving_average_over_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="smooth must be >= 1, got 0"):
        plot_curves(_records(tmp_path / "runs"), tmp_path / "curves.png", smooth=0)


def test_the_settings_of_the_reader_change_neither_the_picture_nor_are_they_changed(tmp_path: Path) -> None:
    mpl = pytest.importorskip("matplotlib")
    records = _records(tmp_path / "runs")
    plot_curves(records, tmp_path / "a.svg")

    with mpl.rc_context({"font.size": 20.0, "axes.facecolor": "black"}):
        plot_curves(records, tmp_path / "b.svg")
        assert mpl.rcParams["font.size"] == 20.0

    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_without_matplotlib_the_extra_to_install_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    with pytest.raises(MissingExtraError, match=r"pip install 'rl-training\[plot\]'"):
        plot_curves(_records(tmp_path / "runs"), tmp_path / "curves.png")
