"""The operators that compiled graphs have for a matrix product and for the sum of rows, as loops of our own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, Node

HEADER = Path(__file__).with_name("product.h")

LEAST_SHARED_WORK = 1 << 20
"""Multiplications from which several threads share a product."""


@cache
def product_operator() -> Any:
    """An operator for a product with a bias and perhaps ReLU."""
    from torch._inductor.lowering import register_lowering

    torch.library.define("rl_training::product", "(Tensor left, Tensor right, Tensor? bias, bool has_relu) -> Tensor")
    operator = torch.ops.rl_training.product.default

    @torch.library.register_fake("rl_training::product")  # type: ignore[untyped-decorator]
    def shape(left: Tensor, right: Tensor, bias: Tensor | None, has_relu: bool) -> Tensor:
        return left.new_empty(len(left), right.shape[1])

    @register_lowering(operator, type_promotion_kind=None)
    def lower(left: Any, right: Any, bias: Any, has_relu: bool) -> Any:
        inputs = {"left": in_memory(left), "right": by_rows(right)}
        inputs |= {} if bias is None else {"bias": by_rows(bias)}
        size = [left.get_size()[0], right.get_size()[1]]
        return computed(size, inputs, HEADER, partial(_multiply, has_relu=has_relu))

    return operator


@cache
def sum_operator() -> Any:
    """An operator for the sum of a matrix's rows, which is a vector."""
    from torch._inductor.lowering import register_lowering

    torch.library.define("rl_training::sum_rows", "(Tensor matrix) -> Tensor")
    operator = torch.ops.rl_training.sum_rows.default

    @torch.library.register_fake("rl_training::sum_rows")  # type: ignore[untyped-decorator]
    def shape(matrix: Tensor) -> Tensor:
        return matrix.new_empty(matrix.shape[1])

    @register_lowering(operator, type_promotion_kind=None)
    def lower(matrix: Any) -> Any:
        return computed([matrix.get_size()[1]], {"matrix": by_rows(matrix)}, HEADER, _sum_rows_code)

    return operator


def by_rows(value: Any) -> Any:
    """A vector in one piece, or a matrix whose rows are."""
    from torch._inductor.ir import ExternKernel

    value = in_memory(value)
    *columns, last = value.get_stride()
    if columns == [1] and last != 1:
        return in_memory(computed(value.get_size(), {"turned": value}, HEADER, _transpose))
    return value if last == 1 else ExternKernel.require_contiguous(value)


def _transpose(places: Mapping[str, Place], threads: int) -> str:
    """C++ that copies a matrix whose columns are in one piece."""
    turned = places["turned"]
    constants = f"{turned.size[1]}, {turned.size[0]}, {threads}"
    return f"rl_training::transpose<{constants}>({turned.data}, {turned.stride[1]}, out);"


def _multiply(places: Mapping[str, Place], threads: int, *, has_relu: bool) -> str:
    """C++ that computes a product."""
    left, right, out = (places[name] for name in ("left", "right", "out"))
    bias = places.get("bias", Place("nullptr", (), ()))
    # A bias that is a vector is the same in all rows.
    bias_row = bias.stride[0] if len(bias.stride) == 2 else 0
    (rows, depth), columns = left.size, right.size[1]
    threads = threads if rows * columns * depth >= LEAST_SHARED_WORK else 1
    constants = ", ".join(map(str, (rows, columns, depth, threads, *left.stride)))
    matrices = f"{left.data}, {right.data}, {right.stride[0]}, {bias.data}, {bias_row}, {out.data}, {out.stride[0]}"
    return f"rl_training::product<{constants}>({matrices}, {str(has_relu).lower()});"


def _sum_rows_code(places: Mapping[str, Place], threads: int) -> str:
    """C++ that sums the rows of a matrix; one thread does it, since it takes a few microseconds."""
    matrix = places["matrix"]
    return f"rl_training::sum_rows<{matrix.size[0]}, {matrix.size[1]}>({matrix.data}, {matrix.stride[0]}, out);"


aten = torch.ops.aten


def use_loops(graph: Graph) -> None:
    """Make loops of the products of a graph in float32, each with its bias and its ReLU, and of biases' gradients."""
    for target in (aten.mm.default, aten.addmm.default):
        for node in graph.find_nodes(op="call_function", target=target):
            *bias, left, right = node.args
            if node.kwargs or not _fits(node.meta["val"], *(each.meta["val"] for each in bias)):
                continue
            is_thin = 1 in (*left.meta["val"].shape, *right.meta["val"].shape)
            (_multiply_and_add if is_thin else _replace)(graph, node, left, right, *bias)
    for node in graph.find_nodes(op="call_function", target=aten.sum.dim_IntList):
        matrix, axes, *keeps_axis = node.args
        is_factor = any(user.target is product_operator() for user in matrix.users)
        # A vector that is a bias of a product stays as it is.
        if is_factor and matrix.meta["val"].ndim == 2 and axes == [0] and not node.kwargs:
            _sum_rows(graph, node, matrix, keeps_axis=keeps_axis == [True])


def _fits(product: Tensor, bias: Tensor | None = None) -> bool:
    """Whether there are loops for a product, whose bias is a row for all rows, or a matrix that it is added to."""
    has_bias = bias is None or bias.shape in (product.shape, product.shape[1:])
    return has_bias and has_loops(product)


