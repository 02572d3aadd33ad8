"""Tasks so small that value and policy are known exactly, learned in seconds.

Every update sees all of the data: what is learned then settles instead of trembling with the draw of batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from families import cases
from torch import Tensor, nn

from rl_training.algorithms import ALGORITHMS, Algorithm
from rl_training.core.batches import Rollout
from rl_training.core.spaces import BoxActions, DiscreteActions, SpaceSpec
from rl_training.data import TransitionDataset, with_annotations

GAMMA = 0.9
SMALL: dict[str, Any] = {
    "hidden_sizes": (32, 32),
    "critic_hidden_sizes": None,
    "vae_hidden_sizes": (32, 32),
    "learning_rate": 1e-2,
    "actor_learning_rate": None,
    "value_learning_rate": None,
    "gamma": GAMMA,
    "tau": 0.05,
    "recompute_interval": 20,
    "num_target_samples": 2,
    "value_scale": 10.0,
}
"""Settings for small tasks, each for the algorithms that have it."""

WIDER: dict[str, Any] = {"hidden_sizes": (64, 64), "learning_rate": 5e-3}
"""Where all of a narrow network's units may die in one state, or where the slope of a critic counts."""


def _build(name: str, obs_dim: int, **hyper: Any) -> Algorithm:
    torch.manual_seed(0)
    cls = ALGORITHMS[name]
    small = {key: value for key, value in SMALL.items() if key in cls.hyper_class.__dataclass_fields__}
    actions = BoxActions((-1.0,), (1.0,)) if "continuous" in cls.action_kinds else DiscreteActions(2)
    return cls.build(SpaceSpec.vector(obs_dim, actions), cls.hyper_class(**{**small, **hyper}))


def _learn(name: str, dataset: TransitionDataset, *, updates: int, **hyper: Any) -> Algorithm:
    algorithm = _build(name, dataset.obs_dim, **hyper)
    return _train(algorithm, dataset, updates=updates)


def _train(algorithm: Algorithm, dataset: TransitionDataset, *, updates: int) -> Algorithm:
    dataset = dataset.with_returns_to_go(gamma=GAMMA)
    for update in range(updates):
        if algorithm.annotates and update % algorithm.hyper.recompute_interval == 0:
            dataset = with_annotations(dataset, algorithm.annotate, standardizes=algorithm.standardizes)
        # A falling step size, since at a constant one the answer would keep trembling.
        algorithm.set_learning_rate_multiplier(1 - update / updates)
        algorithm.update({field: dataset.fields[field] for field in algorithm.needs})
    return algorithm


def _action(algorithm: Algorithm, obs: float = 1.0) -> float:
    return float(algorithm.act(torch.tensor([[obs]])))


# Values that do not depend on the policy, since neither rewards nor successors depend on the action.

REWARDS = (1.0, -1.0, 0.0, 1.0, 1.0, 2.0, 1.0, 2.0)
SUCCESSORS = (0, 1, 3, 3, 5, 5, 7, 7)
TERMINATED = (True, True, False, True, False, True, False, False)
CUT = (False, False, False, False, False, False, False, True)
"""States 0 and 1 end at once; 2 leads to 3, 4 to 5 and 6 to 7, where the episode terminates or, last, is only cut."""

WITH_VALUES = [name for name, cls in ALGORITHMS.items() if name != "bc" and not isinstance(cls.reads, Rollout)]
EXACT: dict[str, dict[str, Any]] = {
    "discrete_cql": {"conservative_weight": 0.0},
    "discrete_sac": {"alpha": 0.0},
    "dqn": {"target_update_interval": 1},
    "rebrac": {"critic_bc_weight": 0.0},
    "redq": {"alpha": 0.0, "num_critics": 3, "policy_delay": 2},
    "rlpd": {"alpha": 0.0, "num_critics": 3, "policy_delay": 2},
    "cql": {"conservative_weight": 0.0, "alpha": 0.1, "num_action_samples": 1},
    "cal_ql": {"conservative_weight": 0.0, "conservative_gap": None, "alpha": 0.1, "num_action_samples": 1},
    "sac": {"alpha": 0.0},
    "her": {"alpha": 0.0},
    "tqc": {"alpha": 0.0, "num_quantiles": 5, "dropped_quantiles": 0},
    # With so few updates, running statistics have to follow faster.
    "crossq": {"alpha": 0.0, "norm_momentum": 0.1},
    "sac_n": {"alpha": 0.0, "num_critics": 3},
    "edac": {"alpha": 0.0, "num_critics": 3, "diversity_weight": 0.1},
}
"""What keeps penalties and entropy, which are no part of the answers below, out of the values."""


