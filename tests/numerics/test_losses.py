"""The shared formulas: what termination and shapes do."""

from __future__ import annotations

import pytest
import torch

from rl_training.algorithms.losses import bellman, critic_objective


def test_termination_stops_the_bootstrap_and_nothing_else_does() -> None:
    batch = {"rewards": torch.tensor([1.0, 1.0]), "dones": torch.tensor([0.0, 1.0])}
    assert bellman(batch, torch.tensor([10.0, 10.0]), 0.9).tolist() == pytest.approx([10.0, 1.0])


def test_rewards_with_a_trailing_axis_are_refused_instead_of_broadcast() -> None:
    batch = {"rewards": torch.zeros(4, 1), "dones": torch.zeros(4, 1)}
    with pytest.raises(ValueError, match=r"shapes must be equal.*\(4, 1\).*\(4,\)"):
        bellman(batch, torch.zeros(4), 0.9)
    with pytest.raises(ValueError, match=r"q_values must be \(E, B\)"):
        critic_objective(q_values=torch.zeros(2, 4), target_q_values=torch.zeros(4, 1))
