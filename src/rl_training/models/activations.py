"""Functions between the layers of networks, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

Activation: TypeAlias = Literal["relu", "leaky_relu", "elu", "selu", "gelu", "silu", "mish", "tanh"]
ActivationFunction: TypeAlias = Callable[[Tensor], Tensor]

# ReLU acts in place, which saves a copy of every hidden layer.
ACTIVATIONS: dict[Activation, ActivationFunction] = {
    "relu": functional.relu_,
    "leaky_relu": functional.leaky_relu,
    "elu": functional.elu,
    "selu": functional.selu,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "mish": functional.mish,
    "tanh": torch.tanh,
}
