"""Scores over seeds on the page of a report, and intervals that hold for all policies together."""

from __future__ import annotations

from pathlib import Path

import pytest
from judged_runs import estimate_of, estimates_of
from run_directories import make_run, returns

from rl_training.core.statistics import student_quantile
from rl_training.reports.page.write import report_content


def make_runs(folder: Path, **scores: list[float]) -> None:
    """A run per last score, under the name of its algorithm."""
    for algo, values in scores.items():
        for seed, value in enumerate(values):
            make_run(folder, seed, returns(-99.0, value), algo=algo)


def test_profiles_and_improvements_are_those_of_the_last_scores(tmp_path: Path) -> None:
    make_runs(tmp_path, bc=[1.0, 2.0, 3.0], td3_bc=[1.0, 4.0])
    content = report_content(tmp_path)
    (found,) = content["training"]["seeds"]
    assert (found["metric"], found["thresholds"]) == ("return_mean", [1.0, 2.0, 3.0, 4.0])
    profiles = {each["name"]: each for each in found["profiles"]}
    assert profiles["bc"]["shares"] == pytest.approx([2 / 3, 1 / 3, 0, 0])
    assert profiles["td3_bc"]["shares"] == pytest.approx([0.5, 0.5, 0.5, 0])
    assert len(profiles["bc"]["low"]) == 4
    assert profiles["td3_bc"]["low"] is None
    (improvement,) = found["improvements"]
    assert (improvement["first"], improvement["second"]) == ("td3_bc", "bc")
    # Of six pairs, three are won, one is equal, two are lost; two runs are too few for an interval.
    assert improvement["probability"] == pytest.approx(3.5 / 6)
    assert improvement["interval"] is None


def test_three_runs_each_have_an_interval(tmp_path: Path) -> None:
    make_runs(tmp_path, bc=[1.0, 2.0, 3.0], td3_bc=[2.5, 4.0, 5.0])
    (found,) = report_content(tmp_path)["training"]["seeds"]
    low, high = found["improvements"][0]["interval"]
    assert low < found["improvements"][0]["probability"] < high <= 1


@pytest.mark.parametrize("scores", [{"bc": [1.0, 2.0], "td3_bc": [3.0]}, {"bc": [1.0, 2.0, 3.0]}])
def test_one_seed_or_one_algorithm_is_not_compared(tmp_path: Path, scores: dict[str, list[float]]) -> None:
    make_runs(tmp_path, **scores)
    assert report_content(tmp_path)["training"]["seeds"] == []


def test_measures_that_are_no_scores_are_not_compared(tmp_path: Path) -> None:
    for algo in ("bc", "iql"):
        for seed in range(2):
            make_run(tmp_path, seed, [{"action_mse": 0.1}], algo=algo, env_id=None, kind="validation")
    assert report_content(tmp_path)["training"]["seeds"] == []


def test_intervals_of_the_figure_hold_for_all_judged_policies_together(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, seed, returns(-30.0)) for seed in range(3)]
    values = (-12.0, -11.0, None)
    policies = [estimate_of(run / "checkpoints" / "latest.pt", value) for run, value in zip(runs, values, strict=True)]
    content = report_content(tmp_path, estimates=estimates_of(policies))
    best, second, refused = content["candidates"]["policies"]
    # Two of three policies are judged, and the intervals of three members have two degrees of freedom.
    half = 2.0 * student_quantile(1 - 0.05 / 4, 2) / student_quantile(0.975, 2)
    assert best["interval"] == [-13.0, -9.0]
    assert best["simultaneous_interval"] == pytest.approx([-11 - half, -11 + half])
    assert second["simultaneous_interval"] == pytest.approx([-12 - half, -12 + half])
    assert refused["simultaneous_interval"] is None
    kinds = content["candidates"]["intervals"]
    assert kinds["interval"] == "95 % for each policy by itself"
    assert kinds["simultaneous_interval"].startswith("95 % for all 2 judged policies together")


def test_one_policy_has_one_kind_of_interval(tmp_path: Path) -> None:
    run = make_run(tmp_path, 0, returns(-30.0))
    content = report_content(run, estimates=estimates_of([estimate_of(run / "checkpoints" / "latest.pt", -12.0)]))
    (policy,) = content["candidates"]["policies"]
    assert policy["simultaneous_interval"] == policy["interval"]
