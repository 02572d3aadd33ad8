"""What a run is put together from, and what is refused before it exists."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError, TrainingError
from rl_training.envs.goals import PointGoal
from rl_training.runtime import resume, train
from rl_training.storage import load_checkpoint

MakeConfig = Callable[..., TrainConfig]


def _log(path: Path, *, episodes: int, bound: float = 2.0) -> Path:
    rows = 20 * episodes
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(rows + 1, 3))
    np.savez(
        path,
        obs=obs[:-1],
        next_obs=obs[1:],
        actions=rng.uniform(-bound, bound, size=(rows, 4)),
        rewards=rng.normal(size=rows),
        dones=np.zeros(rows),
        truncations=np.arange(1, rows + 1) % 20 == 0,
    )
    return path


def _without_env(make: MakeConfig, path: Path, *overrides: str) -> TrainConfig:
    data = ("algo_kwargs.dataset_kind=npz", f"algo_kwargs.dataset_path={path}", "algo_kwargs.dataset_size=null")
    return make("td3_bc", "env_id=null", *data, *overrides)


def test_bounds_from_the_data_hold_for_held_out_episodes_too(tiny_config: MakeConfig, tmp_path: Path) -> None:
    # With four dimensions the largest action of one of them is almost surely among ten held-out episodes of twenty.
    path = _log(tmp_path / "log.npz", episodes=20)
    result = train(_without_env(tiny_config, path, "algo_kwargs.validation_fraction=0.5"))
    spaces = load_checkpoint(result.checkpoint_path)["spaces"]
    actions = np.load(path)["actions"]
    assert spaces["action"]["high"] == pytest.approx(actions.max(axis=0).tolist())
    assert spaces["action"]["low"] == pytest.approx(actions.min(axis=0).tolist())


def test_a_single_episode_trains_without_an_environment(tiny_config: MakeConfig, tmp_path: Path) -> None:
    result = train(_without_env(tiny_config, _log(tmp_path / "log.npz", episodes=1)))
    metadata = json.loads((result.run_dir / "metadata.json").read_text())
    assert any("no episode could be held out" in note for note in metadata["data"]["notes"])


def test_the_score_of_collected_data_is_on_raw_reward(tiny_config: MakeConfig) -> None:
    plain = train(tiny_config())
    scaled = train(tiny_config("td3_bc", "env_kwargs.wrappers.reward.scale=0.001"))
    assert scaled.data_return == pytest.approx(plain.data_return)
    # The critics saw the scaled rewards, so their values are that much smaller.
    last = [
        load_checkpoint(result.checkpoint_path)["algorithm"]["model.critic.mlp.layers.1.bias"]
        for result in (plain, scaled)
    ]
    assert not torch.equal(*last)


def test_wrong_wrappers_and_wrong_options_are_reported_together(tiny_config: MakeConfig) -> None:
    config = tiny_config("td3_bc", "env_kwargs.wrappers.reward.preset=clip1", "algo_kwargs.policy_delay=0")
    with pytest.raises(ConfigError) as caught:
        train(config)
    assert len(caught.value.problems) == 2


@pytest.mark.filterwarnings("ignore:timestep 1. the weights")
@pytest.mark.parametrize("interval", ["log_interval=1000", "log_interval=1"])
def test_a_run_that_diverges_stops_and_keeps_its_last_whole_checkpoint(
    interval: str, tiny_config: MakeConfig, tmp_path: Path
) -> None:
    config = tiny_config("td3_bc", "algo_kwargs.learning_rate=1e30", "checkpoint_interval=5", interval)
    with pytest.raises(TrainingError, match=r"is not a number after .* updates: training has diverged"):
        train(config)
    (run,) = (tmp_path / "runs").iterdir()
    tree = load_checkpoint(run / "checkpoints" / "latest.pt")
    assert all(value.isfinite().all() for key, value in tree["algorithm"].items() if key.startswith("model."))


def test_options_given_on_resume_are_kept_with_the_run(tiny_config: MakeConfig) -> None:
    from rl_training.config import load_config

    result = train(tiny_config())
    resume(result.run_dir, total_timesteps=25)
    assert load_config(result.run_dir / "config.yaml").total_timesteps == 25


def test_a_run_resumed_from_an_older_checkpoint_continues_from_there(tiny_config: MakeConfig) -> None:
    class StopError(Exception):
        pass

    from rl_training.runtime import Callback

    class Interrupt(Callback):
        def on_train_start(self, state: Any) -> None:
            raise StopError

    result = train(tiny_config("td3_bc", "checkpoint_interval=5", "keep_checkpoints=all"))
    with pytest.raises(StopError):
        resume(result.run_dir / "checkpoints" / "update_000000005.pt", callbacks=[Interrupt()])
    assert load_checkpoint(result.checkpoint_path)["trainer"]["state"]["update_count"] == 5


@pytest.mark.parametrize("name", ["algo", "env_id", "env_kwargs", "seed", "output_dir"])
def test_what_a_run_is_cannot_be_changed_on_resume(name: str, tiny_config: MakeConfig) -> None:
    result = train(tiny_config("bc"))
    overrides: dict[str, Any] = {name: "other"}
    with pytest.raises(ConfigError, match=f"a run keeps its {name}"):
        resume(result.run_dir, **overrides)


def test_a_mapping_is_a_config_too(tiny_config: MakeConfig) -> None:
    assert train(tiny_config("bc").to_plain()).metrics["update_count"] == 20


def test_options_on_resume_that_are_no_mapping_are_refused(tiny_config: MakeConfig) -> None:
    result = train(tiny_config("bc"))
    with pytest.raises(ConfigError, match="algo_kwargs must be a mapping, got 3"):
        resume(result.run_dir, algo_kwargs=3)


def test_the_environment_that_hindsight_computes_rewards_with_is_closed(
    tiny_config: Callable[..., TrainConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[PointGoal] = []
    closed: list[PointGoal] = []
    init = PointGoal.__init__

    def remember(env: PointGoal) -> None:
        init(env)
        made.append(env)

    monkeypatch.setattr(PointGoal, "__init__", remember)
    monkeypatch.setattr(PointGoal, "close", lambda env: closed.append(env))  # noqa: PLW0108 - bound to what is closed
    train(tiny_config("her"))
    assert {id(env) for env in closed} == {id(env) for env in made}
