"""Policies to export that take no time to train, and a log for them."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.algorithms import ALGORITHMS
from rl_training.config import TrainConfig
from rl_training.core.spaces import ActionSpace, BoxActions, DiscreteActions, SpaceSpec
from rl_training.policies.export.log import Log
from rl_training.runtime import Policy, SavedPolicy, bind_hyper

BOX = BoxActions((-2.0, 0.0, 10.0), (2.0, 1.0, 10.5))
DISCRETE = DiscreteActions(4, start=1)
WIDTH = 5
KINDS = [(name, kind) for name in sorted(ALGORITHMS) for kind in ALGORITHMS[name].action_kinds]
"""Every registered algorithm with every kind of action that it takes."""


@pytest.fixture(scope="module", autouse=True)
def translations_are_read_once() -> Iterator[None]:
    """Let torch read the translations of its operators once for all tests: that is half of the time of an export."""
    registry = importlib.import_module("torch.onnx._internal.exporter._registration").ONNXRegistry
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "from_torchlib", staticmethod(functools.cache(registry.from_torchlib)))
        yield


def make_saved(algo: str, action: ActionSpace = BOX, **options: Any) -> SavedPolicy:
    """The policy of an algorithm with random weights, large enough for actions to differ, that sees shifted inputs."""
    names = {"hidden_sizes": [8, 8], "vae_hidden_sizes": [8, 8], **options}
    known = ALGORITHMS[algo].hyper_class.__dataclass_fields__
    config = TrainConfig(algo=algo, algo_kwargs={name: value for name, value in names.items() if name in known})
    spaces = SpaceSpec.vector(WIDTH, action)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        algorithm = ALGORITHMS[algo].build(spaces, bind_hyper(config))
        for parameter in algorithm.model.parameters():
            parameter.data += 0.3 * torch.randn_like(parameter)
        algorithm.set_obs_statistics(torch.arange(5.0), torch.tensor([1.0, 2, 3, 4, 0.1]))
        return SavedPolicy(Policy.of(algorithm, spaces), config, {})


def make_log(action: ActionSpace = BOX, *, episodes: int = 20, steps: int = 20) -> Log:
    """Rows as they may have been logged, for the policies of `make_saved`."""
    rng, rows = np.random.default_rng(1), episodes * steps
    obs = (np.arange(5) + rng.normal(size=(rows, WIDTH)) * [1, 2, 3, 4, 0.1]).astype(np.float32)
    discrete = isinstance(action, DiscreteActions)
    actions = rng.integers(action.size, size=rows) if discrete else rng.uniform(-1, 1, (rows, 3)).astype(np.float32)
    numbers = np.repeat(np.arange(episodes), steps)
    ends = (obs.min(0), obs.max(0))
    return Log(torch.from_numpy(obs), torch.from_numpy(actions), numbers, np.arange(10), *ends, "a log")


def observations(count: int) -> Any:
    """Observations that are not among the test vectors."""
    return make_log(episodes=10).obs.numpy()[:count] * np.float32(1.1)
