"""Networks of the user's own in whole runs: training, resume, prediction, evaluation, fine-tuning."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own_encoders import Waves
from small_runs import differences

from rl_training import TD3BC, resume
from rl_training.algorithms import ALGORITHMS, Algorithm
from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError
from rl_training.runtime import evaluate, load_policy, predict, train
from rl_training.runtime.fine_tuning import fine_tuning_config
from rl_training.storage import load_checkpoint

MakeConfig = Callable[..., TrainConfig]
OBS = [[0.5, -0.5, 1.0], [1.0, 0.0, -4.0]]
OWN = (
    "algo_kwargs.activation=silu",
    "algo_kwargs.layer_norm=after",
    "algo_kwargs.encoder=own_encoders:Waves",
    "algo_kwargs.encoder_kwargs.count=5",
)


@pytest.mark.parametrize("name", ["td3_bc", "sac", "ppo", "dqn"])
def test_a_run_resumes_bit_for_bit_and_its_policy_predicts(name: str, tiny_config: MakeConfig) -> None:
    straight = train(tiny_config(name, *OWN))
    dense = train(tiny_config(name, *OWN, "checkpoint_interval=1", "keep_checkpoints=all"))
    unit = "update" if ALGORITHMS[name].mode == "offline" else "step"
    resumed = resume(dense.run_dir / "checkpoints" / f"{unit}_{13:09d}.pt")

    trees = [load_checkpoint(result.checkpoint_path) for result in (straight, resumed)]
    for part in ("algorithm", "source", "collector", "random"):
        assert differences(trees[0][part], trees[1][part]) == []
    assert any(".encoder.mixture." in place for place in trees[0]["algorithm"])
    saved = load_policy(resumed.run_dir)
    obs = np.ones((2, saved.spaces.obs_dim), np.float32)
    np.testing.assert_array_equal(predict(straight.run_dir, obs), saved.predict(obs))
    assert len(evaluate(resumed.run_dir, episodes=1).returns) == 1


@pytest.mark.slow
def test_a_compiled_run_with_own_networks_trains(tiny_config: MakeConfig) -> None:
    eager = train(tiny_config("td3_bc", *OWN, "algo_kwargs.compile=never"))
    compiled = train(tiny_config("td3_bc", *OWN, "algo_kwargs.compile=always"))
    np.testing.assert_allclose(predict(compiled.run_dir, OBS), predict(eager.run_dir, OBS), rtol=0, atol=1e-4)


def test_in_python_the_encoder_is_a_class(tiny_config: MakeConfig) -> None:
    model = TD3BC(tiny_config("td3_bc"), encoder=Waves, encoder_kwargs={"count": 2})
    result = model.learn()
    stored = load_checkpoint(result.checkpoint_path)["config"]["algo_kwargs"]
    assert (stored["encoder"], stored["encoder_kwargs"]) == ("own_encoders:Waves", {"count": 2})
    np.testing.assert_array_equal(TD3BC.load(result.run_dir).predict(OBS), model.predict(OBS))


def test_an_encoder_is_refused_before_anything_is_written(tiny_config: MakeConfig, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs an attribute output_size"):
        train(tiny_config("td3_bc", "algo_kwargs.encoder=own_encoders:Sizeless"))
    assert not (tmp_path / "runs").exists()


def test_a_run_keeps_its_networks(tiny_config: MakeConfig) -> None:
    run = train(tiny_config("td3_bc")).run_dir
    for option, value in {"activation": "tanh", "layer_norm": "after", "encoder": "own_encoders:Waves"}.items():
        with pytest.raises(ConfigError, match=f"a run keeps its {option}"):
            resume(run, algo_kwargs={option: value})


def test_a_run_that_begins_with_a_checkpoint_has_its_networks(tiny_config: MakeConfig) -> None:
    run = train(tiny_config("td3_bc", "algo_kwargs.activation=elu")).run_dir
    same = fine_tuning_config(run, overrides=["total_timesteps=1", "algo_kwargs.learning_starts=1"])
    train(same)
    other = fine_tuning_config(run, overrides=["algo_kwargs.activation=gelu"])
    words = "was trained with activation 'elu', the run has 'gelu': the networks before and after must be the same"
    with pytest.raises(ConfigError, match=words):
        train(other)


def test_options_that_a_model_does_not_take_are_refused(
    tiny_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    cls: type[Algorithm] = ALGORITHMS["td3_bc"]

    class Plain(cls.model_class):  # type: ignore[misc, name-defined]
        def __init__(self, *, obs_dim: int, action_dim: int, hidden_sizes: Any, num_critics: int = 2) -> None:
            super().__init__(obs_dim=obs_dim, action_dim=action_dim, hidden_sizes=hidden_sizes)

    monkeypatch.setattr(cls, "model_class", Plain)
    with pytest.raises(ConfigError) as error:
        train(tiny_config("td3_bc", *OWN))
    reason = "has no effect on td3_bc: Plain does not take it"
    assert list(error.value.problems) == [
        f"algo_kwargs: {name} {reason}" for name in ("activation", "layer_norm", "encoder")
    ]
