"""Formulas shared by algorithms: functions of tensors first, then losses that ask networks for them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from rl_training.algorithms.base.algorithm import Algorithm
from rl_training.core.batches import Batch, Metrics
from rl_training.core.errors import nearest
from rl_training.core.rewards import lambda_returns
from rl_training.models import expectation, pick

Objective: TypeAlias = Callable[..., Metrics]


def combine(name: str, *objectives: Objective, **defaults: Any) -> Objective:
    """The whole objective of an algorithm, from tensors alone: each part takes the arguments that it names.

    The parts are the functions that training minimises, so that a check of the whole is a check of what is trained.
    `defaults` are values of arguments that may be left out.
    """
    parts = [(objective, inspect.signature(objective).parameters) for objective in objectives]
    known = {key: each.replace(kind=each.KEYWORD_ONLY) for _, own in parts for key, each in own.items()}
    known |= {key: known[key].replace(default=value) for key, value in defaults.items()}
    signature = inspect.Signature(list(known.values()), return_annotation="Metrics")

    def whole(**tensors: Any) -> Metrics:
        for unknown in tensors.keys() - known:
            raise TypeError(f"{name}() got an unexpected argument {unknown!r}{nearest(unknown, known)}")
        signature.bind(**tensors)
        given = defaults | tensors
        metrics: Metrics = {}
        for objective, own in parts:
            metrics |= objective(**{key: given[key] for key in own if key in given})
        return metrics

    whole.__name__ = whole.__qualname__ = name
    meanings = filter(None, map(inspect.getdoc, objectives))
    whole.__doc__ = "\n\n".join([f"The whole objective of {name.removesuffix('_loss')}, part by part:", *meanings])
    whole.__signature__ = signature  # type: ignore[attr-defined]  # what help() shows
    return whole


def bellman(batch: Batch, next_values: Tensor, gamma: float | Tensor) -> Tensor:
    """rewards + gamma * next_values, where termination stops the bootstrap and a time limit does not.

    Where rewards are sums over several steps, `discounts` in the batch are the factors of the next values.
    """
    rewards, dones = batch["rewards"], batch["dones"]
    if not rewards.shape == dones.shape == next_values.shape:
        shapes = f"rewards {tuple(rewards.shape)}, dones {tuple(dones.shape)}, next_values {tuple(next_values.shape)}"
        raise ValueError(f"shapes must be equal, got {shapes}")
    return rewards + batch.get("discounts", gamma) * (1 - dones) * next_values


def huber(errors: Tensor, delta: float | None) -> Tensor:
    """Half the square of errors up to `delta`, and linear beyond; None: half the square of all."""
    if delta is None:
        return 0.5 * errors.square()
    return functional.huber_loss(errors, torch.zeros_like(errors), reduction="none", delta=delta)


def critic_objective(*, q_values: Tensor, target_q_values: Tensor) -> Metrics:
    """Squared error of E critics (E, B) against one target (B,): mean over the batch, sum over critics.

    `q_std_ensemble` is the standard deviation over critics, averaged over rows.
    """
    if q_values.shape[-1:] != target_q_values.shape:
        shapes = f"q_values {tuple(q_values.shape)}, target_q_values {tuple(target_q_values.shape)}"
        raise ValueError(f"q_values must be (E, B) and target_q_values (B,), got {shapes}")
    return {
        "critic_loss": (q_values - target_q_values).square().mean(-1).sum(),
        "q_mean": q_values.mean(),
        "q_std": q_values.std(correction=0),
        "q_std_ensemble": q_values.std(0, correction=0).mean(),
        "target_q_mean": target_q_values.mean(),
    }


def smooth(actions: Tensor, noise: float, clip: float) -> Tensor:
    """Actions with clipped Gaussian noise, kept in [-1, 1]; draws from the global generator."""
    return (actions + (torch.randn_like(actions) * noise).clamp(-clip, clip)).clamp(-1, 1)


def saturation(actions: Tensor) -> Tensor:
    """The share of actions that are almost on their bounds. If it is near 1 early on, tanh passes no gradient."""
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
    """Weighted likelihood of the logged actions; advantages are only reported."""
    return {
        "actor_loss": -(weights * log_probs).mean(),
        "advantage_mean": advantages.mean(),
        "advantage_max": advantages.amax(),
        "weight_mean": weights.mean(),
        "weight_max": weights.amax(),
        "log_prob_data": log_probs.mean(),
    }


def value_actor_objective(*, policy_q_values: Tensor) -> Metrics:
    """Value (B,) of the policy's own actions."""
    return {"actor_loss": -policy_q_values.mean()}


