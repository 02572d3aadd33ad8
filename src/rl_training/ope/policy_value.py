"""The value of the policy that is being trained, from logged data, for runs that choose by it."""

from __future__ import annotations

from functools import cached_property

import torch

from rl_training.acting.policy import Policy
from rl_training.core.randomness import forked
from rl_training.ope.fitting import EvaluationLog, FitOptions, ValueFitter, default_gamma
from rl_training.selection.evaluation_data import as_inputs

VALUE = "fqe_value"
"""The metric: a discounted return in the units of logged rewards."""
KAPPA = 3.0


class PolicyValue:
    """A small FQE, one member and few updates, at every evaluation of a run.

    The logged behaviour is fitted too, once: what both fits miss cancels, and the value is the logged mean plus their
    difference. All fits have the same seed, so that evaluations differ by the policy alone.
    """

    def __init__(self, log: EvaluationLog) -> None:
        self.log = log
        self.options = FitOptions(gamma=default_gamma(log.bounds), members=0, kappa=KAPPA)

    @cached_property
    def _reference(self) -> tuple[ValueFitter, float]:
        """The fitter, and the logged mean minus what it says of the logged behaviour."""
        fitter = ValueFitter(self.log, self.options)
        estimated = float(fitter.fit_behavior().values[0])
        return fitter, float(fitter.mean_values(fitter.logged_returns())[0]) - estimated

    def measure(self, policy: Policy) -> dict[str, float]:
        """The value of the policy as it is; no random numbers are drawn from the run's generators."""
        device = policy.obs_mean.device
        act = as_inputs(lambda obs: policy.act(torch.from_numpy(obs).to(device)).numpy(force=True), self.log, "it")
        with forked(self.options.seed, device):
            fitter, missing = self._reference
            return {VALUE: float(fitter.fit_policy(act).values[0]) + missing}
