"""TQC and CrossQ on tasks so small that value and policy are known exactly; every update sees all of the data."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rl_training.algorithms import ALGORITHMS, Algorithm
from rl_training.core.batches import Batch
from rl_training.core.spaces import BoxActions, SpaceSpec

pytestmark = pytest.mark.slow

GAMMA = 0.9
HYPER: dict[str, dict[str, Any]] = {
    "tqc": {"hidden_sizes": (64, 64), "num_quantiles": 5, "dropped_quantiles": 1, "tau": 0.2},
    # With so few updates, running statistics have to follow faster, and the actor must not miss any.
    "crossq": {"hidden_sizes": (32, 32), "critic_hidden_sizes": None, "norm_momentum": 0.1, "policy_delay": 1},
}


def _learn(name: str, data: Batch, *, updates: int, **hyper: Any) -> Algorithm:
    torch.manual_seed(0)
    cls = ALGORITHMS[name]
    options = {"learning_rate": 5e-3, "gamma": GAMMA, **HYPER[name], **hyper}
    spaces = SpaceSpec.vector(data["obs"].shape[-1], BoxActions((-1.0,), (1.0,)))
    algorithm = cls.build(spaces, cls.hyper_class(**options))
    for update in range(updates):
        # A falling step size, since at a constant one the answer would keep trembling.
        algorithm.set_learning_rate_multiplier(1 - update / updates)
        algorithm.update(data)
    return algorithm


def _grid(count: int) -> Tensor:
    """The middles of equal parts of [-1, 1]."""
    return torch.linspace(-1, 1, 2 * count + 1)[1::2, None]


@pytest.mark.parametrize("name", HYPER)
def test_the_policy_of_a_bandit_is_its_best_action(name: str) -> None:
    actions, ones = _grid(64), torch.ones(64)
    rewards = -(actions[:, 0] - 0.3).square()
    data = {"obs": ones[:, None], "actions": actions, "rewards": rewards, "next_obs": ones[:, None], "dones": ones}
    # The policy's deviation is about sqrt(alpha / 2) = 0.16: it sees the slope of its critics over so wide a range,
    # and not at one point, where that of linear pieces may be far off.
    algorithm = _learn(name, data, updates=400, alpha=0.05)
    assert float(algorithm.act(torch.ones(1, 1))) == pytest.approx(0.3, abs=0.05)


@pytest.mark.parametrize("name", HYPER)
def test_a_reward_one_step_away_is_discounted_once(name: str) -> None:
    # The first state leads to the second without reward; there the reward is 1 and the task ends. A third pays -1 and
    # ends at once.
    states, actions = torch.eye(3), _grid(16)
    data = {
        "obs": states.repeat(16, 1),
        "actions": actions.repeat_interleave(3, 0),
        "rewards": torch.tensor([0.0, 1.0, -1.0]).repeat(16),
        "next_obs": states[[1, 1, 2]].repeat(16, 1),
        "dones": torch.tensor([0.0, 1.0, 1.0]).repeat(16),
    }
    algorithm = _learn(name, data, updates=200, alpha=0.0)
    for action in (-0.5, 0.0, 0.5):
        with torch.no_grad():
            values = algorithm.model.critic(states, torch.full((3, 1), action)).mean(0)
        assert values.tolist() == pytest.approx([GAMMA, 1.0, -1.0], abs=0.05)
