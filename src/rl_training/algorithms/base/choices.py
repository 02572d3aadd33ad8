"""Formulas of algorithms for discrete actions, from tensors alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rl_training.algorithms.base import losses
from rl_training.core.batches import Metrics
from rl_training.models.discrete import expectation, pick


def entropies(log_probs: Tensor) -> Tensor:
    """Entropies (B,) of policies with these log-probabilities (B, choices)."""
    return -expectation(log_probs.exp(), log_probs)


def largest_entropies(log_probs: Tensor) -> Tensor:
    """The entropies (B,) of uniform choices among those that are possible."""
    return (log_probs != -math.inf).sum(-1).to(log_probs.dtype).log()


def normalized_entropy(log_probs: Tensor) -> Tensor:
    """The mean entropy relative to that of uniform choices: 0 where a policy is certain, 1 where it is uniform."""
    # Where only one choice is ever possible, both are 0.
    return entropies(log_probs).mean() / largest_entropies(log_probs).mean().clamp_min(1e-8)


def share(flags: Tensor, dtype: torch.dtype) -> Tensor:
    """The share of rows whose flag is set."""
    return flags.to(dtype).mean()


def conservative_gap(q_values: Tensor, actions: Tensor) -> Tensor:
    """D: by how much the soft maximum over all choices exceeds the logged one; (..., B, choices) to (...).

    It is the cross-entropy of the logged choices with values as logits: the logarithm of the number of choices where
    values do not differ, and near 0 where the values clone the data.
    """
    return (q_values.logsumexp(-1) - pick(q_values, actions)).mean(-1)


def critic_objective(
    *,
    q_values: Tensor,
    actions: Tensor,
    target_q_values: Tensor,
    conservative_weight: float | Tensor = 0.0,
    huber_delta: float | None = None,
) -> Metrics:
    """Error of critics (E, B, choices) at the logged choices (B,) against targets (B,), and the penalty of CQL."""
    taken = pick(q_values, actions)
    metrics = losses.critic_objective(q_values=taken, target_q_values=target_q_values)
    if huber_delta is not None:
        metrics["critic_loss"] = losses.huber(taken - target_q_values, huber_delta).mean(-1).sum()
    if isinstance(conservative_weight, float) and not conservative_weight:
        return metrics
    gaps = conservative_gap(q_values, actions)
    penalized = {"critic_loss": metrics["critic_loss"] + conservative_weight * gaps.sum()}
    return metrics | penalized | {"td_loss": metrics["critic_loss"], "cql_penalty": gaps.mean()}