def _chains(actions: int = 16) -> TransitionDataset:
    """All states with each of some actions, a state being one of eight directions."""
    directions = np.eye(8, dtype=np.float32)
    taken = np.repeat(_grid(-1, 1, actions), 8, axis=0)
    # Next actions are all at the same distance from 0, whatever the action was.
    following = np.repeat([[0.5], [-0.5]] * (actions // 2), 8, axis=0)
    return TransitionDataset.from_dict(
        {
            "obs": np.tile(directions, (actions, 1)),
            "next_obs": np.tile(directions[list(SUCCESSORS)], (actions, 1)),
            "actions": taken,
            "next_actions": following,
            "rewards": np.tile(REWARDS, actions),
            "dones": np.tile(TERMINATED, actions),
            "truncations": np.tile(CUT, actions),
        }
    )


def _grid(low: float, high: float, count: int) -> Any:
    """The middles of equal parts of an interval: means over them are almost those over the interval."""
    return np.linspace(low, high, 2 * count + 1)[1::2, None].astype(np.float32)


def _state_values(algorithm: Algorithm) -> list[Tensor]:
    """What every network that knows values thinks of the eight states."""
    obs, found = torch.eye(8), []
    with torch.no_grad():
        if algorithm.action_space.kind == "discrete":
            found += [algorithm.model.values(obs, torch.full((8,), action)) for action in (0, 1)]
        elif hasattr(algorithm.model, "critic"):
            found += [algorithm.model.critic(obs, torch.full((8, 1), action)).amin(0) for action in (-0.5, 0.0, 0.5)]
        if hasattr(algorithm.model, "value"):
            found.append(algorithm.model.value(obs))
    return found


@cache
def _probe(name: str, **hyper: Any) -> list[Tensor]:
    # Values come soon from the end of a chain to its beginning.
    names = ALGORITHMS[name].hyper_class.__dataclass_fields__
    fast = {key: value for key, value in (("recompute_interval", 5), ("tau", 0.2)) if key in names}
    chains = _chains()
    if "continuous" not in ALGORITHMS[name].action_kinds:
        chains = chains.map_actions(lambda actions: (actions[:, 0] > 0).long())
    return _state_values(_learn(name, chains, updates=600, **WIDER, **fast, **EXACT.get(name, {}), **hyper))


def _assert_values(found: Sequence[Tensor], expected: dict[int, float]) -> None:
    assert found
    for values in found:
        learned = {state: float(values[state]) for state in expected}
        assert learned == {state: pytest.approx(value, rel=0.03, abs=0.05) for state, value in expected.items()}


@pytest.mark.parametrize("name", cases(WITH_VALUES))
def test_the_reward_before_termination_is_the_value_of_its_state(name: str) -> None:
    _assert_values(_probe(name), {0: 1.0, 1: -1.0})


@pytest.mark.parametrize("name", cases(WITH_VALUES))
def test_a_reward_one_step_away_is_discounted_once(name: str) -> None:
    # State 2 leads to state 3 without reward; there the reward is 1 and the task ends.
    _assert_values(_probe(name), {2: GAMMA, 3: 1.0})


@pytest.mark.parametrize(("states", "expected"), [((4, 5), (2.8, 2.0)), ((6, 7), (19.0, 20.0))])
@pytest.mark.parametrize("name", cases(WITH_VALUES))
def test_a_time_limit_bootstraps_and_a_termination_does_not(
    name: str, states: tuple[int, int], expected: tuple[float, float]
) -> None:
    # s0 pays 1 and leads to s1, which pays 2. If s1 terminates, V1 = 2 and V0 = 1 + 0.9 * 2 = 2.8. If it is only cut,
    # with s1 as its own successor, V1 = 2 / (1 - 0.9) = 20 and V0 = 1 + 0.9 * 20 = 19.
    _assert_values(_probe(name), dict(zip(states, expected, strict=True)))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "iql" else pytest.mark.slow) for name in WITH_VALUES]
)
def test_values_are_the_same_with_products_in_bfloat16(name: str) -> None:
    # A number in bfloat16 has 8 bits, and is off by up to 0.4 %. The tolerances are those of float32 all the same.
    known = {0: 1.0, 1: -1.0, 2: GAMMA, 3: 1.0, 4: 2.8, 5: 2.0, 6: 19.0, 7: 20.0}
    _assert_values(_probe(name, precision="bfloat16"), known)


