"""Matrix products of compiled graphs as loops of the graph, instead of calls of MKL.

torch computes products in float32 with MKL. On AMD processors, MKL uses no AVX-512 and first copies both factors into
a layout of its own. The loops in `product.h` are 1.1 to 1.2 times as fast for layers of 256, and up to twice as fast
for the thin first and last layers (`benchmarks/products.py`). They also add the bias and apply ReLU on the way.

torch itself has such loops for weights that are constants only. So the pass here puts an operator of its own in place
of the product (`product_operators.py`), and another in place of the sum of rows that is a bias's gradient. A product
with one row, one column or a depth of one becomes multiplications and a sum, which torch's compiler joins with what is
around them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from rl_training.compilation.kernels.matrix import product_operator, sum_operator
from rl_training.compilation.kernels.tensors import has_loops

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
