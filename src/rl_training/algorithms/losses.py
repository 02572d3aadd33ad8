"""Formulas shared by algorithms: functions of tensors, without networks."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.types import Batch, Metrics


def bellman(batch: Batch, next_values: Tensor, gamma: float) -> Tensor:
    """rewards + gamma * next_values, where termination stops the bootstrap and a time limit does not."""
    rewards, dones = batch["rewards"], batch["dones"]
    if not rewards.shape == dones.shape == next_values.shape:
        shapes = f"rewards {tuple(rewards.shape)}, dones {tuple(dones.shape)}, next_values {tuple(next_values.shape)}"
        raise ValueError(f"shapes must be equal, got {shapes}")
    return rewards + gamma * (1 - dones) * next_values


def critic_objective(*, q_values: Tensor, target_q_values: Tensor) -> Metrics:
    """Squared error of E critics (E, B) against one target (B,): mean over the batch, sum over critics."""
    if q_values.shape[-1:] != target_q_values.shape:
        shapes = f"q_values {tuple(q_values.shape)}, target_q_values {tuple(target_q_values.shape)}"
        raise ValueError(f"q_values must be (E, B) and target_q_values (B,), got {shapes}")
    return {
        "critic_loss": (q_values - target_q_values).square().mean(-1).sum(),
        "q_mean": q_values.mean(),
        "q_std": q_values.std(),
        "target_q_mean": target_q_values.mean(),
    }


def smooth(actions: Tensor, noise: float, clip: float) -> Tensor:
    """Actions with clipped Gaussian noise, kept in [-1, 1]; draws from the global generator."""
    return (actions + (torch.randn_like(actions) * noise).clamp(-clip, clip)).clamp(-1, 1)