def soft_actor_objective(values: Tensor, log_probs: Tensor, log_temperature: Tensor) -> Metrics:
    """Value and entropy of the policy's own actions; the temperature is not trained by it."""
    loss = (log_temperature.detach().exp() * log_probs - values).mean()
    return {"actor_loss": loss, "entropy": -log_probs.mean()}


def temperature_objective(*, log_temperature: Tensor, policy_log_probs: Tensor, target_entropy: float) -> Metrics:
    """The temperature, by log-densities (B,) of the policy's own actions: it rises while their entropy is too low."""
    loss = -(log_temperature * (policy_log_probs.detach() + target_entropy)).mean()
    return {"temperature_loss": loss, "temperature": log_temperature.exp(), "entropy": -policy_log_probs.mean()}


def behavior_objective(
    *, reconstructions: Tensor, actions: Tensor, latent_mean: Tensor, latent_log_std: Tensor, vae_kl_weight: float = 0.5
) -> Metrics:
    """Squared error of reconstructed actions plus the divergence of the latents from a standard normal, all means."""
    error = (reconstructions - actions).square().mean()
    kl = -0.5 * (1 + 2 * latent_log_std - latent_mean.square() - (2 * latent_log_std).exp()).mean()
    return {"vae_loss": error + vae_kl_weight * kl, "vae_reconstruction": error, "vae_kl": kl}


def behavior_loss(algorithm: Algorithm, batch: Batch) -> Metrics:
    """The loss of a VAE as a model of the behaviour."""
    actions = batch["actions"]
    reconstructions, mean, log_std = algorithm.model.vae(batch["obs"], actions)
    return behavior_objective(
        reconstructions=reconstructions,
        actions=actions,
        latent_mean=mean,
        latent_log_std=log_std,
        vae_kl_weight=algorithm.hyper.vae_kl_weight,
    )


def online_value(algorithm: Algorithm, offline: float | Tensor, online: float | None) -> float | Tensor:
    """`offline`, but `online` in an online phase, if there is such a number."""
    return offline if online is None else torch.where(algorithm.online_share > 0, online, offline)


def bootstrap_loss(algorithm: Algorithm, batch: Batch, next_values: Tensor) -> Metrics:
    """The loss of the critics against rewards and discounted values (B,) of the next observations."""
    targets = bellman(batch, next_values, algorithm.hyper.gamma)
    return critic_objective(q_values=algorithm.model.critic(batch["obs"], batch["actions"]), target_q_values=targets)


def evaluation_loss(algorithm: Algorithm, batch: Batch, next_actions: Tensor) -> Metrics:
    """The loss of the critics against the smallest of the target critics at the policy's next actions."""
    return bootstrap_loss(algorithm, batch, algorithm.target.critic(batch["next_obs"], next_actions).amin(0))


@torch.no_grad()
def soft_targets(algorithm: Algorithm, batch: Batch) -> Tensor:
    """Targets of the critics, by the smallest of the target critics and the entropy at s'."""
    model, next_obs = algorithm.model, batch["next_obs"]
    next_actions, log_probs = model.actor.sample(next_obs)
    next_q = algorithm.target.critic(next_obs, next_actions).amin(0) - model.temperature() * log_probs
    return bellman(batch, next_q, algorithm.hyper.gamma)


def soft_policy_loss(
    algorithm: Algorithm, obs: Tensor, critic: Callable[[Tensor, Tensor], Tensor], objective: Objective
) -> Metrics:
    """The loss of actor and temperature by one sample; `objective` takes the output of `critic` at these actions."""
    actor, temperature = algorithm.model.actor, algorithm.model.temperature
    mean, log_std = actor(obs, training=algorithm.training)
    actions, log_probs = actor.draw(mean, log_std)
    metrics = objective(critic(obs, actions), policy_log_probs=log_probs, log_temperature=temperature.log_value)
    metrics |= {"action_saturation": saturation(actions), "log_std_mean": log_std.mean()}
    return metrics | temperature_loss(algorithm, log_probs) if temperature.learned else metrics


def temperature_loss(algorithm: Algorithm, log_probs: Tensor) -> Metrics:
    """The loss of the temperature, by log-densities (B,) of the policy's own actions; only its value if it is fixed."""
    if not algorithm.model.temperature.learned:
        return {"temperature": algorithm.model.temperature()}
    return temperature_objective(
        log_temperature=algorithm.model.temperature.log_value,
        policy_log_probs=log_probs,
        target_entropy=algorithm.hyper.target_entropy_for(algorithm.model.action_dim),
    )


