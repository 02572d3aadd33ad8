"""FQE: learn the value of a fixed policy from logged data, without running it.

    critic e minimises  mean c_e * (q_e(s, a) - y_e)^2,  y_e = clip((1 - gamma) * r + gamma * (1 - done) * q'_e(s', a'))

Values are scaled, q = (1 - gamma) * Q, so that they are as large as a reward. The next action a' is that of the policy
in question. For discrete actions the next value is the expectation over the policy's choices. Every critic is a member
of a bootstrap: c_e says how often the episode of a row was drawn for it, and its target is its own target network q'_e.
Targets are clipped to the values that are possible: from the smallest to the largest reward, and 0 where episodes
terminate.

Le, Voloshin and Yue, "Batch Policy Learning under Constraints", ICML 2019; Fu et al., "Benchmarks for Deep Off-Policy
Evaluation", ICLR 2021.

Differs from the papers: target networks follow ten times as fast, several members are learned at once, and the range
of targets contains 0 where episodes terminate. It is no way to train a policy, so it is not in the table of algorithms.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.algorithms.base.algorithm import Algorithm, Hyper, Step
from rl_training.algorithms.base.optimizers import AdamW
from rl_training.core.batches import TRANSITION, Batch, Metrics, Transitions
from rl_training.core.options import option, options
from rl_training.models.algorithm_models import MLPFQEModel

SLACK = 0.01
"""How far beyond its bounds a target counts as clipped, relative to the range: less is noise of the fit."""


@options
class FQEHyper(Hyper, learning_rate=1e-3):
    """Hyper-parameters of FQE."""

    gamma: float = option(0.99, "discount per step", ge=0, lt=1)
    tau: float = option(0.05, "rate at which target networks follow", gt=0, le=1)
    num_critics: int = option(11, "members: one for all episodes, the others for resampled ones", ge=1, le=1000)
    critic_weight_decay: float = option(1e-5, "weight decay of the critics", ge=0)
    target_low: float = option(0.0, "smallest possible target, in scaled units")
    target_high: float = option(1.0, "largest possible target, in scaled units")


def fqe_targets(
    *, rewards: Tensor, dones: Tensor, next_values: Tensor, gamma: float, target_low: float, target_high: float
) -> tuple[Tensor, Tensor]:
    """Targets (E, B) in scaled units by next values (E, B), and the share of them that had to be clipped."""
    raw = (1 - gamma) * rewards + gamma * (1 - dones) * next_values
    clipped = raw.clamp(target_low, target_high)
    slack = SLACK * ((target_high - target_low) or abs(target_high))
    return clipped, ((raw - clipped).abs() > slack).to(raw.dtype).mean()


def fqe_loss(*, q_values: Tensor, target_q_values: Tensor, weights: Tensor) -> Metrics:
    """Weighted squared error of E members (E, B), each against its own targets: mean over rows, sum over members."""
    if q_values.ndim != 2 or not q_values.shape == target_q_values.shape == weights.shape:
        tensors = {"q_values": q_values, "target_q_values": target_q_values, "weights": weights}
        shapes = ", ".join(f"{name} {tuple(value.shape)}" for name, value in tensors.items())
        raise ValueError(f"every member has its own targets and weights: all must be (E, B), got {shapes}")
    return {
        "critic_loss": (weights * (q_values - target_q_values).square()).mean(-1).sum(),
        "q_mean": q_values.mean(),
        "q_std_ensemble": q_values.std(0, correction=0).mean(),
        "target_q_mean": target_q_values.mean(),
    }


class FQE(Algorithm[FQEHyper, MLPFQEModel]):
    """Fitted Q evaluation by members of a bootstrap over episodes."""

    name = "fqe"
    action_kinds = ("continuous", "discrete")
    steps = (Step("critic", tracks=("critic",), optimizer=AdamW),)
    reads = Transitions((*TRANSITION, "next_actions", "episodes", "row_weights"))
    """`next_actions` are those of the policy, probabilities where they are choices; `episodes` are numbers, and
    `row_weights` are 0 where the next action is not known."""
    episode_weights: Tensor

    def set_episode_weights(self, weights: Tensor) -> None:
        """How often each member has each episode: (E, episodes). To be called before the first update."""
        self.register_buffer("episode_weights", weights, persistent=False)

    def critic_loss(self, batch: Batch) -> Metrics:
        """Each member against its own targets, weighted by its own episodes."""
        hyper = self.hyper
        with torch.no_grad():
            targets, clipped = fqe_targets(
                rewards=batch["rewards"],
                dones=batch["dones"],
                next_values=self.target.critic(batch["next_obs"], batch["next_actions"]),
                **hyper.only("gamma", "target_low", "target_high"),
            )
        metrics = fqe_loss(
            q_values=self.model.critic(batch["obs"], batch["actions"]),
            target_q_values=targets,
            weights=self.episode_weights[:, batch["episodes"]] * batch["row_weights"],
        )
        return metrics | {"clipped_share": clipped}