@pytest.mark.slow
def test_rebrac_subtracts_the_distance_to_the_next_action_where_it_bootstraps() -> None:
    # The actor clones, so it takes 0 where 0.5 or -0.5 was logged: 0.4 * 0.5^2 = 0.1 is taken off each next value.
    # 0.9 * (1 - 0.1) = 0.81; 1 + 0.9 * (2 - 0.1) = 2.71; V = 2 + 0.9 * (V - 0.1) gives 19.1, before it 1 + 0.9 * 19 =
    # 18.1. Where the task ends nothing is taken off.
    algorithm = _learn(
        "rebrac",
        _chains(),
        updates=800,
        tau=0.2,
        **WIDER,
        actor_bc_weight=100.0,
        critic_bc_weight=0.4,
        policy_noise=0.0,
    )
    expected = {0: 1.0, 1: -1.0, 2: 0.81, 3: 1.0, 4: 2.71, 5: 2.0, 6: 18.1, 7: 19.1}
    for values in _state_values(algorithm):
        learned = {state: float(values[state]) for state in expected}
        assert learned == {state: pytest.approx(value, rel=0.015, abs=0.03) for state, value in expected.items()}


# One state, one step: r = offset - (a - 0.5)^2 with uniform actions.


def _bandit(*, offset: float = 0.0, low: float = -1.0, high: float = 1.0) -> TransitionDataset:
    actions = _grid(low, high, 128)
    ones = np.ones_like(actions)
    return TransitionDataset.from_dict(
        {
            "obs": ones,
            "next_obs": ones,
            "actions": actions,
            "next_actions": actions,
            "rewards": offset - (actions[:, 0] - 0.5) ** 2,
            "dones": ones[:, 0],
            "truncations": 0 * ones[:, 0],
        }
    )


@cache
def _bandit_policy(name: str, *, updates: int = 400, low: float = -1.0, high: float = 1.0, **hyper: Any) -> Algorithm:
    return _learn(name, _bandit(low=low, high=high), updates=updates, **hyper)


def _bandit_value(algorithm: Algorithm) -> float:
    with torch.no_grad():
        return float(algorithm.model.value(torch.ones(1, 1)))


def _q_values(algorithm: Algorithm, low: float, high: float) -> Tensor:
    """What the critics (E, B) think of actions within bounds."""
    actions = torch.linspace(low, high, 51)[:, None]
    with torch.no_grad():
        values: Tensor = algorithm.model.critic(torch.ones_like(actions), actions)
    return values


