"""Discrete IQL on numbers that can be checked by hand, beside a plain second implementation, and its three policies."""

from __future__ import annotations

import math
from typing import Any

import naive_discrete as naive
import pytest
import torch
from discrete_cases import bandit_batch, build, discrete_batches, distinct, fix_outputs, minimum, slopes, transition
from peers import actor_layers, critic_layers
from torch import Tensor

from rl_training.algorithms.iql import actor_objective, value_objective
from rl_training.core.errors import ConfigError


@pytest.mark.parametrize(
    ("expectile", "expected"),
    [
        # Nine returns of 0 and one of 1: e * 0.1 (1 - v) = (1 - e) * 0.9 v, so 0.07 / 0.34 and 0.09 / 0.18.
        (0.7, 0.205882),
        (0.9, 0.5),
        (0.5, 0.1),
    ],
)
def test_the_value_is_the_expectile_over_logged_actions(expectile: float, expected: float) -> None:
    returns = bandit_batch()["rewards"]

    def loss(value: Tensor) -> Tensor:
        return value_objective(values=value.expand(10), target_q_values=returns, expectile=expectile)["value_loss"]

    assert minimum(loss, 1) == pytest.approx([expected], abs=1e-6)


@pytest.mark.parametrize(
    ("value", "beta", "weights", "likelihood"),
    [
        # exp(-3 * 0.205882) and exp(3 * 0.794118); 0.1 * 10.83 / (0.1 * 10.83 + 0.9 * 0.54).
        (0.07 / 0.34, 3.0, (0.539212, 10.830356), 0.690568),
        # exp(-5), and exp(5) = 148.4 cut at 100.
        (0.5, 10.0, (0.006738, 100.0), 0.999394),
        # Without beta, the policy is that of the data.
        (0.5, 0.0, (1.0, 1.0), 0.1),
    ],
)
def test_the_policy_is_that_of_the_data_times_the_weights(
    value: float, beta: float, weights: tuple[float, float], likelihood: float
) -> None:
    batch = bandit_batch()

    def loss(logits: Tensor) -> Tensor:
        log_probs = logits.log_softmax(-1)[batch["actions"]]
        values = torch.full((10,), value).double()
        return actor_objective(values=values, target_q_values=batch["rewards"], log_probs=log_probs, beta=beta)[
            "actor_loss"
        ]

    # The slope of the loss in a log-probability is minus the weight over the number of rows.
    log_probs = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    values, returns = torch.full((2,), value).double(), torch.tensor([0.0, 1.0]).double()
    one = actor_objective(values=values, target_q_values=returns, log_probs=log_probs, beta=beta)["actor_loss"]
    assert (-2 * torch.autograd.grad(one, log_probs)[0]).tolist() == pytest.approx(list(weights), abs=1e-6)
    assert float(torch.tensor(minimum(loss, 2)).softmax(-1)[1]) == pytest.approx(likelihood, abs=1e-5)


def test_without_beta_the_actor_is_a_clone() -> None:
    ours, clone = build("discrete_iql", beta=0.0), build("bc")
    clone.model.actor.load_state_dict(ours.model.actor.state_dict())
    for batch in discrete_batches(5):
        metrics = ours.update(batch).metrics
        assert torch.equal(metrics["actor_loss"], clone.update(batch).metrics["actor_loss"])
    pairs = zip(ours.model.actor.parameters(), clone.model.actor.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # The actor finds the actions likely by 0.6, 0.3 and 0.1; the smaller critic has 1, 2 and 9.
        ({"extraction": "weighted"}, 0),
        # Ratios 1, 0.5 and 0.1667: the best of the first two, of all, and of the first alone.
        ({"extraction": "constrained", "threshold": 0.3}, 1),
        ({"extraction": "constrained", "threshold": 0.0}, 2),
        ({"extraction": "constrained", "threshold": 0.999}, 0),
        # -0.511 + beta, -1.204 + 2 beta and -2.303 + 9 beta: the last from beta 0.224 on.
        ({"extraction": "shifted", "beta": 3.0}, 2),
        ({"extraction": "shifted", "beta": 0.23}, 2),
        ({"extraction": "shifted", "beta": 0.22}, 0),
        ({"extraction": "shifted", "beta": 0.0}, 0),
    ],
)
def test_the_action_of_each_extraction(options: dict[str, Any], expected: int) -> None:
    algorithm, obs = build("discrete_iql", **options), discrete_batches(1, size=4)[0]["obs"]
    fix_outputs(algorithm.model.actor, [math.log(each) for each in (0.6, 0.3, 0.1)])
    # Each critic alone would have chosen otherwise.
    fix_outputs(algorithm.model.critic, [1.0, 5.0, 9.0], [20.0, 2.0, 10.0])
    assert algorithm.act(obs).tolist() == [expected] * 4
    log_probs = algorithm.model.log_probs(obs, torch.tensor([0, 1, 2, expected])).exp().tolist()
    if options["extraction"] == "weighted":
        assert log_probs == pytest.approx([0.6, 0.3, 0.1, 0.6])
        drawn = algorithm.act(obs[:1].expand(4000, -1), deterministic=False)
        assert (drawn.bincount(minlength=3) / 4000).tolist() == pytest.approx([0.6, 0.3, 0.1], abs=0.03)
        assert algorithm.model.acting == ("actor",)
    else:
        assert log_probs == [float(action == expected) for action in (0, 1, 2, expected)]
        assert torch.equal(algorithm.act(obs, deterministic=False), algorithm.act(obs))
        assert algorithm.model.acting == ("actor", "critic")


