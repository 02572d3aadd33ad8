"""PPO on tasks of one or two steps, whose best policy and values are known."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rl_training.algorithms import ALGORITHMS
from rl_training.core.batches import Batch
from rl_training.core.spaces import BoxActions, DiscreteActions, SpaceSpec

ROWS = 256


def _build(action: BoxActions | DiscreteActions, **hyper: Any) -> Any:
    cls = ALGORITHMS["ppo"]
    torch.manual_seed(0)
    return cls.build(SpaceSpec.vector(2, action), cls.hyper_class(learning_rate=3e-3, hidden_sizes=(32, 32), **hyper))


def _improve(algorithm: Any, rows: Batch, ends: torch.Tensor) -> None:
    """Four passes over a rollout, each in an order of its own, in four minibatches."""
    rows = rows | algorithm.annotate(rows, ends)
    for _ in range(4):
        for part in torch.randperm(ROWS).chunk(4):
            algorithm.update({name: rows[name][part] for name in algorithm.needs})


def _rollout(algorithm: Any) -> Batch:
    """States in pairs, (1, 0) and then (0, 1)."""
    obs = torch.eye(2).repeat(ROWS // 2, 1)
    with torch.no_grad():
        actions, extras = algorithm.model.explore(obs)
    return {
        "obs": obs,
        "next_obs": obs.roll(-1, 0),
        "actions": actions,
        **extras,
        "dones": torch.ones(ROWS),
    }


def test_a_continuous_bandit_is_solved() -> None:
    algorithm = _build(BoxActions((-1.0,), (1.0,)))
    for _ in range(60):
        rows = _rollout(algorithm)
        # The best action is 0.5 in one state and -0.25 in the other.
        best = rows["obs"] @ torch.tensor([0.5, -0.25])
        rows["rewards"] = -(rows["actions"].clamp(-1, 1)[:, 0] - best).square()
        _improve(algorithm, rows, torch.arange(ROWS))
    assert algorithm.act(torch.eye(2)).flatten().tolist() == pytest.approx([0.5, -0.25], abs=0.1)


def test_a_discrete_bandit_is_solved_and_its_values_are_known() -> None:
    algorithm = _build(DiscreteActions(3))
    for _ in range(40):
        rows = _rollout(algorithm)
        best = (rows["obs"] @ torch.tensor([2.0, 0.0])).long()
        rows["rewards"] = (rows["actions"] == best).float()
        _improve(algorithm, rows, torch.arange(ROWS))
    assert algorithm.act(torch.eye(2)).tolist() == [2, 0]
    assert algorithm.model.value(torch.eye(2)).tolist() == pytest.approx([1.0, 1.0], abs=0.1)


@pytest.mark.parametrize(("terminates", "expected"), [(True, [1.8, 1.0]), (False, [5.0, 5.0])])
def test_a_cut_episode_continues_with_the_value_of_what_came_last(terminates: bool, expected: list[float]) -> None:
    # Two steps of reward 1, discounted by 0.8. Where the episode is cut, the second state has led to itself, so that
    # its value is v = 1 + 0.8 v.
    algorithm = _build(DiscreteActions(2), gamma=0.8, gae_lambda=0.9)
    for _ in range(120):
        rows = _rollout(algorithm)
        rows["rewards"] = torch.ones(ROWS)
        rows["dones"] = torch.tensor([0.0, float(terminates)]).repeat(ROWS // 2)
        rows["next_obs"] = torch.tensor([0.0, 1.0]).expand(ROWS, 2).clone()
        _improve(algorithm, rows, torch.arange(1, ROWS, 2))
    assert algorithm.model.value(torch.eye(2)).tolist() == pytest.approx(expected, rel=0.05)
