"""The precision of matrix products: float32, or bfloat16 inside `products_in`.

In bfloat16, only the products between hidden layers are rounded, which are nearly all of the arithmetic. The first
layer sees observations and actions as they are, and the last one gives values and actions in float32. Parameters,
gradients as optimisers see them, normalisations and losses stay in float32 too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Literal

import torch
from torch import Tensor

Precision = Literal["float32", "bfloat16"]


class _Products:
    """The precision that products have at the moment."""

    precision: ClassVar[Precision] = "float32"


@contextmanager
def products_in(precision: Precision) -> Iterator[None]:
    """Compute the products between hidden layers in this precision. A graph that is traced here keeps it."""
    before, _Products.precision = _Products.precision, precision
    try:
        yield
    finally:
        _Products.precision = before


def as_factors(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Weights and biases of a layer between hidden layers, in the precision of products."""
    if _Products.precision == "float32":
        return tensors
    return tuple(each.to(torch.bfloat16) for each in tensors)
