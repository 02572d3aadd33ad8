"""Optimisers, whose state is part of the state tree, and Polyak averaging."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, compress, groupby
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self


class Optimizer(nn.Module):
    """Moves the parameters of one module. Its state consists of parameters, so that a state dict contains it."""

    def __init__(self, module: nn.Module, *, learning_rate: float) -> None:
        super().__init__()
        self.base_learning_rate = learning_rate
        self.learning_rate = learning_rate
        self._constrain: Callable[[], None] | None = getattr(module, "constrain", None)
        self._params: list[Tensor] = trainable(module)

    @classmethod
    @torch.no_grad()
    def step(cls, optimizers: Sequence[Self], gradients: Iterable[list[Tensor]]) -> None:
        """Move the parameters of several modules against their gradients, and back into the modules' constraints."""
        cls.move_all(optimizers, gradients)
        for optimizer in optimizers:
            if optimizer._constrain is not None:
                optimizer._constrain()

    @classmethod
    def move_all(cls, optimizers: Sequence[Self], gradients: Iterable[list[Tensor]]) -> None:
        """Move several modules; a class that can do so in one call overrides this instead of `move`."""
        for optimizer, own in zip(optimizers, gradients, strict=True):
            optimizer.move(own)

    def move(self, gradients: list[Tensor]) -> None:
        """Move the parameters of the module against their gradients."""
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

    @classmethod
    def move_all(cls, optimizers: Sequence[Self], gradients: Iterable[list[Tensor]]) -> None:
        """One step of Adam: one call for all neighbours that have the same constants."""
        torch._foreach_add_([optimizer.count for optimizer in optimizers], 1)
        for (rate, constants), alike in groupby(zip(optimizers, gradients, strict=True), key=_constants):
            lists = zip(*(optimizer._lists(own) for optimizer, own in alike), strict=True)
            # The kernel behind torch.optim.Adam(fused=True); going through torch.optim costs 0.3 ms of Python per step.
            cls._kernel(*(list(chain(*parts)) for parts in lists), lr=rate, **constants)

    def _lists(self, gradients: list[Tensor]) -> tuple[list[Tensor], ...]:
        """The arguments of the kernel; the empty list would be the maxima of AMSGrad."""
        return self._params, gradients, self._averages, self._squares, [], [self.count] * len(gradients)


def _constants(pair: tuple[Adam, list[Tensor]]) -> tuple[float, dict[str, Any]]:
    """The constants that modules moved by one call must share: the learning rate and the others."""
    return pair[0].learning_rate, pair[0]._constants


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


def clip(gradients: list[Tensor], norm: Tensor, bound: float | None) -> list[Tensor]:
    """Gradients of this norm, scaled down to the bound if they are above it; None means no bound."""
    if bound is None:
        return gradients
    scale = (bound / (norm + 1e-6)).clamp_max(1.0)
    return list(torch._foreach_mul(gradients, scale))


@torch.no_grad()
def polyak(targets: list[Tensor], sources: list[Tensor], tau: float) -> None:
    """targets <- tau * sources + (1 - tau) * targets, in place."""
    torch._foreach_lerp_(targets, sources, tau)
