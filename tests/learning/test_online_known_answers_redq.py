"""Tasks so small that value and policy are known exactly, for REDQ, DroQ and RLPD.

Every update sees all of the data, as a full replay of it would give on average.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rl_training.algorithms import ALGORITHMS, Algorithm
from rl_training.core.batches import Batch
from rl_training.core.spaces import BoxActions, SpaceSpec

pytestmark = pytest.mark.slow

GAMMA = 0.9
FEW: dict[str, Any] = {"num_critics": 4, "policy_delay": 2}
DROQ: dict[str, Any] = {
    **FEW,
    "num_critics": 2,
    "num_target_critics": 2,
    "critic_dropout": 0.01,
    "critic_layer_norm": True,
}
KINDS = [
    pytest.param("redq", FEW, id="redq"),
    pytest.param("redq", DROQ, id="droq"),
    pytest.param("rlpd", FEW, id="rlpd"),
]
SPARSE: dict[str, Any] = {**FEW, "num_target_critics": 1, "backup_entropy": False}


def _learn(name: str, batch: Batch, *, updates: int, **hyper: Any) -> Algorithm:
    torch.manual_seed(0)
    cls = ALGORITHMS[name]
    small = {"hidden_sizes": (32, 32), "learning_rate": 5e-3, "gamma": GAMMA, "tau": 0.1}
    obs_dim = batch["obs"].shape[1]
    algorithm = cls.build(SpaceSpec.vector(obs_dim, BoxActions((-1.0,), (1.0,))), cls.hyper_class(**{**small, **hyper}))
    for update in range(updates):
        # A falling step size, since at a constant one the answer would keep trembling.
        algorithm.set_learning_rate_multiplier(1 - update / updates)
        algorithm.update(batch)
    return algorithm


def _actions(count: int) -> torch.Tensor:
    """The middles of equal parts of [-1, 1]."""
    return torch.linspace(-1, 1, 2 * count + 1)[1::2, None]


@pytest.mark.parametrize(("name", "hyper"), KINDS)
def test_the_policy_takes_the_best_action_of_a_bandit(name: str, hyper: dict[str, Any]) -> None:
    # r = -(a - 0.3)^2, and the task ends. At a temperature of 0.01 the best tanh-Gaussian, found on a grid of means and
    # deviations, has the middle 0.301.
    actions = _actions(64)
    ones = torch.ones_like(actions)
    batch = {
        "obs": ones,
        "actions": actions,
        "rewards": -(actions[:, 0] - 0.3).square(),
        "next_obs": ones,
        "dones": ones[:, 0],
    }
    algorithm = _learn(name, batch, updates=400, alpha=0.01, **hyper)
    assert abs(float(algorithm.act(torch.ones(1, 1))) - 0.3) < 0.05


def _chain() -> Batch:
    """State 0 pays 1 and leads to state 1, which pays 2 and ends the task, whatever the action."""
    states = torch.eye(2)
    actions = _actions(16)
    return {
        "obs": states.repeat_interleave(16, dim=0),
        "actions": actions.repeat(2, 1),
        "rewards": torch.tensor([1.0, 2.0]).repeat_interleave(16),
        "next_obs": states[[1, 1]].repeat_interleave(16, dim=0),
        "dones": torch.tensor([0.0, 1.0]).repeat_interleave(16),
    }


def _values(algorithm: Algorithm) -> list[float]:
    """What the critics say on average of either state, over actions within the data."""
    actions = _actions(8)
    with torch.no_grad():
        return [float(algorithm.model.critic(state.expand(8, 2), actions).mean()) for state in torch.eye(2)]


@pytest.mark.parametrize(("name", "hyper"), [*KINDS, pytest.param("rlpd", SPARSE, id="rlpd_sparse")])
def test_a_reward_one_step_away_is_discounted_once(name: str, hyper: dict[str, Any]) -> None:
    # 1 + 0.9 * 2 = 2.8, and 2.
    algorithm = _learn(name, _chain(), updates=300, alpha=0.0, **hyper)
    assert _values(algorithm) == pytest.approx([2.8, 2.0], rel=0.03)


@pytest.mark.parametrize(("backup_entropy", "expected"), [(True, 3.4153), (False, 2.8)])
def test_entropy_is_part_of_a_value_one_step_away_only_with_backup_entropy(
    backup_entropy: bool, expected: float
) -> None:
    # Where all actions are worth the same, the policy becomes the tanh-Gaussian of most entropy: 0.6836 at a deviation
    # of 0.87 by quadrature, little less than the log(2) of a uniform one. 1 + 0.9 * (2 + 1 * 0.6836) = 3.4153.
    algorithm = _learn("rlpd", _chain(), updates=300, alpha=1.0, backup_entropy=backup_entropy, **FEW)
    assert _values(algorithm) == pytest.approx([expected, 2.0], rel=0.03)
