"""Formulas shared by algorithms: functions of tensors, without networks."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from rl_training.types import Batch, Metrics


def bellman(batch: Batch, next_values: Tensor, gamma: float) -> Tensor:
    """rewards + gamma * next_values, where termination stops the bootstrap and a time limit does not.

    Where rewards are sums over several steps, the batch says by `discounts` what the value after the last is worth.
    """
    rewards, dones = batch["rewards"], batch["dones"]
    if not rewards.shape == dones.shape == next_values.shape:
        shapes = f"rewards {tuple(rewards.shape)}, dones {tuple(dones.shape)}, next_values {tuple(next_values.shape)}"
        raise ValueError(f"shapes must be equal, got {shapes}")
    return rewards + batch.get("discounts", gamma) * (1 - dones) * next_values


def critic_objective(*, q_values: Tensor, target_q_values: Tensor, huber_delta: float | None = None) -> Metrics:
    """Squared error of E critics (E, B) against one target (B,): mean over the batch, sum over critics.

    With a `huber_delta`, half of it up to an error of that size, and linear beyond. `q_std_ensemble` says how far the
    critics are apart on a row.
    """
    if q_values.shape[-1:] != target_q_values.shape:
        shapes = f"q_values {tuple(q_values.shape)}, target_q_values {tuple(target_q_values.shape)}"
        raise ValueError(f"q_values must be (E, B) and target_q_values (B,), got {shapes}")
    errors = q_values - target_q_values
    if huber_delta is None:
        losses = errors.square()
    else:
        losses = functional.huber_loss(errors, torch.zeros_like(errors), reduction="none", delta=huber_delta)
    return {
        "critic_loss": losses.mean(-1).sum(),
        "q_mean": q_values.mean(),
        "q_std": q_values.std(correction=0),
        "q_std_ensemble": q_values.std(0, correction=0).mean(),
        "target_q_mean": target_q_values.mean(),
    }


def quantile_huber_loss(*, quantiles: Tensor, target_atoms: Tensor) -> Tensor:
    """Regression of M quantiles (..., B, M) on the distribution of atoms (B, K): the mean over all pairs.

    The m-th quantile is that at (m - 1/2) / M; errors of an atom above it weigh so much, those below it the rest to 1.
    They count by half their square up to 1, and linearly beyond.
    """
    if quantiles.shape[-2] != target_atoms.shape[0] or target_atoms.ndim != 2:
        shapes = f"quantiles {tuple(quantiles.shape)}, target_atoms {tuple(target_atoms.shape)}"
        raise ValueError(f"quantiles must be (..., B, M) and target_atoms (B, K), got {shapes}")
    count = quantiles.shape[-1]
    levels = (torch.arange(count, dtype=quantiles.dtype, device=quantiles.device) + 0.5) / count
    errors = target_atoms[:, None] - quantiles[..., None]
    weights = (levels[:, None] - (errors.detach() < 0).to(errors.dtype)).abs()
    return (weights * functional.huber_loss(errors, torch.zeros_like(errors), reduction="none")).mean()


def smooth(actions: Tensor, noise: float, clip: float) -> Tensor:
    """Actions with clipped Gaussian noise, kept in [-1, 1]; draws from the global generator."""
    return (actions + (torch.randn_like(actions) * noise).clamp(-clip, clip)).clamp(-1, 1)


def saturation(actions: Tensor) -> Tensor:
    """The share of actions that are all but on their bounds: near 1 early on, the actor has run into its tanh."""
    return (actions.detach().abs() > 0.99).to(actions.dtype).mean()


def soft_clipped_max(q_values: Tensor, min_weight: float) -> Tensor:
    """The best of several actions, (samples, E, B) to (B,), by a mixture of the smallest and the largest critic.

    The mixture is made for each action, before the maximum over actions.
    """
    low, high = q_values.aminmax(dim=-2)
    return (min_weight * low + (1 - min_weight) * high).amax(0)


def exp_weights(advantages: Tensor, max_weight: float) -> Tensor:
    """exp(advantages), at most `max_weight`."""
    return advantages.exp().clamp_max(max_weight)


def imitation_objective(*, log_probs: Tensor, weights: Tensor, advantages: Tensor) -> Metrics:
    """Likelihood of the logged actions, each weighted by what it is worth; advantages are only reported."""
    return {
        "actor_loss": -(weights * log_probs).mean(),
        "advantage_mean": advantages.mean(),
        "advantage_max": advantages.amax(),
        "weight_mean": weights.mean(),
        "weight_max": weights.amax(),
        "log_prob_data": log_probs.mean(),
    }


def soft_actor_objective(*, values: Tensor, log_probs: Tensor, temperature: Tensor) -> Metrics:
    """Value and entropy of the policy's own actions; the temperature is not trained by it."""
    return {"actor_loss": (temperature.detach() * log_probs - values).mean(), "entropy": -log_probs.mean()}


def temperature_objective(*, log_temperature: Tensor, log_probs: Tensor, target_entropy: float) -> Metrics:
    """Raises the temperature while the policy's entropy is below its target."""
    loss = -(log_temperature * (log_probs.detach() + target_entropy)).mean()
    return {"temperature_loss": loss, "temperature": log_temperature.exp(), "entropy": -log_probs.mean()}


def soft_policy_objective(
    *, values: Tensor, log_probs: Tensor, log_temperature: Tensor, target_entropy: float
) -> Metrics:
    """Actor and temperature, each by its own loss, by the same sample."""
    actor = soft_actor_objective(values=values, log_probs=log_probs, temperature=log_temperature.exp())
    return actor | temperature_objective(
        log_temperature=log_temperature, log_probs=log_probs, target_entropy=target_entropy
    )


def vae_objective(
    *, reconstructions: Tensor, actions: Tensor, mean: Tensor, log_std: Tensor, kl_weight: float
) -> Metrics:
    """Squared error of reconstructed actions plus the divergence of the latents from a standard normal, all means."""
    error = (reconstructions - actions).square().mean()
    kl = -0.5 * (1 + 2 * log_std - mean.square() - (2 * log_std).exp()).mean()
    return {"vae_loss": error + kl_weight * kl, "vae_reconstruction": error, "vae_kl": kl}