@pytest.mark.parametrize(
    ("expectile", "beta", "expected"),
    [
        pytest.param(0.5, 1.0, -0.583333, marks=pytest.mark.slow),
        pytest.param(0.7, 3.0, -0.380192, marks=pytest.mark.slow),
        (0.9, 10.0, -0.179098),
    ],
)
def test_iqls_value_is_the_expectile_of_the_rewards(expectile: float, beta: float, expected: float) -> None:
    # The root of expectile * E max(r - v, 0) = (1 - expectile) * E max(v - r, 0); 0.5 gives the mean, -7 / 12.
    value = _bandit_value(_bandit_policy("iql", expectile=expectile, beta=beta))
    assert value == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize(
    ("expectile", "beta", "expected"),
    [pytest.param(0.7, 3.0, 3.1286, marks=pytest.mark.slow), (0.9, 10.0, 5.9953)],
)
def test_iqls_largest_weight_is_that_of_the_best_action(expectile: float, beta: float, expected: float) -> None:
    # exp(beta * (0 - v)) with the value above: exp(3 * 0.380192) and exp(10 * 0.179098); far from the bound of 100.
    algorithm, data = _bandit_policy("iql", expectile=expectile, beta=beta), _bandit()
    metrics = algorithm.losses({field: data.fields[field] for field in algorithm.needs})
    assert float(metrics["weight_max"]) == pytest.approx(expected, rel=0.1)
    assert float(metrics["weight_clip_fraction"]) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss_temperature", "beta", "expected"), [(0.1, 10.0, -0.128483), (1.0, 1.0, -0.417434), (5.0, 3.0, -0.543007)]
)
def test_xqls_value_is_the_soft_maximum_of_the_rewards(loss_temperature: float, beta: float, expected: float) -> None:
    # loss_temperature * log E exp(r / loss_temperature): towards the best reward, 0, or the mean one, -0.583333.
    value = _bandit_value(_bandit_policy("xql", loss_temperature=loss_temperature, beta=beta))
    assert value == pytest.approx(expected, abs=0.01)


REWARD_STD = 0.649786
"""The deviation of the rewards: E (a - 0.5)^4 - (7 / 12)^2 = 0.7625 - 0.340278 = 0.422222, the square of it."""


@pytest.mark.parametrize(
    ("name", "inverse", "hyper"),
    cases(
        [
            ("iql", 1, {"expectile": 0.5, "beta": 1.0}),
            ("iql", 3, {"expectile": 0.7, "beta": 3.0}),
            ("iql", 10, {"expectile": 0.9, "beta": 10.0}),
            ("xql", 1, {"loss_temperature": 1.0, "beta": 1.0}),
            ("xql", 3, {"loss_temperature": 5.0, "beta": 3.0}),
            ("xql", 10, {"loss_temperature": 0.1, "beta": 10.0}),
            ("awac", 1, {"awac_lambda": 1.0}),
            ("awac", 3, {"awac_lambda": 1 / 3, "baseline": "mean"}),
            ("awac", 3, {"awac_lambda": 1 / 3, "baseline": "mean", "weights": "softmax"}),
            ("awac", 10, {"awac_lambda": 0.1, "baseline": "mean"}),
            # A baseline that is sampled may be far below the best; a bound would then cut the weights.
            ("crr", 1, {"beta": 1.0, "max_weight": 1e4}),
            ("crr", 3, {"beta": 1 / 3, "max_weight": 1e4}),
            ("crr", 10, {"beta": 0.1, "max_weight": 1e4}),
            # Advantages are divided by the deviation of the rewards, over the data or as the running scale has it.
            ("awr", 1, {"temperature": 1 / REWARD_STD}),
            ("awr", 3, {"temperature": 1 / (3 * REWARD_STD)}),
            ("awr", 10, {"temperature": 1 / (10 * REWARD_STD), "max_weight": 1e4}),
            ("marwil", 1, {"beta": REWARD_STD, "scale_rate": 0.1}),
            ("marwil", 3, {"beta": 3 * REWARD_STD, "scale_rate": 0.1}),
            ("marwil", 10, {"beta": 10 * REWARD_STD, "scale_rate": 0.1, "max_weight": 1e4}),
        ]
    ),
)
def test_a_policy_weighted_by_exponentials_has_the_weighted_mean(
    name: str, inverse: int, hyper: dict[str, Any]
) -> None:
    # E a exp(k r) / E exp(k r) for k = 1, 3, 10: what is subtracted from r is the same for all actions and cancels.
    expected = {1: 0.244434, 3: 0.413728, 10: 0.492584}[inverse]
    assert _action(_bandit_policy(name, **hyper)) == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("name", cases(["awr", "marwil"]))
