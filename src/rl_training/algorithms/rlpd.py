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

from rl_training.algorithms.base import register
from rl_training.algorithms.redq import REDQ, REDQHyper, redq_loss
from rl_training.core.options import options


@options
class RLPDHyper(REDQHyper, critic_layer_norm=True):
    """Hyper-parameters of RLPD: REDQ's, with normalised critics."""


rlpd_loss = redq_loss


@register("rlpd", mode="offline_to_online")
class RLPD(REDQ):
    """Reinforcement learning with prior data."""

    hyper: RLPDHyper
    defaults = {**REDQ.defaults, "offline_batch_ratio": 0.5}


RLPDAlgorithm = RLPD
