"""TQC: SAC whose critics know the distribution of the return, and whose targets leave its top out.

    critic minimises       mean over rows, critics i, quantiles m and atoms j of
                           |tau_m - 1{y_j < Z_im(s, a)}| * huber(y_j - Z_im(s, a)),       tau_m = (m - 1/2) / M
                           y_j = r + gamma * (1 - done) * (z_j - alpha log pi(a' | s')),   a' ~ pi(s')
                           z_j = the smallest of all E * M atoms Z'_im(s', a'), without the top E * dropped_quantiles
    actor minimises        mean (alpha log pi(a_pi | s) - mean over i and m of Z_im(s, a_pi)),  a_pi ~ pi(s)
    temperature minimises  - mean log(alpha) (log pi(a_pi | s) + target_entropy)

in this order; actor and temperature move together, by gradients at the same sample. The atoms of all critics are
ordered together, so that one critic may lose more of them than another.

Kuznetsov et al., "Controlling Overestimation Bias with Truncated Mixture of Continuous Distributional Quantile
Critics", ICML 2020.

Differs from the paper: two critics of 2x256 instead of five of 3x512; the loss is a mean over quantiles, not a sum.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.algorithms.base import losses, register
from rl_training.algorithms.sac import SAC, SACHyper
from rl_training.core.batches import Batch, Metrics
from rl_training.core.options import option, options
from rl_training.models import MLPTQCModel


@options
class TQCHyper(SACHyper):
    """Hyper-parameters of TQC."""

    num_critics: int = option(2, "number of critics, whose atoms are pooled", ge=1, le=1000)
    num_quantiles: int = option(25, "quantiles of the return that each critic knows", ge=1, le=10_000)
    dropped_quantiles: int = option(2, "largest atoms left out of the target, per critic", ge=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("dropped_quantiles", "<", "num_quantiles")


def quantile_objective(*, quantiles: Tensor, target_atoms: Tensor) -> Metrics:
    """Quantile regression of critics (E, B, M) on atoms (B, K)."""
    values = quantiles.mean(-1)
    return {
        "critic_loss": losses.quantile_huber_loss(quantiles=quantiles, target_atoms=target_atoms),
        "q_mean": values.mean(),
        "q_std": values.std(correction=0),
        "q_std_ensemble": values.std(0, correction=0).mean(),
        "quantile_spread": quantile_spread(quantiles.detach()),
        "target_atoms_mean": target_atoms.mean(),
    }


def actor_objective(policy_quantiles: Tensor, *, policy_log_probs: Tensor, log_temperature: Tensor) -> Metrics:
    """Entropy and the mean of all quantiles (E, B, M) at the policy's own actions, nothing left out."""
    return losses.soft_actor_objective(policy_quantiles.mean(-1).mean(0), policy_log_probs, log_temperature)


tqc_loss = losses.combine("tqc_loss", quantile_objective, actor_objective, losses.temperature_objective)


def pooled_atoms(quantiles: Tensor) -> Tensor:
    """The quantiles (E, B, M) of all critics as atoms of one distribution per row, (B, E * M) in ascending order."""
    return quantiles.movedim(0, 1).flatten(1).sort(-1).values


def truncated_atoms(quantiles: Tensor, dropped: int) -> Tensor:
    """The pooled atoms without the largest `dropped` per critic, (B, E * (M - dropped))."""
    critics, _, count = quantiles.shape
    return pooled_atoms(quantiles)[:, : critics * (count - dropped)]


def quantile_spread(quantiles: Tensor) -> Tensor:
    """The distance from the 5th to the 95th percentile of the pooled atoms, each by the nearest, averaged over rows."""
    atoms = pooled_atoms(quantiles)
    last = atoms.shape[-1] - 1
    return (atoms[:, round(0.95 * last)] - atoms[:, round(0.05 * last)]).mean()


@register("tqc", mode="online")
class TQC(SAC):
    """Truncated quantile critics."""

    hyper: TQCHyper
    model: MLPTQCModel
    target: MLPTQCModel

    def critic_loss(self, batch: Batch) -> Metrics:
        """All critics' quantiles against the atoms that are left."""
        quantiles = self.model.critic.quantiles(batch["obs"], batch["actions"])
        return quantile_objective(quantiles=quantiles, target_atoms=self.targets(batch))

    @torch.no_grad()
    def targets(self, batch: Batch) -> Tensor:
        """Atoms (B, K) of the return's target: the smaller ones of the target critics, with the entropy at s'."""
        next_actions, log_probs = self.model.actor.sample(batch["next_obs"])
        quantiles = self.target.critic.quantiles(batch["next_obs"], next_actions)
        atoms = truncated_atoms(quantiles, self.hyper.dropped_quantiles)
        atoms = atoms - (self.model.temperature() * log_probs)[:, None]
        return losses.bellman_atoms(batch, atoms, self.hyper.gamma)

    def actor_loss(self, batch: Batch) -> Metrics:
        """Value and entropy of the policy's own actions, and the temperature by the same sample."""
        return losses.soft_policy_loss(self, batch["obs"], self.model.critic.quantiles, actor_objective)


TQCAlgorithm = TQC
