"""The operators that compiled graphs have for a matrix product and for the sum of rows, as loops of our own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rl_training.compilation.kernels.tensors import Place, computed, in_memory

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
        return computed([matrix.get_size()[1]], {"matrix": by_rows(matrix)}, HEADER, _sum_rows)

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


def _sum_rows(places: Mapping[str, Place], threads: int) -> str:
    """C++ that sums the rows of a matrix; one thread does it, since it takes a few microseconds."""
    matrix = places["matrix"]
    return f"rl_training::sum_rows<{matrix.size[0]}, {matrix.size[1]}>({matrix.data}, {matrix.stride[0]}, out);"
