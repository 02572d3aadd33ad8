"""Discrete CRR on numbers that can be checked by hand, and beside a plain second implementation."""

from __future__ import annotations

import math
from typing import Any

import naive_discrete as naive
import pytest
import torch
from discrete_cases import build, discrete_batches, distinct, fix_outputs, transition
from peers import actor_layers, critic_layers

from rl_training.algorithms.discrete_crr import actor_objective
from rl_training.core.errors import ConfigError

POLICY = torch.tensor([[0.25, 0.75]]).double().log()


def _weight(q_values: list[list[float]], action: int, **options: Any) -> float:
    """The weight of one row, as minus the slope of the loss in the log-probability of its action."""
    log_probs = POLICY.clone().requires_grad_()
    q = torch.tensor(q_values).double()[:, None]
    metrics = actor_objective(q_values=q, log_probs=log_probs, actions=torch.tensor([action]), **options)
    (slope,) = torch.autograd.grad(metrics["actor_loss"], log_probs)
    assert float(slope[0, 1 - action]) == 0
    return -float(slope[0, action])


@pytest.mark.parametrize(
    ("action", "options", "expected"),
    [
        # The policy is worth 0.25 * 1 + 0.75 * 2 = 1.75: advantages of 0.25 and -0.75.
        (1, {}, 1.284025),
        (0, {}, 0.472367),
        (1, {"weights": "binary"}, 1.0),
        (0, {"weights": "binary"}, 0.0),
        (1, {"weights": "constant"}, 1.0),
        (0, {"weights": "constant"}, 1.0),
        # beta is a temperature: exp(0.25 / 0.1) and exp(-7.5).
        (1, {"beta": 0.1}, 12.182494),
        (0, {"beta": 0.1}, 0.000553),
        # exp(0.25 / 0.05) = 148.4 is cut: at 20, and at 100 as in AWAC.
        (1, {"beta": 0.05}, 20.0),
        (1, {"beta": 0.05, "max_weight": 100.0}, 100.0),
    ],
)
def test_the_weight_of_an_action(action: int, options: dict[str, Any], expected: float) -> None:
    assert _weight([[1.0, 2.0]], action, **options) == pytest.approx(expected, abs=1e-6)


def test_the_smaller_critic_counts_action_by_action() -> None:
    # The smaller values are 1 and 2 again; by the first critic alone, the advantage of the second action were 2.
    assert _weight([[1.0, 9.0], [9.0, 2.0]], 1) == pytest.approx(1.284025, abs=1e-6)
    assert _weight([[1.0, 9.0]], 1) == pytest.approx(math.exp(2.0))


def test_a_tie_is_no_advantage() -> None:
    assert _weight([[1.5, 1.5]], 0, weights="binary") == 0
    assert _weight([[1.5, 1.5]], 0) == 1


def test_weights_are_no_function_of_the_policy_that_learns() -> None:
    # Only the log-probability of the logged action has a slope; through the policy's own value, both would.
    logits = torch.tensor([[0.0, math.log(3)]], dtype=torch.float64, requires_grad=True)
    q = torch.tensor([[[1.0, 2.0]]]).double()
    loss = actor_objective(q_values=q, log_probs=logits.log_softmax(-1), actions=torch.tensor([1]))["actor_loss"]
    (slope,) = torch.autograd.grad(loss, logits)
    # -w (1[b = a] - pi(b)) with w = 1.284025.
    assert slope.tolist() == [pytest.approx([1.284025 * 0.25, -1.284025 * 0.25], abs=1e-6)]


@pytest.mark.parametrize("options", [{"weights": "constant"}, {}])
def test_where_the_critic_prefers_nothing_the_actor_clones(options: dict[str, Any]) -> None:
    ours, clone = build("discrete_crr", **options), build("bc")
    clone.model.actor.load_state_dict(ours.model.actor.state_dict())
    for batch in discrete_batches(5):
        if not options:
            fix_outputs(ours.model.critic, [0.7] * 3, [0.2] * 3)
        ours.update(batch)
        clone.update(batch)
    for one, other in zip(ours.model.actor.parameters(), clone.model.actor.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("policy", "done", "expected"),
    [
        # The lagged actor chooses by 0.5, 0.25 and 0.25, the one that learns always the last; the smaller values of the
        # lagged critics are 1, 2 and 4.
        ("target", 0.0, 1 + 0.9 * 2.0),
        ("online", 0.0, 1 + 0.9 * 4.0),
        ("target", 1.0, 1.0),
    ],
)
def test_the_target_is_the_expectation_under_the_lagged_policy_or_under_the_one_that_learns(
    policy: str, done: float, expected: float
) -> None:
    algorithm = build("discrete_crr", gamma=0.9, target_policy=policy)
    fix_outputs(algorithm.target.actor, [math.log(2.0), 0.0, 0.0])
    fix_outputs(algorithm.model.actor, [-99.0, -99.0, 99.0])
    fix_outputs(algorithm.target.critic, [1.0, 7.0, 4.0], [8.0, 2.0, 9.0])
    assert algorithm.targets(transition(reward=1.0, done=done)).tolist() == pytest.approx([expected])


def test_options_of_exponential_weights_are_refused_with_others() -> None:
    given: list[dict[str, Any]] = [{"beta": 2.0}, {"max_weight": 5.0}]
    for options in given:
        with pytest.raises(ConfigError, match="weights: exp"):
            build("discrete_crr", weights="binary", **options)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    "options",
    [
        {"weights": "exp", "beta": 0.2, "max_weight": 2.0},
        {"weights": "binary", "conservative_weight": 0.7},
        {"weights": "exp", "beta": 0.5, "max_weight": 100.0, "target_policy": "online"},
    ],
)
def test_losses_slopes_and_moves_of_one_update_are_those_of_a_plain_implementation(options: dict[str, Any]) -> None:
    ours = distinct(build("discrete_crr", hidden_sizes=(6, 5), learning_rate=1e-2, gamma=0.9, **options))
    batch = discrete_batches(1, size=12)[0]
    actor, lagged_actor = (naive.copied(actor_layers(each.actor)) for each in (ours.model, ours.target))
    critics = [naive.copied(critic_layers(ours.model.critic, member)) for member in range(2)]
    lagged = [naive.copied(critic_layers(ours.target.critic, member)) for member in range(2)]
    metrics = ours.update(batch).metrics
    policy = actor if options.get("target_policy") == "online" else lagged_actor
    critic_loss = naive.critic_error(critics, batch, naive.crr_targets(policy, lagged, batch, 0.9))
    if "conservative_weight" in options:
        critic_loss = critic_loss + 0.7 * naive.penalty(critics, batch)
    weighting = {"beta": 1.0, "max_weight": 20.0} | {
        name: value for name, value in options.items() if name in ("weights", "beta", "max_weight")
    }
    actor_loss = naive.crr_actor_loss(actor, critics, batch, **weighting)
    naive.assert_step(ours, "critic", critic_loss, critics, metrics)
    naive.assert_step(ours, "actor", actor_loss, [actor], metrics)
    naive.move(critic_loss, critics, 1e-2)
    naive.move(actor_loss, [actor], 1e-2)
    naive.assert_moved(actor_layers(ours.model.actor), actor)
    for member, layers in enumerate(critics):
        naive.assert_moved(critic_layers(ours.model.critic, member), layers)
