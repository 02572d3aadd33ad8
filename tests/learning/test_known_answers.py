"""Tasks so small that value and policy are known exactly, learned in seconds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rl_training.algorithms import ALGORITHMS, Algorithm
from rl_training.types import Batch, SpaceSpec

GAMMA = 0.9
WITH_CRITICS = [name for name, cls in ALGORITHMS.items() if "dones" in cls.needs]


def _learn(name: str, data: Batch, *, updates: int = 1500, **hyper: Any) -> Algorithm:
    """Train small networks on one-dimensional observations and actions."""
    torch.manual_seed(0)
    cls = ALGORITHMS[name]
    settings = {"hidden_sizes": (32, 32), "learning_rate": 3e-3, **hyper}
    algorithm = cls.build(SpaceSpec(1, 1, (-1.0,), (1.0,)), cls.hyper_class(**settings))
    generator = torch.Generator().manual_seed(0)
    for update in range(updates):
        # A falling step size, since at a constant one the answer would keep trembling.
        algorithm.set_learning_rate_multiplier(1 - update / updates)
        rows = torch.randint(len(data["obs"]), (128,), generator=generator)
        algorithm.update({field: data[field][rows] for field in cls.needs})
    return algorithm


def _data(obs: Tensor, actions: Tensor, rewards: Tensor, next_obs: Tensor, dones: Tensor) -> Batch:
    return {
        "obs": obs[:, None],
        "actions": actions[:, None],
        "rewards": rewards,
        "next_obs": next_obs[:, None],
        "dones": dones,
    }


def _uniform(rows: int = 4000) -> Tensor:
    return torch.rand(rows, generator=torch.Generator().manual_seed(1)) * 2 - 1


def _bandit(rewards: Tensor, obs: Tensor | None = None) -> Batch:
    """One step, then termination."""
    obs = torch.zeros_like(rewards) if obs is None else obs
    return _data(obs, _uniform(len(rewards)), rewards, obs, torch.ones_like(rewards))


def _value(algorithm: Algorithm, obs: float, action: float = 0.0) -> float:
    with torch.no_grad():
        return float(algorithm.model.critic(torch.tensor([[obs]]), torch.tensor([[action]])).amin())


def _action(algorithm: Algorithm, obs: float = 0.0) -> float:
    return float(algorithm.act(torch.tensor([[obs]])))


CRITIC: dict[str, Any] = {"gamma": GAMMA, "tau": 0.05}


@pytest.mark.parametrize("name", WITH_CRITICS)
def test_a_constant_reward_is_the_value(name: str) -> None:
    algorithm = _learn(name, _bandit(torch.ones(4000)), **CRITIC)
    assert _value(algorithm, 0.0) == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("name", WITH_CRITICS)
def test_the_value_follows_the_observation(name: str) -> None:
    obs = _uniform().sign()
    algorithm = _learn(name, _bandit(obs, obs), **CRITIC)
    assert [_value(algorithm, state) for state in (-1.0, 1.0)] == pytest.approx([-1.0, 1.0], abs=0.05)


@pytest.mark.parametrize("name", WITH_CRITICS)
def test_a_reward_one_step_away_is_discounted_once(name: str) -> None:
    # State 0 leads to state 1 without reward; there the reward is 1 and the task ends.
    state = (torch.arange(4000) % 2).float()
    data = _data(state, _uniform(), state, torch.ones_like(state), state)
    algorithm = _learn(name, data, **CRITIC)
    assert [_value(algorithm, 0.0), _value(algorithm, 1.0)] == pytest.approx([GAMMA, 1.0], abs=0.05)


@pytest.mark.parametrize(("terminated", "expected"), [(True, [2.8, 2.0]), (False, [19.0, 20.0])])
@pytest.mark.parametrize("name", WITH_CRITICS)
def test_a_time_limit_bootstraps_and_a_termination_does_not(name: str, terminated: bool, expected: list[float]) -> None:
    # s0 pays 1 and leads to s1, which pays 2. If s1 terminates, V1 = 2 and V0 = 1 + 0.9 * 2 = 2.8. If it is only cut,
    # with s1 as its own successor, V1 = 2 / (1 - 0.9) = 20 and V0 = 1 + 0.9 * 20 = 19.
    state = (torch.arange(4000) % 2).float()
    data = _data(state, _uniform(), 1 + state, torch.ones_like(state), state * terminated)
    algorithm = _learn(name, data, updates=3000, **CRITIC)
    assert [_value(algorithm, 0.0), _value(algorithm, 1.0)] == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(("bc_alpha", "expected"), [(0.5, 0.178963), (2.5, 0.359178), (10.0, 0.454631)])
def test_td3_bc_weighs_value_against_cloning_as_computed(bc_alpha: float, expected: float) -> None:
    # r = 1 - (a - 0.5)^2 with uniform actions: cloning pulls to 0 with slope 2 p, value to 0.5 with slope
    # 2 bc_alpha (0.5 - p) / (1 - (p - 0.5)^2); the policy settles where they are equal.
    actions = _uniform(20_000)
    zeros = torch.zeros_like(actions)
    data = _data(zeros, actions, 1 - (actions - 0.5).square(), zeros, zeros + 1)
    algorithm = _learn("td3_bc", data, updates=4000, bc_alpha=bc_alpha, **CRITIC)
    assert _action(algorithm) == pytest.approx(expected, abs=0.03)


def test_td3_bc_learns_an_action_that_depends_on_the_observation() -> None:
    actions, obs = _uniform(), _uniform().roll(1).sign()
    data = _data(obs, actions, -4 * (actions - 0.5 * obs).square(), obs, torch.ones_like(obs))
    algorithm = _learn("td3_bc", data, updates=3000, bc_alpha=40.0, **CRITIC)
    assert [_action(algorithm, -1.0), _action(algorithm, 1.0)] == pytest.approx([-0.5, 0.5], abs=0.05)


def test_cloning_uniform_actions_gives_their_mean() -> None:
    assert _action(_learn("bc", _bandit(torch.zeros(4000)))) == pytest.approx(0.0, abs=0.03)
