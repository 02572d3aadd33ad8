"""Which products of a compiled graph become loops, and that they stay the same products."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from rl_training.compilation.graphs import CompiledGradient
from rl_training.compilation.kernels.matrix import use_loops
from rl_training.compilation.kernels.passes import are_faster, compiler_options

aten = torch.ops.aten


def targets(function: Callable[..., Tensor | tuple[Tensor, ...]], *inputs: Tensor) -> list[str]:
    """The operators of a function after the pass."""
    graph = make_fx(function, tracing_mode="fake")(*inputs).graph
    use_loops(graph)
    graph.lint()
    return [str(node.target) for node in graph.nodes if node.op == "call_function"]


PRODUCT, SUM = "rl_training.product.default", "rl_training.sum_rows.default"
ROWS, WEIGHT, BIAS = torch.randn(32, 16), torch.randn(16, 24), torch.randn(24)


def test_a_product_takes_its_bias_and_its_relu_along() -> None:
    assert targets(lambda *inputs: aten.relu(aten.addmm(*inputs)), BIAS, ROWS, WEIGHT) == [PRODUCT]


def test_a_relu_stays_where_something_else_uses_the_product_too() -> None:
    def function(rows: Tensor, weight: Tensor) -> Tensor:
        product = aten.mm(rows, weight)
        return aten.add(aten.relu(product), product)  # type: ignore[no-any-return]

    assert targets(function, ROWS, WEIGHT) == [PRODUCT, "aten.relu.default", "aten.add.Tensor"]


def test_a_product_is_added_to_a_matrix() -> None:
    assert targets(aten.addmm, torch.randn(32, 24), ROWS, WEIGHT) == [PRODUCT]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_products_of_other_types_stay_as_they_are(dtype: torch.dtype) -> None:
    assert targets(aten.mm, ROWS.to(dtype), WEIGHT.to(dtype)) == ["aten.mm.default"]


@pytest.mark.parametrize("bias", [torch.randn(()), torch.randn(1), torch.randn(32, 1)])
def test_biases_of_other_shapes_stay_as_they_are(bias: Tensor) -> None:
    assert targets(aten.addmm, bias, ROWS, WEIGHT) == ["aten.addmm.default"]


def test_a_scaled_bias_stays_as_it_is() -> None:
    assert targets(lambda *inputs: aten.addmm(*inputs, beta=0.5), BIAS, ROWS, WEIGHT) == ["aten.addmm.default"]


@pytest.mark.parametrize(("rows", "depth", "columns"), [(1, 16, 24), (32, 1, 24), (32, 16, 1), (1, 1, 1)])
def test_thin_products_become_multiplications_and_a_sum(rows: int, depth: int, columns: int) -> None:
    inputs = torch.randn(columns), torch.randn(rows, depth), torch.randn(depth, columns)
    module = make_fx(aten.addmm, tracing_mode="fake")(*inputs)
    use_loops(module.graph)
    module.recompile()

    assert "mm" not in "".join(str(node.target) for node in module.graph.nodes)
    torch.testing.assert_close(module(*inputs), torch.addmm(*inputs))


def test_torchs_own_loops_stay_on_processors_of_other_makers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_training.compilation.kernels.passes._is_amd", lambda: False)

    assert not are_faster()
    assert compiler_options() == {}


def test_the_sum_of_a_bias_stays_as_it_is() -> None:
    found = targets(lambda *inputs: (aten.addmm(*inputs), aten.sum(inputs[0], [0])), BIAS, ROWS, WEIGHT)

    assert found == [PRODUCT, "aten.sum.dim_IntList"]


def test_the_sum_of_a_factors_rows_becomes_loops_too() -> None:
    def gradients(rows: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
        return aten.mm(rows.T, gradient), aten.sum(gradient, [0]), aten.sum(gradient, [0], True), aten.sum(rows, [0])

    found = targets(gradients, ROWS, torch.randn(32, 24))

    assert found == ["aten.permute.default", PRODUCT, SUM, SUM, "aten.unsqueeze.default", "aten.sum.dim_IntList"]


SIZES = [(256, 256, 256), (23, 17, 300), (300, 64, 23), (130, 600, 70), (16, 2, 16), (7, 31, 5), (81, 33, 129)]
"""Rows, depth and columns: whole tiles, parts of tiles, several blocks of rows and of the depth."""
SIZES += [(45, 256, 256)]
"""Few rows, so that threads share columns too."""


def factors() -> dict[str, Tensor]:
    """For every size, a left factor and its transpose, a right factor and its transpose, and two biases."""
    found: dict[str, Tensor] = {}
    for number, (rows, depth, columns) in enumerate(SIZES):
        shapes = {"left": (rows, depth), "right": (2, depth, columns), "bias": (2, columns), "sum": (rows, columns)}
        shapes |= {"turned_left": (depth, rows), "turned_right": (columns, depth)}
        found |= {f"{name}{number}": torch.randn(shape) for name, shape in shapes.items()}
    return found


def products(batch: dict[str, Tensor]) -> list[Tensor]:
    """Products of all kinds, as layers and their gradients have them."""
    found = []
    for number in range(len(SIZES)):
        left, right, bias, start, turned_left, turned_right = (
            batch[f"{name}{number}"] for name in ("left", "right", "bias", "sum", "turned_left", "turned_right")
        )
        found += [
            torch.stack([torch.relu(torch.addmm(bias[member], left, right[member])) for member in range(2)]),
            torch.relu(torch.mm(turned_left.T, right[1])),
            torch.mm(left, turned_right.T),
            torch.addmm(bias[1], turned_left.T, turned_right.T),
            torch.addmm(start, left, right[0]) + 1,
            torch.mm(left[2:], right[0]),
            torch.mm(left[:, 1:], right[1, 1:, 1:]),
            torch.mm(left.T, start),
            torch.stack([start.sum(0), bias[0]]),
        ]
    return found


@pytest.mark.skipif(not are_faster(), reason="loops are for AMD processors with AVX-512")
@pytest.mark.parametrize("threads", [1, 7], indirect=True)
def test_loops_compute_what_torch_computes(threads: None) -> None:
    torch.manual_seed(0)
    batch = factors()
    batch["left0"][5, 7], batch["turned_left0"][3, 2] = torch.nan, torch.inf
    compiled = CompiledGradient(products, name="products", backend="inductor")

    expected = products({name: value.double() for name, value in batch.items()})
    for found, exact in zip(compiled(batch), expected, strict=True):
        torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-4, equal_nan=True)
