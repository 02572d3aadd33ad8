"""Files of every form that earlier releases wrote: they load for ever, as what they were."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_training.data.convert import load_any
from rl_training.policies.novelty_check import find_novelty
from rl_training.runtime import load_policy, predict
from rl_training.storage.checkpoint import policy_files
from rl_training.storage.run_directory import read_metrics

FIXTURES = Path(__file__).parents[1] / "fixtures"
FOLDERS = sorted(path.name for path in FIXTURES.glob("forms_*"))
COLUMNS = {"obs": ["x_*"], "actions": ["a"], "reward": "r", "episode": "run"}
OBS = [[0.5, -0.5, 1.0], [1.0, 0.0, -2.0]]


def expected(folder: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FIXTURES / folder / "expected.json").read_text())
    return found


def test_there_are_kept_files() -> None:
    assert FOLDERS


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_form_of_data_is_read_as_it_was(folder: str) -> None:
    known = expected(folder)
    found = {form: load_any(str(FIXTURES / folder / form)).fingerprint() for form in known["data"]}
    assert found == known["data"]
    assert load_any(str(FIXTURES / folder / "log.csv"), COLUMNS).fingerprint() == known["csv"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_minari_dataset_is_read_as_it_was(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(FIXTURES / folder / "minari", tmp_path / "minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    assert load_any("kept/log-v0").fingerprint() == expected(folder)["minari"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_run_and_its_policies_act_as_they_did(folder: str) -> None:
    run = FIXTURES / folder / "run"
    last = policy_files(run)[-1]
    for path in (run, last):
        np.testing.assert_allclose(predict(path, OBS), expected(folder)["actions"], rtol=0, atol=1e-6)
    assert find_novelty(load_policy(run), fit=False) is not None
    assert {row["kind"] for row in read_metrics(run)} >= {"train"}
