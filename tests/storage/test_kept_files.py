"""Files of every form that earlier releases wrote: they load for ever, as what they were."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training import api
from rl_training.core.errors import CheckpointError
from rl_training.data import load_any
from rl_training.policies import find_novelty
from rl_training.runtime import evaluate, fine_tuning_config, load_policy, predict, resume
from rl_training.storage.checkpoint import FORMAT, load_checkpoint, policy_files, save_checkpoint
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


FORMAT_1 = FIXTURES / "format_1" / "td3_bc.pt"
FORMAT_2 = FIXTURES / "format_2"

OLDER_OBS = [[0.5, -0.5, 1.0], [1.0, 0.0, -4.0]]
ACTIONS = {
    FORMAT_1: [[0.06862187385559082], [-0.09847879409790039]],
    FORMAT_2: [[0.42359042167663574], [-0.19536904990673065]],
}
"""What the versions that wrote them predicted."""

NO_RESUME = "predict and eval can use its policy, but no run can be resumed from it"


def test_there_is_a_fixture_of_every_format() -> None:
    assert sorted(path.name for path in FIXTURES.glob("format_*")) == [f"format_{k}" for k in range(1, FORMAT + 1)]


@pytest.mark.parametrize("path", ACTIONS, ids=lambda path: path.relative_to(FIXTURES).parts[0])
def test_a_policy_of_every_format_acts_as_it_did(path: Path, tmp_path: Path) -> None:
    np.testing.assert_allclose(predict(path, OLDER_OBS), ACTIONS[path], rtol=0, atol=1e-6)
    assert len(evaluate(path, episodes=1).returns) == 1

    load_policy(path).save(tmp_path / "copy.pt")
    np.testing.assert_array_equal(predict(tmp_path / "copy.pt", OLDER_OBS), predict(path, OLDER_OBS))


def test_a_managed_class_loads_an_older_format() -> None:
    model = api.TD3BC.load(FORMAT_1)

    np.testing.assert_allclose(model.predict(OLDER_OBS), ACTIONS[FORMAT_1], rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore:the run was made with torch")
def test_a_run_of_the_present_format_continues(tmp_path: Path) -> None:
    shutil.copytree(FORMAT_2, tmp_path / "run")

    result = resume(tmp_path / "run", total_timesteps=30)

    assert load_checkpoint(result.checkpoint_path)["trainer"]["state"]["env_steps"] == 30


@pytest.mark.filterwarnings("ignore:the run was made with torch")
def test_a_run_from_before_there_were_guards_continues_with_them(tmp_path: Path) -> None:
    shutil.copytree(FORMAT_2, tmp_path / "run")
    before = load_checkpoint(tmp_path / "run" / "checkpoints" / "latest.pt")["trainer"]
    assert "guards" not in before

    result = resume(tmp_path / "run", total_timesteps=30, algo_kwargs={"on_divergence": "rollback"})

    guards = load_checkpoint(result.checkpoint_path)["trainer"]["guards"]
    assert (guards["good"], guards["rollbacks"]) == ("step_000000030.pt", [])


def test_a_run_of_an_older_format_does_not_continue(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(FORMAT_2, run)
    shutil.copy(FORMAT_1, run / "checkpoints" / "latest.pt")

    for go_on in (resume, fine_tuning_config):
        with pytest.raises(CheckpointError) as caught:
            go_on(run)
        path = run / "checkpoints" / "latest.pt"
        assert str(caught.value) == f"{path} was written by an older version (checkpoint format 1): {NO_RESUME}"


def _altered(path: Path, to: Path, **changes: Any) -> Path:
    tree = load_checkpoint(path, policy_only=True)
    save_checkpoint(to, {**tree, **changes})
    return to


def test_an_option_that_is_gone_does_not_prevent_prediction(tmp_path: Path) -> None:
    config = torch.load(FORMAT_1, weights_only=True)["config"]
    config |= {"gone": 1, "algo_kwargs": config["algo_kwargs"] | {"gone_too": 2}}
    path = _altered(FORMAT_1, tmp_path / "old.pt", config=config)

    np.testing.assert_array_equal(predict(path, OLDER_OBS), predict(FORMAT_1, OLDER_OBS))


def test_names_of_optimisers_do_not_matter_to_an_older_policy(tmp_path: Path) -> None:
    state = torch.load(FORMAT_1, weights_only=True)["algorithm"]
    path = _altered(FORMAT_1, tmp_path / "old.pt", algorithm=state | {"optimizers.actor.gone": torch.zeros(1)})

    np.testing.assert_array_equal(predict(path, OLDER_OBS), predict(FORMAT_1, OLDER_OBS))


def test_a_newer_format_is_refused_by_name(tmp_path: Path) -> None:
    path = _altered(FORMAT_2 / "checkpoints" / "latest.pt", tmp_path / "new.pt", format=FORMAT + 1)

    with pytest.raises(CheckpointError) as caught:
        predict(path, OLDER_OBS)

    numbers = f"checkpoint format {FORMAT + 1}; this one reads up to {FORMAT}"
    assert str(caught.value) == f"{path} was written by a newer version ({numbers}): update rl-training"
