"""Reports of sweeps: rows by what varied, what is missing from them, comparisons, tasks put together, pictures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from run_directories import make_run

from rl_training.core.errors import CheckpointError, ConfigError
from rl_training.core.statistics import bootstrap_interval
from rl_training.reports.compare import (
    compare_named,
    compare_two,
    decide_together,
    improvement,
    score_rows,
    sweep_findings,
)
from rl_training.reports.page.render import render
from rl_training.reports.page.write import report_content
from rl_training.reports.plots import plot_profiles
from rl_training.reports.runs import column_names, one_line, read_runs, read_sweep_folder
from rl_training.reports.table import summarize

Point = tuple[Mapping[str, Any], Sequence[float]]


def make_sweep(folder: Path, *points: Point, metric: str = "return_mean") -> Path:
    """A sweep's folder: of each point its options and the last score of each seed."""
    found = []
    for values, scores in points:
        for seed, score in enumerate(scores):
            kwargs = {key.removeprefix("algo_kwargs."): each for key, each in values.items() if "algo_kwargs." in key}
            about = {key: each for key, each in values.items() if key in ("algo", "env_id")}
            run = make_run(folder, seed, [{metric: -99.0}, {metric: score}], algo_kwargs=kwargs, **about)
            (run / "result.json").write_text('{"interrupted": false}')
            found.append({"name": run.name, "values": {**values, "seed": seed}, "status": "done", "error": None})
    (folder / "sweep.json").write_text(json.dumps({"cells": found}))
    return folder


def change_point(folder: Path, place: int, **changes: Any) -> str:
    """Change what the sweep says of a run; its name."""
    points = json.loads((folder / "sweep.json").read_text())["cells"]
    points[place] |= changes
    (folder / "sweep.json").write_text(json.dumps({"cells": points}))
    return str(points[place]["name"])


def batch(size: int, **more: Any) -> dict[str, Any]:
    return {**more, "algo_kwargs.batch_size": size}


def test_a_row_per_combination_in_the_order_of_the_sweep_with_what_varied(tmp_path: Path) -> None:
    points = [(batch(size, algo=algo), [1.0 * size, 2.0 * size]) for algo in ("td3_bc", "bc") for size in (64, 16)]
    rows = summarize(read_runs(make_sweep(tmp_path, *points)))
    assert [(row["values"], row["runs"], row["iqm"]) for row in rows] == [
        ({"algo": "td3_bc", "batch_size": 64}, 2, 96.0),
        ({"algo": "td3_bc", "batch_size": 16}, 2, 24.0),
        ({"algo": "bc", "batch_size": 64}, 2, 96.0),
        ({"algo": "bc", "batch_size": 16}, 2, 24.0),
    ]


def test_an_option_that_is_the_same_everywhere_is_no_column(tmp_path: Path) -> None:
    rows = summarize(read_runs(make_sweep(tmp_path, (batch(16, algo="bc"), [1.0]), (batch(32, algo="bc"), [2.0]))))
    assert [row["values"] for row in rows] == [{"batch_size": 16}, {"batch_size": 32}]


def test_names_of_columns_are_short_unless_two_would_be_the_same() -> None:
    points = [{"a.x": 1, "b.x": 1, "c.y": 1, "z": 1}, {"a.x": 2, "b.x": 2, "c.y": 2, "z": 1}]
    assert column_names(points) == {"a.x": "a.x", "b.x": "b.x", "c.y": "y"}


def test_mappings_in_cases_are_columns_like_dotted_names(tmp_path: Path) -> None:
    folder = make_sweep(tmp_path, ({"algo": "bc"}, [1.0]), ({"algo": "bc"}, [2.0]))
    change_point(folder, 0, values={"algo_kwargs": {"tau": 0.1}, "seed": 0})
    change_point(folder, 1, values={"seed": 0})
    sweep = read_sweep_folder(folder)
    assert sweep is not None
    assert [dict(each.values) for each in sweep.runs.values()] == [{"tau": 0.1}, {}]


