"""Values of states and actions for doubly robust estimates: each episode's by a member that has not learned from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from rl_training.experiment.importance import episode_folds
from rl_training.experiment.intervals import Floats
from rl_training.runtime.fitting import EvaluationLog, FitOptions, ValueFitter
from rl_training.runtime.likelihoods import Likelihood

FOLDS = 5


class CrossFit:
    """One member per fold of episodes, fitted to all other folds, for one policy after the other."""

    def __init__(self, log: EvaluationLog, options: FitOptions, *, compiled: bool = False) -> None:
        count = min(FOLDS, len(log.bounds))
        folds = episode_folds(len(log.bounds), count, seed=options.seed)
        learns = torch.from_numpy(folds[None, :] != np.arange(count)[:, None]).long()
        self.log = log
        self.member = folds[log.episodes.numpy()]
        self.fitter = ValueFitter(log, replace(options, members=count - 1), weights=learns, compiled=compiled)

    def values(
        self, policy: Likelihood, progress: Callable[[int, int], None] | None = None
    ) -> tuple[Floats, Floats, Floats]:
        """Per row: the value of the logged action, that of the policy's own, and what follows the cut of an episode."""
        self.fitter.fit_policy(policy.inputs, progress=progress)
        data = self.log.dataset
        rows = torch.arange(len(data))
        q = self._by_member(data.obs, self.log.logged_actions(), rows)
        v = self._of_policy(data.obs, rows, policy)
        last = torch.from_numpy(self.log.bounds[:, 1] - 1)
        cut = last[~data.dones[last].bool()]
        tails = np.zeros(len(data))
        if len(cut):
            tails[cut.numpy()] = self._of_policy(data.next_obs[cut], cut, policy)
        return q, v, tails

    def _of_policy(self, obs: Tensor, rows: Tensor, policy: Likelihood) -> Floats:
        """Means over the policy's actions; drawn ones are asked for together, so that they differ."""
        repeated, owners = obs.repeat(policy.draws, 1), rows.repeat(policy.draws)
        with torch.no_grad():
            actions = policy.inputs(repeated)
        means: Floats = self._by_member(repeated, actions, owners).reshape(policy.draws, -1).mean(axis=0)
        return means

    def _by_member(self, obs: Tensor, actions: Tensor, rows: Tensor) -> Floats:
        values = self.fitter.q_values(obs, actions)
        own: Floats = values[self.member[rows.numpy()], np.arange(len(obs))]
        return own
