"""The score of a policy where there is no environment: the lower end of the interval of its off-policy estimate."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from rl_training.core.randomness import forked
from rl_training.runtime import TrainerState

LOWER_BOUND = "fqe_lower"
"""The metric: a discounted return in the units of logged rewards, which the policy has at least, at 97.5 %."""
MEMBERS = 5
"""Fits to resampled episodes, as many as an interval needs."""


def lower_bound(state: TrainerState, *, threads: int | None = None) -> dict[str, float]:
    """The bound for the policy as it is, from held-out episodes; nothing where the data cannot judge it.

    It takes seconds to minutes. No random numbers are drawn from the run's generators.
    """
    from rl_training.selection.estimate import estimate

    with TemporaryDirectory() as folder, forked(0, state.policy.obs_mean.device):
        path = Path(folder, "policy.pt")
        state.save(path)
        found = estimate(str(path), members=MEMBERS, weights=False, threads=threads)
    interval = next(iter(found.policies)).interval
    return {} if interval is None else {LOWER_BOUND: float(interval[0])}
