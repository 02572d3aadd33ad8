"""Optimisers, whose state is part of the state tree, and Polyak averaging."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import compress
from typing import Any

import torch
from torch import Tensor, nn


class Optimizer(nn.Module):
    """Moves the parameters of one module. Its state consists of parameters, so that a state dict contains it."""

    def __init__(self, module: nn.Module, *, learning_rate: float, max_grad_norm: float | None = None) -> None:
        super().__init__()
        self.base_learning_rate = learning_rate
        self.learning_rate = learning_rate
        self.max_grad_norm = max_grad_norm
        self._constrain: Callable[[], None] | None = getattr(module, "constrain", None)
        self._params: list[Tensor] = trainable(module)

    @torch.no_grad()
    def step(self, gradients: list[Tensor], norm: Tensor) -> None:
        """Move the parameters against their gradients, clipped by `norm`, and back into the module's constraint."""
        if self.max_grad_norm is not None:
            scale = (self.max_grad_norm / (norm + 1e-6)).clamp_max(1.0)
            gradients = list(torch._foreach_mul(gradients, scale))
        self.move(gradients)
        if self._constrain is not None:
            self._constrain()

    def move(self, gradients: list[Tensor]) -> None:
        """Move the parameters against their gradients."""
        raise NotImplementedError


class Adam(Optimizer):
    """Adam. The moments mirror the module they belong to, so their names in a checkpoint are the module's own."""

    _kernel: Callable[..., object] = staticmethod(torch._fused_adam_)

    def __init__(
        self, module: nn.Module, *, weight_decay: float = 0.0, beta1: float = 0.9, eps: float = 1e-8, **options: Any
    ) -> None:
        super().__init__(module, **options)
        self.weight_decay = weight_decay
        self._constants: dict[str, Any] = {"beta1": beta1, "beta2": 0.999, "weight_decay": weight_decay, "eps": eps}
        self._constants |= {"amsgrad": False, "maximize": False}
        self.exp_avg, self.exp_avg_sq = _zeros(module), _zeros(module)
        moves = [parameter.requires_grad for parameter in module.parameters()]
        self._averages: list[Tensor] = list(compress(self.exp_avg.parameters(), moves))
        self._squares: list[Tensor] = list(compress(self.exp_avg_sq.parameters(), moves))
        self.count = nn.Parameter(torch.zeros(()), requires_grad=False)

    def move(self, gradients: list[Tensor]) -> None:
        """One step of Adam."""
        self.count.add_(1)
        # The kernel behind torch.optim.Adam(fused=True); going through torch.optim costs 0.3 ms of Python per step.
        # The empty list would be the maxima of AMSGrad.
        state: list[list[Tensor]] = [self._averages, self._squares, [], [self.count] * len(gradients)]
        self._kernel(self._params, gradients, *state, lr=self.learning_rate, **self._constants)


class AdamW(Adam):
    """Adam with a weight decay beside the gradients instead of in them."""

    _kernel = staticmethod(torch._fused_adamw_)


def trainable(module: nn.Module) -> list[Tensor]:
    """The parameters that learning moves; those of a frozen part of an encoder stay as they are."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def _zeros(module: nn.Module) -> nn.Module:
    """A module of the same parameters, all zero; it has no buffers, since only parameters have moments."""
    zeros = copy.deepcopy(module).requires_grad_(False)
    for part in zeros.modules():
        part._buffers.clear()
    for parameter in zeros.parameters():
        parameter.zero_()
    return zeros


def gradient_norm(gradients: list[Tensor]) -> Tensor:
    """Euclidean norm over all gradients together."""
    # Eagerly one call for all; compiled to C++, a call that returns a list of one tensor crashes.
    norms = [each.norm() for each in gradients] if torch.compiler.is_compiling() else torch._foreach_norm(gradients)
    return torch.stack(list(norms)).square().sum().sqrt()


@torch.no_grad()
def polyak(targets: list[Tensor], sources: list[Tensor], tau: float) -> None:
    """targets <- tau * sources + (1 - tau) * targets, in place."""
    torch._foreach_lerp_(targets, sources, tau)
