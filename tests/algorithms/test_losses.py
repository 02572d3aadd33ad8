"""The shared formulas: what termination and shapes do."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import Tensor

from rl_training.algorithms.base.losses import Objective, bellman, combine, critic_objective
from rl_training.core.batches import Metrics


def test_termination_stops_the_bootstrap_and_nothing_else_does() -> None:
    batch = {"rewards": torch.tensor([1.0, 1.0]), "dones": torch.tensor([0.0, 1.0])}
    assert bellman(batch, torch.tensor([10.0, 10.0]), 0.9).tolist() == pytest.approx([10.0, 1.0])


def test_a_flag_for_a_time_limit_changes_nothing() -> None:
    # Terminated and cut: (1, 0), (0, 1), (1, 1), (0, 0); with reward 1 and value 8, 1 + 0.99 * 8 = 8.92 or 1.
    batch = {
        "rewards": torch.ones(4),
        "dones": torch.tensor([1.0, 0.0, 1.0, 0.0]),
        "truncations": torch.tensor([0.0, 1.0, 1.0, 0.0]),
    }
    assert bellman(batch, torch.full((4,), 8.0), 0.99).tolist() == pytest.approx([1.0, 8.92, 1.0, 8.92])


def test_a_batch_with_discounts_of_its_own_has_no_use_for_gamma() -> None:
    # Rewards 1, 2, 3 at 0.99: 1 + 1.98 + 2.9403 = 5.9203, and 0.99^3 = 0.970299 of the 10 that follow. The second row
    # is cut after one step and keeps 0.99 of them, the third terminated.
    batch = {
        "rewards": torch.tensor([5.9203, 1.0, 1.0]),
        "dones": torch.tensor([0.0, 0.0, 1.0]),
        "discounts": torch.tensor([0.970299, 0.99, 0.99]),
    }
    assert bellman(batch, torch.full((3,), 10.0), 0.5).tolist() == pytest.approx([15.62329, 10.9, 1.0])


def test_rewards_with_a_trailing_axis_are_refused_instead_of_broadcast() -> None:
    batch = {"rewards": torch.zeros(4, 1), "dones": torch.zeros(4, 1)}
    with pytest.raises(ValueError, match=r"shapes must be equal.*\(4, 1\).*\(4,\)"):
        bellman(batch, torch.zeros(4), 0.9)
    with pytest.raises(ValueError, match=r"q_values must be \(E, B\)"):
        critic_objective(q_values=torch.zeros(2, 4), target_q_values=torch.zeros(4, 1))


def _first(values: Tensor, *, weight: float = 2.0) -> Metrics:
    """The first part."""
    return {"first_loss": weight * values.sum(), "mean": values.mean()}


def _second(*, values: Tensor, others: Tensor) -> Metrics:
    return {"second_loss": (values - others).sum()}


@pytest.fixture
def whole() -> Objective:
    return combine("some_loss", _first, _second)


def test_each_part_takes_its_arguments_and_all_metrics_are_returned(whole: Objective) -> None:
    values, others = torch.tensor([1.0, 3.0]), torch.tensor([1.0, 1.0])

    metrics = {name: float(value) for name, value in whole(values=values, others=others).items()}

    assert metrics == {"first_loss": 8.0, "mean": 2.0, "second_loss": 2.0}
    assert float(whole(values=values, others=others, weight=0.5)["first_loss"]) == 2.0


def test_the_whole_has_a_name_a_meaning_and_a_signature(whole: Objective) -> None:
    assert (whole.__name__, whole.__doc__) == (
        "some_loss",
        "The whole objective of some, part by part:\n\nThe first part.",
    )
    parameters = inspect.signature(whole).parameters
    assert list(parameters) == ["values", "weight", "others"]
    assert {each.kind for each in parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
    assert parameters["weight"].default == 2.0


def test_an_argument_can_have_another_default() -> None:
    whole = combine("some_loss", _first, _second, weight=3.0)

    assert float(whole(values=torch.ones(1), others=torch.ones(1))["first_loss"]) == 3.0
    assert float(whole(values=torch.ones(1), others=torch.ones(1), weight=1.0)["first_loss"]) == 1.0
    assert inspect.signature(whole).parameters["weight"].default == 3.0


def test_an_unknown_argument_is_refused_with_the_nearest_name(whole: Objective) -> None:
    with pytest.raises(TypeError, match=r"some_loss\(\) got an unexpected argument 'weights'.*weight"):
        whole(values=torch.ones(1), others=torch.ones(1), weights=1.0)


def test_a_missing_argument_is_named(whole: Objective) -> None:
    with pytest.raises(TypeError, match="'others'"):
        whole(values=torch.ones(1))
