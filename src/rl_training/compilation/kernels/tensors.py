"""Tensors of compiled graphs that loops of our own compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor


def has_loops(value: Tensor) -> bool:
    """Whether loops can compute a tensor like this one."""
    return value.dtype == torch.float32 and value.device.type == "cpu" and value.numel() > 0


def in_memory(value: Any) -> Any:
    """An input of loops, computed and in a place that stays."""
    from torch._inductor.ir import ExternKernel

    value = ExternKernel.realize_input(value)
    value.freeze_layout()
    return value


class Place(NamedTuple):
    """Where a tensor is in memory: C++ for its first number, its size, and the distances between neighbours."""

    data: str
    size: tuple[int, ...]
    stride: tuple[int, ...]


Call = Callable[[Mapping[str, Place], int], str]
"""C++ that calls a function of a header, for the places of tensors and a number of threads."""


def computed(size: list[Any], inputs: Mapping[str, Any], header: Path, call: Call) -> Any:
    """A new tensor in float32 that a function of `header` computes; `call` gives the call of it."""
    from torch._inductor.ir import TensorBox

    return TensorBox.create(_loops()(size, inputs, header, call))


@cache
def _loops() -> Any:
    """The class of tensors that loops compute; made here, since torch's compiler takes a second to import."""
    from torch._inductor.codegen.cpp_template_kernel import CppTemplateKernel
    from torch._inductor.ir import CppTemplateBuffer, FlexibleLayout
    from torch._inductor.utils import Placeholder, parallel_num_threads

    class Loops(CppTemplateBuffer):
        """A tensor that loops compute, and the source of these."""

        def __init__(self, size: list[Any], inputs: Mapping[str, Any], header: Path, call: Call) -> None:
            values = list(inputs.values())
            # A flexible layout, so that the products of an ensemble are written into the tensor that stacks them.
            layout = FlexibleLayout(device=values[0].get_device(), dtype=torch.float32, size=size)
            super().__init__(layout, values, self.make_kernel, template=None, choice=None)  # type: ignore[arg-type]
            self.names, self.header, self.call = list(inputs), header, call
            self.allow_epilogue_fusion = False

        def decide_layout(self) -> None:
            """Rows in one piece, unless the tensor is a part of another by now."""
            if isinstance(self.layout, FlexibleLayout):
                self.freeze_layout()

        def make_kernel(self, node: Loops, *, epilogue_nodes: list[Any], **unused: Any) -> tuple[Any, Any]:
            """The function of this tensor alone, and what writes its source."""
            if epilogue_nodes:
                raise RuntimeError("loops of our own are not joined with others")
            name, threads = str(Placeholder.KERNEL_NAME), parallel_num_threads()
            kernel = CppTemplateKernel(name, threads)  # type: ignore[no-untyped-call]
            return kernel, partial(kernel.render, self)

        def render(self, kernel: Any) -> str:
            """The source."""
            inputs: dict[str, Any] = dict(zip(self.names, self.inputs, strict=True))
            head = kernel.def_kernel(inputs=inputs, outputs={"out": self})
            places = {}
            for name, each in {**inputs, "out": self}.items():
                size, stride = (tuple(map(int, numbers)) for numbers in (each.get_size(), each.get_stride()))
                data = "out" if each is self else f"&{kernel.index(each, [0] * len(size))}"
                places[name] = Place(data, size, stride)
            if places["out"].stride[-1] != 1:
                raise RuntimeError("loops of our own write rows in one piece")
            source, call = self.header.read_text(encoding="utf-8"), self.call(places, kernel.num_threads)
            return f'#include <torch/csrc/inductor/cpp_prefix.h>\n{source}\nextern "C" {head}\n{{\n    {call}\n}}\n'

    return Loops
