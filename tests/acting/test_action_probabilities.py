"""How probable an action is under a trained policy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.algorithms import ALGORITHMS
from rl_training.core.spaces import BoxActions, DiscreteActions, SpaceSpec
from rl_training.runtime import Policy

BOX = SpaceSpec.vector(2, BoxActions((0.0,), (4.0,)))
CHOICES = SpaceSpec.vector(2, DiscreteActions(3, start=1))
OBS = torch.tensor([[0.3, -0.7]])


def policy(name: str, spaces: SpaceSpec, **hyper: Any) -> Policy:
    torch.manual_seed(0)
    cls = ALGORITHMS[name]
    return Policy.of(cls.build(spaces, cls.hyper_class(hidden_sizes=(8,), **hyper)), spaces)


@pytest.mark.parametrize("name", ["sac", "bc"])
def test_densities_in_minus_one_to_one_are_those_of_drawn_actions(name: str) -> None:
    acting = policy(name, BOX, **({"policy": "stochastic"} if name == "bc" else {}))
    torch.manual_seed(0)
    drawn = acting.act(OBS.expand(40_000, 2), deterministic=False)[:, 0]

    edges = np.linspace(0.4, 3.6, 9)
    shares = np.histogram(drawn.numpy(), bins=edges)[0] / len(drawn)
    fine = np.linspace(0.4, 3.6, 801)
    log_probs = acting.log_probs(OBS.expand(len(fine), 2), torch.from_numpy(fine[:, None]).float())

    assert log_probs is not None
    # The action of 0 to 4 is twice as wide as that of -1 to 1, in which densities are.
    densities = log_probs.exp().numpy() / 2
    masses = ((densities[:-1] + densities[1:]) / 2 * np.diff(fine)).reshape(8, 100).sum(1)
    np.testing.assert_allclose(shares, masses, atol=4 * 0.5 / math.sqrt(len(drawn)))


def test_discrete_actions_of_a_softmax_policy_have_the_probabilities_with_which_they_are_drawn() -> None:
    acting = policy("bc", CHOICES)
    torch.manual_seed(0)
    drawn = acting.act(OBS.expand(20_000, 2), deterministic=False)

    log_probs = acting.log_probs(OBS.expand(3, 2), torch.tensor([1, 2, 3]))

    assert log_probs is not None
    assert float(log_probs.exp().sum()) == pytest.approx(1)
    shares = torch.bincount(drawn, minlength=4)[1:] / len(drawn)
    torch.testing.assert_close(shares, log_probs.exp(), rtol=0, atol=0.015)


def test_a_greedy_policy_has_the_probabilities_0_and_1() -> None:
    acting = policy("dqn", CHOICES)

    log_probs = acting.log_probs(OBS.expand(3, 2), torch.tensor([1, 2, 3]))

    assert log_probs is not None
    best = int(acting(OBS)[0])
    assert log_probs.tolist() == [0.0 if choice == best else -math.inf for choice in (1, 2, 3)]


@pytest.mark.parametrize("name", ["td3_bc", "bcq", "bear"])
def test_deterministic_policies_and_those_that_choose_among_candidates_have_no_density(name: str) -> None:
    assert policy(name, BOX).log_probs(OBS, torch.ones(1, 1)) is None


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_says_whether_its_policy_has_probabilities(name: str) -> None:
    spaces = BOX if "continuous" in ALGORITHMS[name].action_kinds else CHOICES

    found = policy(name, spaces).log_probs(
        OBS, torch.ones(1, *spaces.action.column.shape).to(spaces.action.column.torch_dtype)
    )

    assert found is None or found.shape == (1,)
