"""Batch renormalisation: batch normalisation that is corrected towards its running statistics."""

from __future__ import annotations

import torch
from torch import Tensor, nn

MAX_SCALE = 3.0
"""Bound on the ratio of the batch's standard deviation to the running one, in either direction."""

MAX_SHIFT = 5.0
"""Bound on the distance of the batch's mean from the running one, in running standard deviations."""


class BatchRenorm(nn.Module):
    """Normalises each feature of E networks over a batch of rows, (E, B, features), each network on its own.

    In training, where r and d are constants with one value per feature,

        y = weight * ((x - mean) / std * r + d) + bias
        r = std / running_std                      within 1 / 3 and 3
        d = (mean - running_mean) / running_std    within -5 and 5

    but r = 1 and d = 0 in the first `warmup` passes. Evaluation normalises by the running statistics alone; as long as
    nothing is clipped, training gives the same y. The running statistics move on training passes only.

    Ioffe, "Batch Renormalization: Towards Reducing Minibatch Dependence in Batch-Normalized Models", 2017.
    """

    def __init__(
        self, size: int, features: int, *, momentum: float = 0.01, warmup: int = 100_000, eps: float = 1e-3
    ) -> None:
        super().__init__()
        self.momentum, self.warmup, self.eps = momentum, warmup, eps
        shape = (size, 1, features)
        self.weight, self.bias = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.zeros(shape))
        self.running_mean, self.running_var = nn.Buffer(torch.zeros(shape)), nn.Buffer(torch.ones(shape))
        self.steps = nn.Buffer(torch.zeros((), dtype=torch.int64))
        # The share of each network's r that was clipped in the last training pass.
        self.clip_share = nn.Buffer(torch.zeros(size, 1, 1))

    def forward(self, rows: Tensor, *, training: bool = False) -> Tensor:
        """Rows of the same shape."""
        if training:
            mean, var = batch_statistics(rows)
            scale, shift = self._follow(mean, var)
            normal = renormalize(rows, mean, var, scale=scale, shift=shift, eps=self.eps)
        else:
            normal = (rows - self.running_mean) / (self.running_var + self.eps).sqrt()
        return self.weight * normal + self.bias

    @torch.no_grad()
    def _follow(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        """r and d from the running statistics, which then move towards those of the batch."""
        warm = self.steps >= self.warmup
        running_std = (self.running_var + self.eps).sqrt()
        ratio = torch.where(warm, (var + self.eps).sqrt() / running_std, 1.0)
        scale = ratio.clamp(1 / MAX_SCALE, MAX_SCALE)
        shift = torch.where(warm, (mean - self.running_mean) / running_std, 0.0).clamp(-MAX_SHIFT, MAX_SHIFT)
        self.clip_share.copy_((scale != ratio).to(ratio.dtype).mean(-1, keepdim=True))
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(var, self.momentum)
        self.steps.add_(1)
        return scale, shift


def batch_statistics(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance over rows (E, B, features), (E, 1, features) each; gradients pass through both."""
    var, mean = torch.var_mean(rows, dim=-2, correction=0, keepdim=True)
    return mean, var


def renormalize(rows: Tensor, mean: Tensor, var: Tensor, *, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
    """Rows normalised by their own statistics, then corrected: r is `scale` and d is `shift`."""
    return (rows - mean) / (var + eps).sqrt() * scale + shift
