"""Loss and gradient of a step as one compiled graph."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

from rl_training.types import Batch


class CompiledGradient:
    """A gradient function that is compiled for each shape of batch it meets, once.

    The graph belongs to one algorithm, whose parts never change, and is chosen here by the shapes that come in. So it
    is called directly: finding it through torch.compile, which checks every part on every call, took 6 % of an update.
    """

    def __init__(self, function: Callable[..., Any], *arguments: Any, name: str, backend: str) -> None:
        self.arguments = arguments
        self.graphs: dict[Any, Callable[..., Any]] = {}
        # Read when a graph is traced: lets it contain torch.autograd.grad.
        torch._dynamo.config.trace_autograd_ops = True
        options: dict[str, Any] = {"guard_filter_fn": torch.compiler.keep_tensor_guards_unsafe}
        if backend == "inductor":
            # Noise from torch's own generator, so that a compiled run draws what an eager one draws.
            options["fallback_random"] = True
            # Kernels called from C++ instead of Python: 5 % of an update.
            options["cpp_wrapper"] = True
        self.compiler: Any = torch.compile(
            _with_own_code(function, name), fullgraph=True, dynamic=False, backend=backend, options=options
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as an empty object.

        torch.compile pickles the whole algorithm, and compiled graphs cannot be pickled.
        """
        return object, ()

    def __call__(self, batch: Batch) -> Any:
        """The function's value for its arguments and a batch."""
        key = tuple((name, value.shape, value.dtype) for name, value in batch.items())
        graph = self.graphs.get(key)
        if graph is None:
            graph = self.graphs[key] = self.compiler.aot_compile(((*self.arguments, batch), {}))
            graph.disable_guard_check()
        return graph(*self.arguments, batch)


def _with_own_code(function: Any, name: str) -> Any:
    """A copy of a function with a code object of its own.

    torch.compile has a bounded cache per code object, and would refuse shared code after a few runs in one process.
    """
    return FunctionType(function.__code__.replace(co_name=name), function.__globals__, name)
