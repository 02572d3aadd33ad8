"""The page of a report in a real browser: Debian's Chromium, without a window."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from judged_runs import candidates_of
from PIL import Image
from steering import QUICK, away, rest, steering_log, towards

from rl_training import BC, TD3BC, estimate
from rl_training.core.text import TEMPLATES
from rl_training.reports.page import charts
from rl_training.reports.page.write import write_report

browser = pytest.importorskip("browser", reason="needs the package websockets")
pytestmark = pytest.mark.extras

THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
CLASHES = """
(() => {
  const found = [];
  for (const svg of document.querySelectorAll("figure > svg")) {
    const frame = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll("text")]
      .map(text => [text.textContent, text.getBoundingClientRect()]).filter(([, box]) => box.width);
    texts.forEach(([words, box], place) => {
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1
          || box.bottom > frame.bottom + 1) found.push(words + " leaves its figure");
      for (const [others, other] of texts.slice(place + 1))
        if (box.left < other.right - 1 && other.left < box.right - 1 && box.top < other.bottom - 3
            && other.top < box.bottom - 3) found.push(words + " over " + others);
    });
  }
  return found;
})()
"""
SMALLEST = """Math.min(...[...document.querySelectorAll("figure > svg text")]
  .map(text => text.getBoundingClientRect().height).filter(Boolean))"""
CONTRAST = """
(() => {
  const light = text => { const [r, g, b] = text.match(/[0-9.]+/g).map(Number).map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const paper = light(getComputedStyle(document.body).backgroundColor);
  const texts = [...document.querySelectorAll("p, td, th, dt, dd, li, figcaption, summary, svg text")];
  return Math.min(...texts.map(each => {
    const style = getComputedStyle(each), ink = light(each.closest("svg") ? style.fill : style.color);
    return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
  }));
})()
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with nearly every section: runs over seeds, estimates with a refused policy, real episodes, weights."""
    folder = tmp_path_factory.mktemp("page")
    np.savez(folder / "log.npz", **steering_log(60))
    options: Any = {"dataset_path": str(folder / "log.npz"), "hidden_sizes": (16,), "eval_interval": 50}
    options |= {"env_id": "steering:Steering-v0", "eval_episodes": 2, "checkpoint_interval": 50, "log_interval": 100}
    for seed in range(3):
        run: Any = {"run_name": f"a_run_with_a_long_name_{seed}", "output_dir": str(folder / "runs"), "seed": seed}
        TD3BC(total_timesteps=200, **options, **run).learn()
        BC(total_timesteps=200, **options, **{**run, "run_name": f"bc_{seed}"}).learn()
    policies = {"towards": towards, "away": away, "rest": rest}
    runs = {f"run {seed}": str(folder / "runs" / f"a_run_with_a_long_name_{seed}") for seed in range(3)}
    files = sorted((folder / "runs" / "a_run_with_a_long_name_0" / "policies").glob("*.pt"))[1:-1]
    runs |= {f"checkpoint {place}": str(file) for place, file in enumerate(files)}
    found = json.loads(json.dumps(estimate({**runs, **policies}, str(folder / "log.npz"), **QUICK).to_plain()))
    nothing = {"value": None, "interval": None, "difference": None, "probability_better": None}
    found["policies"][-1] |= {**nothing, "verdict": "cannot be judged", "reasons": ["most of its actions are far"]}
    found["best"] = [name for name in found["best"] if name != "rest"]
    names = [each["name"] for each in found["policies"]]
    about: dict[str, Any] = {
        "episodes": 60,
        "effective_sample_size": 41.5,
        "largest_share": 0.05,
        "mean": 1.01,
        "tail_index": 0.2,
    }
    about |= {"effective_sample_sizes": [60.0, 50.0, 41.5]}
    about |= {"log10_histogram": {"counts": [3, 50, 7], "edges": [-1.0, -0.3, 0.3, 1.0], "zeros": 0}}
    value = {"estimator": "PDWIS", "value": -2.25, "standard_error": 0.1, "interval": [-2.5, -2.0]}
    weighted = {"name": names[0], "level": "warn", "reasons": ["be careful"], "recommended": "PDWIS", "agrees": True}
    found["weighted"] = [{**weighted, "estimates": [value], "weights": about}]
    pull = {"believed": -2.0, "believed_std": 0.5, "doubt": 0.04, "best": names[0]}
    selection = {
        "candidates": [{**each, "believed": -2.0, "believed_std": 0.5} for each in candidates_of(found)],
        "pulls": [
            {"number": place, "policy": names[place % 2], "episode_return": -2.0 - place, "best_believed": -2.0, **pull}
            for place in range(1, 6)
        ],
        "best": found["best"],
        "chosen": names[0],
        "claim": None,
        "budget": 10,
        "estimates": found,
    }
    write_report(folder / "runs", folder / "report.html", selection=selection)
    return folder / "report.html"


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One browser for all tests."""
    with browser.chromium(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", [1200, 400, 340])
def test_the_page_renders_without_complaint_and_loads_nothing(
    page: Path, tab: Any, width: int, theme: Literal["light", "dark"]
) -> None:
    tab.open(page, width=width, theme=theme)
    assert tab.complaints == []
    assert tab.requests == [page.resolve().as_uri()]
    assert tab.evaluate("document.querySelectorAll('figure > svg').length") >= 12
    for words in ("Along training", "How scores spread over seeds", "Do estimates agree with what happened?"):
        assert tab.evaluate(f"document.body.textContent.includes({words!r})"), words
    # Nothing is wider than the window, so that one reads it without scrolling sideways.
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate(CLASHES) == []
    assert tab.evaluate(SMALLEST) >= 10


@pytest.mark.parametrize("width", [1000, 360])
@pytest.mark.parametrize("logged", [-12345.0, 0.0, 12345.0])
def test_labels_find_room_wherever_the_log_lies_and_however_long_names_are(
    tab: Any, tmp_path: Path, logged: float, width: int
) -> None:
    policy = {"value": -10.0, "interval": [-20.0, 5.0], "reasons": [], "among_best": True}
    policies = [
        {**policy, "name": "a_very_long_name_" * 5},
        {**policy, "name": "refused " * 9, "value": None, "reasons": ["no"]},
    ]
    figures = [
        charts.forest(
            policies,
            level=logged,
            label=f"mean of the log {logged}",
            band=(logged - 1, logged + 1),
            axis="estimated value " * 8,
            said="intervals",
        ),
        charts.histogram(
            [logged - 1, logged, logged + 1], {"a": [1, 2]}, axis="a long name " * 9, unit="share of them"
        ),
        charts.curves(
            [{"name": "a", "colour": 0, "x": [0, 123456], "y": [logged, logged + 9]}], x_name="x", y_name="y"
        ),
        charts.curves(
            [
                {"name": name, "colour": place, "x": [0, 10], "y": [logged, 9], "bars": [(logged - 9, logged), None]}
                for place, name in enumerate("ab")
            ],
            x_name="x",
            y_name="y",
        ),
        charts.scatter([(0.0, 0.0), (0.01, 0.01), (9.0, 9.0)], x_name="x", y_name="y"),
        charts.bars(["a" * 40, "b"], {"logged": [0.2, 0.8], "chosen": [1.0, 0.0]}, axis="share of situations"),
    ]
    style = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    shown = "".join(f"<figure>{figure}</figure>" for figure in figures)
    viewport = '<meta name="viewport" content="width=device-width">'
    (tmp_path / "figures.html").write_text(f"<!DOCTYPE html>{viewport}<style>{style}</style><main>{shown}</main>")
    tab.open(tmp_path / "figures.html", width=width)
    assert tab.evaluate(CLASHES) == []


def test_themes_differ_and_both_can_be_read(page: Path, tab: Any) -> None:
    papers = set()
    for theme in THEMES:
        tab.open(page, theme=theme)
        papers.add(tab.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert tab.evaluate(CONTRAST) >= 4.5, theme  # what accessibility asks of text
    assert len(papers) == 2


@pytest.mark.parametrize("theme", THEMES)
def test_a_picture_of_the_page_has_ink_of_many_colours(page: Path, tab: Any, theme: Literal["light", "dark"]) -> None:
    tab.open(page, theme=theme)
    pixels = np.asarray(Image.open(BytesIO(tab.picture())).convert("RGB"))
    assert len(np.unique(pixels.astype(np.int64) @ [65536, 256, 1])) > 50
    paper = (255, 255, 255) if theme == "light" else (18, 22, 27)
    assert 0.5 < (pixels == paper).all(axis=-1).mean() < 0.99


def test_tables_open_without_a_script(page: Path, tab: Any) -> None:
    tab.open(page)
    tab.evaluate("document.querySelector('summary').click()")
    assert tab.evaluate("document.querySelector('details table').getBoundingClientRect().height") > 20


def test_the_page_prints_on_some_sheets_of_paper_in_light_colours(page: Path, tab: Any) -> None:
    tab.open(page, theme="dark")
    printed = tab.printed()
    assert printed.startswith(b"%PDF")
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 20
    tab.call("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    tab.call("Emulation.setEmulatedMedia", media="")
