"""Discrete IQL and CRR a second time: row by row, critic by critic and action by action, from their formulas alone.

Only the slopes are found by PyTorch. Networks are lists of weights (fan_out, fan_in) and biases with ReLU between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, TypeAlias

import torch
from torch import Tensor

from rl_training.core.batches import Batch, Metrics

Layers: TypeAlias = list[tuple[Tensor, Tensor]]
RTOL = 1e-10


def copied(layers: Layers) -> Layers:
    """Layers with the same numbers that have slopes of their own."""
    return [
        (weight.detach().clone().requires_grad_(), bias.detach().clone().requires_grad_()) for weight, bias in layers
    ]


def outputs(layers: Layers, obs: Tensor) -> list[Tensor]:
    """What a network puts out for one observation, number by number."""
    numbers = list(obs)
    for depth, (weight, bias) in enumerate(layers):
        sums = []
        for line, offset in zip(weight, bias, strict=True):
            total = offset
            for factor, number in zip(line, numbers, strict=True):
                total = total + factor * number
            sums.append(total)
        numbers = sums if depth == len(layers) - 1 else [torch.where(each > 0, each, 0.0 * each) for each in sums]
    return numbers


def probabilities(layers: Layers, obs: Tensor) -> list[Tensor]:
    """The policy's probability of each action."""
    exponentials = [number.exp() for number in outputs(layers, obs)]
    total = sum(exponentials[1:], exponentials[0])
    return [each / total for each in exponentials]


def smallest(critics: Sequence[Layers], obs: Tensor) -> list[Tensor]:
    """For each action, the value by the most pessimistic critic."""
    by_critic = [outputs(layers, obs) for layers in critics]
    return [min(values, key=Tensor.item) for values in zip(*by_critic, strict=True)]


def mean(numbers: Sequence[Tensor]) -> Tensor:
    """The mean of several numbers."""
    return sum(numbers[1:], numbers[0]) / len(numbers)


def rows(batch: Batch) -> list[dict[str, Tensor]]:
    """The rows of a batch."""
    return [{name: column[row] for name, column in batch.items()} for row in range(len(batch["rewards"]))]


def critic_error(critics: Sequence[Layers], batch: Batch, targets: Sequence[float]) -> Tensor:
    """The mean square of each critic's error, summed over critics."""
    total = torch.zeros(())
    for layers in critics:
        errors = [
            outputs(layers, row["obs"])[int(row["actions"])] - y for row, y in zip(rows(batch), targets, strict=True)
        ]
        total = total + mean([error * error for error in errors])
    return total


def iql_value_loss(value: Layers, lagged: Sequence[Layers], batch: Batch, expectile: float) -> Tensor:
    """|expectile - 1[u < 0]| u^2 with u = min Q'(s, a) - V(s)."""
    terms = []
    for row in rows(batch):
        u = smallest(lagged, row["obs"])[int(row["actions"])].detach() - outputs(value, row["obs"])[0]
        terms.append((expectile if u.item() >= 0 else 1 - expectile) * u * u)
    return mean(terms)


def iql_actor_loss(
    actor: Layers, value: Layers, lagged: Sequence[Layers], batch: Batch, *, beta: float, max_weight: float
) -> Tensor:
    """-w log pi(a | s) with w = min(exp(beta (min Q'(s, a) - V(s))), max_weight)."""
    terms = []
    for row in rows(batch):
        action = int(row["actions"])
        advantage = smallest(lagged, row["obs"])[action] - outputs(value, row["obs"])[0]
        weight = min((beta * advantage).exp().item(), max_weight)
        terms.append(-weight * probabilities(actor, row["obs"])[action].log())
    return mean(terms)


def iql_targets(value: Layers, batch: Batch, gamma: float) -> list[float]:
    """r + gamma V(s'), or r alone where the task ended."""
    return [
        float(row["rewards"]) + (0.0 if row["dones"] else gamma * outputs(value, row["next_obs"])[0].item())
        for row in rows(batch)
    ]


def crr_actor_loss(
    actor: Layers, critics: Sequence[Layers], batch: Batch, *, weights: str, beta: float, max_weight: float
) -> Tensor:
    """-w log pi(a | s), with w by the advantage of a over what the policy would do."""
    terms = []
    for row in rows(batch):
        action, probs = int(row["actions"]), probabilities(actor, row["obs"])
        values = [each.item() for each in smallest(critics, row["obs"])]
        baseline = sum(prob.item() * each for prob, each in zip(probs, values, strict=True))
        advantage = torch.tensor(values[action] - baseline)
        exponential = min(float((advantage / beta).exp()), max_weight)
        weight = {"exp": exponential, "binary": float(advantage > 0), "constant": 1.0}[weights]
        terms.append(-weight * probs[action].log())
    return mean(terms)


def crr_targets(policy: Layers, lagged: Sequence[Layers], batch: Batch, gamma: float) -> list[float]:
    """r + gamma times what the policy is worth at s', or r alone where the task ended."""
    targets = []
    for row in rows(batch):
        pairs = zip(probabilities(policy, row["next_obs"]), smallest(lagged, row["next_obs"]), strict=True)
        follows = sum(prob.item() * each.item() for prob, each in pairs)
        targets.append(float(row["rewards"]) + (0.0 if row["dones"] else gamma * follows))
    return targets


def penalty(critics: Sequence[Layers], batch: Batch) -> Tensor:
    """log sum_a exp Q_i(s, a) - Q_i(s, a_logged): the mean over rows, summed over critics."""
    total = torch.zeros(())
    for layers in critics:
        gaps = []
        for row in rows(batch):
            values = outputs(layers, row["obs"])
            exponentials = [each.exp() for each in values]
            gaps.append(sum(exponentials[1:], exponentials[0]).log() - values[int(row["actions"])])
        total = total + mean(gaps)
    return total


def assert_step(ours: Any, child: str, loss: Tensor, networks: Sequence[Layers], metrics: Metrics) -> None:
    """Compare loss and slopes: after one step of Adam, its average is 0.1 times the slope."""
    torch.testing.assert_close(metrics[f"{child}_loss"], loss.detach(), rtol=RTOL, atol=0.0)
    averages = list(ours.optimizers[child].exp_avg.parameters())
    slopes = [torch.autograd.grad(loss, list(chain(*layers)), retain_graph=True) for layers in networks]
    for place, average in enumerate(averages):
        # An ensemble has the weights of all members in one tensor, turned around.
        expected = [found[place] for found in slopes]
        found = expected[0] if average.shape == expected[0].shape else torch.stack([each.t() for each in expected])
        torch.testing.assert_close(average.detach(), 0.1 * found, rtol=RTOL, atol=1e-15)


def move(loss: Tensor, networks: Sequence[Layers], learning_rate: float) -> None:
    """The first step of Adam: the learning rate against the sign of the slope, but for the small number beside it."""
    parameters = [part for layers in networks for layer in layers for part in layer]
    for parameter, slope in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        with torch.no_grad():
            parameter.sub_(learning_rate * slope / (slope.abs() + 1e-8))


def assert_moved(ours: Layers, expected: Layers) -> None:
    """Compare all weights and biases."""
    for pair, other in zip(ours, expected, strict=True):
        for found, number in zip(pair, other, strict=True):
            torch.testing.assert_close(found.detach(), number.detach(), rtol=RTOL, atol=1e-15)
