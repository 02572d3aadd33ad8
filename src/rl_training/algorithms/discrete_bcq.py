"""Discrete BCQ: double DQN restricted to actions that are likely enough in the data.

    critic minimises  mean huber(Q(s, a) - y),     y = r + gamma * (1 - done) * Q'(s', a')
                      a' = argmax Q(s', a) over actions with G(a | s') > threshold * max_a G(a | s')
    clone minimises   - mean log G(a | s) + logit_penalty * mean f(s)^2,      G = softmax(f)

The policy takes the best action under the same constraint. `threshold: 0` is DQN; near 1 it is a clone of the data.
With `num_quantiles`, the critic's loss is that of QR-DQN.

Fujimoto et al., "Benchmarking Batch Deep Reinforcement Learning Algorithms", 2019.

No known differences from the authors' code for vectors: critic and clone are two networks, and the penalty is on raw
logits.
"""

from __future__ import annotations

from torch import Tensor

from rl_training.algorithms.base import Step, losses, register
from rl_training.algorithms.dqn import DQN, DQNHyper, dqn_loss
from rl_training.core.batches import Batch, Metrics
from rl_training.core.options import option, options
from rl_training.models import MLPDiscreteBCQModel, likely_actions, pick


@options
class DiscreteBCQHyper(DQNHyper, learning_rate=3e-4, max_grad_norm=None, tau=0.005, target_update_interval=1):
    """Hyper-parameters of discrete BCQ."""

    threshold: float = option(0.3, "how likely an action must be, relative to the likeliest", ge=0, lt=1, agree=True)
    logit_penalty: float = option(0.01, "weight of the squared logits of the clone", ge=0)


def clone_loss(*, logits: Tensor, actions: Tensor, logit_penalty: float = 0.01) -> Metrics:
    """Likelihood of the logged actions (B,) and the size of the logits (B, actions)."""
    nll = -pick(logits.log_softmax(-1), actions).mean()
    valid = logits.isfinite()
    size = logits.masked_fill(~valid, 0).square().sum() / valid.sum()
    return {"clone_loss": nll + logit_penalty * size, "clone_nll": nll}


discrete_bcq_loss = losses.combine("discrete_bcq_loss", dqn_loss, clone_loss)


@register("discrete_bcq", mode="offline")
class DiscreteBCQ(DQN):
    """Batch-constrained Q-learning for discrete actions."""

    hyper: DiscreteBCQHyper
    model: MLPDiscreteBCQModel
    target: MLPDiscreteBCQModel
    steps = (Step("joint", trains=("critic", "clone"), tracks=("critic",), track_every="target_update_interval"),)
    defaults = {"batch_size": 64, "exploration_noise": 0.05}

    def joint_loss(self, batch: Batch) -> Metrics:
        """Critic and clone, each by its own loss at the same point."""
        obs, actions = batch["obs"], batch["actions"]
        logits, quantiles = self.model.clone.logits(obs), self.model.critic.quantiles(obs)
        clone = clone_loss(logits=logits, actions=actions, logit_penalty=self.hyper.logit_penalty)
        return self.td_loss(quantiles, batch) | clone | self.report(quantiles.detach().mean(-1), logits.detach())

    def best_actions(self, values: Tensor, obs: Tensor) -> Tensor:
        """The best actions (B,) among those that the clone finds likely."""
        return self.model.constrain(values, obs).argmax(-1)

    def report(self, values: Tensor, logits: Tensor) -> Metrics:
        """The mean number of likely actions, and the share of rows whose best action is not likely."""
        likely = likely_actions(logits, self.hyper.threshold)
        is_best_likely = pick(likely, values.argmax(-1))
        return {
            "allowed_actions": likely.sum(-1).to(values.dtype).mean(),
            "constraint_active": losses.share(~is_best_likely, values.dtype),
        }


DiscreteBCQAlgorithm = DiscreteBCQ
