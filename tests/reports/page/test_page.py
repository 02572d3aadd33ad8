"""The report as one page: what is in its content, and that the page shows it and nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from judged_runs import candidates_of
from page_outline import Page
from run_directories import make_run, returns
from steering import QUICK, STEPS, Act, away, steering_log, towards

from rl_training import BC, estimate
from rl_training.core.errors import ConfigError
from rl_training.reports.page.render import render
from rl_training.reports.page.write import report_content, write_report
from rl_training.runtime import load_policy

SECTIONS = (
    "verdict",
    "candidates",
    "log",
    "controls",
    "agreement",
    "weights",
    "risk",
    "behavior",
    "training",
    "real_episodes",
    "handover",
    "limits",
)


def clone(folder: Path, name: str, policy: Act) -> Path:
    """A run that has learned to act as a policy."""
    log = steering_log(60, seed=2)
    data = folder / f"{name}.npz"
    np.savez(data, **{**log, "actions": np.float32(policy(log["observations"]))})
    options: Any = {"total_timesteps": 600, "hidden_sizes": (16,), "learning_rate": 3e-3, "log_interval": 600}
    BC(run_name=name, output_dir=str(folder / "runs"), dataset_path=str(data), **options).learn()
    return folder / "runs" / name


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a good and a bad run, their estimates, and the log that they were judged by."""
    folder = tmp_path_factory.mktemp("judged")
    np.savez(folder / "log.npz", **steering_log(60))
    runs = [clone(folder, "good", towards), clone(folder, "bad", away)]
    estimate([str(run) for run in runs], str(folder / "log.npz"), **QUICK).save()
    return folder


@pytest.fixture(scope="module")
def content(judged: Path) -> dict[str, Any]:
    """The content of their report."""
    return write_report(judged / "runs", judged / "report.html")


def estimates_of(folder: Path) -> dict[str, Any]:
    """The estimates of both runs, as one value."""
    stored = [json.loads((folder / "runs" / name / "estimate.json").read_text()) for name in ("good", "bad")]
    return {**stored[0], "policies": [policy for each in stored for policy in each["policies"]]}


def test_the_content_has_a_key_per_section_and_lies_beside_the_page(judged: Path, content: dict[str, Any]) -> None:
    assert tuple(content)[2:] == SECTIONS
    assert json.loads((judged / "report.json").read_text()) == content
    assert (judged / "report.html").read_text() == render(content)


def test_the_answer_is_a_sentence_with_the_policy_its_value_and_that_of_the_log(content: dict[str, Any]) -> None:
    found = content["verdict"]
    assert found["sentence"].startswith(
        "good is better than the data over the next 10 steps (discount 0.9): its estimated value is "
    )
    assert found["tone"] == "good"
    assert found["chosen"]["name"] == "good"
    assert found["chosen"]["estimate"]["probability_text"] == ">0.99"
    assert found["chosen"]["estimate"]["logged_value"] == content["candidates"]["logged_value"]
    assert found["refused"] == []
    assert len(found["fingerprint"]) > 10


def test_candidates_come_in_the_order_of_their_values_with_what_may_be_said(content: dict[str, Any]) -> None:
    policies = content["candidates"]["policies"]
    assert [(each["name"], each["verdict"]) for each in policies] == [
        ("good", "better than the data"),
        ("bad", "worse than the data"),
    ]
    assert [each["among_best"] for each in policies] == [True, False]
    low, high = content["candidates"]["logged_band"]
    assert low < content["candidates"]["logged_value"] < high


def test_the_log_is_the_one_that_policies_were_judged_by(content: dict[str, Any]) -> None:
    found, expected = content["log"], steering_log(60)["rewards"].reshape(-1, STEPS).sum(1)
    assert (found["rows"], found["episodes"]) == (60 * STEPS, 60)
    assert found["lengths"] == {"shortest": STEPS, "median": STEPS, "longest": STEPS}
    assert found["ends"] == {"terminated": 0, "cut": 60}
    assert found["return_mean"] == pytest.approx(expected.mean(), rel=1e-5)
    assert sum(found["returns"]["counts"]) == 60
    assert found["audit"]["verdict"] in ("pass", "warn")
    row = content["risk"]["returns"][0]
    assert row["quantiles"]["0.5"] == pytest.approx(np.median(expected), rel=1e-5)
    assert row["worst_mean"] == pytest.approx(np.sort(expected)[:6].mean(), rel=1e-5)


