"""Loops of our own in compiled graphs, where they are used, and in which order a graph computes.

torch's compiler calls a library for matrix products and writes all other loops itself. Those of our own are C++ in
`product.h` and `norm.h`. `matrix.py` and `norms.py` make operators of them and put these into graphs. Members of an
ensemble are computed one after the other, so that what loops read is still in the processor's cache.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.fx import Graph, Node

from rl_training.compilation.kernels import matrix, norms

FILES = tuple(str(path) for path in sorted(Path(__file__).parent.iterdir()) if path.suffix in (".py", ".h"))
"""Files that decide about the code of a graph."""


def are_faster() -> bool:
    """Whether loops of our own are known to be faster than torch's.

    They are known to be so where torch would call MKL on an AMD processor with AVX-512.
    """
    from torch._inductor.cpu_vec_isa import VecAVX512, pick_vec_isa

    calls_mkl = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    return calls_mkl and _is_amd() and isinstance(pick_vec_isa(), VecAVX512)


def _is_amd() -> bool:
    """Whether Linux says that AMD made the processor."""
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.is_file() and "AuthenticAMD" in cpuinfo.read_text(encoding="utf-8", errors="replace")


def compiler_options() -> dict[str, Any]:
    """Options of torch's compiler: none where its own loops stay."""
    if not are_faster():
        return {}
    return {
        "post_grad_custom_post_pass": _operators(),
        "_post_fusion_custom_pass": _order(),
        # It would come after our own passes, and go by the peak of memory.
        "reorder_for_peak_memory": False,
        # Loops of different members of an ensemble stay apart, so that members do not wait for each other.
        "cpp.max_horizontal_fusion_size": 1,
    }


@cache
def _operators() -> Any:
    """The pass that runs when losses and gradients have become one graph of plain operators."""
    from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

    class Operators(CustomGraphPass):
        """Puts operators of our own into the graph."""

        def __call__(self, graph: Graph) -> None:
            take_apart(graph)
            matrix.use_loops(graph)
            norms.join_relu(graph)

        def uuid(self) -> Any:
            """A part of the key by which torch finds a compiled graph again."""
            return get_hash_for_files(FILES)

    return Operators()


@cache
def _order() -> Any:
    """The pass that runs when operators have become calls."""
    from torch._inductor.custom_graph_pass import CustomSchedulerPass, get_hash_for_files

    class Order(CustomSchedulerPass):
        """Gives calls their"""

        def __call__(self, nodes: list[Any]) -> list[Any]:
            return by_use(nodes)

        def uuid(self) -> Any:
            """A part of the key by which torch finds a compiled graph again."""
            return get_hash_for_files(FILES)

        def __reduce__(self) -> tuple[Any, ...]:
            """Pickle by the function that makes it: torch pickles its options for the key."""
            return _order, ()

    return Order()


def decompositions(graph: Graph) -> AbstractContextManager[None]:
    """Within it, torch's compiler takes apart into operators of our own what has loops in a traced graph.

    Where products are in bfloat16, torch's own normalisation stays, since it converts numbers on the way.
    """
    values = [node.meta.get("example_value") for node in graph.nodes]
    is_rounded = any(getattr(value, "dtype", None) is torch.bfloat16 for value in values)
    return norms.in_use() if are_faster() and not is_rounded else nullcontext()


Nodes = list[Any]
"""Nodes of torch's scheduler: each is one call in the compiled code."""


def by_use(nodes: Nodes) -> Nodes:
    """Each node right before the first that needs it, but results as soon as they can be computed.

    A result is what no product waits for, such as the gradient of a weight. So each member of an ensemble is
    computed forward and backward before the next, if nothing else binds them together. A weight is transposed right
    before the product, and the gradients of a layer follow each other. Random numbers are drawn in the order in which
    an eager update draws them.
    """
    graph = _Graph(nodes)
    gradients = [node for node in nodes if graph.is_result[node] and _is_product(node)]
    for node in (*gradients, *nodes):
        graph.compute(node)
    return list(graph.done)


class _Graph:
    """Nodes with those that they need and those that need them, and the order in which they are computed."""

    def __init__(self, nodes: Nodes) -> None:
        makers = {name: node for node in nodes for name in node.get_buffer_names()}
        self.needs: dict[Any, Nodes] = {}
        self.users: dict[Any, Nodes] = {node: [] for node in nodes}
        places = {node: place for place, node in enumerate(nodes)}
        drawn: set[Any] = set()
        for node in nodes:
            found = {makers[each.name] for each in node.unmet_dependencies if each.name in makers} - {node}
            if _draws(node):
                found |= drawn
                drawn = {node}
            # Last what depends on nothing else, such as a transposed weight.
            self.needs[node] = sorted(found, key=lambda need: (not self.needs[need], places[need]))
            for need in self.needs[node]:
                self.users[need].append(node)
        self.is_result: dict[Any, bool] = {}
        for node in reversed(nodes):
            self.is_result[node] = all(self.is_result[user] and not _is_product(user) for user in self.users[node])
        self.done: dict[Any, None] = {}

    def compute(self, node: Any) -> None:
        """Add a node to the order, after what it needs."""
        waiting = [node]
        while waiting:
            missing = [need for need in self.needs[waiting[-1]] if need not in self.done]
            if missing:
                waiting.append(missing[0])
            else:
                self.add(waiting.pop())

    def add(self, node: Any) -> None:
        """Add a node whose needs are met, and the results that can be computed then."""
        if node in self.done:
            return
        self.done[node] = None
        for user in self.users[node]:
            if self.is_result[user] and all(need in self.done for need in self.needs[user]):
                self.add(user)


def _is_product(node: Any) -> bool:
    """Whether a node calls loops of our own, or a library, as products in bfloat16 do."""
    return bool(node.is_template() or node.is_extern())


def _draws(node: Any) -> bool:
    """Whether a node draws from torch's generator of random numbers."""
    operator = getattr(node.node, "op_overload", None)
    return torch.Tag.nondeterministic_seeded in getattr(operator, "tags", ())


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
        """The inputs of the part."""
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