@pytest.mark.parametrize("extraction", ["constrained", "shifted"])
def test_where_the_policy_is_made_of_a_clone_all_actions_count_the_same(extraction: str) -> None:
    algorithm, batch = distinct(build("discrete_iql", extraction=extraction)), discrete_batches(1)[0]
    metrics = algorithm.losses(batch)
    assert [float(metrics[name]) for name in ("weight_mean", "weight_max")] == [1.0, 1.0]
    nll = -algorithm.model.actor.log_prob(batch["obs"], batch["actions"]).mean()
    torch.testing.assert_close(metrics["actor_loss"], nll.detach())


def test_options_of_another_extraction_are_refused() -> None:
    for options in ({"threshold": 0.5}, {"extraction": "shifted", "max_weight": 3.0}):
        with pytest.raises(ConfigError, match="extraction"):
            build("discrete_iql", **options)


def test_values_of_actions_that_were_not_logged_are_not_trained() -> None:
    algorithm, batch = build("discrete_iql"), discrete_batches(1)[0]
    batch["actions"] = batch["actions"] % 2
    slope_of_bias = slopes(algorithm.critic_loss(batch)["critic_loss"], algorithm.model.critic.mlp.layers[-1])[1]
    assert bool((slope_of_bias[:, :2] != 0).all())
    assert not bool(slope_of_bias[:, 2].any())


@pytest.mark.parametrize(("done", "expected"), [(0.0, 1 + 0.99 * 4.0), (1.0, 1.0)])
def test_the_target_is_the_value_of_the_next_state(done: float, expected: float) -> None:
    algorithm = build("discrete_iql")
    fix_outputs(algorithm.model.value, [4.0])
    fix_outputs(algorithm.model.critic, [0.0, 3.0, 0.0], [0.0, 1.0, 0.0])
    metrics = algorithm.losses(transition(reward=1.0, action=1, done=done))
    assert float(metrics["target_q_mean"]) == pytest.approx(expected)
    # Squares of both critics, not halved.
    assert float(metrics["critic_loss"]) == pytest.approx((3 - expected) ** 2 + (1 - expected) ** 2)


@pytest.mark.usefixtures("float64")
def test_losses_slopes_and_moves_of_one_update_are_those_of_a_plain_implementation() -> None:
    options: dict[str, Any] = {"expectile": 0.8, "beta": 3.0, "max_weight": 1.5, "gamma": 0.9}
    ours = distinct(build("discrete_iql", hidden_sizes=(6, 5), learning_rate=1e-2, **options))
    with torch.no_grad():
        # So that advantages have both signs, and some weights are cut.
        ours.model.value.mlp.layers[-1].bias.sub_(0.7)
    batch = discrete_batches(1, size=12)[0]
    value, actor = naive.copied(actor_layers(ours.model.value)), naive.copied(actor_layers(ours.model.actor))
    critics = [naive.copied(critic_layers(ours.model.critic, member)) for member in range(2)]
    lagged = [naive.copied(critic_layers(ours.target.critic, member)) for member in range(2)]
    metrics = ours.update(batch).metrics
    # The actor's weights and the critics' targets are by the value after its step.
    value_loss = naive.iql_value_loss(value, lagged, batch, options["expectile"])
    naive.assert_step(ours, "value", value_loss, [value], metrics)
    naive.move(value_loss, [value], 1e-2)
    naive.assert_moved(actor_layers(ours.model.value), value)
    actor_loss = naive.iql_actor_loss(actor, value, lagged, batch, beta=3.0, max_weight=1.5)
    naive.assert_step(ours, "actor", actor_loss, [actor], metrics)
    naive.move(actor_loss, [actor], 1e-2)
    naive.assert_moved(actor_layers(ours.model.actor), actor)
    critic_loss = naive.critic_error(critics, batch, naive.iql_targets(value, batch, 0.9))
    naive.assert_step(ours, "critic", critic_loss, critics, metrics)
    naive.move(critic_loss, critics, 1e-2)
    for member, layers in enumerate(critics):
        naive.assert_moved(critic_layers(ours.model.critic, member), layers)
    assert 0 < float(metrics["weight_clip_fraction"]) < 1
