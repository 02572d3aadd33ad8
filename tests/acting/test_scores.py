"""D4RL's normalised scores."""

from __future__ import annotations

import pytest

from rl_training.acting.evaluation import REFERENCE_RETURNS, reference_returns
from rl_training.runtime import normalized_score


@pytest.mark.parametrize(
    ("task", "value", "score"),
    [
        ("hopper-medium-v2", 3234.3, 100.0),
        ("hopper-medium-v2", -20.272305, 0.0),
        ("halfcheetah-medium-v2", 5000, 42.530027),
        ("walker2d-medium-v2", 3000, 65.314439),
        ("hopper-medium-v2", 1500, 46.711892),
        ("pen-human-v1", 1000, 30.320949),
        ("maze2d-umaze-v1", 100, 55.177161),
    ],
)
def test_scores_equal_those_of_d4rl(task: str, value: float, score: float) -> None:
    assert normalized_score(task, value) == pytest.approx(score, abs=5e-7)


@pytest.mark.parametrize(
    ("task", "family"),
    [
        ("Hopper-v4", "hopper"),
        ("HalfCheetah-v5", "halfcheetah"),
        ("Walker2d-v2", "walker2d"),
        ("Ant-v4", "ant"),
        ("hopper-medium-v2", "hopper"),
        ("hopper_medium-v2", "hopper"),
        ("AdroitHandDoor-v1", "door"),
        ("AdroitHandPen-v1", "pen"),
        ("door-cloned-v1", "door"),
        # The maze is not the animal that walks in it.
        ("antmaze-umaze-v2", "antmaze"),
        ("AntMaze_UMaze-v4", "antmaze"),
        ("maze2d-umaze-dense-v1", "maze2d-umaze-dense-v1"),
    ],
)
def test_a_task_is_known_by_its_data_and_by_its_environment(task: str, family: str) -> None:
    assert reference_returns(task) == REFERENCE_RETURNS[family]


@pytest.mark.parametrize("task", ["Pendulum-v1", "CartPole-v1", "maze2d-huge-v1", "Antelope-v1", ""])
def test_a_task_without_reference_returns_has_no_score(task: str) -> None:
    assert normalized_score(task, 100.0) is None


def test_every_expert_is_better_than_chance() -> None:
    assert [task for task, (random, expert) in REFERENCE_RETURNS.items() if expert <= random] == []
