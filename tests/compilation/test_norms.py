"""Layer normalisation in loops of our own: where it is used, and that it stays the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx import Graph
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from rl_training.compilation.graphs import CompiledGradient
from rl_training.compilation.kernels import norms
from rl_training.compilation.kernels import passes as loops
from rl_training.compilation.kernels.passes import are_faster

NORM, GRADIENT, RELU = "rl_training.normalize.default", "rl_training.normalize_backward.default", "aten.relu.default"
Tensors = dict[str, Tensor]
Activation = Callable[[Tensor], Tensor]


def gradients(batch: Tensors, activation: Activation) -> list[Tensor]:
    """Normalised rows behind an activation, and the gradients of rows, weight and bias."""
    rows, weight, bias = (batch[name].detach().requires_grad_() for name in ("rows", "weight", "bias"))
    outputs = activation(functional.layer_norm(rows, rows.shape[-1:], weight, bias))
    return [outputs.detach(), *torch.autograd.grad((outputs * batch["slopes"]).sum(), [rows, weight, bias])]


def with_relu(batch: Tensors) -> list[Tensor]:
    """The same behind ReLU."""
    return gradients(batch, torch.relu)


def make_batch(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> Tensors:
    """Rows far from mean 0 and variance 1, and what is beside them in a normalisation."""
    batch = {"rows": 3 * torch.randn(rows, columns) + 5, "slopes": torch.randn(rows, columns)}
    batch |= {"weight": torch.randn(columns), "bias": torch.randn(columns)}
    return {name: value.to(dtype) for name, value in batch.items()}


def targets(function: Callable[[Tensors], list[Tensor]], batch: Tensors) -> list[str]:
    """The operators of a function as torch's compiler gets them."""
    from torch._inductor.decomposition import decompositions

    with norms.in_use():
        graph = make_fx(function, decomposition_table=decompositions, tracing_mode="fake")(batch).graph
    for alias in graph.find_nodes(op="call_function", target=torch.ops.aten.alias.default):
        # torch's compiler has removed them by then.
        alias.replace_all_uses_with(alias.args[0])
        graph.erase_node(alias)
    norms.join_relu(graph)
    graph.lint()
    return [str(node.target) for node in graph.nodes if node.op == "call_function"]


def test_a_normalisation_takes_its_relu_along() -> None:
    found = targets(with_relu, make_batch(8, 16))

    assert found.count(NORM) == found.count(GRADIENT) == 1
    assert RELU not in found
    assert "aten.where.self" not in found


def test_a_relu_stays_where_something_else_uses_the_normalised_rows_too() -> None:
    found = targets(lambda batch: gradients(batch, lambda rows: torch.relu(rows) + rows), make_batch(8, 16))

    assert NORM in found
    assert RELU in found
    assert "aten.where.self" in found


@pytest.mark.parametrize("shape", [(8, 16), (2, 3, 16)])
def test_normalisations_of_other_types_and_shapes_stay_torchs(shape: tuple[int, ...]) -> None:
    batch = make_batch(8, 16, torch.float64 if len(shape) == 2 else torch.float32)
    batch |= {name: batch[name][0].expand(shape) for name in ("rows", "slopes")}

    assert not {NORM, GRADIENT} & set(targets(with_relu, batch))


def test_other_compiled_functions_get_torchs_normalisation_again() -> None:
    from torch._inductor.decomposition import decompositions

    before = dict(decompositions)
    with norms.in_use():
        assert decompositions != before
    assert decompositions == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_torchs_normalisation_stays_where_products_are_in_bfloat16(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor.decomposition import decompositions

    monkeypatch.setattr(loops, "are_faster", lambda: True)
    before, graph = dict(decompositions), Graph()
    graph.placeholder("rows").meta["example_value"] = torch.zeros(2, dtype=dtype)

    with loops.decompositions(graph):
        assert (decompositions == before) == (dtype == torch.bfloat16)


SIZES = [(256, 256), (33, 40), (5, 7), (1, 16), (1023, 100)]
"""Rows and columns: whole registers, parts of them, numbers of rows that are no multiple of a block."""


def all_gradients(batch: Tensors) -> list[Tensor]:
    """Normalisations of all sizes, behind several activations."""
    found = []
    for number in range(len(SIZES)):
        own = {name: batch[f"{name}{number}"] for name in ("rows", "slopes", "weight", "bias")}
        for activation in (torch.relu, torch.tanh, torch.neg):
            found += gradients(own, activation)
    own["weight"].requires_grad_(False)
    rows = own["rows"].detach().requires_grad_()
    outputs = functional.layer_norm(rows, rows.shape[-1:], own["weight"], own["bias"])
    return [*found, torch.autograd.grad((outputs * own["slopes"]).sum(), rows)[0]]


@pytest.mark.skipif(not are_faster(), reason="loops are for AMD processors with AVX-512")
@pytest.mark.usefixtures("threads")
def test_loops_compute_what_torch_computes() -> None:
    torch.manual_seed(0)
    batch: Tensors = {}
    for number, size in enumerate(SIZES):
        batch |= {f"{name}{number}": value for name, value in make_batch(*size).items()}
    batch["rows0"][3, 5] = torch.nan
    compiled = CompiledGradient(all_gradients, name="gradients", backend="inductor")

    expected = all_gradients({name: value.double() for name, value in batch.items()})
    for found, exact in zip(compiled(batch), expected, strict=True):
        torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-4, equal_nan=True)