def test_runs_that_are_not_done_are_named_with_their_error(tmp_path: Path) -> None:
    folder = make_sweep(tmp_path, (batch(16), [1.0, 2.0, 3.0]), (batch(32), [1.0, 2.0]))
    failed = change_point(folder, 4, status="failed", error="log.npz: 1 problem\n  it is no dataset")
    missing = change_point(folder, 0, name="bc__gone")
    stopped = change_point(folder, 1, status="waiting")
    (tmp_path / failed / "result.json").unlink()
    (tmp_path / stopped / "result.json").unlink()
    for run in tmp_path.glob("*seed0__*0000"):
        run.rename(tmp_path.parent / "elsewhere")
    records = read_runs(folder)
    found = sweep_findings([folder], records)
    assert found is not None
    counted = "(its evaluations so far are counted)"
    assert found.undone_lines == [
        f"3 of 5 runs of the sweep in {folder} are not done, 1 failed",
        f"{missing}: missing",
        f"{stopped}: stopped before its end {counted}",
        f"{failed}: failed: log.npz: 1 problem it is no dataset {counted}",
    ]
    assert [each["status"] for each in found.to_plain()["not_done"]] == ["missing", "stopped before its end", "failed"]
    content = report_content(folder)
    assert content["verdict"]["notes"][:4] == found.undone_lines
    assert "it is no dataset" in render(content)


def test_a_sweep_in_which_every_run_failed_says_why(tmp_path: Path) -> None:
    cell = {"name": "bc__x", "values": {"seed": 0}, "status": "failed", "error": "the file is gone"}
    (tmp_path / "sweep.json").write_text(json.dumps({"cells": [cell]}))
    with pytest.raises(
        CheckpointError, match=r"holds no run.*1 of 1 runs .* are not done, 1 failed; bc__x: failed: the f"
    ):
        read_runs(tmp_path)


def test_runs_that_are_not_of_the_sweep_are_left_out_unless_they_are_named(tmp_path: Path) -> None:
    folder = make_sweep(tmp_path, (batch(16), [1.0]), (batch(32), [2.0]))
    other = make_run(folder, 7, [{"return_mean": 5.0}])
    with pytest.warns(UserWarning, match=f"{other.name} is left out: it is not part of the sweep"):
        assert len(read_runs(folder)) == 2
    assert [record.path for record in read_runs([other])] == [other]
    assert [row["variant"] for row in summarize(read_runs([*folder.glob("bc__*")]))] != []


@pytest.mark.parametrize("text", ["", "{}", '{"cells": [{"name": "x"}]}', '{"cells": 3}'])
def test_a_damaged_sweep_is_refused_in_one_sentence(tmp_path: Path, text: str) -> None:
    make_run(tmp_path, 0, [{"return_mean": 5.0}])
    (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(ConfigError, match=r"sweep.json' is damaged: run the same sweep again to rewrite it"):
        read_runs(tmp_path)


def test_of_a_traceback_the_last_line_is_the_error() -> None:
    assert one_line("Traceback (most recent call last):\n  File\nValueError: no\n") == "ValueError: no"
    assert one_line("") == "unknown error"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("algo=bc, batch_size=16", "algo=td3_bc, batch_size=16"),
        ("bc, batch_size=16", "batch_size=16.0,td3_bc"),
        ("bc, batch_size=16, task=Task-v0", "algo=td3_bc, batch_size=16"),
    ],
)
def test_combinations_are_named_by_their_options(tmp_path: Path, first: str, second: str) -> None:
    points = [
        (batch(size, algo=algo), [size + len(algo) + each for each in range(4)])
        for algo in ("bc", "td3_bc")
        for size in (16, 64)
    ]
    (found,) = compare_named(score_rows(read_runs(make_sweep(tmp_path, *points))), first, second)
    # All runs of one score higher, so that an interval by resampling would have no width.
    assert (found.probability, found.interval, found.verdict) == (0.0, None, "worse")
    assert found.meaning == f"p = 0.029 by a test of ranks: {first} is worse than {second}"


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (("bc", "td3_bc"), "--compare 'bc' stands for 2 combinations, name one: bc, batch_size=16; bc, batch_size=64"),
        (("bc, batch_siz=16", "td3_bc"), "no option 'batch_siz' varies; did you mean 'batch_size'?"),
        (("bc, batch_size=17", "td3_bc"), "no runs with batch_size=17; there are 16, 64"),
        (("b, batch_size=16", "td3_bc"), "no runs with b; did you mean 'bc'?"),
        (("bc, batch_size=16", "batch_size=16, bc"), "stand for the same runs"),
    ],
)
def test_combinations_that_do_not_exist_are_refused(tmp_path: Path, texts: tuple[str, str], words: str) -> None:
    points = [(batch(size, algo=algo), [1.0, 2.0]) for algo in ("bc", "td3_bc") for size in (16, 64)]
    with pytest.raises(ConfigError) as caught:
        compare_named(score_rows(read_runs(make_sweep(tmp_path, *points))), *texts)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ([1.0, 2.0], [3.0, 4.0], "2 and 2 runs are too few for an interval, for which 3 of each are needed"),
        ([1.0, 2.0, 3.0], [4.0, 5.0, 6.0], "p = 0.1 by a test of ranks"),
        ([1.0, 2.0, 3.0, 4.0], [1.5, 2.5, 3.5, 4.5], "batch_size=16 is not distinguishable from batch_size=32"),
        # The interval excludes 1/2, but promises too much for four runs.
        ([4.5, 6.0, 7.0, 8.0], [1.0, 2.0, 3.0, 5.0], "p = 0.057 by a test of ranks"),
        (
            [5.0, 6.0, 7.0, 8.0],
            [1.0, 2.0, 3.0, 4.0],
            "p = 0.029 by a test of ranks: batch_size=16 is better than",
        ),
    ],
)
def test_two_combinations_are_compared_without_being_asked(
    tmp_path: Path, first: list[float], second: list[float], words: str
) -> None:
    found = sweep_findings([tmp_path], read_runs(make_sweep(tmp_path, (batch(16), first), (batch(32), second))))
    assert found is not None
    (each,) = found.improvements
    assert (each.first, each.second) == ("batch_size=16", "batch_size=32")
    assert words in each.meaning
    assert (each.verdict == "not distinguishable") == ("is better" not in words)