def test_controls_and_convergence_are_those_of_the_estimates(judged: Path, content: dict[str, Any]) -> None:
    stored, found = estimates_of(judged), content["controls"]
    assert found["passes"] is True
    assert found["behavior_value"] == stored["behavior_value"]
    assert found["policies"][0]["curve"][-1][0] == pytest.approx(stored["kappa"])


def test_the_policy_is_compared_with_the_log_where_it_acts_otherwise(content: dict[str, Any]) -> None:
    found = content["behavior"]
    assert found["policy"] == "good"
    (action,) = found["dimensions"]
    # The good policy goes as fast as it can, the log was made by random steps.
    assert action["chosen"]["at_bound"] > 0.5
    assert action["logged"]["at_bound"] < 0.1
    assert sum(action["chosen"]["shares"]) == pytest.approx(1)
    assert found["novelty"]["logged"]["beyond"] < 0.2
    rows = found["most_different"]["rows"]
    assert len(rows) == 10
    assert len({row["episode"] for row in rows}) == 10
    assert all(abs(row["logged"][0] - row["chosen"][0]) > 3 for row in rows)


def test_names_of_columns_are_never_markup(tmp_path: Path) -> None:
    log = steering_log(10)
    columns = {"<b>place": log["observations"][:, 0], "<script>push": log["actions"][:, 0], "reward": log["rewards"]}
    columns |= {"episode": np.repeat(np.arange(10), STEPS)}
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    mapping = {"obs": ["<b>place"], "actions": ["<script>push"], "reward": "reward", "episode": "episode"}
    options: Any = {"dataset_path": str(tmp_path / "log.csv"), "dataset_columns": mapping, "hidden_sizes": (8,)}
    BC(run_name="t", output_dir=str(tmp_path / "runs"), total_timesteps=20, **options).learn()
    content = write_report(tmp_path / "runs", tmp_path / "r.html")
    assert content["behavior"]["dimensions"][0]["name"] == "<script>push"
    assert content["behavior"]["most_different"]["features"] == ["<b>place"]
    page = (tmp_path / "r.html").read_text()
    Page(page)
    assert "&lt;script&gt;push" in page


def test_without_estimates_the_page_says_which_command_makes_them(judged: Path, tmp_path: Path) -> None:
    run = shutil.copytree(judged / "runs" / "good", tmp_path / "good")
    (run / "estimate.json").unlink()
    content = report_content(run)
    assert "has not been estimated" in content["verdict"]["sentence"]
    assert content["candidates"]["command"] == f"rl-training estimate {run}"
    assert (content["agreement"], content["weights"], content["real_episodes"], content["handover"]) == (None,) * 4


def test_policies_that_cannot_be_judged_are_named_with_their_reasons_and_have_no_point(judged: Path) -> None:
    found = estimates_of(judged)
    nothing = {"value": None, "interval": None, "difference": None, "probability_better": None}
    reasons = ["the estimator does not reproduce the log"]
    refused = [{**each, **nothing, "verdict": "cannot be judged", "reasons": reasons} for each in found["policies"]]
    content = report_content(
        judged / "runs",
        estimates={**found, "policies": refused, "best": [], "control_passes": False},
    )
    assert content["verdict"]["sentence"] == "None of these 2 policies can be judged by this log."
    assert content["verdict"]["tone"] == "bad"
    assert content["verdict"]["chosen"] is None


