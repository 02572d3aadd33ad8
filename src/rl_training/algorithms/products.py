"""Matrix products of compiled graphs as loops of the graph, instead of calls of MKL.

torch computes products in float32 with MKL. On AMD processors, MKL uses no AVX-512 and first copies both factors into
a layout of its own. The loops in `product.h` are 1.1 to 1.2 times as fast for layers of 256, and up to twice as fast
for the thin first and last layers (`benchmarks/products.py`). They also add the bias and apply ReLU on the way.

torch itself has such loops for weights that are constants only. So the pass here puts an operator of its own in place
of the product, and the lowering makes the loops of it. A product with one row, one column or a depth of one becomes
multiplications and a sum, which torch's compiler joins with what comes before and after.
"""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

aten = torch.ops.aten
LOOPS = Path(__file__).with_name("product.h")
LEAST_SHARED_WORK = 1 << 20
"""Multiplications from which several threads share a product."""


def graph_pass() -> Any:
    """The pass for torch's compiler; None where the loops are not known to be faster.

    They are known to be faster where torch would call MKL on an AMD processor with AVX-512.
    """
    from torch._inductor.cpu_vec_isa import VecAVX512, pick_vec_isa
    from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

    class Products(CustomGraphPass):
        """Runs when losses and gradients have become one graph of plain operators."""

        def __call__(self, graph: Graph) -> None:
            use_loops(graph)

        def uuid(self) -> Any:
            """A part of the key by which torch finds a compiled graph again."""
            return get_hash_for_files((__file__, str(LOOPS)))

    calls_mkl = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    return Products() if calls_mkl and _is_amd() and isinstance(pick_vec_isa(), VecAVX512) else None


@cache
def _is_amd() -> bool:
    """Whether Linux says that AMD made the processor."""
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.is_file() and "AuthenticAMD" in cpuinfo.read_text(encoding="utf-8", errors="replace")


def use_loops(graph: Graph) -> None:
    """Make loops of the products of a graph in float32, each with its bias and its ReLU."""
    for target in (aten.mm.default, aten.addmm.default):
        for node in graph.find_nodes(op="call_function", target=target):
            *bias, left, right = node.args
            if node.kwargs or not _fits(node.meta["val"], *(each.meta["val"] for each in bias)):
                continue
            is_thin = 1 in (*left.meta["val"].shape, *right.meta["val"].shape)
            (_multiply_and_add if is_thin else _replace)(graph, node, left, right, *bias)


def _fits(product: Tensor, bias: Tensor | None = None) -> bool:
    """Whether there are loops for a product, whose bias is a row for all rows, or a matrix that it is added to."""
    is_plain = product.dtype == torch.float32 and product.device.type == "cpu" and product.numel() > 0
    return is_plain and (bias is None or bias.shape in (product.shape, product.shape[1:]))


def _replace(graph: Graph, node: Node, left: Node, right: Node, bias: Node | None = None) -> None:
    """Put the operator in place of a product, and of the ReLU that alone uses it."""
    users = list(node.users)
    has_relu = len(users) == 1 and users[0].target is aten.relu.default
    with graph.inserting_before(node):
        product = graph.call_function(_operator(), (left, right, bias, has_relu))
        product.meta["val"] = node.meta["val"]
    for old in (*(users if has_relu else ()), node):
        old.replace_all_uses_with(product)
        graph.erase_node(old)


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


