"""Policy files: small, whole, used like checkpoints, and gone where a run went back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from rl_training.algorithms import Algorithm
from rl_training.config import TrainConfig
from rl_training.core.errors import CheckpointError, ConfigError
from rl_training.runtime import load_policy, resume, saving, train
from rl_training.runtime.trainer import Session
from rl_training.storage.checkpoint import drop_policies, load_checkpoint, policy_files, policy_path, policy_step

MakeConfig = Callable[..., TrainConfig]
OBS = np.array([[0.1, -0.2, 0.3], [0.9, 0.1, -2.0]], dtype=np.float32)


def _steps(run: Path) -> list[int | None]:
    return [policy_step(path) for path in policy_files(run)]


def test_every_checkpoint_leaves_its_policy(tiny_config: MakeConfig) -> None:
    run = train(tiny_config("td3_bc", "checkpoint_interval=5", "keep_checkpoints=all")).run_dir
    assert _steps(run) == [0, 5, 10, 15, 20]
    for path in policy_files(run):
        checkpoint = run / "checkpoints" / f"update_{policy_step(path):09d}.pt"
        np.testing.assert_array_equal(load_policy(path).predict(OBS), load_policy(checkpoint).predict(OBS))


@pytest.mark.parametrize(
    ("algo", "kept"),
    [("td3_bc", {"actor"}), ("iql", {"actor"}), ("bcq", {"actor", "critic", "vae", "candidates"}), ("dqn", {"critic"})],
)
def test_a_policy_file_holds_what_acts_only(algo: str, kept: set[str], tiny_config: MakeConfig) -> None:
    run = train(tiny_config(algo)).run_dir
    tree = load_checkpoint(policy_files(run)[-1], policy_only=True)
    names = {name.split(".")[1] for name in tree["algorithm"] if name.startswith("model.")}
    assert names == kept
    assert {name.split(".")[0] for name in tree["algorithm"]} == {"model", "obs_mean", "obs_std"}


def test_a_policy_file_is_much_smaller_than_its_checkpoint(tiny_config: MakeConfig) -> None:
    run = train(tiny_config("td3_bc", "algo_kwargs.hidden_sizes=[64, 64]")).run_dir
    whole = (run / "checkpoints" / "latest.pt").stat().st_size
    assert policy_files(run)[-1].stat().st_size < whole / 8


def test_a_run_does_not_continue_from_a_policy_file(tiny_config: MakeConfig) -> None:
    file = policy_files(train(tiny_config("td3_bc")).run_dir)[-1]
    with pytest.raises(CheckpointError, match=r"holds a policy only.*take a file in checkpoints/"):
        resume(file)


def test_values_of_actions_need_a_checkpoint(tiny_config: MakeConfig) -> None:
    saved = load_policy(policy_files(train(tiny_config("td3_bc")).run_dir)[-1])
    with pytest.raises(ConfigError, match="holds a policy only, without critics"):
        saved.predict_value(OBS, np.zeros((2, 1), dtype=np.float32))


def test_a_policy_file_can_be_written_again(tiny_config: MakeConfig, tmp_path: Path) -> None:
    saved = load_policy(policy_files(train(tiny_config("sac")).run_dir)[-1])
    saved.save(tmp_path / "mine.pt")
    np.testing.assert_array_equal(load_policy(tmp_path / "mine.pt").predict(OBS), saved.predict(OBS))


def test_a_run_that_goes_back_drops_the_policies_of_the_branch_it_left(tiny_config: MakeConfig) -> None:
    run = train(tiny_config("td3_bc", "checkpoint_interval=5", "keep_checkpoints=all")).run_dir
    before = {path.name: path.read_bytes() for path in policy_files(run)}
    resume(run / "checkpoints" / "update_000000005.pt", total_timesteps=12)
    assert _steps(run) == [0, 5, 10, 12]
    assert policy_path(run, 0).read_bytes() == before["step_000000000.pt"]


def test_a_run_killed_between_policy_and_checkpoint_goes_back_and_ends_the_same(
    tiny_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = train(tiny_config("td3_bc")).run_dir
    real = saving.save

    def killed(session: Session, name: str) -> Path:
        if name == "latest.pt" and session.state.global_step == 10:
            raise KeyboardInterrupt
        return real(session, name)

    monkeypatch.setattr(saving, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        train(tiny_config("td3_bc", "run_name=killed"))
    monkeypatch.undo()
    run = straight.parent / "killed"
    assert _steps(run) == [0, 10]
    # The latest checkpoint is that of timestep 0: what comes after it is written again.
    dropped = []
    original = Algorithm.update

    def watched(self: Algorithm, batch: dict[str, torch.Tensor]) -> object:
        dropped.append(_steps(run))
        return original(self, batch)

    monkeypatch.setattr(Algorithm, "update", watched)
    resume(run)
    assert dropped[0] == [0]
    ours, theirs = (load_checkpoint(policy_files(each)[-1], policy_only=True)["algorithm"] for each in (run, straight))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_files_of_other_names_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    folder.mkdir()
    for name in ("step_000000003.pt", "step_000000012.pt", "step_mine.pt", "notes.txt"):
        (folder / name).touch()
    drop_policies(tmp_path, after=5)
    assert sorted(path.name for path in folder.iterdir()) == ["notes.txt", "step_000000003.pt", "step_mine.pt"]
