"""Values of real policies from a real log, against the truth by running them."""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_training import estimate
from rl_training.config import TrainConfig
from rl_training.data import TransitionDataset, load_transition_dataset
from rl_training.ope import student_interval
from rl_training.runtime import train

TRUTHS = {
    "a2c": -133.6,
    "ars": -163.9,
    "ppo": -136.9,
    "sac": -127.8,
    "tqc": -125.3,
    "trpo": -139.9,
    "zero": -600.6,
    "pd": -464.6,
    "half-sac": -369.2,
    "-sac": -722.4,
}
"""Discounted returns over 1,000 steps of the exact dynamics from the 500 logged first states."""


def _benchmark() -> Any:
    """The benchmark as a module: it has the policies and the dynamics."""
    sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
    try:
        return importlib.import_module("fqe_pendulum")
    finally:
        sys.path.pop()


@pytest.fixture(scope="module")
def pendulum(shared_data: Path) -> tuple[Any, TransitionDataset, dict[str, Any]]:
    """The benchmark's functions, the log and the policies."""
    module = _benchmark()
    dataset = load_transition_dataset(shared_data / "pendulum" / "pendulum_replay_v1.1.0.h5")
    return module, dataset, module.policies(shared_data / "policies")


def test_the_truths_are_those_of_the_exact_dynamics(pendulum: Any) -> None:
    module, dataset, policies = pendulum
    first = dataset.obs[dataset.episode_bounds()[:, 0]].numpy()
    assert (len(dataset), len(first)) == (99_000, 500)
    found = {name: module.true_value(policies[name], first, steps=1000) for name in ("sac", "ppo", "zero")}
    assert found == pytest.approx({name: TRUTHS[name] for name in found}, abs=0.1)


def test_a_good_and_a_bad_policy_are_told_apart_after_a_short_fit(pendulum: Any) -> None:
    module, dataset, policies = pendulum
    chosen = {name: policies[name] for name in ("sac", "-sac")}
    first = dataset.obs[dataset.episode_bounds()[:, 0]].numpy()
    short: dict[str, Any] = {"gamma": 0.9, "members": 3, "hidden_sizes": (32, 32), "tau": 0.1, "learning_rate": 3e-3}
    found = estimate(chosen, dataset, kappa=5, split="held-out", **short)
    assert found.control_passes
    for name, policy in chosen.items():
        assert found[name].raw_value == pytest.approx(module.true_value(policy, first, gamma=0.9, steps=200), rel=0.1)
        assert found[name].novel_share < 0.15
    assert found.best[:1] == ("sac",)


def test_slow_target_networks_are_refused(pendulum: Any) -> None:
    _, dataset, policies = pendulum
    few = estimate({"sac": policies["sac"]}, dataset, split="held-out", gamma=0.99, tau=0.005, updates=40, members=2)
    assert few.kappa == pytest.approx(0.002)
    assert "stopped too early" in few["sac"].reasons[0]


@pytest.mark.slow
def test_three_policies_are_near_the_truth_and_the_fourth_is_refused(pendulum: Any) -> None:
    _, dataset, policies = pendulum
    names = ("sac", "half-sac", "pd", "-sac")
    begin = time.process_time()
    found = estimate(
        {name: policies[name] for name in names}, dataset, gamma=0.99, kappa=5, threads=1, split="held-out"
    )
    seconds = time.process_time() - begin
    raw = [found[name].raw_value for name in names]
    assert raw[:3] == pytest.approx([TRUTHS[name] for name in names[:3]], rel=0.12)
    assert raw == sorted(raw, reverse=True)
    # Its ensemble members do not agree, and the log has hardly anything like it.
    assert found["-sac"].verdict == "cannot be judged"
    assert seconds < 5 * 60


@pytest.mark.slow
def test_six_trained_policies_are_not_distinguishable(pendulum: Any) -> None:
    _, dataset, policies = pendulum
    names = ("a2c", "ars", "ppo", "sac", "tqc", "trpo")
    found = estimate({name: policies[name] for name in names}, dataset, gamma=0.99, threads=1, split="held-out")
    assert found.control_passes
    judged = {each.name for each in found.policies if each.verdict != "cannot be judged"}
    assert set(found.best) == judged
    assert {found[name].verdict for name in judged} == {"not distinguishable"}
    assert len(judged) >= 5
    for name in judged:
        low, high = student_interval(np.array([found[name].raw_value, *found[name].members]))
        assert low - 30 <= TRUTHS[name] <= high + 30


SEEDS = (0, 1, 2)


def _final_return(algo: str, data: Path, seed: int, output: Path) -> float:
    config = TrainConfig(
        algo=algo,
        env_id="Pendulum-v1",
        seed=seed,
        total_timesteps=20_000,
        output_dir=str(output),
        eval_episodes=100,
        algo_kwargs={"dataset_path": str(data), "eval_interval": None, "compile": "never"},
    )
    return train(config, threads=1).metrics["return_mean"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_td3_bc_on_a_replay_buffer_reaches_minus_200_and_beats_cloning(
    seed: int, shared_data: Path, tmp_path: Path
) -> None:
    data = shared_data / "pendulum" / "pendulum_replay_v1.1.0.h5"
    score = _final_return("td3_bc", data, seed, tmp_path)
    assert score >= -200
    assert score > _final_return("bc", data, seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_cloning_an_expert_reaches_minus_201(seed: int, shared_data: Path, tmp_path: Path) -> None:
    assert _final_return("bc", shared_data / "pendulum" / "pendulum_expert_sac.npz", seed, tmp_path) >= -201
