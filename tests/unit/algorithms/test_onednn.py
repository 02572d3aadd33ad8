"""Which products of a compiled graph oneDNN computes, and that they stay the same products."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from rl_training.algorithms.onednn import graph_pass, use_onednn

aten = torch.ops.aten


def targets(function: Callable[..., Tensor], *inputs: Tensor) -> list[str]:
    """The operators of a function after the pass."""
    graph = make_fx(function, tracing_mode="fake")(*inputs).graph
    use_onednn(graph)
    graph.lint()
    return [str(node.target) for node in graph.nodes if node.op == "call_function"]


LINEAR = "rl_training.linear.default"
ROWS, WEIGHT, BIAS = torch.randn(256, 256), torch.randn(256, 256), torch.randn(256)


def test_a_large_product_takes_its_bias_and_its_relu_along() -> None:
    found = targets(lambda *inputs: aten.relu(aten.addmm(*inputs)), BIAS, ROWS, WEIGHT)

    assert found == ["aten.permute.default", LINEAR]


def test_a_relu_stays_where_something_else_uses_the_product_too() -> None:
    def function(rows: Tensor, weight: Tensor) -> Tensor:
        product = aten.mm(rows, weight)
        return aten.add(aten.relu(product), product)  # type: ignore[no-any-return]

    assert targets(function, ROWS, WEIGHT) == [
        "aten.permute.default", LINEAR, "aten.relu.default", "aten.add.Tensor"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        ((torch.randn(256, 23), torch.randn(23, 256)), "small"),
        ((ROWS.T, WEIGHT), "transposed, as in the gradient of a weight"),
        ((ROWS.double(), WEIGHT.double()), "in float64"),
        ((ROWS.bfloat16(), WEIGHT.bfloat16()), "of oneDNN already"),
    ],
)
def test_other_products_stay_as_they_are(inputs: tuple[Tensor, ...], why: str) -> None:
    assert targets(aten.mm, *inputs)[-1] == "aten.mm.default", why


def test_a_scaled_bias_stays_as_it_is() -> None:
    found = targets(lambda *inputs: aten.addmm(*inputs, beta=0.5), BIAS, ROWS, WEIGHT)

    assert found == ["aten.addmm.default"]


def test_there_is_no_pass_for_processors_of_other_makers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_training.algorithms.onednn._is_amd", lambda: False)

    assert graph_pass() is None