def test_the_value_that_returns_are_compared_with_is_the_mean_reward(name: str) -> None:
    algorithm = _bandit_policy(name, updates=200)
    assert _bandit_value(algorithm) == pytest.approx(-0.583333, abs=0.01)


@pytest.mark.parametrize(
    ("name", "hyper"),
    cases(
        [
            ("bc", {}),
            ("bc", {"policy": "stochastic"}),
            ("crr", {"weights": "constant"}),
            ("iql", {"beta": 0.0}),
            ("marwil", {"beta": 0.0}),
            ("awr", {"temperature": 1e9}),
        ]
    ),
)
def test_cloning_uniform_actions_gives_their_mean(name: str, hyper: dict[str, Any]) -> None:
    assert _action(_bandit_policy(name, updates=200, **hyper)) == pytest.approx(0.0, abs=0.02)


class ExactCritic(nn.Module):
    """Two critics that know the reward."""

    def forward(self, obs: Tensor, actions: Tensor, *, first: int = 2) -> Tensor:
        values = 1 - (actions[..., 0] - 0.5).square()
        return torch.stack([values] * first)


def _with_exact_critic(name: str, **hyper: Any) -> Algorithm:
    algorithm = _build(name, 1, policy_delay=1, **hyper)
    algorithm.model.critic = ExactCritic()
    algorithm.steps = tuple(step for step in algorithm.steps if step.name == "actor")
    return algorithm


@pytest.mark.parametrize(
    ("name", "hyper", "expected"),
    [
        ("td3_bc", {"bc_alpha": 0.5}, 0.178963),
        ("td3_bc", {"bc_alpha": 2.5}, 0.359178),
        ("td3_bc", {"bc_alpha": 10.0}, 0.454631),
        ("rebrac", {"actor_bc_weight": 1.0}, 0.257569),
        ("rebrac", {"actor_bc_weight": 0.1}, 0.454631),
        ("rebrac", {"actor_bc_weight": 0.01}, 0.495050),
        ("rebrac", {"actor_bc_weight": 0.001}, 0.499500),
    ],
)
def test_value_is_weighed_against_cloning_as_computed(name: str, hyper: dict[str, Any], expected: float) -> None:
    # Cloning pulls to 0 with slope 2 w p and value to 0.5 with slope 2 (0.5 - p) / (1 - (p - 0.5)^2); the policy
    # settles where they are equal, w being 1 / bc_alpha or actor_bc_weight.
    algorithm = _train(_with_exact_critic(name, **hyper), _bandit(), updates=300)
    assert _action(algorithm) == pytest.approx(expected, abs=1e-3)


def test_with_one_dimension_and_inverse_weights_rebrac_and_td3_bc_have_the_same_policy() -> None:
    # One loss is 10 times the other, which Adam does not see.
    td3_bc = _with_exact_critic("td3_bc", bc_alpha=10.0)
    rebrac = _with_exact_critic("rebrac", actor_bc_weight=0.1)
    rebrac.model.actor.load_state_dict(td3_bc.model.actor.state_dict())
    learning = [_action(_train(algorithm, _bandit(), updates=30)) for algorithm in (td3_bc, rebrac)]
    assert learning[0] == pytest.approx(learning[1], abs=1e-4)


@pytest.mark.parametrize(
    ("name", "hyper", "expected"),
    cases([("td3_bc", {"bc_alpha": 2.5}, 0.359178), ("rebrac", {"actor_bc_weight": 0.1}, 0.454631)]),
)
def test_value_is_weighed_against_cloning_with_critics_that_are_learned(
    name: str, hyper: dict[str, Any], expected: float
) -> None:
    algorithm = _learn(name, _bandit(offset=1.0), updates=800, **WIDER, **hyper)
    # A critic of linear pieces has the right slope only on average.
    assert _action(algorithm) == pytest.approx(expected, abs=0.06)