def _replace(graph: Graph, node: Node, left: Node, right: Node, bias: Node | None = None) -> None:
    """Put the operator in place of a product, and of the ReLU that alone uses it."""
    users = list(node.users)
    has_relu = len(users) == 1 and users[0].target is aten.relu.default
    with graph.inserting_before(node):
        product = graph.call_function(product_operator(), (left, right, bias, has_relu))
    product.meta["val"] = node.meta["val"]
    for old in (*(users if has_relu else ()), node):
        old.replace_all_uses_with(product)
        graph.erase_node(old)


def _sum_rows(graph: Graph, node: Node, matrix: Node, *, keeps_axis: bool) -> None:
    """Put the operator in place of the sum of a matrix's rows, as gradients of biases are."""
    with graph.inserting_before(node):
        total = graph.call_function(sum_operator(), (matrix,))
        total.meta["val"] = matrix.meta["val"].new_empty(matrix.meta["val"].shape[1])
        if keeps_axis:
            total = graph.call_function(aten.unsqueeze.default, (total, 0))
            total.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(total)
    graph.erase_node(node)


def _multiply_and_add(graph: Graph, node: Node, left: Node, right: Node, bias: Node | None = None) -> None:
    """Put multiplications and a sum in place of a product with one row, one column or a depth of one."""

    def call(target: Any, *arguments: Any) -> Node:
        result = graph.call_function(target, arguments)
        result.meta["val"] = target(*(each.meta["val"] if isinstance(each, Node) else each for each in arguments))
        return result

    with graph.inserting_before(node):
        if left.meta["val"].shape[1] == 1:
            product = call(aten.mul.Tensor, left, right)
        elif right.meta["val"].shape[1] == 1:
            product = call(aten.mul.Tensor, left, call(aten.permute.default, right, [1, 0]))
            product = call(aten.sum.dim_IntList, product, [1], True)
        else:
            product = call(aten.mul.Tensor, call(aten.permute.default, left, [1, 0]), right)
            product = call(aten.sum.dim_IntList, product, [0], True)
        if bias is not None:
            product = call(aten.add.Tensor, product, bias)
    node.replace_all_uses_with(product)
    graph.erase_node(node)


def has_loops(value: Tensor) -> bool:
    """Whether loops can compute a tensor like this one."""
    return value.dtype == torch.float32 and value.device.type == "cpu" and value.numel() > 0


def in_memory(value: Any) -> Any:
    """An input of loops, computed and in a place that stays."""
    from torch._inductor.ir import ExternKernel

    value = ExternKernel.realize_input(value)
    value.freeze_layout()
    return value


class Place(NamedTuple):
    """Where a tensor is in memory: C++ for its first number, its size, and the distances between neighbours."""

    data: str
    size: tuple[int, ...]
    stride: tuple[int, ...]


Call = Callable[[Mapping[str, Place], int], str]
"""C++ that calls a function of a header, for the places of tensors and a number of threads."""


def computed(size: list[Any], inputs: Mapping[str, Any], header: Path, call: Call) -> Any:
    """A new tensor in float32 that a function of `header` computes; `call` gives the call of it."""
    from torch._inductor.ir import TensorBox

    return TensorBox.create(_loops()(size, inputs, header, call))


@cache
def _loops() -> Any:
    """The class of tensors that loops compute; made here, since torch's compiler takes a second to import."""
    from torch._inductor.codegen.cpp_template_kernel import CppTemplateKernel
    from torch._inductor.ir import CppTemplateBuffer, FlexibleLayout
    from torch._inductor.utils import Placeholder, parallel_num_threads

    class Loops(CppTemplateBuffer):
        """A tensor that loops compute, and the source of these."""

        def __init__(self, size: list[Any], inputs: Mapping[str, Any], header: Path, call: Call) -> None:
            values = list(inputs.values())
            # A flexible layout, so that the products of an ensemble are written into the tensor that stacks them.
            layout = FlexibleLayout(device=values[0].get_device(), dtype=torch.float32, size=size)
            super().__init__(layout, values, self.make_kernel, template=None, choice=None)  # type: ignore[arg-type]
            self.names, self.header, self.call = list(inputs), header, call
            self.allow_epilogue_fusion = False

        def decide_layout(self) -> None:
            """Rows in one piece, unless the tensor is a part of another by now."""
            if isinstance(self.layout, FlexibleLayout):
                self.freeze_layout()

        def make_kernel(self, node: Loops, *, epilogue_nodes: list[Any], **unused: Any) -> tuple[Any, Any]:
            """The function of this tensor alone, and what writes its source."""
            if epilogue_nodes:
                raise RuntimeError("loops of our own are not joined with others")
            name, threads = str(Placeholder.KERNEL_NAME), parallel_num_threads()
            kernel = CppTemplateKernel(name, threads)  # type: ignore[no-untyped-call]
            return kernel, partial(kernel.render, self)

        def render(self, kernel: Any) -> str:
            """The source."""
            inputs: dict[str, Any] = dict(zip(self.names, self.inputs, strict=True))
            head = kernel.def_kernel(inputs=inputs, outputs={"out": self})
            places = {}
            for name, each in {**inputs, "out": self}.items():
                size, stride = (tuple(map(int, numbers)) for numbers in (each.get_size(), each.get_stride()))
                data = "out" if each is self else f"&{kernel.index(each, [0] * len(size))}"
                places[name] = Place(data, size, stride)
            if places["out"].stride[-1] != 1:
                raise RuntimeError("loops of our own write rows in one piece")
            source, call = self.header.read_text(encoding="utf-8"), self.call(places, kernel.num_threads)
            return f'#include <torch/csrc/inductor/cpp_prefix.h>\n{source}\nextern "C" {head}\n{{\n    {call}\n}}\n'

    return Loops
