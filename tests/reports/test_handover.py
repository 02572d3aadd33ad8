"""The report in the folder of an exported policy: what it is about, and what is said where there is none."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from judged_runs import estimate_of, estimates_of
from steering import steering_log

from rl_training import BC
from rl_training.reports import handover as handing_over
from rl_training.reports.handover import export_with_report, without_folders
from rl_training.runtime import load_policy
from rl_training.storage import policy_files


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a policy file every ten updates."""
    folder = tmp_path_factory.mktemp("handing_over")
    np.savez(folder / "log.npz", **steering_log(20))
    options: Any = {"dataset_path": str(folder / "log.npz"), "hidden_sizes": (8,), "checkpoint_interval": 10}
    BC(run_name="clone", output_dir=str(folder / "runs"), total_timesteps=20, **options).learn()
    return folder / "runs" / "clone"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of the run, to write into."""
    return shutil.copytree(trained, tmp_path / "runs" / "clone", copy_function=shutil.copy)


@pytest.fixture(autouse=True)
def _exports_are_reports_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a folder with an empty description in place of a policy, which takes seconds and is tested elsewhere."""

    def export(saved: Any, out: Path, *, add: Callable[[Path], dict[str, Any]], **options: Any) -> dict[str, Any]:
        folder = out.with_name(".tmp")
        folder.mkdir()
        (folder / "policy.json").write_text('{"format": 1}')
        found = add(folder)
        folder.rename(out)
        return found

    monkeypatch.setattr(handing_over, "export_policy", export)


def exported(run: Path, out: Path, **options: Any) -> Any:
    """What policy.json is to say of the report."""
    return export_with_report(load_policy(run), out, **options)


def test_the_page_is_about_the_run_and_its_folder_and_names_no_other_folder(run: Path, tmp_path: Path) -> None:
    assert exported(run, tmp_path / "bundle") == {"report": {"available": True, "why_not": None}}
    page = (tmp_path / "bundle" / "report.html").read_text()
    assert "<dd>bundle</dd>" in page
    assert "Policy: clone, because it is the one in this folder. Run: clone" in page
    assert "The actions of clone in 500 logged situations are compared" in " ".join(page.split())
    assert str(tmp_path) not in page


def test_an_estimate_of_another_checkpoint_is_not_taken_for_one_of_the_exported(run: Path, tmp_path: Path) -> None:
    first, last = policy_files(run)[1:]
    (run / "estimate.json").write_text(json.dumps(estimates_of([estimate_of(first, -12.0)])))
    exported(run, tmp_path / "latest")
    page = (tmp_path / "latest" / "report.html").read_text()
    assert "How good latest.pt is has not been estimated from the log; other policies have been." in page
    exported(first, tmp_path / "first")
    assert "clone is not distinguishable from the data" in (tmp_path / "first" / "report.html").read_text()
    # The policy file of the last timestep and the latest checkpoint are one policy.
    (run / "estimate.json").write_text(json.dumps(estimates_of([estimate_of(last, -12.0)])))
    exported(run, tmp_path / "last")
    assert "clone is not distinguishable from the data" in (tmp_path / "last" / "report.html").read_text()


def test_the_best_checkpoint_is_found_among_the_estimates_by_its_file(run: Path, tmp_path: Path) -> None:
    best = shutil.copyfile(run / "checkpoints" / "latest.pt", run / "checkpoints" / "best.pt")
    (run / "estimate.json").write_text(json.dumps(estimates_of([estimate_of(best, -12.0)])))
    exported(best, tmp_path / "best")
    assert "clone is not distinguishable from the data" in (tmp_path / "best" / "report.html").read_text()
    exported(run, tmp_path / "latest")
    assert "How good latest.pt is has not been estimated" in (tmp_path / "latest" / "report.html").read_text()


def test_options_of_the_report_are_passed_on(run: Path, tmp_path: Path) -> None:
    options = {"title": "The tank", "sentence": "Said elsewhere.", "dataset": steering_log(12)}
    exported(run, tmp_path / "bundle", runs=[run.parent], report=options)
    page = (tmp_path / "bundle" / "report.html").read_text()
    assert "in 300 logged situations are compared" in page
    assert "<h1>The tank</h1>" in page
    assert "Said elsewhere." in page


def test_where_no_report_can_be_made_the_reason_is_said_without_folders(run: Path, tmp_path: Path) -> None:
    alone = shutil.copyfile(run / "checkpoints" / "latest.pt", tmp_path / "alone.pt")
    found = exported(alone, tmp_path / "first")["report"]
    assert found == {"available": False, "why_not": "the policy does not come from a run directory"}
    (run / "config.yaml").write_text("algo: [")
    found = exported(run, tmp_path / "second")["report"]
    assert found["available"] is False
    assert "config.yaml" in found["why_not"]
    assert str(tmp_path) not in found["why_not"]
    assert not (tmp_path / "second" / "report.html").exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/me/runs/clone", "clone"),
        ("rl-training train bc --data /home/me/log.npz --out runs", "rl-training train bc --data log.npz --out runs"),
        ("'/home/me/log.npz' has no 'policies'", "'log.npz' has no 'policies'"),
        (r"C:\Users\me\log.npz", "log.npz"),
        ("runs/clone/checkpoints", "runs/clone/checkpoints"),
        ("terminated / cut", "terminated / cut"),
        ("12 / 500 and/or 1/2", "12 / 500 and/or 1/2"),
    ],
)
def test_absolute_paths_lose_their_folders_and_nothing_else(text: str, expected: str) -> None:
    assert without_folders({"said": [text, 1.5, None]}) == {"said": [expected, 1.5, None]}
