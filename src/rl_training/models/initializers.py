"""Initial weights and biases of layers, as in the code bases that published results come from."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from torch import Tensor, nn

Init: TypeAlias = Callable[[Tensor, Tensor, bool], object]
"""Fills the weight (fan_out, fan_in) and the bias of a layer in place; the flag says whether the layer is the last."""


def without_bias(fill: Callable[[Tensor], object], fill_last: Callable[[Tensor], object] | None = None) -> Init:
    """Biases of zero, and weights by `fill`; the last layer may have a function of its own."""

    def init(weight: Tensor, bias: Tensor, last: bool) -> None:
        (fill_last if last and fill_last else fill)(weight)
        nn.init.zeros_(bias)

    return init


def orthogonal_head(gain: float) -> Init:
    """Orthogonal weights without biases: times sqrt(2), in the last layer times `gain`."""
    return without_bias(partial(nn.init.orthogonal_, gain=math.sqrt(2)), partial(nn.init.orthogonal_, gain=gain))


orthogonal = orthogonal_head(math.sqrt(2))
"""Orthogonal weights times sqrt(2) in every layer: IQL and XQL."""

orthogonal_small_last = orthogonal_head(0.01)
"""Orthogonal weights, almost zero in the last layer: critics of CQL as reproduced, and of Cal-QL."""

xavier = without_bias(nn.init.xavier_uniform_)
"""Xavier weights: the value network of AWR, and REDQ and RLPD."""

xavier_small_last = without_bias(nn.init.xavier_uniform_, partial(nn.init.uniform_, a=-0.01, b=0.01))
"""Xavier weights, the last layer uniform within 0.01: policies of AWR."""


def uniform(weight: Tensor, bias: Tensor, last: bool) -> None:
    """PyTorch's own: weights and biases uniform within 1 / sqrt(fan in)."""
    bound = 1 / math.sqrt(weight.shape[1])
    nn.init.uniform_(weight, -bound, bound)
    nn.init.uniform_(bias, -bound, bound)


def uniform_small_last(weight: Tensor, bias: Tensor, last: bool) -> None:
    """PyTorch's own, but almost zero in the last layer: actors of CQL as reproduced."""
    uniform(weight, bias, last)
    if last:
        nn.init.xavier_uniform_(weight, 0.01)
        nn.init.zeros_(bias)


def small_last(bound: float) -> Init:
    """Hidden biases of 0.1 and a last layer uniform within a small bound: rlkit, CQL's authors, EDAC, ReBRAC."""

    def init(weight: Tensor, bias: Tensor, last: bool) -> None:
        uniform(weight, bias, last)
        if last:
            nn.init.uniform_(weight, -bound, bound)
            nn.init.uniform_(bias, -bound, bound)
        else:
            nn.init.constant_(bias, 0.1)

    return init
