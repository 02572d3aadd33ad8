"""Which products, sums over members and norms of a compiled graph become loops, and that they stay the same."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import Graph, GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from rl_training.compilation.graphs import CompiledGradient
from rl_training.compilation.kernels import norms
from rl_training.compilation.kernels import passes as loops
from rl_training.compilation.kernels.matrix import use_loops
from rl_training.compilation.kernels.passes import are_faster, by_use, compiler_options, take_apart

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
@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.slow), 7], indirect=True)
def test_loops_compute_what_torch_computes(threads: None) -> None:
    torch.manual_seed(0)
    batch = factors()
    batch["left0"][5, 7], batch["turned_left0"][3, 2] = torch.nan, torch.inf
    compiled = CompiledGradient(products, name="products", backend="inductor")

    expected = products({name: value.double() for name, value in batch.items()})
    for found, exact in zip(compiled(batch), expected, strict=True):
        torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-4, equal_nan=True)


MEMBERS = 3


def gradient_parts(loss: Any, *values: Tensor) -> tuple[Tensor, ...]:
    """For each member of an ensemble, the gradient of a loss of all values; stacked as torch's compiler stacks."""
    stacked = torch.cat([each[:, None] for each in values]).reshape(MEMBERS, -1, 1).squeeze(-1).permute(0, 1)
    (gradient,) = torch.autograd.grad(loss(stacked.requires_grad_()), stacked)
    return tuple(gradient.unsqueeze(2).select(0, member).squeeze(1) for member in range(MEMBERS))


LOSSES = {
    "squares": (lambda values: (values - torch.arange(4.0)).square().mean(-1).sum(), True),
    "weighted squares": (lambda values: (torch.where(values > 0, 0.7, 0.3) * values.square()).mean(-1).sum(), True),
    "distances": (lambda values: (values - torch.arange(4.0)).abs().mean(), True),
    "the smallest": (lambda values: values.amin(0).mean(), False),
    "squares about the mean": (lambda values: (values - values.mean(0)).square().sum(), False),
}
"""By name, a loss of values (members, rows), and whether the members' gradients are independent of each other."""


def module_of(name: str, values: list[Tensor]) -> GraphModule:
    """The gradients of all members, taken apart."""
    from torch._inductor.decomposition import decompositions

    def function(*values: Tensor) -> tuple[Tensor, ...]:
        return gradient_parts(LOSSES[name][0], *values)

    module = make_fx(function, decomposition_table=decompositions, tracing_mode="fake")(*values)
    take_apart(module.graph)
    module.graph.lint()
    module.recompile()
    return module


