"""The operators that compiled graphs have for layer normalisation and its gradients, as loops of our own.

torch's compiler makes several loops of a normalisation, which read the rows again and again and compute the standard
deviation anew for every 16 numbers. In updates of RLPD they took 15 % of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph

from rl_training.compilation.kernels.matrix import Place, by_rows, computed, has_loops, in_memory

aten = torch.ops.aten
FORWARD, BACKWARD = aten.native_layer_norm.default, aten.native_layer_norm_backward.default
HEADER = Path(__file__).with_name("norm.h")
Operator = Callable[..., Any]


@contextmanager
def in_use() -> Iterator[None]:
    """Let torch's compiler take normalisations apart into operators of our own, as long as this lasts."""
    from torch._inductor.decomposition import decompositions as table

    before = {operator: table[operator] for operator in (FORWARD, BACKWARD)}
    table.update(_decompositions(*before.values()))
    try:
        yield
    finally:
        table.update(before)


def _decompositions(torch_norm: Operator, torch_gradients: Operator) -> dict[Any, Operator]:
    """A normalisation and its gradients in a graph; without loops for it, those of torch."""

    def normalize(rows: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float) -> Any:
        if not _fits(rows, weight, bias):
            return torch_norm(rows, shape, weight, bias, eps)
        count = len(rows)
        found = norm_operator()(rows, weight, bias, eps, False)
        statistics = found[count:].flatten()[: 2 * count].view(2, count, 1)
        return found[:count], statistics[0], statistics[1]

    def gradients(gradient: Tensor, rows: Tensor, *others: Any) -> Any:
        _, mean, scale, weight, bias, output_mask = others
        if not _fits(rows, weight, bias):
            return torch_gradients(gradient, rows, *others)
        has_sums = any(output_mask[1:])
        found = gradient_operator()(gradient, rows, mean, scale, weight, bias, False, has_sums)
        sums = (found[len(rows)], found[len(rows) + 1]) if has_sums else (None, None)
        return found[: len(rows)], *sums

    return {FORWARD: normalize, BACKWARD: gradients}