def test_one_refused_policy_does_not_hide_the_other(judged: Path) -> None:
    found = estimates_of(judged)
    nothing = {"value": None, "interval": None, "difference": None, "probability_better": None}
    found["policies"][1] |= {**nothing, "verdict": "cannot be judged", "reasons": ["80 % of its actions are far"]}
    content = report_content(judged / "runs", estimates=found)
    assert content["verdict"]["sentence"].startswith("good is better than the data")
    assert content["verdict"]["refused"] == [{"name": "bad", "reasons": ["80 % of its actions are far"]}]
    assert content["candidates"]["policies"][-1]["name"] == "bad"


def test_runs_that_were_estimated_separately_are_not_compared(judged: Path, tmp_path: Path) -> None:
    runs = shutil.copytree(judged / "runs", tmp_path / "runs")
    other = json.loads((runs / "bad" / "estimate.json").read_text())
    (runs / "bad" / "estimate.json").write_text(json.dumps({**other, "gamma": 0.5}))
    content = report_content(runs)
    assert len(content["candidates"]["policies"]) == 1
    assert len(content["candidates"]["not_estimated"]) == 1
    assert "estimated separately" in content["verdict"]["notes"][0]


def test_the_best_of_some_runs_is_found_among_these(judged: Path) -> None:
    content = report_content(judged / "runs" / "bad")
    assert content["candidates"]["policies"][0]["among_best"] is True
    assert content["verdict"]["sentence"].startswith("bad is worse than the data")
    assert content["verdict"]["tone"] == "bad"


def test_another_run_can_be_the_subject(judged: Path) -> None:
    content = report_content(judged / "runs", chosen=judged / "runs" / "bad", sentence="Said elsewhere.")
    assert content["verdict"]["chosen"]["name"] == content["behavior"]["policy"] == "bad"
    assert content["verdict"]["sentence"] == "Said elsewhere."
    with pytest.raises(ConfigError, match="'goood' is none of the runs of the report; did you mean 'good'"):
        report_content(judged / "runs", chosen="goood")


def test_data_that_is_gone_is_said_to_be_gone(judged: Path, tmp_path: Path) -> None:
    run = shutil.copytree(judged / "runs" / "good", tmp_path / "good")
    text = (run / "estimate.json").read_text()
    (run / "estimate.json").write_text(text.replace(str(judged / "log.npz"), str(tmp_path / "gone.npz")))
    saved = judged / "good.npz"
    hidden = saved.rename(judged / "hidden.npz")
    try:
        content = report_content(run)
    finally:
        hidden.rename(saved)
    assert "good.npz" in content["log"]["why_no_data"]
    assert content["log"]["rows"] is not None
    assert "missing" in content["behavior"]


def selection_of(folder: Path, *, basis: str) -> dict[str, Any]:
    """A selection as the command of that name keeps it, with three real episodes."""
    found = estimates_of(folder)
    good, bad = (each["name"] for each in found["policies"])
    pulls = [
        {"number": number, "policy": policy, "episode_return": value, "best": best, "best_believed": value - 1}
        for number, (policy, value, best) in enumerate([(good, -3.0, good), (bad, -9.0, good), (good, -2.0, good)], 1)
    ]
    claim = {"name": good, "basis": basis, "episodes": 30, "verdict": "not distinguishable", "reasons": []}
    claim |= {"value": -2.5, "interval": [-3.0, -2.0], "difference": 0.1, "probability_better": 0.6, "correction": 0.2}
    return {
        "candidates": [{**each, "believed": -2.5, "believed_std": 0.5} for each in candidates_of(found)],
        "best": [good],
        "chosen": good,
        "claim": claim,
        "pulls": [{**pull, "believed": -2.0, "believed_std": 0.5, "doubt": 0.04} for pull in pulls],
        "budget": 5,
        "estimates": found,
    }


