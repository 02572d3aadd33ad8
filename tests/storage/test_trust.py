"""Checkpoints from elsewhere: code that they name is imported only if the user names it too, or says yes."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import Command, call_main

from rl_training.config import TrainConfig
from rl_training.core import user_code as importing
from rl_training.core.errors import ConfigError
from rl_training.runtime import evaluate, fine_tuning_config, load_policy, predict, resume, train
from rl_training.storage.checkpoint import load_checkpoint, save_checkpoint
from rl_training.storage.trust import is_own_run, remember_run

OBS = [[0.5, -0.5, 1.0]]
MODULE = "canary_of_a_checkpoint"
CODE = """
from pathlib import Path
import gymnasium
from torch import nn

Path({marker!r}).touch()
if "Canary-v0" not in gymnasium.registry:
    gymnasium.register("Canary-v0", entry_point=gymnasium.spec("Pendulum-v1").entry_point, max_episode_steps=5)

class Encoder(nn.Identity):
    def __init__(self, obs_dim):
        super().__init__()
        self.output_size = obs_dim
"""


class Canary:
    """A module that says whether it was imported, and a run whose checkpoint names it."""

    def __init__(self, folder: Path, run: Path) -> None:
        self.folder, self.run, self.marker = folder, run, folder / "imported"
        (folder / f"{MODULE}.py").write_text(CODE.format(marker=str(self.marker)))

    def name(self, **changes: Any) -> Path:
        """Write names of code into the configs of the run and of its checkpoint."""
        path = self.run / "checkpoints" / "latest.pt"
        tree = load_checkpoint(path)
        kwargs = tree["config"]["algo_kwargs"] | changes.pop("algo_kwargs", {})
        config = {**tree["config"], "algo_kwargs": kwargs, **changes}
        save_checkpoint(path, {**tree, "config": config})
        (self.run / "config.yaml").write_text(json.dumps(config))
        return self.run

    @property
    def sang(self) -> bool:
        return self.marker.exists()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = {
        "algo": "td3_bc",
        "env_id": "Pendulum-v1",
        "total_timesteps": 4,
        "eval_episodes": 1,
        "output_dir": str(tmp_path_factory.mktemp("runs")),
        "env_kwargs": {"max_episode_steps": 5},
        "algo_kwargs": {"dataset_kind": "random", "dataset_size": 60, "batch_size": 8, "hidden_sizes": [4]},
    }
    return train(config).run_dir


@pytest.fixture
def canary(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Canary]:
    shutil.copytree(trained, tmp_path / "run")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(importing, "DISTRUSTED", {})
    monkeypatch.setattr(importing, "IMPORTED", [])
    for name in [*importing.FILES]:
        monkeypatch.delitem(importing.FILES, name)
    yield Canary(tmp_path, tmp_path / "run")
    sys.modules.pop(MODULE, None)
    importing.FILES.pop(MODULE, None)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return lambda *arguments: call_main(monkeypatch, capsys, *arguments)


ENV = {"env_id": f"{MODULE}:Canary-v0"}
ENCODER = {"algo_kwargs": {"encoder": f"{MODULE}:Encoder"}}


@pytest.mark.parametrize("use", [evaluate, resume], ids=["evaluate", "resume"])
def test_an_environment_that_a_checkpoint_names_is_not_imported(canary: Canary, use: Callable[[Path], Any]) -> None:
    with pytest.raises(ConfigError, match=f"names code, the environment {MODULE}:Canary-v0, and is not one of your"):
        use(canary.name(**ENV))
    assert not canary.sang


@pytest.mark.parametrize("use", [load_policy, resume, fine_tuning_config], ids=["load", "resume", "fine_tune"])
def test_an_encoder_that_a_checkpoint_names_is_not_imported(canary: Canary, use: Callable[[Path], Any]) -> None:
    with pytest.raises(ConfigError, match=f"encoder {MODULE}:Encoder"):
        use(canary.name(**ENCODER))
    assert not canary.sang


def test_an_environment_inside_the_arguments_of_another_is_not_imported(canary: Canary) -> None:
    with pytest.raises(ConfigError, match="names code"):
        evaluate(canary.name(env_kwargs={"env_id": f"{MODULE}:Canary-v0"}))
    assert not canary.sang


def test_a_prediction_needs_no_environment_and_imports_none(canary: Canary) -> None:
    assert predict(canary.name(**ENV), OBS).shape == (1, 1)
    assert not canary.sang


def test_a_field_of_the_checkpoint_does_not_make_it_trusted(canary: Canary) -> None:
    run = canary.name(**ENV, output_dir=str(canary.folder), run_name="run", trusted=True)
    with pytest.raises(ConfigError, match="names code"):
        evaluate(run)
    assert not canary.sang


def test_the_command_says_what_to_do_and_import_does_it(canary: Canary, command: Command) -> None:
    run = canary.name(**ENV)

    answer = command("eval", run)
    assert answer.code == 2
    assert f"add --import {MODULE}" in answer.err
    assert not canary.sang

    assert command("eval", run, "--import", MODULE).code == 0
    assert canary.sang


def test_a_file_that_is_imported_stands_for_its_module(canary: Canary, command: Command) -> None:
    assert command("eval", canary.name(**ENV), "--import", canary.folder / f"{MODULE}.py").code == 0


def test_an_environment_that_the_user_names_is_imported(canary: Canary) -> None:
    assert evaluate(canary.name(**ENV), env=f"{MODULE}:Canary-v0").returns
    assert canary.sang


def test_runs_in_the_index_are_the_users_own(canary: Canary) -> None:
    run = canary.name(**ENV)
    remember_run(run, ENV)
    assert is_own_run(run)
    assert evaluate(run).returns
    assert canary.sang


def test_a_link_into_another_folder_is_not_an_own_run(canary: Canary) -> None:
    run = canary.name(**ENV)
    own = canary.folder / "own"
    (own / "checkpoints").mkdir(parents=True)
    (own / "checkpoints" / "latest.pt").symlink_to(run / "checkpoints" / "latest.pt")
    (own / "config.yaml").touch()
    remember_run(own, ENV)
    with pytest.raises(ConfigError, match="names code"):
        evaluate(own)
    assert not canary.sang


@pytest.mark.parametrize("says_yes", [True, False], ids=["yes", "no"])
def test_the_user_at_the_terminal_is_asked(canary: Canary, monkeypatch: pytest.MonkeyPatch, says_yes: bool) -> None:
    questions: list[str] = []

    def answer(question: str) -> bool:
        questions.append(question)
        return says_yes

    monkeypatch.setattr(importing, "ASK", [answer])
    run = canary.name(**ENV)
    if says_yes:
        assert evaluate(run).returns
    else:
        with pytest.raises(ConfigError, match="names code"):
            evaluate(run)
    assert len(questions) == 1
    assert f"Import the module {MODULE!r}" in questions[0]
    assert canary.sang == says_yes


def test_a_run_that_names_code_is_remembered_and_others_are_not(
    tiny_config: Callable[..., TrainConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    plain = train(tiny_config("bc")).run_dir
    own = train(tiny_config("bc", "algo_kwargs.encoder=own_encoders:Waves")).run_dir
    assert (is_own_run(plain), is_own_run(own)) == (False, True)
