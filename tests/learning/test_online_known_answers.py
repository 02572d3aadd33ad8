"""What online algorithms make of tasks whose values and policies are known exactly, in seconds.

Every update sees all transitions there are, as if a replay buffer held each of them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from families import cases
from torch import Tensor

from rl_training.algorithms import ALGORITHMS, Algorithm
from rl_training.core.batches import Batch
from rl_training.core.spaces import BoxActions, SpaceSpec

GAMMA = 0.9
NAMES = ("ddpg", "td3", "sac")


def _learn(name: str, batch: Batch, *, updates: int, **hyper: Any) -> Algorithm:
    torch.manual_seed(0)
    cls = ALGORITHMS[name]
    obs_dim, action_dim = batch["obs"].shape[-1], batch["actions"].shape[-1]
    spaces = SpaceSpec.vector(obs_dim, BoxActions((-1.0,) * action_dim, (1.0,) * action_dim))
    algorithm = cls.build(spaces, cls.hyper_class(**{"hidden_sizes": (64, 64), "gamma": GAMMA, **hyper}))
    for update in range(updates):
        # A falling step size, since at a constant one the answer would keep trembling.
        algorithm.set_learning_rate_multiplier(1 - update / updates)
        algorithm.update(batch)
    return algorithm


def _grid(count: int) -> Tensor:
    """The middles of equal parts of [-1, 1], as a column."""
    return torch.linspace(-1, 1, 2 * count + 1)[1::2, None]


def _bandit() -> Batch:
    """One state, one step: r = -(a - 0.3)^2."""
    actions = _grid(128)
    ones = torch.ones_like(actions)
    rewards = -(actions[:, 0] - 0.3).square()
    return {"obs": ones, "actions": actions, "rewards": rewards, "next_obs": ones, "dones": ones[:, 0]}


# A deterministic actor climbs a critic of linear pieces, whose peak is where the true one is only if they are many; and
# it must not run into the bounds, where its tanh has no slope left, before the critic has a peak.
@pytest.mark.parametrize(
    ("name", "hyper"),
    cases(
        [
            ("ddpg", {"hidden_sizes": (128, 128), "actor_learning_rate": 5e-4}),
            ("td3", {"hidden_sizes": (128, 128), "actor_learning_rate": 5e-4}),
            ("sac", {"alpha": 0.01}),
        ]
    ),
)
def test_the_best_action_of_a_bandit_is_found(name: str, hyper: dict[str, Any]) -> None:
    # With a temperature of 0.01 the best squashed Gaussian has its middle at 0.3016.
    algorithm = _learn(name, _bandit(), updates=800, learning_rate=3e-3, **hyper)
    assert float(algorithm.act(torch.ones(1, 1))) == pytest.approx(0.3, abs=0.05)


def test_the_temperature_settles_where_the_entropy_is_the_one_asked_for() -> None:
    # The best policy is nearly normal with variance alpha / 2. An entropy of ln(2 pi e variance) / 2 = -1, minus the
    # dimension, needs a variance of 0.00792 and so alpha = 0.01585; numerically, for a squashed normal, 0.01602.
    algorithm = _learn("sac", _bandit(), updates=800, learning_rate=3e-3, temperature_learning_rate=3e-2)
    torch.manual_seed(1)
    metrics = algorithm.losses(_bandit())
    assert float(metrics["temperature"]) == pytest.approx(0.01602, rel=0.1)
    # The mean over 128 samples of a log-density with deviation 0.7 is known to 0.06.
    assert float(metrics["entropy"]) == pytest.approx(-1.0, abs=0.2)


# Values that do not depend on the policy. State 0 leads to 1 and 1 to 2, without reward; 2 pays 1 and terminates.
# State 3 pays 1 and leads to itself, but the episode is cut there. State 4 pays 1 and terminates.
VALUES = (0.81, 0.9, 1.0, 10.0, 1.0)
CUT = (0.0, 0.0, 0.0, 1.0, 0.0)
SAMPLES: dict[int, dict[str, tuple[float, ...]]] = {
    1: {
        "rewards": (0.0, 0.0, 1.0, 1.0, 1.0),
        "successors": (1, 2, 2, 3, 4),
        "dones": (0.0, 0.0, 1.0, 0.0, 1.0),
    },
    # Sums over up to two steps, each with the discount of its length: windows stop at an end, of whatever kind.
    2: {
        "rewards": (0.0, 0.9, 1.0, 1.0, 1.0),
        "successors": (2, 2, 2, 3, 4),
        "dones": (0.0, 1.0, 1.0, 0.0, 1.0),
        "discounts": (0.81, 0.81, 0.9, 0.9, 0.9),
    },
}


def _chain(steps: int, actions: int = 16) -> Batch:
    """All states with each of some actions, a state being one of five directions."""
    directions, columns = torch.eye(5), dict(SAMPLES[steps])
    following = directions[list(map(int, columns.pop("successors")))]
    return {
        "obs": directions.repeat(actions, 1),
        "actions": _grid(actions).repeat_interleave(5, dim=0),
        "next_obs": following.repeat(actions, 1),
        "truncations": torch.tensor(CUT).repeat(actions),
        **{name: torch.tensor(values).repeat(actions) for name, values in columns.items()},
    }


@cache
def _values(name: str, steps: int) -> Tensor:
    """What the critics, (E, actions, state), think of the five states at some actions."""
    entropy_free = {"alpha": 0.0} if name == "sac" else {}
    algorithm = _learn(name, _chain(steps), updates=600, learning_rate=5e-3, tau=0.2, **entropy_free)
    return _critic_values(algorithm, torch.eye(5))


def _critic_values(algorithm: Algorithm, obs: Tensor) -> Tensor:
    taken = torch.tensor([-0.5, 0.0, 0.5]).repeat_interleave(len(obs))[:, None]
    with torch.no_grad():
        values: Tensor = algorithm.model.critic(obs.repeat(3, 1), taken)
    return values.reshape(-1, 3, len(obs))


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("name", cases(NAMES))
def test_a_reward_is_discounted_once_per_step_to_it_however_many_a_sample_has(name: str, steps: int) -> None:
    expected = torch.tensor(VALUES[:3]).expand(3, 3)
    for values in _values(name, steps):
        torch.testing.assert_close(values[:, :3], expected, rtol=0.03, atol=0.03)


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("name", cases(NAMES))
def test_a_step_that_is_cut_bootstraps_and_one_that_terminates_does_not(name: str, steps: int) -> None:
    # Both pay 1. V = 1 + 0.9 V gives 10; without the bootstrap it is 1.
    expected = torch.tensor(VALUES[3:]).expand(3, 2)
    for values in _values(name, steps):
        torch.testing.assert_close(values[:, 3:], expected, rtol=0.03, atol=0.03)


def test_sacs_values_have_the_entropy_of_later_states_in_them() -> None:
    # Nothing depends on the action, so the policy is the squashed normal of most entropy: deviation 0.8744, entropy
    # 0.683636. State 2 pays 1 and ends, whatever the entropy of its own action. State 1 is worth 0.9 (1 + 0.5 H) =
    # 1.207636 and state 0 0.9 (1.207636 + 0.5 H) = 1.394509. Where state 3 is cut, V = 1 + 0.9 (V + 0.5 H) gives
    # 10 + 4.5 H = 13.076362; state 4 is worth 1.
    algorithm = _learn("sac", _chain(1), updates=600, learning_rate=5e-3, tau=0.2, alpha=0.5)
    expected = torch.tensor([1.394509, 1.207636, 1.0, 13.076362, 1.0]).expand(3, 5)
    for values in _critic_values(algorithm, torch.eye(5)):
        torch.testing.assert_close(values, expected, rtol=0.03, atol=0.03)


@pytest.mark.parametrize("name", cases(NAMES))
def test_critics_learn_a_few_terminal_transitions_by_heart(name: str) -> None:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    batch = {"obs": normal(64, 4), "actions": normal(64, 2).tanh(), "rewards": normal(64), "next_obs": normal(64, 4)}
    batch["dones"] = torch.ones(64)
    algorithm = _learn(name, batch, updates=500, learning_rate=3e-3)
    assert float(algorithm.losses(batch)["critic_loss"]) < 1e-3