def test_a_selection_brings_its_choice_its_claim_and_its_real_episodes(judged: Path) -> None:
    selection = selection_of(judged, basis="held-out episodes")
    content = report_content(judged / "runs", selection=selection)
    sentence = content["verdict"]["sentence"]
    assert sentence.startswith(
        "good is not distinguishable from the data over the next 10 steps (discount 0.9): on 30 episodes that were not"
    )
    assert "that of the log is −2.6" in sentence  # noqa: RUF001 - as the page has it
    assert content["verdict"]["chosen"]["why"] == "it was chosen with real episodes"
    found = content["real_episodes"]
    assert [each["returns"] for each in found["policies"]] == [[-3.0, -2.0], [-9.0]]
    # Quantiles of two or three episodes would say nothing.
    assert [each["of"] for each in content["risk"]["returns"]] == ["the log"]


def test_a_selection_in_the_folder_of_the_runs_is_found(judged: Path, tmp_path: Path) -> None:
    runs = shutil.copytree(judged / "runs", tmp_path / "runs")
    (runs / "selection.json").write_text(json.dumps(selection_of(judged, basis="held-out episodes")))
    assert report_content(runs)["real_episodes"]["budget"] == 5


def test_a_claim_by_other_episodes_is_what_the_answer_says(judged: Path) -> None:
    found = estimates_of(judged)
    claim = {**found, "policies": [{**found["policies"][0], "value": -1.25, "interval": [-1.5, -1.0]}]}
    claim |= {"is_held_out": True, "episodes": 17, "logged_value": -4.0}
    content = report_content(judged / "runs", claim=claim)
    sentence = content["verdict"]["sentence"]
    assert "on 17 episodes that were not used to choose it, its estimated value is −1.25" in sentence  # noqa: RUF001
    assert content["verdict"]["chosen"]["estimate"]["logged_value"] == -4.0


def test_estimates_by_weighting_stand_beside_the_fit(judged: Path) -> None:
    found = estimates_of(judged)
    good, bad = (each["name"] for each in found["policies"])
    value = {"estimator": "PDWIS", "value": -2.25, "standard_error": 0.1, "interval": [-2.5, -2.0]}
    diagnostics: dict[str, Any] = {"episodes": 60, "effective_sample_size": 41.5, "largest_share": 0.05, "mean": 1.01}
    diagnostics |= {"tail_index": None, "effective_sample_sizes": [60.0, 50.0, 41.5]}
    diagnostics |= {"log10_histogram": {"counts": [3, 50, 7], "edges": [-1.0, -0.3, 0.3, 1.0], "zeros": 0}}
    weighted = [
        {"name": good, "level": "warn", "reasons": ["be careful"], "estimates": [value], "recommended": "PDWIS"},
        {"name": bad, "level": "refuse", "reasons": ["one episode has it all"], "estimates": [], "recommended": None},
    ]
    weighted = [{**each, "agrees": None, "weights": diagnostics if each["name"] == good else {}} for each in weighted]
    content = report_content(judged / "runs", estimates={**found, "weighted": weighted})
    first, second = content["weights"]["policies"]
    assert (first["name"], second["name"]) == ("good", "bad")
    assert first["fit"]["value"] == found["policies"][0]["value"]


def test_weights_of_a_selection_are_those_of_its_claim_beside_the_fit_of_the_claim(judged: Path) -> None:
    selection = selection_of(judged, basis="held-out episodes")
    refused = {"name": selection["chosen"], "level": "refuse", "reasons": ["none"], "estimates": [], "weights": {}}
    selection["claim"] |= {"weighted": refused, "value": -1.5}
    (only,) = report_content(judged / "runs", selection=selection)["weights"]["policies"]
    assert (only["name"], only["fit"]["value"]) == ("good", -1.5)


