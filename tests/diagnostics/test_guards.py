"""Guards: each failure is noticed within a log interval, explained, and answered as the run was told to."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import DATA_FOLDER, transitions

from rl_training.algorithms import ALGORITHMS, register
from rl_training.algorithms.sac_n import SACN
from rl_training.config import TrainConfig, load_config
from rl_training.core.batches import Rollout
from rl_training.core.errors import TrainingError
from rl_training.data import TransitionDataset
from rl_training.diagnostics.guards import RewardRange, _saturation
from rl_training.experiment import list_algorithms
from rl_training.models import Model
from rl_training.runtime import bind_options, train
from rl_training.storage import load_checkpoint, read_metrics

MakeConfig = Callable[..., TrainConfig]

ACTOR_OFF = ("algo_kwargs.guard_saturation=null", "algo_kwargs.guard_action_spread=null")
OTHERS_OFF = (*ACTOR_OFF, "algo_kwargs.guard_value_slack=null")
PROVOKED: dict[str, tuple[str, tuple[str, ...], str]] = {
    "values": (
        "td3_bc",
        (
            "algo_kwargs.learning_rate=0.3",
            "algo_kwargs.tau=1",
            "algo_kwargs.reward_scale=0.001",
            "algo_kwargs.bc_alpha=1e6",
            "algo_kwargs.hidden_sizes=[32, 32]",
            "total_timesteps=50",
            "log_interval=50",
            *ACTOR_OFF,
        ),
        r"q_mean is -\d.*, and rewards from -0.01\d* to .* with gamma 0.99 allow values from -1.\d* to 0: .*; "
        r"lower learning_rate or tau, or set max_grad_norm",
    ),
    "saturated_actor": (
        "td3_bc",
        ("algo_kwargs.learning_rate=1", "algo_kwargs.guard_action_spread=null", "algo_kwargs.guard_value_slack=null"),
        r"100% of the policy's actions are on the same bound: .* errors of the critics .*; lower actor_learning_rate",
    ),
    "weights": (
        "td3_bc",
        ("algo_kwargs.learning_rate=10", *OTHERS_OFF),
        r"the weights of the network critic are 1\d\d.* times as large as at the start: .*set max_grad_norm",
    ),
    "clone": (
        "bc",
        ("algo_kwargs.learning_rate=1", "algo_kwargs.guard_clone_after=10", *ACTOR_OFF),
        r"the error of the behaviour clone is \d.* times that of the best constant action: .*normalize_obs: true",
    ),
}
"""For each guard a run that it fires on: algorithm, overrides, and what it says."""


def _alarms(run_dir: Path) -> list[dict[str, Any]]:
    return [row for row in read_metrics(run_dir) if row["kind"] == "guard"]


@pytest.mark.parametrize("guard", PROVOKED)
def test_a_failure_is_noticed_within_a_log_interval_with_cause_and_option(guard: str, tiny_config: MakeConfig) -> None:
    algo, overrides, words = PROVOKED[guard]
    config = tiny_config(algo, *overrides)

    with pytest.warns(UserWarning, match=f"timestep {config.log_interval}: {words}"):
        result = train(config)

    first = _alarms(result.run_dir)[0]
    assert (first["guard"], first["action"], first["global_step"]) == (guard, "warn", config.log_interval)
    assert re.match(words, first["message"])


def test_a_guard_without_a_threshold_does_not_look(tiny_config: MakeConfig) -> None:
    algo, overrides, _ = PROVOKED["weights"]

    assert not _alarms(train(tiny_config(algo, *overrides, "algo_kwargs.guard_weight_growth=null")).run_dir)


def test_a_policy_that_does_not_look_at_its_observations_is_dead(tiny_config: MakeConfig) -> None:
    arrays = transitions(200)
    arrays |= {name: arrays[name] * 1e-12 for name in ("observations", "next_observations")}
    config = tiny_config("bc", "env_id=null", "algo_kwargs.normalize_obs=false", "algo_kwargs.dataset_kind=null")

    with pytest.warns(UserWarning, match=r"timestep 10: the policy gives the same action .* normalize_obs: true"):
        result = train(config, dataset=arrays)

    assert [row["guard"] for row in _alarms(result.run_dir)] == ["dead_actor"]


def test_observations_that_are_all_alike_say_nothing_about_the_policy(tiny_config: MakeConfig) -> None:
    arrays = transitions(200)
    arrays |= {name: np.ones_like(arrays[name]) for name in ("observations", "next_observations")}
    config = tiny_config("bc", "env_id=null", "algo_kwargs.dataset_kind=null", "algo_kwargs.accept_audit=true")

    assert not _alarms(train(config, dataset=arrays).run_dir)


@pytest.fixture
def clones() -> Iterator[str]:
    @register("sac_clones", mode="offline")
    class SACClones(SACN):
        """SAC-N whose critics all begin with the same weights."""

        @classmethod
        def build_model(cls, spaces: Any, hyper: Any) -> Model:
            model = SACN.build_model(spaces, hyper)
            with torch.no_grad():
                for each in model.critic.parameters():
                    each.copy_(each[:1].expand_as(each))
            return model

    yield "sac_clones"
    del ALGORITHMS["sac_clones"]


def test_critics_that_all_agree_have_collapsed(clones: str, tiny_config: MakeConfig) -> None:
    config = replace(tiny_config("sac_n"), algo=clones)

    with pytest.warns(UserWarning, match=r"timestep 10: the critics agree at random actions to .* raise num_critics"):
        result = train(config)

    assert [row["guard"] for row in _alarms(result.run_dir)] == ["ensemble"]


def test_a_run_that_is_told_to_stop_keeps_a_checkpoint_from_before(tiny_config: MakeConfig) -> None:
    _, overrides, _ = PROVOKED["weights"]
    config = tiny_config("td3_bc", *overrides, "algo_kwargs.on_divergence=stop", "checkpoint_interval=2")

    # Guards look before every checkpoint too.
    with pytest.raises(
        TrainingError, match=r"timestep [2468]: the weights of the network critic .*the last checkpoint"
    ):
        train(config)

    (run,) = Path(config.output_dir).iterdir()
    weights = load_checkpoint(run / "checkpoints" / "latest.pt")["algorithm"]["model.critic.mlp.layers.0.weight"]
    assert 0 < weights.square().mean().sqrt() < 100


def test_a_guard_warns_once_and_notes_when_it_is_over(tiny_config: MakeConfig) -> None:
    arrays = transitions(200)
    arrays["actions"] = np.full_like(arrays["actions"], 0.9) + 0.05 * np.tanh(arrays["observations"][:, :1])
    options = ("env_id=null", "algo_kwargs.dataset_kind=null", "algo_kwargs.guard_clone_after=0", "log_interval=1")
    config = tiny_config("bc", *options, "algo_kwargs.learning_rate=0.02", "total_timesteps=60")

    with pytest.warns(UserWarning, match="behaviour clone") as caught:
        result = train(config, dataset=arrays)

    assert [(row["guard"], row["action"]) for row in _alarms(result.run_dir)] == [("clone", "warn"), ("clone", "over")]
    assert len(caught) == 1


@pytest.mark.parametrize(
    ("rows", "share"),
    [
        ([[1.0, 0.2], [1.0, -1.0], [1.0, 0.0], [1.0, 0.9]], (1 + 0.25) / 2),
        ([[1.0], [-1.0], [1.0], [-1.0]], 0.5),
        ([[0.5], [-0.98]], 0.0),
    ],
)
def test_a_policy_that_changes_sides_is_not_saturated(rows: list[list[float]], share: float) -> None:
    assert float(_saturation(torch.tensor(rows))) == pytest.approx(share)


@pytest.mark.parametrize(
    ("rewards", "dones", "gamma", "allowed"),
    [
        ([-2.0, 1.0], [0, 0], 0.9, (-20, 10)),
        ([1.0, 3.0], [0, 1], 0.5, (0, 6)),
        ([-1.0, 4.0], [1, 1], 0.99, (-1, 4)),
        ([-1.0, 4.0], [0, 0], 1.0, None),
        ([], [], 0.9, None),
    ],
)
def test_values_are_discounted_sums_of_rewards(
    rewards: list[float], dones: list[int], gamma: float, allowed: tuple[float, float] | None
) -> None:
    seen = RewardRange()
    seen.add(torch.tensor(rewards), torch.tensor(dones))
    assert seen.allowed(gamma) == (None if allowed is None else pytest.approx(allowed))


@pytest.mark.parametrize("mode", ["warn", "rollback"])
def test_a_number_that_is_missing_in_the_data_is_not_called_divergence(mode: str, tiny_config: MakeConfig) -> None:
    dataset = TransitionDataset.from_dict(transitions(200))
    rewards = dataset.rewards.clone()
    rewards[7::20] = torch.nan
    config = tiny_config("td3_bc", "env_id=null", "algo_kwargs.dataset_kind=null", f"algo_kwargs.on_divergence={mode}")
    config = replace(config, algo_kwargs={**config.algo_kwargs, "accept_audit": True, "validation_fraction": 0})

    with pytest.raises(
        TrainingError, match=r"critic_loss is not a number .*: the data has nan in rewards, row 7; training has not"
    ):
        train(config, dataset=dataset.with_fields(rewards=rewards))


HOPPER = DATA_FOLDER / "d4rl" / "mujoco" / "hopper_medium-v2.hdf5"
UPDATES = 200


def _shortened(config: str, output: Path) -> list[str]:
    """Overrides that end a run after some hundred updates; networks, batches and rates are as shipped."""
    record = load_config(config)
    options = bind_options(record)
    short = [f"output_dir={output}", "eval_episodes=1", "log_interval=100", "algo_kwargs.eval_interval=null"]
    short += ["algo_kwargs.compile=never"]
    if options.data.dataset_path is not None:
        short += [f"algo_kwargs.dataset_path={HOPPER}"]
    if options.mode == "offline_to_online":
        short += [f"algo_kwargs.offline_pretrain_updates={UPDATES // 2}"]
    if options.mode == "offline":
        return [*short, f"total_timesteps={UPDATES}"]
    if isinstance(options.algorithm.reads, Rollout):
        return [*short, "total_timesteps=8192"]
    return [*short, "algo_kwargs.learning_starts=100", f"total_timesteps={UPDATES // 2 + 100}"]


@pytest.mark.slow
@pytest.mark.parametrize("config", [config for spec in list_algorithms() for config in spec.configs])
def test_no_guard_fires_on_a_packaged_config(config: str, tmp_path: Path) -> None:
    if load_config(config).algo_kwargs.get("dataset_path") is not None and not HOPPER.is_file():
        pytest.skip(f"needs {HOPPER}")

    result = train(load_config(config, overrides=_shortened(config, tmp_path)))

    kinds = [row["kind"] for row in read_metrics(result.run_dir)]
    assert kinds.count("train") >= 2
    assert "guard" not in kinds
