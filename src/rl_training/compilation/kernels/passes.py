"""Loops of our own in compiled graphs, and where they are used.

torch's compiler calls a library for matrix products and writes all other loops itself. Those of our own are C++ in
`product.h` and `norm.h`. `product_operators.py` and `norms.py` make operators of them; `products.py` and `norms.py` put
these into graphs. `members.py` and `order.py` see to it that what loops read is still in the processor's cache.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.fx import Graph

from rl_training.compilation.kernels import members, norms, order, products

FILES = tuple(str(path) for path in sorted(Path(__file__).parent.iterdir()) if path.suffix in (".py", ".h"))
"""What decides about the code of a graph."""


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
        # It would come after our own order, and go by the peak of memory.
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
            members.take_apart(graph)
            products.use_loops(graph)
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
        """Gives calls their order."""

        def __call__(self, nodes: list[Any]) -> list[Any]:
            return order.by_use(nodes)

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
