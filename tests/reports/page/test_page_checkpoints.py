"""Values of checkpoints along training: where a report finds them, and when a jump marks a fit that failed."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from judged_runs import estimate_of, estimates_of, selection_with
from run_directories import make_run, returns

from rl_training.core.statistics import student_quantile
from rl_training.data import TransitionDataset
from rl_training.reports.page.charts import number
from rl_training.reports.page.gather import gather
from rl_training.reports.page.render import render
from rl_training.reports.page.verdict import checkpoints, doubts
from rl_training.reports.page.write import report_content


def policy_file(run: Path, step: int) -> Path:
    """The policy file of a run at a timestep."""
    return run / "policies" / f"step_{step:09d}.pt"


def curves_of(content: dict[str, Any]) -> list[dict[str, Any]]:
    """The checkpoint curves of a report."""
    found: list[dict[str, Any]] = content["controls"]["checkpoints"]
    return found


SMOOTH = "No value jumps from one checkpoint to the next by more than its interval."
FAILED = "One of the two estimates has failed"


@pytest.mark.parametrize(
    ("values", "found", "jump", "says", "is_in_doubt"),
    [
        # The policy at step 300 has the highest value: it is the chosen one, and its value is in doubt.
        (
            (-12, -11, -3),
            (-30, -28, -27),
            (200, 300, 8, 1, False),
            f"{FAILED}: the return in the environment changed by 1 only.",
            True,
        ),
        (
            (-12, -4),
            (-30, -20),
            (100, 200, 8, 10, True),
            "The policy itself changed: the return in the environment changed by 10 as well.",
            False,
        ),
        ((-4, -12), None, (100, 200, -8, None, None), f"{FAILED}, unless the policy itself changed that much.", True),
        ((-12, -8.5), (-30, -28), None, SMOOTH, False),
    ],
    ids=["not in the environment", "in the environment too", "no environment", "within the interval"],
)
def test_a_jump_beyond_the_interval_is_said_with_what_the_environment_says(
    tmp_path: Path,
    *,
    values: tuple[float, ...],
    found: tuple[float, ...] | None,
    jump: tuple[Any, ...] | None,
    says: str,
    is_in_doubt: bool,
) -> None:
    about: dict[str, Any] = {} if found is not None else {"kind": "validation", "env_id": None}
    run = make_run(tmp_path, 0, [{"action_mse": 0.1}] * 2 if found is None else returns(*found), **about)
    policies = [estimate_of(policy_file(run, 100 * step), value) for step, value in enumerate(values, start=1)]
    content = report_content(run, estimates=estimates_of(policies))
    (curve,) = curves_of(content)
    assert [(point["step"], point["value"]) for point in curve["points"]] == [
        (100 * step, value) for step, value in enumerate(values, start=1)
    ]
    assert [each["value"] for each in curve["returns"]] == list(found or ())
    names = ("from", "to", "change", "return_change", "is_real")
    assert curve["jumps"] == ([] if jump is None else [{**dict(zip(names, jump, strict=True)), "width": 4.0}])
    assert curve["said"].endswith(says)
    if jump is not None:
        step = f"From step {jump[0]} to {jump[1]} the value changes by {number(jump[2])}"
        assert f"{step}, more than its interval is wide (4)." in curve["said"]
    assert (
        any(
            note.startswith("The FQE estimate of the chosen policy is in doubt.")
            for note in content["verdict"]["notes"]
        )
        is is_in_doubt
    )


@pytest.mark.parametrize(("half", "jumps"), [(2.9, 1), (3.1, 0)])
def test_intervals_of_different_widths_must_touch(tmp_path: Path, half: float, jumps: int) -> None:
    run = make_run(tmp_path, 0, returns(-30.0, -28.0))
    policies = [
        estimate_of(policy_file(run, 100), -12.0, half=1.0),
        estimate_of(policy_file(run, 200), -8.0, half=half),
    ]
    (curve,) = curves_of(report_content(run, estimates=estimates_of(policies)))
    assert len(curve["jumps"]) == jumps


def test_a_checkpoint_that_cannot_be_judged_leaves_a_gap_in_the_curve(tmp_path: Path) -> None:
    run = make_run(tmp_path, 0, returns(-30.0, -28.0, -27.0))
    values = {100: -12.0, 200: None, 300: -11.0}
    content = report_content(
        run, estimates=estimates_of([estimate_of(policy_file(run, step), value) for step, value in values.items()])
    )
    (curve,) = curves_of(content)
    assert [point["value"] for point in curve["points"]] == [-12.0, None, -11.0]
    assert curve["jumps"] == []
    assert content["verdict"]["refused"] == [{"name": "bc, seed 0 at step 200", "reasons": ["its actions are far"]}]


def test_rough_values_of_a_selection_are_drawn_and_not_judged(tmp_path: Path) -> None:
    run = make_run(tmp_path, 0, returns(-30.0, -28.0, -27.0))
    good = estimates_of([estimate_of(policy_file(run, step), value) for step, value in ((200, -11.0), (300, -10.0))])
    rough = {"name": "rough", "path": str(policy_file(run, 100)), "value": -90.0, "interval": None, "rank": 9}
    rough |= {"probability_better": None, "verdict": None, "is_among_the_best": False}
    content = report_content(run, selection=selection_with(good, rough=[rough]))
    (curve,) = curves_of(content)
    assert [point["value"] for point in curve["points"]] == [-90.0, -11.0, -10.0]
    assert curve["jumps"] == []
    other = {**rough, "name": "elsewhere/policies/step_000000500.pt", "path": None}
    content = report_content(run, selection=selection_with(good, rough=[rough, other]))
    assert content["candidates"]["left_out"] == ["bc, seed 0 at step 100", "elsewhere at step 500"]
    command = content["limits"]["commands"][-1]
    assert command.startswith(f"rl-training select {run} --checkpoints all --split held-out --gamma 0.9")


def _cut_every(length: int) -> TransitionDataset:
    """Two episodes of this length, none of which terminates."""
    rows = np.zeros((2 * length, 1), dtype=np.float32)
    ends = {"terminals": rows[:, 0] > 0, "timeouts": np.arange(2 * length) % length == length - 1}
    columns = {"observations": rows, "actions": rows, "rewards": rows[:, 0], "next_observations": rows}
    return TransitionDataset.from_dict({**columns, **ends})


@pytest.mark.parametrize(("length", "jumps"), [(10, [(200, 300)]), (None, []), (200, [])])
def test_what_a_run_measured_itself_is_judged_by_its_estimate_if_both_look_as_far_ahead(
    tmp_path: Path, length: int | None, jumps: list[tuple[int, int]]
) -> None:
    rows = [{"return_mean": -30.0 + row, "fqe_value": value} for row, value in enumerate((-12.0, -11.0, -3.0))]
    run = make_run(tmp_path, 0, rows)
    material = gather(run, estimates=estimates_of([estimate_of(run / "checkpoints" / "latest.pt", -10.0)]))
    # The discount of the estimate, 0.9, is the default for episodes of ten steps.
    data: Any = None if length is None else SimpleNamespace(log=SimpleNamespace(dataset=_cut_every(length)))
    material = replace(material, data=data)
    (curve,) = checkpoints(material)
    assert curve["source"] == "training"
    assert [point["value"] for point in curve["points"]] == [-12.0, -11.0, -3.0]
    assert [(jump["from"], jump["to"]) for jump in curve["jumps"]] == jumps
    assert ("a jump cannot be told from chance" in curve["said"]) is (jumps == [])
    # The estimate of the chosen policy is another fit, which these values say nothing against.
    assert doubts(material) == []


def test_values_of_different_fits_are_not_in_one_figure(tmp_path: Path) -> None:
    rows = [{"fqe_value": -12.0}, {"fqe_value": -11.0}]
    first, _ = (make_run(tmp_path, seed, rows) for seed in range(2))
    estimates = estimates_of([estimate_of(policy_file(first, step), -9.0) for step in (100, 200)])
    content = report_content(tmp_path, estimates=estimates)
    assert [curve["source"] for curve in curves_of(content)] == ["estimates", "training"]
    figures = re.findall(r"<figure>.*?</figure>", render(content), flags=re.DOTALL)
    own = [figure for figure in figures if "training step of the checkpoint" in figure]
    assert ["bc, seed 0" in figure for figure in own] == [True, False]
    assert ["bc, seed 1" in figure for figure in own] == [False, True]
    assert "Do not compare them with the full estimates." in own[1]


def test_the_estimate_beside_a_run_is_not_a_point_of_the_runs_own_curve(tmp_path: Path) -> None:
    run = make_run(tmp_path, 0, [{"fqe_value": -12.0}, {"fqe_value": -11.0}])
    estimates = estimates_of([estimate_of(run / "checkpoints" / "latest.pt", 99.0)])
    (run / "estimate.json").write_text(json.dumps(estimates))
    (curve,) = curves_of(report_content(run))
    assert [point["value"] for point in curve["points"]] == [-12.0, -11.0]


def test_one_checkpoint_is_no_curve(tmp_path: Path) -> None:
    run = make_run(tmp_path, 0, returns(-30.0))
    content = report_content(run, estimates=estimates_of([estimate_of(policy_file(run, 100), -12.0)]))
    assert curves_of(content) == []


def test_a_checkpoint_is_compared_with_its_own_return_and_not_with_the_last(tmp_path: Path) -> None:
    run = make_run(tmp_path, 0, returns(-30.0, -28.0, -27.0))
    policies = [estimate_of(policy_file(run, step), value) for step, value in ((100, -12.0), (200, -11.0))]
    latest = estimate_of(run / "checkpoints" / "latest.pt", -10.5)
    content = report_content(run, estimates=estimates_of([*policies, latest]))
    assert [point["found"] for point in content["agreement"]["points"]] == [-30.0, -28.0, -27.0]


def test_many_runs_are_in_the_table_and_some_are_drawn(tmp_path: Path) -> None:
    rows = [{"return_mean": -30.0, "fqe_value": -12.0}, {"return_mean": -29.0, "fqe_value": -11.0}]
    for seed in range(8):
        make_run(tmp_path, seed, rows)
    content = report_content(tmp_path)
    assert len(curves_of(content)) == 8
    assert "6 of 8 runs are drawn." in render(content)


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
