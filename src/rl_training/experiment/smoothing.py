"""Deterministic policies with continuous actions, smoothed by a little noise so that they have a density."""

from __future__ import annotations

from typing import Any

import numpy as np

from rl_training.experiment.bandits import ips, kernel_weights, slope
from rl_training.experiment.intervals import Floats
from rl_training.experiment.weights import effective_sample_size
from rl_training.runtime.evaluation_data import as_inputs
from rl_training.runtime.fitting import EvaluationLog, in_chunks
from rl_training.runtime.likelihoods import Likelihood

BANDWIDTHS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.8)
"""Half widths of the noise, with actions in [-1, 1], among which SLOPE chooses."""
FEWEST_EFFECTIVE = 30
"""A bandwidth whose weights are worth fewer rows is no candidate."""


def smoothed(policy: Any, log: EvaluationLog, behavior: Floats, name: str) -> tuple[Likelihood, float]:
    """A deterministic policy for single decisions, as one with noise around its action, and the bandwidth of the noise.

    The noise has the shape of the Epanechnikov kernel and stays inside the bounds of actions. More of it uses more
    rows and judges a policy that is farther from the one in question. SLOPE takes the widest that agrees with all
    narrower ones.
    """
    act = as_inputs(policy, log, name)
    chosen = in_chunks(act, log.dataset.obs).double().numpy(force=True)
    taken = log.dataset.actions.double().numpy(force=True)
    rewards = log.dataset.rewards.double().numpy(force=True)
    candidates = {width: kernel_densities(chosen, taken, width) for width in BANDWIDTHS}
    weights = {width: each / np.exp(behavior) for width, each in candidates.items()}
    widths = [each for each in BANDWIDTHS if effective_sample_size(weights[each]) >= FEWEST_EFFECTIVE]
    width = widths[slope([ips(rewards, weights[each]) for each in widths])] if widths else BANDWIDTHS[-1]
    with np.errstate(divide="ignore"):
        log_probs = np.log(candidates[width])
    return Likelihood(log_probs, act, draws=1, is_drawn=False), width


def kernel_densities(chosen: Floats, taken: Floats, bandwidth: float) -> Floats:
    """Densities of actions (rows, dimensions) under noise around a policy's own that is kept inside [-1, 1]."""
    inside = _below((1 - chosen) / bandwidth) - _below((-1 - chosen) / bandwidth)
    densities: Floats = kernel_weights(chosen, taken, np.ones(len(taken)), bandwidth) / inside.prod(axis=1)
    return densities


def _below(distance: Floats) -> Floats:
    """The share of the kernel below a distance from its centre, in bandwidths."""
    u = np.clip(distance, -1, 1)
    share: Floats = (2 + 3 * u - u**3) / 4
    return share