def test_less_of_an_error_is_an_improvement(tmp_path: Path) -> None:
    folder = make_sweep(tmp_path, (batch(16), [1.0, 2.0]), (batch(32), [3.0, 4.0]), metric="td_error")
    records = read_runs(folder)
    # Held-out measures say what is broken, not what is better, unless one asks for them.
    assert compare_two(score_rows(records)) == []
    with pytest.raises(ConfigError, match="no score to compare by; name a metric with --metric"):
        compare_named(score_rows(records), "batch_size=16", "batch_size=32")
    assert compare_two(score_rows(records, ["td_error"]))[0].probability == 1.0
    with pytest.raises(ConfigError, match="--profiles shows scores of which more is better, and td_error is an error"):
        plot_profiles(records, tmp_path / "p.png", metrics=["td_error"])


def on_tasks(folder: Path, metric: str, scores: Mapping[tuple[str, str], Sequence[float]]) -> Path:
    points = [({"algo": algo, "env_id": env_id}, values) for (algo, env_id), values in scores.items()]
    return make_sweep(folder, *points, metric=metric)


SCORES = {
    ("bc", "A-v0"): [1.0, 2.0, 3.0],
    ("td3_bc", "A-v0"): [2.5, 3.5, 4.5],
    ("bc", "B-v0"): [10.0, 20.0, 30.0],
    ("td3_bc", "B-v0"): [15.0, 25.0, 35.0],
}


def test_normalised_scores_of_several_tasks_are_put_together(tmp_path: Path) -> None:
    folder = on_tasks(tmp_path, "normalized_score", SCORES)
    found = sweep_findings([folder], read_runs(folder))
    assert found is not None
    first, second = found.over_tasks
    assert (first["name"], first["tasks"], first["runs"], first["iqm"]) == ("bc", 2, 6, (2 + 3 + 10 + 20) / 4)
    assert first["interval"] == list(bootstrap_interval([SCORES["bc", "A-v0"], SCORES["bc", "B-v0"]]))
    assert second["name"] == "td3_bc"
    (improvement,) = found.improvements
    assert improvement.tasks == ("A-v0", "B-v0")
    assert improvement.by_task == pytest.approx((1 / 9, 3 / 9))
    assert improvement.probability == pytest.approx(sum(improvement.by_task) / 2)
    tasks = [each["task"] for each in report_content(folder)["training"]["seeds"]]
    assert tasks == ["all 2 tasks", "A-v0", "B-v0"]


def test_scores_that_are_not_normalised_stay_apart_and_it_is_said(tmp_path: Path) -> None:
    folder = on_tasks(tmp_path, "return_mean", SCORES)
    found = sweep_findings([folder], read_runs(folder))
    assert found is not None
    assert not found.over_tasks
    assert found.note.startswith("the 2 tasks are not pooled: return_mean differs in scale between tasks")
    # Within a task, runs can be compared all the same.
    assert len(found.improvements[0].tasks) == 2
    with pytest.raises(
        ConfigError, match="have no task in common, and return_mean of different tasks cannot be compared"
    ):
        compare_named(score_rows(read_runs(folder)), "bc, env_id=A-v0", "bc, env_id=B-v0")


def test_a_combination_that_lacks_a_task_is_left_out_of_all_tasks(tmp_path: Path) -> None:
    scores = {key: values for key, values in SCORES.items() if key != ("bc", "B-v0")}
    folder = on_tasks(tmp_path, "normalized_score", scores)
    found = sweep_findings([folder], read_runs(folder))
    assert found is not None
    assert [row["name"] for row in found.over_tasks] == ["td3_bc"]
    assert found.note == "not on all tasks: bc"


