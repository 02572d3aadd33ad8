"""Matrix products of compiled graphs as loops of the graph, instead of calls of MKL.

torch computes products in float32 with MKL. On AMD processors, MKL uses no AVX-512 and first copies both factors into
a layout of its own. The loops in `product.h` are 1.1 to 1.2 times as fast for layers of 256, and up to twice as fast
for the thin first and last layers (`benchmarks/products.py`). They also add the bias and apply ReLU on the way.

torch itself has such loops for weights that are constants only. So the pass here puts an operator of its own in place
of the product (`product_loops.py`). A product with one row, one column or a depth of one becomes multiplications and a
sum, which torch's compiler joins with what is around them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from rl_training.algorithms import product_loops
from rl_training.algorithms.product_loops import LOOPS, product_operator

aten = torch.ops.aten


def graph_pass() -> Any:
    """The pass for torch's compiler; None where the loops are not known to be faster.

    They are known to be so where torch would call MKL on an AMD processor with AVX-512.
    """
    from torch._inductor.cpu_vec_isa import VecAVX512, pick_vec_isa
    from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

    class Products(CustomGraphPass):
        """Runs when losses and gradients have become one graph of plain operators."""

        def __call__(self, graph: Graph) -> None:
            use_loops(graph)

        def uuid(self) -> Any:
            """A part of the key by which torch finds a compiled graph again."""
            return get_hash_for_files((__file__, product_loops.__file__, str(LOOPS)))

    calls_mkl = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    return Products() if calls_mkl and _is_amd() and isinstance(pick_vec_isa(), VecAVX512) else None


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
    has_bias = bias is None or bias.shape in (product.shape, product.shape[1:])
    return has_bias and product.dtype == torch.float32 and product.device.type == "cpu" and product.numel() > 0


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
