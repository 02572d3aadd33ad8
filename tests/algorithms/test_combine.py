"""How the objective of an algorithm is put together."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import Tensor

from rl_training.algorithms.base.losses import Objective, combine
from rl_training.core.batches import Metrics


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