@cache
def _operator() -> Any:
    """An operator for a product with a bias and perhaps ReLU, which becomes loops in machine code."""
    from torch._inductor.ir import ExternKernel, FlexibleLayout, TensorBox
    from torch._inductor.lowering import register_lowering

    torch.library.define("rl_training::product", "(Tensor left, Tensor right, Tensor? bias, bool has_relu) -> Tensor")
    operator = torch.ops.rl_training.product.default

    @torch.library.register_fake("rl_training::product")  # type: ignore[untyped-decorator]
    def shape(left: Tensor, right: Tensor, bias: Tensor | None, has_relu: bool) -> Tensor:
        return left.new_empty(len(left), right.shape[1])

    def in_memory(value: Any, *, by_rows: bool) -> Any:
        value = ExternKernel.realize_input(value)
        value.freeze_layout()
        return ExternKernel.require_contiguous(value) if by_rows and value.get_stride()[-1] != 1 else value

    @register_lowering(operator, type_promotion_kind=None)
    def lower(left: Any, right: Any, bias: Any, has_relu: bool) -> Any:
        size = [left.get_size()[0], right.get_size()[1]]
        inputs = [in_memory(left, by_rows=False), in_memory(right, by_rows=True)]
        inputs += [] if bias is None else [in_memory(bias, by_rows=True)]
        # A flexible layout, so that the products of an ensemble are written into the tensor that stacks them.
        layout = FlexibleLayout(device=left.get_device(), dtype=left.get_dtype(), size=size)
        return TensorBox.create(_loops()(layout, inputs, has_relu))

    return operator


@cache
def _loops() -> Any:
    """The class of a product in torch's compiler; made here, since the compiler takes a second to import."""
    from torch._inductor.codegen.cpp_template_kernel import CppTemplateKernel
    from torch._inductor.ir import CppTemplateBuffer, FlexibleLayout
    from torch._inductor.utils import Placeholder, parallel_num_threads

    class Product(CppTemplateBuffer):
        """A tensor that is computed by the loops in `product.h`."""

        def __init__(self, layout: Any, inputs: list[Any], has_relu: bool) -> None:
            super().__init__(layout, inputs, self.make_kernel, template=None, choice=None)  # type: ignore[arg-type]
            self.has_relu = has_relu
            self.allow_epilogue_fusion = False

        def decide_layout(self) -> None:
            """Rows in one piece, unless the product is a part of another tensor by now."""
            if isinstance(self.layout, FlexibleLayout):
                self.freeze_layout()

        def make_kernel(self, node: Product, *, epilogue_nodes: list[Any], **unused: Any) -> tuple[Any, Any]:
            """The function that computes the product, and what writes its source."""
            if epilogue_nodes:
                raise RuntimeError("the loops of a product take nothing along but bias and ReLU")
            name = str(Placeholder.KERNEL_NAME)
            kernel = CppTemplateKernel(name, parallel_num_threads())  # type: ignore[no-untyped-call]
            return kernel, partial(kernel.render, self)

        def render(self, kernel: Any) -> str:
            """The source."""
            inputs: dict[str, Any] = dict(zip(("left", "right", "bias"), self.inputs, strict=False))
            head = kernel.def_kernel(inputs=inputs, outputs={"out": self})
            strides = {name: tuple(map(int, each.get_stride())) for name, each in {**inputs, "out": self}.items()}
            data = {name: f"&{kernel.index(each, [0] * len(strides[name]))}" for name, each in inputs.items()}
            # A bias that is a vector is the same in all rows.
            bias_row = strides["bias"][0] if len(strides.get("bias", ())) == 2 else 0
            out_row, out_column = strides["out"]
            if out_column != 1:
                raise RuntimeError("the loops of a product write rows in one piece")
            (rows, columns), depth = map(int, self.get_size()), int(inputs["left"].get_size()[1])
            threads = kernel.num_threads if rows * columns * depth >= LEAST_SHARED_WORK else 1
            constants = ", ".join(map(str, (rows, columns, depth, threads, *strides["left"])))
            return f"""
#include <torch/csrc/inductor/cpp_prefix.h>
{LOOPS.read_text(encoding="utf-8")}
extern "C" {head}
{{
    rl_training::product<{constants}>(
        {data["left"]}, {data["right"]}, {strides["right"][0]}, {data.get("bias", "nullptr")}, {bias_row},
        out, {out_row}, {str(self.has_relu).lower()});
}}
"""

    return Product