def annotate_returns(algorithm: Algorithm, rows: Batch, ends: Tensor) -> Batch:
    """TD(lambda) returns and advantages of all rows, by the target network of the value.

    That network moves every `recompute_interval` updates.
    """

    def values(obs: Tensor) -> Tensor:
        values: Tensor = algorithm.target.value(algorithm.normalize(obs))
        return values

    return lambda_returns(rows, ends, values, **algorithm.hyper.only("gamma", "td_lambda"))


def entropies(log_probs: Tensor) -> Tensor:
    """Entropies (B,) of policies with these log-probabilities (B, actions)."""
    return -expectation(log_probs.exp(), log_probs)


def largest_entropies(log_probs: Tensor) -> Tensor:
    """The entropies (B,) of uniform actions among the valid ones."""
    return (log_probs != -math.inf).sum(-1).to(log_probs.dtype).log()


def normalized_entropy(log_probs: Tensor) -> Tensor:
    """The mean entropy relative to that of uniform actions: 0 where a policy is certain, 1 where it is uniform."""
    # Where only one action is ever valid, both are 0.
    return entropies(log_probs).mean() / largest_entropies(log_probs).mean().clamp_min(1e-8)


def share(flags: Tensor, dtype: torch.dtype) -> Tensor:
    """The share of rows whose flag is set."""
    return flags.to(dtype).mean()


def conservative_gap(q_values: Tensor, actions: Tensor) -> Tensor:
    """D: by how much the soft maximum over all actions exceeds the logged one; (..., B, actions) to (...).

    It is the cross-entropy of the logged actions with values as logits: the logarithm of the number of actions where
    values do not differ, and near 0 where the values clone the data.
    """
    return (q_values.logsumexp(-1) - pick(q_values, actions)).mean(-1)


def discrete_critic_objective(
    *,
    q_values: Tensor,
    actions: Tensor,
    target_q_values: Tensor,
    conservative_weight: float | Tensor = 0.0,
    huber_delta: float | None = None,
) -> Metrics:
    """Error of critics (E, B, actions) at the logged actions (B,) against targets (B,), and the penalty of CQL."""
    taken = pick(q_values, actions)
    metrics = critic_objective(q_values=taken, target_q_values=target_q_values)
    if huber_delta is not None:
        metrics["critic_loss"] = huber(taken - target_q_values, huber_delta).mean(-1).sum()
    if isinstance(conservative_weight, float) and not conservative_weight:
        return metrics
    gaps = conservative_gap(q_values, actions)
    penalized = {"critic_loss": metrics["critic_loss"] + conservative_weight * gaps.sum()}
    return metrics | penalized | {"td_loss": metrics["critic_loss"], "cql_penalty": gaps.mean()}


def bellman_atoms(batch: Batch, next_atoms: Tensor, gamma: float) -> Tensor:
    """Targets from atoms (B, M) of the return: all atoms of a row have the row's reward and end."""
    names = ("rewards", "dones", "discounts")
    columns: Batch = {name: batch[name][:, None].expand_as(next_atoms) for name in names if name in batch}
    return bellman(columns, next_atoms, gamma)


def quantile_huber_loss(*, quantiles: Tensor, target_atoms: Tensor, delta: float | None = 1.0) -> Tensor:
    """Regression of M quantiles (..., B, M) on the distribution of atoms (B, K): the mean over all pairs.

    The m-th quantile has the level (m - 1/2) / M. Errors of atoms above it are weighted by the level, errors of atoms
    below it by 1 minus the level. An error counts by half its square up to `delta`, and linearly beyond.
    """
    if quantiles.shape[-2] != target_atoms.shape[0] or target_atoms.ndim != 2:
        shapes = f"quantiles {tuple(quantiles.shape)}, target_atoms {tuple(target_atoms.shape)}"
        raise ValueError(f"quantiles must be (..., B, M) and target_atoms (B, K), got {shapes}")
    count = quantiles.shape[-1]
    levels = (torch.arange(count, dtype=quantiles.dtype, device=quantiles.device) + 0.5) / count
    errors = target_atoms[:, None] - quantiles[..., None]
    weights = (levels[:, None] - (errors.detach() < 0).to(errors.dtype)).abs()
    return (weights * huber(errors, delta)).mean()
