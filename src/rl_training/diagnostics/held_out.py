"""Diagnostics of a policy on held-out episodes, without an environment."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from rl_training.algorithms import Algorithm
from rl_training.core.batches import Batch, Metrics
from rl_training.core.rewards import returns_to_go
from rl_training.core.seeds import forked
from rl_training.data import TransitionDataset, with_annotations

CHUNK = 512
"""Rows at a time; some losses and policies look at dozens of actions for each."""


def diagnose(algorithm: Algorithm, dataset: TransitionDataset, *, seed: int = 0) -> dict[str, float]:
    """Held-out losses, action distance and, for algorithms with critics, TD error and predicted values.

    For discrete actions, the distance is the share of agreement; the mean probability of logged actions is added.
    Values are the minimum over the critics at the policy's own action; `td_error` is the mean square of their
    one-step inconsistency. `initial_value` is their prediction of the discounted return, on transformed rewards;
    `initial_return` is that of the logged episodes. Neither is a substitute for a rollout.
    """
    dataset = dataset.to(algorithm.obs_mean.device)
    if algorithm.annotates:
        dataset = with_annotations(dataset, algorithm.annotate, standardizes=algorithm.standardizes)
    with forked(seed, dataset.device):
        # Rows without a field that the losses need, such as a next action, count in the measures only.
        metrics = _average(algorithm.losses, dataset.requiring(*algorithm.needs))
        metrics |= _average(partial(_measure, algorithm), dataset)
    if hasattr(algorithm.model, "critic"):
        starts = dataset.episode_bounds()[:, 0]
        metrics["initial_value"] = float(_values(algorithm, dataset.obs[starts]).mean())
        if dataset.has_episodes:
            tails, gamma = dataset.tail_rewards, algorithm.hyper.gamma
            returns = returns_to_go(dataset.rewards, dataset.episode_ends, gamma=gamma, tails=tails)
            metrics["initial_return"] = float(returns[starts].mean())
    return metrics


def _average(report: Callable[[Batch], Metrics], dataset: TransitionDataset) -> dict[str, float]:
    """Means over all rows of the metrics that a function reports on batches."""
    totals: dict[str, float] = {}
    for start in range(0, len(dataset), CHUNK):
        batch = {name: value[start : start + CHUNK] for name, value in dataset.fields.items()}
        size = len(batch["obs"])
        for name, value in report(batch).items():
            totals[name] = totals.get(name, 0.0) + float(value) * size
    return {name: total / len(dataset) for name, total in totals.items()}


@torch.no_grad()
def _measure(algorithm: Algorithm, batch: Batch) -> Metrics:
    obs, policy_actions = algorithm.normalize(batch["obs"]), algorithm.act(batch["obs"])
    report = algorithm.action_space.compare(policy_actions, batch["actions"])
    # For continuous actions it would be a density, which has a unit.
    is_discrete = algorithm.action_space.kind == "discrete"
    log_probs = algorithm.model.log_probs(obs, batch["actions"]) if is_discrete else None
    if log_probs is not None:
        report["logged_action_probability"] = log_probs.exp().mean()
    if not hasattr(algorithm.model, "critic"):
        return report
    q = algorithm.model.values(obs, batch["actions"])
    policy_q = algorithm.model.values(obs, policy_actions)
    next_q = _values(algorithm, batch["next_obs"])
    target = batch["rewards"] + getattr(algorithm.hyper, "gamma", 1.0) * (1 - batch["dones"]) * next_q
    return report | {"td_error": (q - target).square().mean(), "value_mean": policy_q.mean()}


@torch.no_grad()
def _values(algorithm: Algorithm, obs: torch.Tensor) -> torch.Tensor:
    values: torch.Tensor = algorithm.model.values(algorithm.normalize(obs), algorithm.act(obs))
    return values
