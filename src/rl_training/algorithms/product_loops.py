"""The operator that compiled graphs have for a matrix product, and how torch's compiler makes loops of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

LOOPS = Path(__file__).with_name("product.h")
LEAST_SHARED_WORK = 1 << 20
"""Multiplications from which several threads share a product."""


@cache
def product_operator() -> Any:
    """An operator for a product with a bias and perhaps ReLU, which becomes loops in machine code."""
    from torch._inductor.ir import ExternKernel, TensorBox
    from torch._inductor.lowering import register_lowering

    torch.library.define("rl_training::product", "(Tensor left, Tensor right, Tensor? bias, bool has_relu) -> Tensor")
    operator = torch.ops.rl_training.product.default

    @torch.library.register_fake("rl_training::product")  # type: ignore[untyped-decorator]
    def shape(left: Tensor, right: Tensor, bias: Tensor | None, has_relu: bool) -> Tensor:
        return left.new_empty(len(left), right.shape[1])

    def in_memory(value: Any) -> Any:
        value = ExternKernel.realize_input(value)
        value.freeze_layout()
        return value

    def by_rows(value: Any) -> Any:
        """A vector in one piece, or a matrix whose rows are."""
        value = in_memory(value)
        *columns, last = value.get_stride()
        if columns == [1] and last != 1:
            return in_memory(TensorBox.create(_loops()(value.get_size(), {"turned": value}, _transpose)))
        return value if last == 1 else ExternKernel.require_contiguous(value)

    @register_lowering(operator, type_promotion_kind=None)
    def lower(left: Any, right: Any, bias: Any, has_relu: bool) -> Any:
        inputs = {"left": in_memory(left), "right": by_rows(right)}
        inputs |= {} if bias is None else {"bias": by_rows(bias)}
        size = [left.get_size()[0], right.get_size()[1]]
        return TensorBox.create(_loops()(size, inputs, partial(_multiply, has_relu=has_relu)))

    return operator


class Place(NamedTuple):
    """Where a tensor is in memory: C++ for its first number, its size, and the distances between neighbours."""

    data: str
    size: tuple[int, ...]
    stride: tuple[int, ...]


Call = Callable[[Mapping[str, Place], int], str]


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


@cache
def _loops() -> Any:
    """The class of tensors that loops compute; made here, since torch's compiler takes a second to import."""
    from torch._inductor.codegen.cpp_template_kernel import CppTemplateKernel
    from torch._inductor.ir import CppTemplateBuffer, FlexibleLayout
    from torch._inductor.utils import Placeholder, parallel_num_threads

    class Loops(CppTemplateBuffer):
        """A matrix in float32 that a function of `product.h` computes; `call` gives the call of it."""

        def __init__(self, size: Any, inputs: Mapping[str, Any], call: Call) -> None:
            values = list(inputs.values())
            # A flexible layout, so that the products of an ensemble are written into the tensor that stacks them.
            layout = FlexibleLayout(device=values[0].get_device(), dtype=torch.float32, size=size)
            super().__init__(layout, values, self.make_kernel, template=None, choice=None)  # type: ignore[arg-type]
            self.names, self.call = list(inputs), call
            self.allow_epilogue_fusion = False

        def decide_layout(self) -> None:
            """Rows in one piece, unless the matrix is a part of another tensor by now."""
            if isinstance(self.layout, FlexibleLayout):
                self.freeze_layout()

        def make_kernel(self, node: Loops, *, epilogue_nodes: list[Any], **unused: Any) -> tuple[Any, Any]:
            """The function of this matrix alone, and what writes its source."""
            if epilogue_nodes:
                raise RuntimeError("the loops of a product take nothing along but bias and ReLU")
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
            if places["out"].stride[1] != 1:
                raise RuntimeError("the loops of a product write rows in one piece")
            loops, call = LOOPS.read_text(encoding="utf-8"), self.call(places, kernel.num_threads)
            return f'#include <torch/csrc/inductor/cpp_prefix.h>\n{loops}\nextern "C" {head}\n{{\n    {call}\n}}\n'

    return Loops