@pytest.mark.parametrize("name", LOSSES)
def test_parts_of_gradients_stay_the_same(name: str) -> None:
    values = [torch.randn(4) for _ in range(MEMBERS)]

    for found, expected in zip(module_of(name, values)(*values), gradient_parts(LOSSES[name][0], *values), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", LOSSES)
def test_a_member_waits_for_others_only_where_the_loss_binds_them_together(name: str) -> None:
    graph = module_of(name, [torch.randn(4) for _ in range(MEMBERS)]).graph
    outputs: Any = graph.output_node().args[0]
    inputs = set(graph.find_nodes(op="placeholder"))
    is_apart = LOSSES[name][1]

    for output in outputs:
        needed: set[Any] = set()
        waiting = [output]
        while waiting:
            node = waiting.pop()
            needed.add(node)
            waiting += [each for each in node.all_input_nodes if each not in needed]
        assert len(needed & inputs) == (1 if is_apart else MEMBERS)


class Node:
    """A node of torch's scheduler, as far as an order depends on it."""

    def __init__(self, name: str, *needs: str, is_product: bool = False, operator: Any = None) -> None:
        self.name, self.is_product, self.node = name, is_product, SimpleNamespace(op_overload=operator)
        self.unmet_dependencies = [SimpleNamespace(name=need) for need in needs]

    def get_buffer_names(self) -> list[str]:
        """What it computes."""
        return [self.name]

    def is_template(self) -> bool:
        """Whether it calls loops of our own; as in float32."""
        return self.is_product and "backward" not in self.name

    def is_extern(self) -> bool:
        """Whether it calls a library; as in bfloat16."""
        return self.is_product and not self.is_template()


def test_each_call_comes_right_before_its_first_use_and_gradients_as_soon_as_they_can() -> None:
    nodes = [Node("rows")]
    for member in "ab":
        nodes += [Node(f"turned_{member}"), Node(f"forward_{member}", "rows", is_product=True)]
    nodes += [Node("metrics", "forward_a", "forward_b"), Node("target")]
    for member in "ab":
        nodes.append(Node(f"slopes_{member}", f"forward_{member}", "target"))
        nodes.append(Node(f"backward_{member}", f"slopes_{member}", f"turned_{member}", is_product=True))
        nodes.append(Node(f"first_{member}", f"backward_{member}", is_product=True))
    nodes += [Node(f"second_{member}", f"slopes_{member}", is_product=True) for member in "ab"]
    nodes.append(Node("norm", "first_a", "first_b", "second_a", "second_b"))

    found = [node.name for node in by_use(nodes)]

    assert found == [
        *("rows", "forward_a", "target", "slopes_a", "second_a", "turned_a", "backward_a", "first_a"),
        *("forward_b", "metrics", "slopes_b", "second_b", "turned_b", "backward_b", "first_b", "norm"),
    ]


def test_random_numbers_are_drawn_in_the_order_of_the_graph() -> None:
    draw = torch.ops.aten.randn.default
    nodes = [Node("noise_a", operator=draw), Node("noise_b", operator=draw), Node("noise_c", operator=draw)]
    nodes += [Node(f"gradient_{member}", f"noise_{member}", is_product=True) for member in "cba"]

    found = [node.name for node in by_use(nodes) if node.name.startswith("noise")]

    assert found == ["noise_a", "noise_b", "noise_c"]


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


def norm_targets(function: Callable[[Tensors], list[Tensor]], batch: Tensors) -> list[str]:
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
    found = norm_targets(with_relu, make_batch(8, 16))

    assert found.count(NORM) == found.count(GRADIENT) == 1
    assert RELU not in found
    assert "aten.where.self" not in found


def test_a_relu_stays_where_something_else_uses_the_normalised_rows_too() -> None:
    found = norm_targets(lambda batch: gradients(batch, lambda rows: torch.relu(rows) + rows), make_batch(8, 16))

    assert NORM in found
    assert RELU in found
    assert "aten.where.self" in found


@pytest.mark.parametrize("shape", [(8, 16), (2, 3, 16)])
def test_normalisations_of_other_types_and_shapes_stay_torchs(shape: tuple[int, ...]) -> None:
    batch = make_batch(8, 16, torch.float64 if len(shape) == 2 else torch.float32)
    batch |= {name: batch[name][0].expand(shape) for name in ("rows", "slopes")}

    assert not {NORM, GRADIENT} & set(norm_targets(with_relu, batch))


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


NORM_SIZES = [(256, 256), (33, 40), (5, 7), (1, 16), (1023, 100)]
"""Rows and columns: whole registers, parts of them, numbers of rows that are no multiple of a block."""


def all_gradients(batch: Tensors) -> list[Tensor]:
    """Normalisations of all sizes, behind several activations."""
    found = []
    for number in range(len(NORM_SIZES)):
        own = {name: batch[f"{name}{number}"] for name in ("rows", "slopes", "weight", "bias")}
        for activation in (torch.relu, torch.tanh, torch.neg):
            found += gradients(own, activation)
    own["weight"].requires_grad_(False)
    rows = own["rows"].detach().requires_grad_()
    outputs = functional.layer_norm(rows, rows.shape[-1:], own["weight"], own["bias"])
    return [*found, torch.autograd.grad((outputs * own["slopes"]).sum(), rows)[0]]


@pytest.mark.skipif(not are_faster(), reason="loops are for AMD processors with AVX-512")
@pytest.mark.usefixtures("threads")
def test_loops_of_norms_compute_what_torch_computes() -> None:
    torch.manual_seed(0)
    batch: Tensors = {}
    for number, size in enumerate(NORM_SIZES):
        batch |= {f"{name}{number}": value for name, value in make_batch(*size).items()}
    batch["rows0"][3, 5] = torch.nan
    compiled = CompiledGradient(all_gradients, name="gradients", backend="inductor")

    expected = all_gradients({name: value.double() for name, value in batch.items()})
    for found, exact in zip(compiled(batch), expected, strict=True):
        torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-4, equal_nan=True)
