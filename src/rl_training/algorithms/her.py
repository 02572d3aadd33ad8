"""HER: SAC that also learns from relabelled goals: goals that were reached, instead of the given ones.

    replay: hindsight      a share of each batch has its goals relabelled with ones that its episode achieved later

The losses are SAC's; what is new is how batches are drawn, `rl_training.data.Hindsight`, which every off-policy
algorithm takes with `replay: hindsight`.

Andrychowicz et al., "Hindsight Experience Replay", NeurIPS 2017.

Differs from the paper: SAC instead of DDPG, so that exploration is the policy's own; each row is relabelled by chance,
instead of standing beside four relabelled copies.
"""

from __future__ import annotations

from rl_training.algorithms.base import register
from rl_training.algorithms.sac import SAC, SACHyper, sac_loss
from rl_training.core.options import options


@options
class HERHyper(SACHyper, learning_rate=1e-3, gamma=0.95):
    """Hyper-parameters of HER, those of SAC, for tasks of some fifty steps."""


her_loss = sac_loss


@register("her", mode="online")
class HER(SAC):
    """SAC with hindsight experience replay."""

    hyper: HERHyper
    defaults = {"replay": "hindsight", "learning_starts": 1_000, "normalize_obs": True}


HERAlgorithm = HER