def test_estimates_are_compared_with_returns_where_runs_were_evaluated(judged: Path, tmp_path: Path) -> None:
    policy = estimates_of(judged)["policies"][0]
    runs = [make_run(tmp_path / "runs", seed, returns(-50.0, -10.0 * seed)) for seed in range(4)]
    values = [-1.0, -2.0, -4.0, -3.0]
    policies = [
        {**policy, "name": run.name, "path": str(run / "checkpoints" / "latest.pt"), "value": value, "raw_value": value}
        for run, value in zip(runs, values, strict=True)
    ]
    found = {**estimates_of(judged), "policies": policies, "best": [runs[0].name]}
    content = report_content(tmp_path / "runs", estimates=found)
    assert content["agreement"]["spearman"] == pytest.approx(0.8)
    assert content["agreement"]["regret_at_1"] == 0
    assert [point["found"] for point in content["agreement"]["points"]] == [0.0, -10.0, -20.0, -30.0]
    assert content["training"]["panels"][0]["lines"][0]["runs"] == 4
    assert content["training"]["panels"][0]["lines"][0]["low"] == [-50.0, -30.0]
    assert "cannot be loaded" in content["verdict"]["notes"][0]


def test_runs_get_short_names_that_tell_them_apart(tmp_path: Path) -> None:
    for seed, alpha in ((0, 1.0), (0, 2.0), (1, 1.0)):
        make_run(tmp_path, seed, returns(1.0, 2.0), algo="td3_bc", algo_kwargs={"bc_alpha": alpha})
    content = report_content(tmp_path)
    (panel,) = content["training"]["panels"]
    assert [line["name"] for line in panel["lines"]] == [
        "td3_bc, bc_alpha=1.0",
        "td3_bc, bc_alpha=1.0",
        "td3_bc, bc_alpha=2.0",
    ]
    options = content["training"]["options"]
    assert options["names"] == ["bc_alpha"]
    assert [each["runs"] for each in options["groups"]] == [
        ["td3_bc, seed 0, bc_alpha 1.0", "td3_bc, seed 1"],
        ["td3_bc, seed 0, bc_alpha 2.0"],
    ]


def test_discrete_actions_are_compared_by_their_shares(tmp_path: Path) -> None:
    log = steering_log(20)
    choices = np.random.default_rng(0).integers(0, 3, len(log["rewards"]))
    np.savez(tmp_path / "log.npz", **{**log, "actions": choices})
    options: Any = {"dataset_path": str(tmp_path / "log.npz"), "hidden_sizes": (8,), "num_actions": 3}
    BC(run_name="choices", output_dir=str(tmp_path / "runs"), total_timesteps=30, **options).learn()
    content = report_content(tmp_path / "runs")
    found = content["behavior"]
    assert found["kind"] == "discrete"
    assert sum(found["choices"]["logged"]) == pytest.approx(1)
    assert sum(found["choices"]["chosen"]) == pytest.approx(1)
    assert found["mean_difference"] == pytest.approx(2 / 3, abs=0.1)


def test_an_exported_policy_is_described_with_the_sums_of_its_files(judged: Path, tmp_path: Path) -> None:
    load_policy(judged / "runs" / "good").export(tmp_path / "bundle")
    content = report_content(judged / "runs", bundle=tmp_path / "bundle")
    files = {each["name"]: each for each in content["handover"]["files"]}
    assert files["policy.onnx"]["bytes"] == (tmp_path / "bundle" / "policy.onnx").stat().st_size
    assert len(files["policy.onnx"]["sha256"]) == 64
    with pytest.raises(ConfigError, match=r"is not an exported policy: it has no policy\.json"):
        report_content(judged / "runs", bundle=tmp_path)


def test_data_without_rewards_has_no_returns(tmp_path: Path) -> None:
    np.savez(tmp_path / "log.npz", **{name: each for name, each in steering_log(5).items() if name != "rewards"})
    options: Any = {"dataset_path": str(tmp_path / "log.npz"), "hidden_sizes": (8,), "total_timesteps": 20}
    BC(run_name="clone", output_dir=str(tmp_path / "runs"), **options).learn()
    content = report_content(tmp_path / "runs")
    assert content["log"]["return_mean"] is None
    assert content["risk"] == {"missing": "The returns of the log are not known: it has no rewards."}


def test_another_log_can_take_the_place_of_the_runs_own(judged: Path) -> None:
    assert report_content(judged / "runs", dataset=steering_log(12))["log"]["episodes"] == 12
