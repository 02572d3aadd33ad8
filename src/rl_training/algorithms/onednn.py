"""Large products of compiled graphs, computed by oneDNN instead of MKL.

torch computes products in float32 with MKL. On AMD processors, MKL uses no AVX-512 and first copies both factors into
a layout of its own. oneDNN is 5 % faster for 256 rows between layers of 256, and up to 1.8 times as fast for more
rows and wider layers (`benchmarks/products.py`). It also adds the bias and applies ReLU on the way. A call of oneDNN
costs more, so small products stay with MKL. So do gradients of weights, whose first factor oneDNN would have to copy.

torch itself compiles such a product to a call of oneDNN only if the weight is a constant. So the pass here puts an
operator of its own in place of the product, and the lowering makes the call of it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

LEAST_WORK = 1 << 23
"""Multiplications from which oneDNN is faster: 128 rows between layers of 256."""

PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)


def graph_pass() -> Any:
    """The pass for torch's compiler; None where oneDNN is not known to be faster.

    It is known to be faster where torch would call MKL on an AMD processor.
    """
    from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

    class LargeProducts(CustomGraphPass):
        """Runs when losses and gradients have become one graph of plain operators."""

        def __call__(self, graph: Graph) -> None:
            use_onednn(graph)

        def uuid(self) -> Any:
            """A part of the key by which torch finds a compiled graph again."""
            return get_hash_for_files((__file__,))

    has_both = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return LargeProducts() if has_both and _is_amd() else None


@cache
def _is_amd() -> bool:
    """Whether Linux says that AMD made the processor."""
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.is_file() and "AuthenticAMD" in cpuinfo.read_text(encoding="utf-8", errors="replace")


def use_onednn(graph: Graph) -> None:
    """Have oneDNN compute the large products of a graph, each with its bias and its ReLU."""
    for target in PRODUCTS:
        for node in graph.find_nodes(op="call_function", target=target):
            *bias, rows, weight = node.args
            if not node.kwargs and _is_large(*(each.meta["val"] for each in (rows, weight, *bias))):
                _replace(graph, node, rows, weight, *bias)


def _replace(graph: Graph, node: Node, rows: Node, weight: Node, bias: Node | None = None) -> None:
    """Put the operator in place of a product, and of the ReLU that alone uses it."""
    users = list(node.users)
    has_relu = len(users) == 1 and users[0].target is torch.ops.aten.relu.default
    with graph.inserting_before(node):
        turned = graph.call_function(torch.ops.aten.permute.default, (weight, [1, 0]))
        turned.meta["val"] = weight.meta["val"].permute(1, 0)
        product = graph.call_function(_operator(), (rows, turned, bias, "relu" if has_relu else "none"))
        product.meta["val"] = node.meta["val"]
    for old in (*(users if has_relu else ()), node):
        old.replace_all_uses_with(product)
        graph.erase_node(old)


def _is_large(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Whether oneDNN is faster for this product: it is large, and the rows need not be copied."""
    is_plain = rows.dtype == torch.float32 and rows.device.type == "cpu" and rows.is_contiguous()
    is_vector = bias is None or bias.ndim == 1
    return is_plain and is_vector and rows.numel() * weight.shape[1] >= LEAST_WORK


@cache
def _operator() -> Any:
    """An operator for a product with a bias and perhaps ReLU, which becomes a call of oneDNN in machine code."""
    from torch._inductor.ir import FixedLayout, TensorBox
    from torch._inductor.lowering import register_lowering
    from torch._inductor.mkldnn_ir import LinearUnary, _create_output_node

    torch.library.define("rl_training::linear", "(Tensor rows, Tensor weight, Tensor? bias, str activation) -> Tensor")
    operator = torch.ops.rl_training.linear.default

    @torch.library.register_fake("rl_training::linear")  # type: ignore[untyped-decorator]
    def shape(rows: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
        return rows.new_empty(len(rows), len(weight))

    @register_lowering(operator, type_promotion_kind=None)
    def lower(rows: Any, weight: Any, bias: Any, activation: str) -> Any:
        rows = LinearUnary.require_contiguous(LinearUnary.realize_input(rows))
        # Not made contiguous: oneDNN reads weights in either layout.
        weight = LinearUnary.realize_input(weight)
        inputs = [rows, weight, *([] if bias is None else [LinearUnary.realize_input(bias)])]
        constants = [*([None] if bias is None else []), activation, [-1], ""]
        size = [rows.get_size()[0], weight.get_size()[0]]
        layout = FixedLayout(device=rows.get_device(), dtype=rows.get_dtype(), size=size)
        product = _create_output_node(LinearUnary(layout, inputs, constants))  # type: ignore[no-untyped-call]
        return TensorBox.create(product)

    return operator
