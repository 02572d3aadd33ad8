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


def _bandit(count: int = 128) -> Batch:
    """One state, one step: r = -(a - 0.3)^2."""
    actions = _grid(count)
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


SMALL: dict[str, Any] = {"hidden_sizes": (32, 32), "learning_rate": 5e-3, "tau": 0.1}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "hyper"), KINDS)
def test_the_policy_takes_the_best_action_of_a_bandit(name: str, hyper: dict[str, Any]) -> None:
    # r = -(a - 0.3)^2, and the task ends. At a temperature of 0.01 the best tanh-Gaussian, found on a grid of means and
    # deviations, has the middle 0.301.
    algorithm = _learn(name, _bandit(64), updates=400, alpha=0.01, **SMALL, **hyper)
    assert abs(float(algorithm.act(torch.ones(1, 1))) - 0.3) < 0.05


def _short_chain() -> Batch:
    """State 0 pays 1 and leads to state 1, which pays 2 and ends the task, whatever the action."""
    states = torch.eye(2)
    actions = _grid(16)
    return {
        "obs": states.repeat_interleave(16, dim=0),
        "actions": actions.repeat(2, 1),
        "rewards": torch.tensor([1.0, 2.0]).repeat_interleave(16),
        "next_obs": states[[1, 1]].repeat_interleave(16, dim=0),
        "dones": torch.tensor([0.0, 1.0]).repeat_interleave(16),
    }


def _mean_values(algorithm: Algorithm) -> list[float]:
    """What the critics say on average of either state, over actions within the data."""
    actions = _grid(8)
    with torch.no_grad():
        return [float(algorithm.model.critic(state.expand(8, 2), actions).mean()) for state in torch.eye(2)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "hyper"), [*KINDS, pytest.param("rlpd", SPARSE, id="rlpd_sparse")])
def test_a_reward_one_step_away_is_discounted_once(name: str, hyper: dict[str, Any]) -> None:
    # 1 + 0.9 * 2 = 2.8, and 2.
    algorithm = _learn(name, _short_chain(), updates=300, alpha=0.0, **SMALL, **hyper)
    assert _mean_values(algorithm) == pytest.approx([2.8, 2.0], rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize(("backup_entropy", "expected"), [(True, 3.4153), (False, 2.8)])
def test_entropy_is_part_of_a_value_one_step_away_only_with_backup_entropy(
    backup_entropy: bool, expected: float
) -> None:
    # Where all actions are worth the same, the policy becomes the tanh-Gaussian of most entropy: 0.6836 at a deviation
    # of 0.87 by quadrature, little less than the log(2) of a uniform one. 1 + 0.9 * (2 + 1 * 0.6836) = 3.4153.
    algorithm = _learn("rlpd", _short_chain(), updates=300, alpha=1.0, backup_entropy=backup_entropy, **SMALL, **FEW)
    assert _mean_values(algorithm) == pytest.approx([expected, 2.0], rel=0.03)


HYPER: dict[str, dict[str, Any]] = {
    "tqc": {"hidden_sizes": (64, 64), "num_quantiles": 5, "dropped_quantiles": 1, "tau": 0.2},
    # With so few updates, running statistics have to follow faster, and the actor must not miss any.
    "crossq": {"hidden_sizes": (32, 32), "critic_hidden_sizes": None, "norm_momentum": 0.1, "policy_delay": 1},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HYPER)
def test_the_policy_of_a_bandit_is_its_best_action(name: str) -> None:
    # The policy's deviation is about sqrt(alpha / 2) = 0.16: it sees the slope of its critics over so wide a range,
    # and not at one point, where that of linear pieces may be far off.
    algorithm = _learn(name, _bandit(64), updates=400, learning_rate=5e-3, alpha=0.05, **HYPER[name])
    assert float(algorithm.act(torch.ones(1, 1))) == pytest.approx(0.3, abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", HYPER)
def test_a_later_reward_is_discounted_once_per_step(name: str) -> None:
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
    algorithm = _learn(name, data, updates=200, learning_rate=5e-3, alpha=0.0, **HYPER[name])
    for action in (-0.5, 0.0, 0.5):
        with torch.no_grad():
            values = algorithm.model.critic(states, torch.full((3, 1), action)).mean(0)
        assert values.tolist() == pytest.approx([GAMMA, 1.0, -1.0], abs=0.05)
