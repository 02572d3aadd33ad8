"""Evaluation, diagnostics and prediction leave the generators of training alone, on every device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from conftest import transitions

from rl_training.algorithms import ALGORITHMS
from rl_training.config import TrainConfig
from rl_training.core.seeds import default_generators, forked
from rl_training.core.spaces import BoxActions, SpaceSpec
from rl_training.data import TransitionDataset
from rl_training.diagnostics import diagnose
from rl_training.runtime import evaluate, evaluate_policy, predict, train


@pytest.fixture
def device_generator(monkeypatch: pytest.MonkeyPatch) -> torch.Generator:
    """A second generator that stands for a graphics processor's; seeding all devices seeds it too."""
    generator = torch.Generator().manual_seed(5)
    seed_all = torch.manual_seed

    def manual_seed(seed: int) -> torch.Generator:
        generator.manual_seed(seed)
        return seed_all(seed)

    monkeypatch.setattr(torch, "manual_seed", manual_seed)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "default_generators", (generator,))
    return generator


def test_inside_a_fork_numbers_are_by_seed_and_afterwards_as_before(device_generator: torch.Generator) -> None:
    before = torch.get_rng_state(), device_generator.get_state()
    with forked(3, "cuda:0"):
        first = torch.rand(2), torch.rand(2, generator=device_generator)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.equal(device_generator.get_state(), before[1])
    with forked(3, "cuda:0"):
        assert torch.equal(torch.rand(2), first[0])
        assert torch.equal(torch.rand(2, generator=device_generator), first[1])


def test_a_fork_for_one_device_touches_no_other(device_generator: torch.Generator) -> None:
    before = device_generator.get_state()
    with forked(3, "cpu"):
        assert torch.equal(device_generator.get_state(), before)
        torch.rand(1, generator=device_generator)
    # Drawn from in between by other code, and not put back.
    assert not torch.equal(device_generator.get_state(), before)
    assert default_generators(torch.device("cpu")) == [torch.default_generator]


def test_an_error_inside_a_fork_restores_the_generators() -> None:
    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), forked(3):
        torch.rand(1 // 0)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("call", ["evaluate_policy", "diagnose", "evaluate", "predict"])
def test_nothing_but_training_moves_a_generator_of_training(
    call: str, device_generator: torch.Generator, tiny_config: Callable[..., TrainConfig]
) -> None:
    calls: dict[str, Callable[[], Any]] = {}
    if call in ("evaluate", "predict"):
        run = train(tiny_config("bc", "algo_kwargs.policy=stochastic")).run_dir
        calls["evaluate"] = lambda: evaluate(run, episodes=1)
        calls["predict"] = lambda: predict(run, np.zeros((2, 3)), deterministic=False)
    cls = ALGORITHMS["sac"]
    algorithm = cls.build(SpaceSpec.vector(3, BoxActions((-2.0,), (2.0,))), cls.hyper_class(hidden_sizes=(4,)))
    calls["evaluate_policy"] = lambda: evaluate_policy(algorithm.act, "Pendulum-v1", {}, episodes=1)
    calls["diagnose"] = lambda: diagnose(algorithm, TransitionDataset.from_dict(transitions()))
    before = torch.get_rng_state(), device_generator.get_state()
    calls[call]()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.equal(device_generator.get_state(), before[1])
