"""Members of an ensemble in compiled graphs, each forward and backward before the next.

Critics are evaluated one by one, and their values are stacked. The loss is computed from the stacked values, and so is
its gradient, of which each critic gets a part. Hence a graph would compute all critics forward before the first one
backward, and by then their activations have left the processor's cache. But where a loss is a sum over critics, the
part of a critic depends on the values of this critic alone. The pass here computes it from these.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

aten = torch.ops.aten
ELEMENTWISE = {
    *(getattr(aten, name).Tensor for name in ("add", "sub", "mul", "div")),
    *(getattr(aten, name).Scalar for name in ("mul", "div", "le", "lt", "ge", "gt")),
    *(getattr(aten, name).default for name in ("abs", "neg", "sign")),
    aten.pow.Tensor_Scalar,
    aten.where.self,
}


def take_apart(graph: Graph) -> None:
    """Compute parts of stacked tensors without the other parts, where that is possible."""
    for node in graph.find_nodes(op="call_function", target=aten.select.int):
        stacked, axis, number = node.args
        if axis == 0:
            with graph.inserting_before(node):
                part = _Part(graph, number, len(stacked.meta["val"])).of(stacked)
            if part is not None:
                node.replace_all_uses_with(part)
    graph.eliminate_dead_code()


class _Part:
    """Nodes for one part of tensors whose first axis has `count` parts."""

    def __init__(self, graph: Graph, number: int, count: int) -> None:
        self.graph, self.number, self.count = graph, number, count

    def of(self, node: Node) -> Node | None:
        """The part of a node's value, by the operator of the node; None if it needs other parts too."""
        arguments = self.arguments(node)
        if arguments is None or None in arguments:
            return None
        part = self.graph.call_function(node.target, tuple(arguments), node.kwargs)  # type: ignore[arg-type]
        part.meta["val"] = node.meta["val"][self.number]
        return part

    def arguments(self, node: Node) -> list[Any] | None:
        """What the part is computed from."""
        found: list[Any] | None = None
        arguments: Any = node.args
        match node.target, arguments:
            case operator, operands if operator in ELEMENTWISE:
                found = [self.operand(each, node.meta["val"].ndim) for each in operands]
            case aten.full.default, (shape, value):
                found = [shape[1:], value]
            case ((aten.unsqueeze.default | aten.squeeze.dim), (whole, axis)) if axis != 0:
                found = [self.of(whole), axis - 1 if axis > 0 else axis]
            case aten.permute.default, (whole, [0, *axes]):
                found = [self.of(whole), [axis - 1 for axis in axes]]
            case aten.expand.default, (whole, [self.count, *shape]):
                found = [self.operand(whole, 1 + len(shape)), shape]
            case ((aten.reshape.default | aten.view.default), (whole, [self.count, *shape])) if self.is_stack(whole):
                found = [whole.args[0][self.number], shape]
        return found

    def operand(self, value: Any, ndim: int) -> Any:
        """The part of an operand, or all of it if it is the same for all parts."""
        if not isinstance(value, Node) or value.meta["val"].ndim < ndim:
            return value
        return self.of(value) if len(value.meta["val"]) == self.count else None

    def is_stack(self, node: Node) -> bool:
        """Whether a node puts together as many tensors of one shape as there are parts, along the first axis."""
        if node.target is not aten.cat.default or node.args[1:] not in ((), (0,)):
            return False
        parts: Any = node.args[0]
        return len(parts) == self.count and len({each.meta["val"].shape for each in parts}) == 1
