"""RLPD: REDQ with normalised critics, on batches of which half is logged data.

    REDQ with `critic_layer_norm`; without `backup_entropy`, y = r + gamma * (1 - done) * min_{k in K} Q'_k(s', a')

Nothing is trained before the first step in the environment, and no loss treats logged data differently.

Ball et al., "Efficient Online Reinforcement Learning with Offline Data", ICML 2023.

For sparse rewards the authors use `backup_entropy: false`, critics of three layers, and on AntMaze
`num_target_critics: 1` with rewards less 1.

Differs from the authors' code: the loss is the sum over critics and not their mean, which Adam does not see; the
temperature's gradient is that of log(alpha), as in SAC. Logged actions are not clipped to 1 - 1e-5: that is for
log-densities, which are infinite on the bounds, while here logged actions only enter critics.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from rl_training.algorithms.base import register
from rl_training.algorithms.redq import REDQ, REDQHyper, redq_loss
from rl_training.binding import options


@options
class RLPDHyper(REDQHyper):
    """Hyper-parameters of RLPD: REDQ's, and whether targets contain entropy."""

    critic_layer_norm: bool = Field(default=True, description="layer normalisation in the critics")
    backup_entropy: bool = Field(default=True, description="whether the critics' target pays for entropy")


rlpd_loss = redq_loss


@register("rlpd", mode="offline_to_online")
class RLPD(REDQ):
    """Reinforcement learning with prior data."""

    hyper: RLPDHyper
    defaults = {**REDQ.defaults, "offline_batch_ratio": 0.5}

    def entropy_bonus(self, log_probs: Tensor) -> Tensor:
        """What the target pays for entropy at s', if anything."""
        return super().entropy_bonus(log_probs) if self.hyper.backup_entropy else torch.zeros_like(log_probs)


RLPDAlgorithm = RLPD