def test_datasets_of_one_environment_are_tasks_that_can_be_put_together(tmp_path: Path) -> None:
    points = [
        ({"algo": algo, "algo_kwargs.dataset_path": path}, [1.0 + shift, 2.0 + shift, 3.0 + shift])
        for algo, shift in (("bc", 0.0), ("td3_bc", 10.0))
        for path in ("logs/medium.npz", "logs/expert.npz")
    ]
    folder = make_sweep(tmp_path, *points)
    rows = score_rows(read_runs(folder))
    assert [row.group.task for row in rows][:2] == ["Task-v0, medium", "Task-v0, expert"]
    found = sweep_findings([folder], read_runs(folder))
    assert found is not None
    assert [row["iqm"] for row in found.over_tasks] == [2.0, 12.0]
    # Complete separation on two tasks of three runs each is rarer than 5 %.
    assert found.improvements[0].verdict == "worse"


def test_comparisons_that_stand_together_are_adjusted_for_their_number() -> None:
    low, high = [0.0, 1.0, 2.0, 3.0], [10.0, 11.0, 12.0, 13.0]
    alone = improvement(("a", "b"), "return_mean", ["task"], [high], [low])
    few = improvement(("a", "b"), "return_mean", ["task"], [high[:2]], [low[:2]])
    # 2 of the 70 ways to deal out eight scores separate them so, in one direction or the other.
    assert alone.p_value == pytest.approx(2 / 70)
    assert alone.verdict == "better"

    together = decide_together([alone, few, alone])
    assert [each.p_value for each in together] == [pytest.approx(4 / 70), None, pytest.approx(4 / 70)]
    assert {each.verdict for each in together} == {"not distinguishable"}
    assert "p = 0.057 by a test of ranks, adjusted for 2 comparisons: a is not distinguishable" in together[0].meaning


def test_names_on_the_page_are_what_varied(tmp_path: Path) -> None:
    values = ("dataset_seed", "learning_rate", "batch_size")
    points = [({f"algo_kwargs.{name}": place + 1 for name in values}, [place, place + 2.0]) for place in range(8)]
    content = report_content(make_sweep(tmp_path, *points))
    (found,) = content["training"]["seeds"]
    assert (len(found["profiles"]), found["groups_in_all"]) == (6, 8)
    assert found["profiles"][0]["name"] == "dataset_seed=8, learning_rate=8, batch_size=8"
    assert content["training"]["options"]["names"] == []
    page = render(content)
    # Two such names do not fit into the figure.
    assert "A over B" in page
    assert "A: dataset_seed=8, learning_rate=8, batch_size=8" in page
    assert "<th>learning_rate</th>" in page
    assert "…" not in page.split("How training went")[1]


@pytest.mark.parametrize("metric", ["return_mean", "normalized_score"])
def test_profiles_are_drawn_for_each_task_and_all_of_them(tmp_path: Path, metric: str) -> None:
    pytest.importorskip("matplotlib")
    records = read_runs(on_tasks(tmp_path, metric, SCORES))
    picture = tmp_path / "profiles.svg"
    plot_profiles(records, picture, title="Who reaches what")
    text = picture.read_text()
    for words in ("Who reaches what", "A-v0", "B-v0", "share of runs above", "td3_bc"):
        assert f"<!-- {words} -->" in text
    assert ("all 2 tasks" in text) == (metric == "normalized_score")


@pytest.mark.parametrize(
    ("on_b", "is_opposite"), [([1.0, 2.0, 3.0, 4.0], True), ([11.0, 12.0, 13.0, 14.0], False), ([1.0, 9.0, 2.0], False)]
)
def test_two_tasks_with_opposite_outcomes_are_not_averaged(
    tmp_path: Path, on_b: list[float], is_opposite: bool
) -> None:
    points = [
        (batch(16, env_id="A-v0"), [5.0, 6.0, 7.0, 8.0]),
        (batch(32, env_id="A-v0"), [1.0, 2.0, 3.0, 4.0]),
        (batch(16, env_id="B-v0"), on_b),
        (batch(32, env_id="B-v0"), [5.0, 6.0, 7.0, 8.0]),
    ]
    rows = score_rows(read_runs(make_sweep(tmp_path, *points)))
    (found,) = compare_named(rows, "batch_size=16", "batch_size=32")
    assert found.is_opposite == is_opposite
    said = "opposite outcomes, so no mean: batch_size=16 scores higher on A-v0, batch_size=32 on B-v0"
    assert (found.meaning == said) == is_opposite
    assert (found.to_plain()["probability"] is None) == is_opposite
    assert (found.p_value is None) == is_opposite