@pytest.mark.slow
def test_td3_bc_learns_an_action_that_depends_on_the_observation() -> None:
    actions = np.concatenate([_grid(-1, 1, 64)] * 2)
    obs = np.repeat([[-1.0], [1.0]], 64, axis=0)
    data = TransitionDataset.from_dict(
        {
            "obs": obs,
            "next_obs": obs,
            "actions": actions,
            "rewards": -4 * (actions - 0.5 * obs)[:, 0] ** 2,
            "dones": np.ones(128),
        }
    )
    algorithm = _learn("td3_bc", data, updates=800, bc_alpha=40.0, **WIDER)
    assert [_action(algorithm, -1.0), _action(algorithm, 1.0)] == pytest.approx([-0.5, 0.5], abs=0.1)


SUPPORT: dict[str, Any] = {
    **WIDER,
    "updates": 500,
    # At the usual weight, the model of so little data ignores its latents and knows the mean action only.
    "vae_kl_weight": 0.05,
}
BEAR: dict[str, Any] = {"mmd_warmup_updates": 125, "lagrange_learning_rate": 5e-2}


# Latents are clipped, so that BCQ's model decodes only the middle of uniform actions; a wider perturbation helps it.
@pytest.mark.parametrize(("name", "hyper"), cases([("bcq", {"phi": 0.1}), ("bear", BEAR)]))
def test_the_best_sample_of_the_behaviour_is_near_the_best_action(name: str, hyper: dict[str, Any]) -> None:
    assert 0.35 <= _action(_bandit_policy(name, **SUPPORT, **hyper)) <= 0.65


@pytest.mark.parametrize(("name", "hyper"), cases([("bcq", {"phi": 0.05}), ("bear", BEAR)]))
def test_the_policy_does_not_leave_the_support_of_the_data(name: str, hyper: dict[str, Any]) -> None:
    # Data from [-1, 0] only, where more is better: the policy goes up from the middle, but not beyond.
    assert -0.45 <= _action(_bandit_policy(name, high=0.0, **SUPPORT, **hyper)) <= 0.05


@pytest.mark.slow
def test_without_a_constraint_the_policy_leaves_the_support_of_the_data() -> None:
    # What the two tests before this one rule out.
    assert _action(_bandit_policy("td3_bc", high=0.0, bc_alpha=1e4)) > 0.3


@pytest.mark.parametrize(
    ("name", "hyper"),
    cases(
        [
            ("cql", {"conservative_weight": 1.0, "num_action_samples": 4}),
            ("cal_ql", {"num_action_samples": 4}),
        ]
    ),
)
def test_conservative_critics_value_actions_without_data_less(name: str, hyper: dict[str, Any]) -> None:
    # Data from [-1, 0] only, where more is better: without the penalty the critics rise beyond it.
    algorithm = _bandit_policy(name, high=0.0, learning_rate=5e-3, **hyper)
    assert _q_values(algorithm, 0.5, 1.0).mean() < _q_values(algorithm, -1.0, 0.0).mean()


@pytest.mark.slow
def test_without_the_penalty_critics_extrapolate_upwards() -> None:
    algorithm = _bandit_policy("cql", high=0.0, learning_rate=5e-3, conservative_weight=0.0, num_action_samples=4)
    assert _q_values(algorithm, 0.5, 1.0).mean() > _q_values(algorithm, -1.0, 0.0).mean()


@pytest.mark.parametrize("name", cases(["sac_n", "edac"]))
def test_critics_disagree_more_where_there_is_no_data(name: str) -> None:
    algorithm = _bandit_policy(name, high=0.0, learning_rate=5e-3, num_critics=5, alpha=0.01)
    known, unknown = (_q_values(algorithm, *bounds).std(0).mean() for bounds in ((-1.0, 0.0), (0.5, 1.0)))
    assert unknown > 2 * known
