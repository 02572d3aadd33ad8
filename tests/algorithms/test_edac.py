"""What EDAC adds to SAC-N on numbers that can be checked by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from peers import batches, build
from torch import Tensor

from rl_training.algorithms.edac import EDAC, diversity_objective, edac_loss
from rl_training.algorithms.sac_n import sac_n_loss


def _agreement(*gradients: tuple[float, ...]) -> float:
    """The agreement of critics whose gradients, one per critic, are the same on three rows."""
    return float(diversity_objective(torch.tensor(gradients)[:, None].expand(-1, 3, -1))["diversity_loss"])


@pytest.mark.parametrize(
    ("gradients", "expected"),
    [
        # Two ordered pairs over N - 1 = 1: twice the cosine.
        (((1.0, 0.0), (0.0, 1.0)), 0.0),
        (((1.0, 0.0), (1.0, 0.0)), 2.0),
        (((1.0, 0.0), (-1.0, 0.0)), -2.0),
        (((1.0, 0.0), (1.0, 1.0)), math.sqrt(2)),
        # Length does not matter, direction does.
        (((100.0, 0.0), (1e-3, 0.0)), 2.0),
        # N equal gradients: N (N - 1) pairs over N - 1.
        (((0.6, 0.8),) * 5, 5.0),
        # Two equal and one opposite: pairs of 1, -1, -1, each counted twice, over 2.
        (((1.0, 0.0), (1.0, 0.0), (-1.0, 0.0)), -1.0),
        # The least there is for three: at 120 degrees the sum is 0, so 0 - 3 over 2.
        (((1.0, 0.0), (-0.5, math.sqrt(0.75)), (-0.5, -math.sqrt(0.75))), -1.5),
    ],
)
def test_agreement_is_the_sum_of_cosines_over_one_less_than_their_number(
    gradients: tuple[tuple[float, ...], ...], expected: float
) -> None:
    assert _agreement(*gradients) == pytest.approx(expected, abs=1e-5)


def test_agreement_is_averaged_over_rows() -> None:
    # Equal on the first row, 2, orthogonal on the second, 0; the mean cosine is half of the agreement for N = 2.
    gradients = torch.tensor([[[1.0, 0.0], [1.0, 0.0]], [[3.0, 0.0], [0.0, 2.0]]])
    metrics = diversity_objective(gradients)
    assert float(metrics["diversity_loss"]) == pytest.approx(1.0)
    assert float(metrics["grad_cosine_mean"]) == pytest.approx(0.5)


def test_agreement_equals_a_loop_over_pairs() -> None:
    torch.manual_seed(0)
    gradients = torch.randn(6, 9, 3, dtype=torch.float64)
    total = torch.zeros(9, dtype=torch.float64)
    for i in range(6):
        for j in range(6):
            if i != j:
                total += torch.cosine_similarity(gradients[i], gradients[j], dim=-1)
    torch.testing.assert_close(diversity_objective(gradients)["diversity_loss"], total.mean() / 5)


def test_a_critic_without_gradient_agrees_with_nobody() -> None:
    gradients = torch.tensor([[[1.0, 0.0]], [[0.0, 0.0]]], requires_grad=True)
    agreement = diversity_objective(gradients)["diversity_loss"]
    assert float(agreement.detach()) == 0
    (slope,) = torch.autograd.grad(agreement, gradients)
    assert bool(slope.isfinite().all())


@pytest.mark.parametrize("diversity_weight", [0.0, 0.5])
def test_the_whole_objective_is_that_of_sac_n_plus_agreement(diversity_weight: float) -> None:
    common = {
        "log_temperature": torch.tensor(0.5),
        "policy_log_probs": torch.tensor([-1.0, 3.0]),
        "policy_q_values": torch.tensor([[1.0, 4.0], [2.0, -2.0]]),
        "q_values": torch.tensor([[1.0, 4.0], [0.0, 3.0]]),
        "target_q_values": torch.tensor([0.0, 1.0]),
    }
    # Equal on the first row, 2, and orthogonal on the second, 0: an agreement of 1.
    gradients = torch.tensor([[[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]])
    ours = edac_loss(**common, action_gradients=gradients, target_entropy=-3.0, diversity_weight=diversity_weight)
    plain = sac_n_loss(**common, target_entropy=-3.0)
    assert float(ours["critic_loss"]) == pytest.approx(float(plain["critic_loss"]) + diversity_weight * 1.0)
    for name in plain.keys() - {"critic_loss"}:
        assert torch.equal(ours[name], plain[name])


def test_without_weight_it_is_sac_n() -> None:
    edac, plain = build("edac", num_critics=4, diversity_weight=0.0), build("sac_n", num_critics=4)
    for algorithm in (edac, plain):
        torch.manual_seed(2)
        for batch in batches(5):
            algorithm.update(batch)
    for ours, theirs in zip(edac.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-14)


def test_equal_critics_agree_as_much_as_there_are() -> None:
    algorithm = build("edac", num_critics=4)
    with torch.no_grad():
        for parameter in algorithm.model.critic.parameters():
            parameter.copy_(parameter[:1].expand_as(parameter))
    metrics = algorithm.losses(batches(1)[0])
    assert float(metrics["diversity_loss"]) == pytest.approx(4.0, rel=1e-6)
    assert float(metrics["grad_cosine_mean"]) == pytest.approx(1.0, rel=1e-6)


def test_gradients_are_taken_at_the_logged_actions_critic_by_critic() -> None:
    algorithm, batch = build("edac", num_critics=3), batches(1)[0]
    torch.testing.assert_close(
        algorithm.losses(batch)["diversity_loss"], _naive_agreement(algorithm, batch["obs"], batch["actions"])
    )
    # Whatever the policy does, the agreement is that at the data.
    with torch.no_grad():
        algorithm.model.actor.mlp.layers[-1].bias.add_(3.0)
    torch.testing.assert_close(
        algorithm.losses(batch)["diversity_loss"], _naive_agreement(algorithm, batch["obs"], batch["actions"])
    )


def test_the_weight_multiplies_the_agreement_in_the_critic_loss() -> None:
    losses, agreement = [], 0.0
    for weight in (0.0, 1.0, 3.0):
        algorithm = build("edac", num_critics=3, diversity_weight=weight)
        torch.manual_seed(3)
        metrics = algorithm.losses(batches(1)[0])
        losses.append(float(metrics["critic_loss"]))
        agreement = float(metrics["diversity_loss"])
    assert losses[1] - losses[0] == pytest.approx(agreement)
    assert losses[2] - losses[0] == pytest.approx(3 * agreement)


def test_critics_learn_from_the_agreement_through_second_derivatives() -> None:
    # Against differences of the naive agreement when one weight of the second layer is moved a little.
    algorithm: Any = build("edac", num_critics=3, diversity_weight=1.0)
    batch = batches(1)[0]
    loss = algorithm.critic_loss(batch)["diversity_loss"]
    weight: Tensor = algorithm.model.critic.mlp.layers[1].weight
    (gradient,) = torch.autograd.grad(loss, weight)
    member, row, column = (int(part) for part in (gradient.abs() == gradient.abs().max()).nonzero()[0])
    values = []
    for change in (1e-6, -2e-6):
        with torch.no_grad():
            weight[member, row, column] += change
        values.append(float(_naive_agreement(algorithm, batch["obs"], batch["actions"])))
    assert float(gradient[member, row, column]) == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-4)


def test_the_agreement_gives_nothing_to_the_actor_and_leaves_the_batch_alone() -> None:
    algorithm: Any = build("edac", num_critics=3)
    batch = batches(1)[0]
    actions = batch["actions"].clone()
    loss = algorithm.critic_loss(batch)["critic_loss"]
    actor = list(algorithm.model.actor.parameters())
    assert all(gradient is None for gradient in torch.autograd.grad(loss, actor, allow_unused=True))
    assert torch.equal(batch["actions"], actions)
    assert not batch["actions"].requires_grad


def test_a_large_weight_makes_critics_disagree() -> None:
    agreement = {}
    for weight in (0.0, 100.0):
        algorithm = build("edac", num_critics=4, diversity_weight=weight, learning_rate=1e-3)
        torch.manual_seed(0)
        for batch in batches(40):
            metrics = algorithm.update(batch).metrics
        agreement[weight] = float(metrics["diversity_loss"])
    assert agreement[100.0] < agreement[0.0] - 0.5


def test_steps_are_those_of_sac_n() -> None:
    assert EDAC.steps == build("sac_n").steps
    assert [step.name for step in build("edac").steps] == ["temperature", "actor", "critic"]


def _naive_agreement(algorithm: Any, obs: Tensor, actions: Tensor) -> Tensor:
    """The agreement at some actions, one critic and one pair after the other."""
    count = algorithm.hyper.num_critics
    directions = []
    for member in range(count):
        at = actions.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(algorithm.model.critic(obs, at)[member].sum(), at)
        directions.append(gradient / gradient.norm(dim=-1, keepdim=True))
    pairs = [(directions[i] * directions[j]).sum(-1).mean() for i in range(count) for j in range(count) if i != j]
    total: Tensor = torch.stack(pairs).sum()
    return total / (len(directions) - 1)
