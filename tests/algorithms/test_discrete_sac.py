"""Discrete SAC on numbers that can be checked by hand, and the order and options of its updates."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from discrete_cases import MASKED, build, discrete_batches, fix_outputs, minimum, transition
from torch import Tensor

from rl_training.algorithms.base.losses import (
    discrete_critic_objective,
    entropies,
    largest_entropies,
    normalized_entropy,
)
from rl_training.algorithms.discrete_sac import (
    DiscreteSAC,
    DiscreteSACHyper,
    actor_objective,
    soft_values,
    temperature_objective,
)
from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError
from rl_training.runtime import mode_defaults, read_options

POLICY = torch.tensor([[0.0, math.log(3)]]).double().log_softmax(-1)


def test_the_policy_and_its_entropy() -> None:
    assert POLICY.exp().tolist() == [pytest.approx([0.25, 0.75])]
    assert float(entropies(POLICY)) == pytest.approx(0.5623351, abs=1e-7)
    assert float(normalized_entropy(POLICY)) == pytest.approx(0.5623351 / math.log(2), abs=1e-6)


def test_the_value_of_a_state_has_the_expectation_and_the_entropy() -> None:
    values = soft_values(log_probs=POLICY, q_values=torch.tensor([[[1.0, 2.0]]]).double(), temperature=0.1)
    assert values.tolist() == pytest.approx([1.8062335], abs=1e-7)


def test_the_smaller_critic_is_taken_action_by_action() -> None:
    # 0 and 0 are the smaller values; the expectation by either critic is 1.
    uniform, q = torch.zeros(1, 2).log_softmax(-1), torch.tensor([[[0.0, 2.0]], [[2.0, 0.0]]])
    assert soft_values(log_probs=uniform, q_values=q, temperature=0.0).tolist() == [0.0]
    assert [soft_values(log_probs=uniform, q_values=one[None], temperature=0.0).item() for one in q] == [1.0, 1.0]


def _actor_loss(logits: Tensor, temperature: float = 1.0, **options: Any) -> Tensor:
    return actor_objective(
        q_values=torch.tensor([[[1.0, 2.0]]]).double(),
        log_probs=logits.log_softmax(-1)[None],
        actions=torch.tensor([0]),
        log_temperature=torch.tensor(math.log(temperature)),
        **options,
    )["actor_loss"]


def test_the_best_policy_is_the_softmax_of_the_values() -> None:
    # -ln(e + e^2), at the probabilities 1 / (1 + e) and e / (1 + e).
    best = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    loss = _actor_loss(best)
    assert float(loss.detach()) == pytest.approx(-2.3132617, abs=1e-7)
    assert best.softmax(-1).tolist() == pytest.approx([0.2689414, 0.7310586], abs=1e-7)
    assert torch.autograd.grad(loss, best)[0].tolist() == pytest.approx([0.0, 0.0], abs=1e-15)
    found = torch.tensor(minimum(_actor_loss, 2)).softmax(-1)
    assert found.tolist() == pytest.approx([0.2689414, 0.7310586], abs=1e-6)
    # With the temperature 0.5, differences of values count twice.
    found = torch.tensor(minimum(lambda logits: _actor_loss(logits, 0.5), 2)).softmax(-1)
    assert float(found[1]) == pytest.approx(1 / (1 + math.exp(-2)), abs=1e-6)


def test_cloning_is_weighed_against_the_value() -> None:
    # The logged action is the first: - 0.5 ln 0.25, beside minus the value and the entropy.
    loss = _actor_loss(torch.tensor([0.0, math.log(3)]).double(), 0.1, bc_weight=0.5)
    assert float(loss) == pytest.approx(-1.8062335 + 0.5 * math.log(4), abs=1e-7)


def test_the_actors_loss_has_no_slope_in_critics_or_temperature() -> None:
    q = torch.tensor([[[1.0, 2.0]]], requires_grad=True)
    log_probs, log_temperature = POLICY.float().requires_grad_(), torch.tensor(0.3, requires_grad=True)
    options: dict[str, Any] = {"log_probs": log_probs, "log_temperature": log_temperature}
    actor = actor_objective(q_values=q, actions=torch.tensor([0]), bc_weight=0.5, **options)["actor_loss"]
    found = torch.autograd.grad(actor, [q, log_temperature, log_probs], allow_unused=True)
    assert [slope is None for slope in found] == [True, True, False]
    temperature = temperature_objective(target_entropy_ratio=0.5, **options)["temperature_loss"]
    found = torch.autograd.grad(temperature, [log_probs, log_temperature], allow_unused=True)
    assert [slope is None for slope in found] == [True, False]


@pytest.mark.parametrize(
    ("ratio", "target"),
    [(0.98, 0.6792842), (0.89, 0.6169010), (0.5, 0.3465736), (0.0, 0.0)],
)
def test_the_target_entropy_is_a_positive_share_of_the_largest(ratio: float, target: float) -> None:
    # The slope in the logarithm is the excess of the entropy, 0.5623351, over the target: a step goes against it.
    log_temperature = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    metrics = temperature_objective(log_temperature=log_temperature, log_probs=POLICY, target_entropy_ratio=ratio)
    (slope,) = torch.autograd.grad(metrics["temperature_loss"], log_temperature)
    assert float(slope) == pytest.approx(0.5623351 - target, abs=1e-6)
    assert float(metrics["temperature_loss"].detach()) == pytest.approx(0.7 * (0.5623351 - target), abs=1e-6)


def test_the_target_entropy_is_that_of_the_actions_which_are_possible() -> None:
    # Three, two and one of three actions are possible; policies are uniform, so that the mean excess is (1 - c) times
    # the mean of ln 3, ln 2 and 0.
    masks = torch.tensor([[1, 1, 1], [1, 0, 1], [0, 1, 0]]).bool()
    log_probs = torch.zeros(3, 3).double().masked_fill(~masks, -math.inf).log_softmax(-1)
    expected = [math.log(3), math.log(2), 0.0]
    assert largest_entropies(log_probs).tolist() == pytest.approx(expected)
    assert entropies(log_probs).tolist() == pytest.approx(expected)
    assert float(normalized_entropy(log_probs)) == pytest.approx(1.0)
    log_temperature = torch.tensor(0.0, dtype=torch.float64, requires_grad=True)
    loss = temperature_objective(log_temperature=log_temperature, log_probs=log_probs, target_entropy_ratio=0.9)
    (slope,) = torch.autograd.grad(loss["temperature_loss"], log_temperature)
    assert float(slope) == pytest.approx(0.1 * sum(expected) / 3)


@pytest.mark.parametrize(("logits", "sign"), [([0.0, 0.0, 0.0], -1), ([9.0, 0.0, 0.0], 1)], ids=["uniform", "certain"])
def test_an_update_moves_the_temperature_towards_the_target_entropy(logits: list[float], sign: int) -> None:
    algorithm = build("discrete_sac", temperature_learning_rate=0.01, target_entropy_ratio=0.98)
    fix_outputs(algorithm.model.actor, logits)
    algorithm.update(discrete_batches(1)[0])
    # Adam's first step is its step size.
    assert float(algorithm.model.temperature.log_value.detach()) == pytest.approx(sign * 0.01, rel=1e-5)


@pytest.mark.parametrize(("start", "logits", "bound"), [(1.995, [9.0, 0.0, 0.0], 2.0), (-19.995, [0.0] * 3, -20.0)])
def test_the_temperature_stays_within_its_bounds(start: float, logits: list[float], bound: float) -> None:
    algorithm = build("discrete_sac", temperature_learning_rate=0.01)
    with torch.no_grad():
        algorithm.model.temperature.log_value.fill_(start)
    for batch in discrete_batches(3):
        fix_outputs(algorithm.model.actor, logits)
        algorithm.update(batch)
        assert float(algorithm.model.temperature.log_value.detach()) == bound


@pytest.mark.parametrize(("done", "expected"), [(0.0, 1 + 0.9 * (2.0 + 0.2 * 1.0397208)), (1.0, 1.0)])
def test_the_target_has_the_smaller_lagged_critic_and_the_entropy_of_the_policy(done: float, expected: float) -> None:
    # Probabilities 0.5, 0.25 and 0.25, whose entropy is 1.5 ln 2; the smaller values are 1, 2 and 4.
    algorithm = build("discrete_sac", alpha=0.2, gamma=0.9)
    fix_outputs(algorithm.model.actor, [math.log(2.0), 0.0, 0.0])
    fix_outputs(algorithm.target.critic, [1.0, 7.0, 4.0], [8.0, 2.0, 9.0])
    assert algorithm.targets(transition(reward=1.0, done=done)).tolist() == pytest.approx([expected], abs=1e-7)


@pytest.mark.parametrize(
    ("huber_delta", "expected"),
    [
        # Errors of critics: 0.5 and 3; 1 and 2. Squares are not halved, and neither is their sum over critics.
        (None, (0.25 + 9) / 2 + (1 + 4) / 2),
        (1.0, (0.125 + 2.5) / 2 + (0.5 + 1.5) / 2),
        (10.0, ((0.25 + 9) / 2 + (1 + 4) / 2) / 2),
    ],
)
def test_errors_of_critics_are_squared_or_linear_beyond_delta(huber_delta: float | None, expected: float) -> None:
    tensors: dict[str, Any] = {
        "q_values": torch.tensor([[[1.0, 9.0], [9.0, 4.0]], [[1.5, 9.0], [9.0, 3.0]]]),
        "actions": torch.tensor([0, 1]),
        "target_q_values": torch.tensor([0.5, 1.0]),
    }
    metrics = discrete_critic_objective(**tensors, huber_delta=huber_delta)
    assert float(metrics["critic_loss"]) == pytest.approx(expected)
    assert "cql_penalty" not in metrics
    penalized = discrete_critic_objective(**tensors, huber_delta=huber_delta, conservative_weight=0.1)
    gaps = [math.log1p(math.exp(gap)) for gap in (8, 5, 7.5, 6)]
    assert float(penalized["td_loss"]) == pytest.approx(expected)
    # The penalties of critics are added up as their errors are.
    assert float(penalized["critic_loss"]) == pytest.approx(expected + 0.1 * sum(gaps) / 2)
    assert float(penalized["cql_penalty"]) == pytest.approx(sum(gaps) / 4)


def test_a_temperature_that_is_given_stays() -> None:
    algorithm = build("discrete_sac", MASKED, alpha=0.2)
    assert not algorithm.model.temperature.learned
    assert list(algorithm.optimizers) == ["critic", "actor"]
    given: list[dict[str, Any]] = [{"target_entropy_ratio": 0.3}, {"temperature_learning_rate": 0.1}]
    for options in given:
        with pytest.raises(ConfigError, match="alpha: auto"):
            build("discrete_sac", alpha=0.2, **options)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # On logged data, a fixed temperature and the penalty of CQL keep the policy near the data.
        ({"mode": "offline", "dataset_kind": "random"}, (0.05, 0.5)),
        ({"mode": "offline", "dataset_kind": "random", "alpha": "auto", "conservative_weight": 0.0}, ("auto", 0.0)),
        ({}, ("auto", 0.0)),
    ],
)
def test_defaults_are_those_of_the_mode(options: dict[str, Any], expected: tuple[object, float]) -> None:
    config = TrainConfig(algo="discrete_sac", env_id="CartPole-v1", total_timesteps=10, algo_kwargs=options)
    hyper: Any = read_options(config)[1].hyper
    assert isinstance(hyper, DiscreteSACHyper)
    assert (hyper.alpha, hyper.conservative_weight) == expected
    assert (hyper.bc_weight, hyper.huber_delta, hyper.target_entropy_ratio) == (0.0, None, 0.5)
    assert mode_defaults(DiscreteSAC, "offline")["alpha"] == 0.05
