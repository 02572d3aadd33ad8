"""Initial weights and biases of layers, as in the code bases that published results come from."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from torch import Tensor, nn

Init: TypeAlias = Callable[[Tensor, Tensor, bool], object]
"""Fills the weight (fan_out, fan_in) and the bias of a layer in place; the flag says whether the layer is the last."""


def uniform(weight: Tensor, bias: Tensor, last: bool) -> None:
    """PyTorch's own: weights and biases uniform within 1 / sqrt(fan in)."""
    bound = 1 / math.sqrt(weight.shape[1])
    nn.init.uniform_(weight, -bound, bound)
    nn.init.uniform_(bias, -bound, bound)


def orthogonal(weight: Tensor, bias: Tensor, last: bool) -> None:
    """Orthogonal weights times sqrt(2) and no bias: IQL and XQL."""
    nn.init.orthogonal_(weight, math.sqrt(2))
    nn.init.zeros_(bias)


def small_last(bound: float) -> Init:
    """Hidden biases of 0.1 and a last layer uniform within a small bound: rlkit, CQL's authors, EDAC, ReBRAC."""

    def fill(weight: Tensor, bias: Tensor, last: bool) -> None:
        uniform(weight, bias, last)
        if last:
            nn.init.uniform_(weight, -bound, bound)
            nn.init.uniform_(bias, -bound, bound)
        else:
            nn.init.constant_(bias, 0.1)

    return fill


def orthogonal_small_last(weight: Tensor, bias: Tensor, last: bool) -> None:
    """Orthogonal weights, almost zero in the last layer: critics of CQL as reproduced, and of Cal-QL."""
    nn.init.orthogonal_(weight, 0.01 if last else math.sqrt(2))
    nn.init.zeros_(bias)


def uniform_small_last(weight: Tensor, bias: Tensor, last: bool) -> None:
    """PyTorch's own, but almost zero in the last layer: actors of CQL as reproduced."""
    uniform(weight, bias, last)
    if last:
        nn.init.xavier_uniform_(weight, 0.01)
        nn.init.zeros_(bias)


def xavier_small_last(weight: Tensor, bias: Tensor, last: bool) -> None:
    """Xavier weights and no bias, the last layer uniform within 0.01: policies of AWR."""
    if last:
        nn.init.uniform_(weight, -0.01, 0.01)
    else:
        nn.init.xavier_uniform_(weight)
    nn.init.zeros_(bias)


def xavier(weight: Tensor, bias: Tensor, last: bool) -> None:
    """Xavier weights and no bias: the value network of AWR, and REDQ and RLPD."""
    nn.init.xavier_uniform_(weight)
    nn.init.zeros_(bias)
