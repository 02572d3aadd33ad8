"""FQE: its formulas on hand-computed numbers, and values that are known exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rl_training.algorithms import ALGORITHMS
from rl_training.algorithms.base import AdamW
from rl_training.core.errors import ConfigError
from rl_training.core.spaces import BoxActions, DiscreteActions, SpaceSpec
from rl_training.data import TransitionDataset, fit_masks
from rl_training.ope.fqe import (
    FQE,
    EvaluationLog,
    FitOptions,
    FQEHyper,
    ValueFitter,
    discount_options,
    fqe_loss,
    fqe_targets,
    resampled_episodes,
)

UNIT = SpaceSpec.vector(2, BoxActions((-1.0,), (1.0,)))
ENDS = ("cut", "done")
QUICK: dict[str, Any] = {"hidden_sizes": (32,), "learning_rate": 3e-3, "batch_size": 64}


def dataset(
    states: Sequence[int],
    rewards: Sequence[float],
    next_states: Sequence[int],
    *,
    ends: Sequence[str],
    actions: Sequence[float] | None = None,
    count: int = 2,
) -> TransitionDataset:
    """Transitions between numbered states, which are observed as one-hot vectors; ends are '', 'done' or 'cut'."""
    eye = np.eye(count, dtype=np.float32)
    return TransitionDataset.from_dict(
        {
            "observations": eye[list(states)],
            "actions": np.array(actions or [0.0] * len(states), dtype=np.float32)[:, None],
            "rewards": np.array(rewards, dtype=np.float32),
            "next_observations": eye[list(next_states)],
            "terminals": np.array([end == "done" for end in ends]),
            "timeouts": np.array([end == "cut" for end in ends]),
        }
    )


def fit(data: TransitionDataset, policy: Any = None, *, spaces: SpaceSpec = UNIT, **options: Any) -> ValueFitter:
    """A fitter after the fit of a policy, by default one that always acts with 0."""
    fitter = ValueFitter(EvaluationLog(data, spaces), FitOptions(**{"members": 0, **QUICK, **options}))
    fitter.fit_policy(policy or (lambda obs: torch.zeros(len(obs), 1)))
    return fitter


def values_of_states(fitter: ValueFitter, count: int = 2, action: float = 0.0) -> list[float]:
    """Values of one action in every state, by the first member."""
    return [float(value) for value in fitter.q_values(torch.eye(count), torch.full((count, 1), action))[0]]


def test_behaviour_behind_masks_has_the_value_of_a_chain() -> None:
    # 1, then 2 and the end: 1 + 0.9 * 2. The first action is always valid, the second in the second state only, the
    # third never; masks that do not vary have no deviation to be divided by, and stay as they are.
    eye, repeat = np.eye(2, dtype=np.float32), 50
    rows = {
        "observations": eye,
        "actions": np.array([0, 1]),
        "rewards": np.array([1.0, 2.0], dtype=np.float32),
        "next_observations": eye[::-1],
        "terminals": np.array([False, True]),
        "timeouts": np.array([False, False]),
        "valid_actions": np.array([[1, 0, 0], [1, 1, 0]], dtype=np.float32),
        "next_valid_actions": np.array([[1, 1, 0], [1, 1, 1]], dtype=np.float32),
    }
    data = TransitionDataset.from_dict({name: np.concatenate([column] * repeat) for name, column in rows.items()})
    masked, spaces = fit_masks(data, SpaceSpec.vector(2, DiscreteActions(3)))
    options = FitOptions(gamma=0.9, kappa=8, tau=0.1, members=0, **QUICK)
    fitted = ValueFitter(EvaluationLog(masked, spaces), options).fit_behavior()
    assert fitted.values.tolist() == pytest.approx([2.8], abs=0.02)


def test_fqe_is_no_algorithm_to_train_with() -> None:
    assert "fqe" not in ALGORITHMS
    assert FQE.name == "fqe"


def test_targets_are_clipped_and_not_bootstrapped_after_termination() -> None:
    targets, clipped = fqe_targets(
        rewards=torch.tensor([0.1, 0.2, 0.2]),
        dones=torch.tensor([0.0, 1.0, 0.0]),
        next_values=torch.tensor([[0.5, 0.5, 9.0], [-4.0, 0.0, 0.0]]),
        gamma=0.9,
        target_low=0.0,
        target_high=2.0,
    )
    torch.testing.assert_close(targets, torch.tensor([[0.55, 0.2, 2.0], [0.0, 0.2, 0.2]]))
    assert float(clipped) == pytest.approx(2 / 6)


def test_rounding_at_the_bound_does_not_count_as_clipped() -> None:
    one = torch.ones(1)
    _, clipped = fqe_targets(
        rewards=0.1 * one, dones=0 * one, next_values=1.001 * one[None], gamma=0.9, target_low=1.0, target_high=1.0
    )
    assert float(clipped) == 0


def test_the_loss_is_a_weighted_mean_over_rows_and_a_sum_over_members() -> None:
    metrics = fqe_loss(
        q_values=torch.tensor([[1.0, 2.0], [0.0, 3.0]]),
        target_q_values=torch.tensor([[0.0, 0.0], [2.0, 3.0]]),
        weights=torch.tensor([[1.0, 2.0], [3.0, 0.0]]),
    )
    assert float(metrics["critic_loss"]) == pytest.approx((1 + 8) / 2 + 12 / 2)


def test_targets_that_all_members_share_are_refused() -> None:
    members = torch.zeros(3, 4)
    with pytest.raises(ValueError, match=r"must be \(E, B\), got q_values \(3, 4\), target_q_values \(4,\)"):
        fqe_loss(q_values=members, target_q_values=torch.zeros(4), weights=members)


def test_the_decay_of_weights_is_beside_the_gradient() -> None:
    layer = torch.nn.Linear(1, 1, bias=False)
    layer.weight.data.fill_(2.0)
    optimizer = AdamW(layer, learning_rate=0.1, weight_decay=0.5)
    AdamW.step([optimizer], [[torch.full((1, 1), 3.0)]])
    # Adam's first step is the learning rate; the weight shrinks by learning rate times decay.
    assert float(layer.weight.detach()) == pytest.approx(2.0 * (1 - 0.1 * 0.5) - 0.1, abs=1e-6)


def test_a_reward_for_ever_approaches_its_value_refresh_by_refresh() -> None:
    """A table of one entry, fitted exactly, that is refreshed as a whole: Q = 10 (1 - 0.9^k) after k refreshes."""
    expected = {10: 6.513216, 100: 9.999734}
    value = torch.zeros(1, 1)
    for refresh in range(1, 101):
        value, _ = fqe_targets(
            rewards=torch.ones(1), dones=torch.zeros(1), next_values=value, gamma=0.9, target_low=0, target_high=10
        )
        if refresh in expected:
            assert float(value) == pytest.approx(expected[refresh], abs=1e-5)


def test_squared_error_finds_the_mean_of_rare_rewards_and_huber_would_not() -> None:
    """With reward 10 in one of ten rows, and 0 in the others."""
    rewards = torch.tensor([10.0, *[0.0] * 9], dtype=torch.float64)

    def minimum(loss: Any) -> float:
        grid = torch.linspace(0, 2, 20_001, dtype=torch.float64)
        return float(grid[torch.stack([loss(each) for each in grid]).argmin()])

    def squared(value: Tensor) -> Tensor:
        constant = value.expand(1, 10)
        parts = {"q_values": constant, "target_q_values": rewards[None], "weights": torch.ones(1, 10)}
        return fqe_loss(**parts)["critic_loss"]

    assert minimum(squared) == pytest.approx(1.0, abs=1e-4)
    huber = torch.nn.functional.huber_loss
    assert minimum(lambda value: huber(value.expand(10), rewards)) == pytest.approx(0.1111, abs=1e-4)


def test_members_have_targets_of_their_own_and_not_the_smallest() -> None:
    """The smaller of two independent errors of standard deviation 1 is lower by 0.564; own targets are not lower."""
    noise = torch.randn(2, 200_000, generator=torch.Generator().manual_seed(0))
    targets, _ = fqe_targets(
        rewards=torch.zeros(200_000),
        dones=torch.zeros(200_000),
        next_values=noise,
        gamma=0.99,
        target_low=-99.0,
        target_high=99.0,
    )
    assert float(noise.amin(0).mean()) == pytest.approx(-0.564, abs=0.01)
    assert targets.mean(1).tolist() == pytest.approx([0.0, 0.0], abs=0.01)


def test_a_cycle_has_the_values_of_the_equations() -> None:
    data = dataset([0, 1] * 20, [1, 0] * 20, [1, 0] * 20, ends=[""] * 39 + ["cut"])
    fitter = fit(data, gamma=0.9, kappa=8, tau=0.1)
    assert values_of_states(fitter) == pytest.approx([5.263158, 4.736842], abs=5e-3)


@pytest.mark.parametrize(("end", "next_state", "first", "second"), [("done", 1, 2.8, 2.0), ("cut", 1, 19.0, 20.0)])
def test_truncated_episodes_continue_and_terminated_ones_do_not(
    end: str, next_state: int, first: float, second: float
) -> None:
    data = dataset([0, 1] * 20, [1, 2] * 20, [1, next_state] * 20, ends=["", end] * 20)
    fitter = fit(data, gamma=0.9, kappa=12, tau=0.1)
    assert values_of_states(fitter) == pytest.approx([first, second], rel=1e-3)


def test_without_a_discount_the_value_is_the_mean_reward_of_the_policys_actions() -> None:
    rng = np.random.default_rng(0)
    chosen = rng.uniform(-1, 1, 400)
    data = dataset([0] * 400, (3 * chosen).tolist(), [0] * 400, ends=["done"] * 400, actions=chosen.tolist())
    fitter = fit(data, lambda obs: torch.full((len(obs), 1), 0.5), gamma=0.0, updates=1500)
    assert values_of_states(fitter, action=0.5)[0] == pytest.approx(1.5, abs=0.02)


def test_the_behaviours_value_is_the_logged_return_of_a_chain() -> None:
    """Three states in a row with rewards 1, 2, 4: 1 + 0.9 * 2 + 0.81 * 4 = 6.04."""
    data = dataset([0, 1, 2] * 15, [1, 2, 4] * 15, [1, 2, 2] * 15, ends=["", "", "done"] * 15, count=3)
    spaces = SpaceSpec.vector(3, BoxActions((-1.0,), (1.0,)))
    fitter = ValueFitter(EvaluationLog(data, spaces), FitOptions(gamma=0.9, kappa=12, tau=0.1, members=0, **QUICK))
    assert fitter.fit_behavior().values[0] == pytest.approx(6.04, rel=1e-3)


def _two_states(rng: np.random.Generator, episodes: int = 40) -> TransitionDataset:
    """Episodes of two steps from state 0 to 1; a reward of 1 for action +1 in state 1, else 0."""
    second = rng.choice([-1.0, 1.0], episodes)
    actions = np.stack([rng.choice([-1.0, 1.0], episodes), second], axis=1).reshape(-1)
    rewards = np.stack([np.zeros(episodes), (second > 0).astype(float)], axis=1).reshape(-1)
    ends = ["", "done"] * episodes
    return dataset([0, 1] * episodes, rewards.tolist(), [1, 1] * episodes, ends=ends, actions=actions.tolist())


def test_next_actions_are_those_for_the_next_observations() -> None:
    """The policy acts with +1 in state 1 only. Asked about the states before, it would seem to act with -1 there."""
    data = _two_states(np.random.default_rng(0))

    def right_in_the_second(obs: Tensor) -> Tensor:
        return 2 * obs[:, 1:] - 1

    options: dict[str, Any] = {"gamma": 0.9, "kappa": 10, "tau": 0.1}
    right = values_of_states(fit(data, right_in_the_second, **options), action=1.0)[0]
    wrong = values_of_states(fit(data, lambda obs: right_in_the_second(1 - obs), **options), action=1.0)[0]
    assert right == pytest.approx(0.9, abs=0.02)
    assert wrong == pytest.approx(0.0, abs=0.02)


def test_a_member_knows_nothing_of_episodes_that_it_does_not_have() -> None:
    data = _two_states(np.random.default_rng(1), episodes=12)
    absent = (resampled_episodes(12, members=2, seed=3)[2] == 0).nonzero().flatten()
    last = data.rewards[2 * absent + 1]
    one, other = 2 * absent[last == 0][0] + 1, 2 * absent[last == 1][0] + 1
    rewards = data.rewards.clone()
    # Exchanged, so that range, mean and standard deviation of all rewards are as before.
    rewards[one], rewards[other] = data.rewards[other], data.rewards[one]
    options: dict[str, Any] = {"gamma": 0.9, "updates": 60, "members": 2, "seed": 3}
    before, after = (values_of_members(fit(each, **options)) for each in (data, data.with_rewards(rewards)))
    np.testing.assert_array_equal(before[2], after[2])
    assert not np.array_equal(before[0], after[0])


def values_of_members(fitter: ValueFitter) -> np.ndarray[Any, Any]:
    """Values of action 0 in both states by every member."""
    return fitter.q_values(torch.eye(2), torch.zeros(2, 1))


def test_members_differ_and_the_first_does_not_depend_on_the_others() -> None:
    data = _two_states(np.random.default_rng(1))
    options: dict[str, Any] = {"gamma": 0.9, "updates": 100, "seed": 5}
    alone, several = (values_of_members(fit(data, members=members, **options)) for members in (0, 3))
    np.testing.assert_allclose(several[0], alone[0], rtol=1e-5)
    assert len({round(float(each), 6) for each in several[:, 0]}) == 4


def test_without_a_discount_values_are_returns_of_episodes_of_any_length() -> None:
    """State 0 ends after one step, state 1 continues to state 2 and 3: returns 1 and 1 + 2 + 4."""
    rewards = [1.0, 1.0, 2.0, 4.0] * 10
    data = dataset([0, 1, 2, 3] * 10, rewards, [0, 2, 3, 3] * 10, ends=["done", "", "", "done"] * 10, count=4)
    spaces = SpaceSpec.vector(4, BoxActions((-1.0,), (1.0,)))
    fitter = fit(data, spaces=spaces, kappa=10, tau=0.1, **discount_options(data))
    assert fitter.options.gamma == 1
    assert values_of_states(fitter, 4)[:2] == pytest.approx([1.0, 7.0], abs=0.02)
    assert fitter.log.value_range(1.0) == (0.0, 12.0)


@pytest.mark.parametrize(
    ("lengths", "terminating", "asked", "expected"),
    [
        ((4, 8), 2, None, {"gamma": 1.0, "episode_steps": 6.0}),
        ((4, 8), 1, None, {"gamma": 0.8333, "episode_steps": None}),
        ((4, 8), 2, 0.9, {"gamma": 0.9, "episode_steps": None}),
        ((1, 1), 2, None, {"gamma": 0.0, "episode_steps": None}),
        ((600, 600), 2, None, {"gamma": 0.998, "episode_steps": 600.0}),
        ((600, 600), 0, None, {"gamma": 0.995, "episode_steps": None}),
        ((25, 25, 10), 0, None, {"gamma": 0.96, "episode_steps": None}),
    ],
)
def test_there_is_no_discount_where_episodes_terminate(
    lengths: tuple[int, ...], terminating: int, asked: float | None, expected: dict[str, float | None]
) -> None:
    ends = [end for number, length in enumerate(lengths) for end in [""] * (length - 1) + [ENDS[number < terminating]]]
    data = dataset([0] * sum(lengths), [1] * sum(lengths), [0] * sum(lengths), ends=ends)
    assert discount_options(data, asked) == expected


def test_returns_of_a_task_without_an_end_are_infinite_and_refused() -> None:
    data = dataset([0, 1] * 20, [1, 2] * 20, [1, 0] * 20, ends=["", "cut"] * 20)
    with pytest.raises(ConfigError, match=r"0 % of these do .*0\.5 would suit"):
        discount_options(data, 1.0)
    with pytest.raises(ConfigError, match="gamma 1 needs episode_steps"):
        _ = FitOptions(gamma=1.0).num_updates


def test_a_constant_reward_beside_the_others_changes_no_difference() -> None:
    """A mean return of 290 with little spread is learned as well as one of 0."""
    rng = np.random.default_rng(0)
    chosen = rng.uniform(-1, 1, 1200)
    states = np.tile([0, 1], 600)
    ends = (["", "", "", "", "", "cut"] * 200)[:1200]
    plain = dataset(states.tolist(), chosen.tolist(), (1 - states).tolist(), ends=ends, actions=chosen.tolist())
    differences = []
    for offset in (0.0, 290.0):
        log = EvaluationLog(plain.with_rewards(plain.rewards + offset), UNIT)
        fitter = ValueFitter(log, FitOptions(gamma=0.9, members=2, updates=600, **QUICK))
        behaviour = fitter.fit_behavior().values
        assert behaviour[0] == pytest.approx(fitter.logged_returns()[0].mean(), abs=0.3)
        differences.append(fitter.fit_policy(lambda obs: torch.full((len(obs), 1), 0.2)).values - behaviour)
    np.testing.assert_allclose(differences[1], differences[0], atol=0.02)


@pytest.mark.parametrize("end", ["done", "cut"])
def test_values_are_in_the_units_of_the_rewards(end: str) -> None:
    data = dataset([0, 1] * 20, [1, 2] * 20, [1, 1] * 20, ends=["", end] * 20)
    options: dict[str, Any] = {"gamma": 0.9, "updates": 100}
    plain = values_of_states(fit(data, **options))
    scaled = values_of_states(fit(data.with_rewards(50 * data.rewards), **options))
    assert [value / 50 for value in scaled] == pytest.approx(plain, rel=1e-4)


def test_the_range_of_targets_contains_0_only_where_episodes_terminate() -> None:
    ended = dataset([0, 1], [1, 1], [1, 1], ends=["", "done"])
    cut = dataset([0, 1], [1, 1], [1, 1], ends=["", "cut"])
    assert EvaluationLog(ended, UNIT).reward_range == (0.0, 1.0)
    assert EvaluationLog(cut, UNIT).reward_range == (1.0, 1.0)


def test_episodes_of_different_length_have_different_values_though_every_reward_is_1() -> None:
    """State 0 ends after one step, state 1 continues to state 2 and 3: returns 1 and 1 + 0.9 + 0.81."""
    data = dataset([0, 1, 2, 3] * 10, [1] * 40, [0, 2, 3, 3] * 10, ends=["done", "", "", "done"] * 10, count=4)
    spaces = SpaceSpec.vector(4, BoxActions((-1.0,), (1.0,)))
    fitter = fit(data, spaces=spaces, gamma=0.9, kappa=10, tau=0.1)
    assert values_of_states(fitter, 4)[:2] == pytest.approx([1.0, 2.71], abs=0.02)


def test_discrete_actions_are_valued_by_the_expectation_over_the_policys_probabilities() -> None:
    """One step with rewards 0, 1, 4 for three actions, after a step without: 0.9 * (0.5 * 1 + 0.25 * 4) = 1.35."""
    rng = np.random.default_rng(0)
    chosen = rng.integers(3, size=200)
    rewards = np.where(np.arange(200) % 2, np.array([0.0, 1.0, 4.0])[chosen], 0.0)
    eye = np.eye(2, dtype=np.float32)
    data = TransitionDataset.from_dict(
        {
            "observations": eye[[0, 1] * 100],
            "actions": chosen,
            "rewards": rewards.astype(np.float32),
            "next_observations": eye[[1, 1] * 100],
            "terminals": np.arange(200) % 2 == 1,
        }
    )
    spaces = SpaceSpec.vector(2, DiscreteActions(3))
    probabilities = torch.tensor([0.25, 0.5, 0.25])
    fitter = ValueFitter(EvaluationLog(data, spaces), FitOptions(gamma=0.9, kappa=10, tau=0.1, members=1, **QUICK))
    found = fitter.fit_policy(lambda obs: probabilities.expand(len(obs), 3))
    assert found.values[0] == pytest.approx(1.35, abs=0.02)
    one_hot = torch.tensor([[0.0, 0.0, 1.0]])
    assert fitter.q_values(torch.eye(2)[1:], one_hot)[0, 0] == pytest.approx(4.0, abs=0.05)
    by_number = fitter.q_values(torch.eye(2)[1:], torch.tensor([2]))
    np.testing.assert_allclose(by_number, fitter.q_values(torch.eye(2)[1:], one_hot), rtol=1e-6)


def test_kappa_and_the_rewards_decide_how_many_updates_there_are() -> None:
    assert FitOptions(gamma=0.99).num_updates == 10_000
    assert FitOptions(gamma=0.99).reached_kappa == pytest.approx(5)
    assert FitOptions(gamma=0.99, updates=6000).reached_kappa == pytest.approx(3)
    assert FitOptions(gamma=0.995, tau=0.005).num_updates == 200_000
    # Short horizons get enough updates to learn the rewards.
    assert FitOptions(gamma=0.0).num_updates == 1000
    assert FitOptions(gamma=0.0, updates=20).num_updates == 20
    assert FitOptions(gamma=0.0).reached_kappa == 50


def test_hyper_parameters_out_of_bounds_are_refused() -> None:
    with pytest.raises(ValueError, match="gamma must be <= 1"):
        FQEHyper(gamma=1.5)
