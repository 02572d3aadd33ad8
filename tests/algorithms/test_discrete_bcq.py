"""Discrete BCQ on numbers that can be checked by hand, and at both ends of its threshold."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from discrete_cases import build, discrete_batches, fix_outputs, minimum, transition

from rl_training.algorithms.discrete_bcq import clone_loss
from rl_training.models import likely_actions

LIKELY = torch.tensor([[0.6, 0.3, 0.1]]).double()


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [
        # Ratios to the likeliest action: 1, 0.5 and 0.1667. By its probability alone, no second action exceeds 0.3.
        (0.0, [True, True, True]),
        (0.1, [True, True, True]),
        (0.17, [True, True, False]),
        (0.3, [True, True, False]),
        (0.51, [True, False, False]),
        (0.999, [True, False, False]),
    ],
)
def test_actions_are_allowed_by_their_ratio_to_the_likeliest(threshold: float, expected: list[bool]) -> None:
    assert likely_actions(LIKELY.log(), threshold).tolist() == [expected]


def test_actions_that_are_equally_likely_are_all_allowed() -> None:
    assert bool(likely_actions(torch.full((1, 4), 0.25).log(), 0.999).all())


@pytest.mark.parametrize(
    ("threshold", "chosen", "expected"),
    [
        # Of the likely actions 0 and 1 the critic prefers 1, for which the target network has 3: 1 + 0.99 * 3.
        (0.3, 1, 3.97),
        # Without a constraint it is action 2 and 9: 1 + 0.99 * 9.
        (0.0, 2, 9.91),
        # The likeliest action alone: 1 + 0.99 * 5.
        (0.999, 0, 5.95),
    ],
)
def test_the_best_allowed_action_is_valued_by_the_target_network(
    threshold: float, chosen: int, expected: float
) -> None:
    algorithm = build("discrete_bcq", threshold=threshold)
    fix_outputs(algorithm.model.clone, LIKELY[0].log().tolist())
    fix_outputs(algorithm.model.critic, [1.0, 2.0, 9.0])
    fix_outputs(algorithm.target.critic, [5.0, 3.0, 9.0])
    batch = transition(reward=1.0)
    assert algorithm.act(batch["obs"]).tolist() == [chosen]
    assert algorithm.target_atoms(batch).tolist() == [[pytest.approx(expected)]]
    assert algorithm.target_atoms(transition(reward=1.0, done=1.0)).tolist() == [[1.0]]
    metrics = algorithm.losses(batch)
    assert float(metrics["allowed_actions"]) == {0.3: 2, 0.0: 3, 0.999: 1}[threshold]
    assert float(metrics["constraint_active"]) == float(threshold > 0)


@pytest.mark.parametrize("options", [{}, {"dueling": True}, {"num_quantiles": 5}, {"double": False}])
def test_without_a_threshold_the_critic_is_that_of_dqn_bit_for_bit(options: dict[str, Any]) -> None:
    shared = {"learning_rate": 1e-2, "tau": 0.1, "target_update_interval": 2, "max_grad_norm": None, **options}
    ours, peer = build("discrete_bcq", threshold=0.0, **shared), build("dqn", **shared)
    for batch in discrete_batches(6):
        assert torch.equal(ours.update(batch).metrics["critic_loss"], peer.update(batch).metrics["critic_loss"])
    for networks, others in ((ours.model, peer.model), (ours.target, peer.target)):
        pairs = zip(networks.critic.parameters(), others.critic.parameters(), strict=True)
        assert all(torch.equal(one, other) for one, other in pairs)
    obs = discrete_batches(1)[0]["obs"]
    assert torch.equal(ours.act(obs), peer.act(obs))


def test_with_a_threshold_near_1_the_policy_is_the_clone() -> None:
    algorithm = build("discrete_bcq", threshold=0.999, learning_rate=1e-2)
    for batch in discrete_batches(6):
        algorithm.update(batch)
    obs = discrete_batches(1, size=500)[0]["obs"]
    # Where two actions are as likely as each other to a thousandth, both are allowed.
    first, second = algorithm.model.clone(obs).detach().topk(2).values.unbind(-1)
    obs = obs[second - first < math.log(0.999)]
    assert len(obs) > 490
    likeliest = algorithm.model.clone(obs).argmax(-1)
    assert torch.equal(algorithm.act(obs), likeliest)
    assert not torch.equal(likeliest, algorithm.model.critic(obs).argmax(-1))


def test_the_clone_has_the_likelihood_and_the_size_of_raw_logits_worked_out_by_hand() -> None:
    logits, actions = torch.tensor([[0.0, math.log(3)]]), torch.tensor([1])
    metrics = clone_loss(logits=logits, actions=actions, logit_penalty=0.01)
    assert float(metrics["clone_nll"]) == pytest.approx(0.287682, abs=1e-6)
    # Half of (ln 3)^2; of log-probabilities it would have been 1.002287.
    assert float(metrics["clone_loss"]) == pytest.approx(0.287682 + 0.01 * 0.603474, abs=1e-6)
    shifted = clone_loss(logits=logits + 1, actions=actions, logit_penalty=1.0)
    assert float(shifted["clone_nll"]) == pytest.approx(0.287682, abs=1e-6)
    assert float(shifted["clone_loss"]) == pytest.approx(0.287682 + (1 + (1 + math.log(3)) ** 2) / 2, abs=1e-5)


@pytest.mark.parametrize(
    ("num_actions", "probability", "ratio"), [(2, 0.980, 0.020), (4, 0.981, 0.0064), (25, 0.994, 0.0)]
)
def test_a_clone_of_data_with_one_action_rules_out_the_others(
    num_actions: int, probability: float, ratio: float
) -> None:
    actions = torch.zeros(1, dtype=torch.int64)
    logits = minimum(lambda row: clone_loss(logits=row[None], actions=actions)["clone_loss"], num_actions)
    found = torch.tensor(logits).softmax(-1)
    assert float(found[0]) == pytest.approx(probability, abs=5e-4)
    assert float(found[1] / found[0]) == pytest.approx(ratio, abs=5e-4)