def _fits(rows: Tensor, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether there are loops for a normalisation."""
    return rows.ndim == 2 and has_loops(rows) and weight is not None and bias is not None


def join_relu(graph: Graph) -> None:
    """Let normalisations of a graph apply the ReLU that alone uses them, and their gradients that of it."""
    for node in graph.find_nodes(op="call_function", target=norm_operator()):
        for part in node.users:
            users = list(part.users)
            if len(users) == 1 and users[0].target is aten.relu.default:
                node.update_arg(4, True)
                users[0].replace_all_uses_with(part)
                graph.erase_node(users[0])
    for node in graph.find_nodes(op="call_function", target=gradient_operator()):
        gradient = node.args[0]
        if len(gradient.users) == 1 and _is_of_relu(gradient, node.args[1]):
            node.update_arg(0, gradient.args[2])
            node.update_arg(6, True)
            graph.erase_node(gradient)


def _is_of_relu(gradient: Any, rows: Any) -> bool:
    """Whether a gradient has gone through the ReLU behind the normalisation of some rows.

    That is where(part of the normalisation <= 0, 0, gradient).
    """
    if gradient.target is not aten.where.self:
        return False
    condition, zero, _ = gradient.args
    is_zero = zero.target in (aten.full.default, aten.scalar_tensor.default) and zero.args[-1] == 0
    if not is_zero or condition.target is not aten.le.Scalar or condition.args[1] != 0:
        return False
    norm = condition.args[0].args[0] if condition.args[0].target is aten.slice.Tensor else condition
    return bool(norm.target is norm_operator() and norm.args[0] is rows and norm.args[4])


@cache
def norm_operator() -> Any:
    """An operator for a normalisation and perhaps ReLU.

    Behind the normalised rows are the means of all rows, then the inverse of all standard deviations.
    """
    from torch._inductor.lowering import register_lowering

    arguments = "Tensor rows, Tensor weight, Tensor bias, float eps, bool has_relu"
    torch.library.define("rl_training::normalize", f"({arguments}) -> Tensor")
    operator = torch.ops.rl_training.normalize.default

    @torch.library.register_fake("rl_training::normalize")  # type: ignore[untyped-decorator]
    def shape(rows: Tensor, weight: Tensor, bias: Tensor, eps: float, has_relu: bool) -> Tensor:
        return rows.new_empty(_with_statistics(*rows.shape))

    @register_lowering(operator, type_promotion_kind=None)
    def lower(rows: Any, weight: Any, bias: Any, eps: float, has_relu: bool) -> Any:
        inputs = {"rows": by_rows(rows), "weight": by_rows(weight), "bias": by_rows(bias)}
        size = _with_statistics(*rows.get_size())
        return computed(size, inputs, HEADER, partial(_normalize, eps=eps, has_relu=has_relu))

    return operator


def _with_statistics(rows: int, columns: int) -> list[int]:
    """The size of a matrix that has room for two numbers per row behind its rows."""
    return [rows + -(-2 * rows // columns), columns]


@cache
def gradient_operator() -> Any:
    """An operator for the gradients of a normalisation, or of the ReLU behind it.

    The gradients of weight and bias are two more rows of the result.
    """
    from torch._inductor.lowering import register_lowering

    tensors = ", ".join(f"Tensor {name}" for name in ("gradient", "rows", "mean", "scale", "weight", "bias"))
    torch.library.define("rl_training::normalize_backward", f"({tensors}, bool has_relu, bool has_sums) -> Tensor")
    operator = torch.ops.rl_training.normalize_backward.default

    @torch.library.register_fake("rl_training::normalize_backward")  # type: ignore[untyped-decorator]
    def shape(gradient: Tensor, rows: Tensor, *others: Any) -> Tensor:
        *_, has_sums = others
        return rows.new_empty(len(rows) + 2 * has_sums, rows.shape[1])

    @register_lowering(operator, type_promotion_kind=None)
    def lower(gradient: Any, rows: Any, mean: Any, scale: Any, *others: Any) -> Any:
        weight, bias, has_relu, has_sums = others
        inputs = {"gradient": by_rows(gradient), "rows": by_rows(rows), "mean": in_memory(mean)}
        inputs |= {"scale": in_memory(scale), "weight": by_rows(weight), "bias": by_rows(bias)}
        count, columns = rows.get_size()
        call = partial(_gradients, has_relu=has_relu, has_sums=has_sums)
        return computed([count + 2 * has_sums, columns], inputs, HEADER, call)

    return operator


def _normalize(places: Mapping[str, Place], threads: int, *, eps: float, has_relu: bool) -> str:
    """C++ that normalises rows."""
    rows, out = places["rows"], places["out"]
    constants = ", ".join(map(str, (*rows.size, threads, str(has_relu).lower())))
    vectors = f"{places['weight'].data}, {places['bias'].data}"
    return (
        f"rl_training::normalize<{constants}>({rows.data}, {rows.stride[0]}, {vectors}, {eps}f, out, {out.stride[0]});"
    )


def _gradients(places: Mapping[str, Place], threads: int, *, has_relu: bool, has_sums: bool) -> str:
    """C++ that computes the gradients."""
    rows, mean = places["rows"], places["mean"]
    constants = ", ".join(map(str, (*rows.size, threads, str(has_relu).lower(), str(has_sums).lower())))
    first = [f"{places[name].data}, {places[name].stride[0]}" for name in ("gradient", "rows")]
    statistics = f"{mean.data}, {places['scale'].data}, {mean.stride[0]}"
    vectors = f"{places['weight'].data}, {places['bias'].data}"
    arguments = ", ".join([*first, statistics, vectors, f"out, {places['out'].stride[0]}"])
    return f"rl_training::normalize_backward<{constants}>({arguments});"
