"""DQN: learn the value of every action, and take the best.

    critic minimises  mean huber(Q(s, a) - y),    y = r + gamma * (1 - done) * Q'(s', a'),  a' = argmax_a Q(s', a)

With `double: false`, a' is the best action by the target network Q' itself. With `dueling`, the network splits Q into
a value of the state and advantages of the actions, whose mean is taken out. The target network is a copy of the critic
that is made anew every `target_update_interval` updates. With `num_quantiles: N`, the critic knows N quantiles theta_i
of the return of every action, Q is their mean, and

    critic minimises  mean sum_i mean_j |tau_i - 1{y_j < theta_i(s, a)}| * huber(y_j - theta_i(s, a)),
                      tau_i = (i - 1/2) / N,      y_j = r + gamma * (1 - done) * theta'_j(s', a')

which is QR-DQN. Errors below `huber_delta` count by their square, and squares are not made for quantiles: where returns
are hardly larger than `huber_delta`, the mean of the quantiles is biased. Returns of 0 and 1 need `huber_delta: 0.01`.

Mnih et al., "Human-level control through deep reinforcement learning", Nature 2015; van Hasselt, Guez and Silver, "Deep
Reinforcement Learning with Double Q-learning", AAAI 2016; Wang et al., "Dueling Network Architectures for Deep
Reinforcement Learning", ICML 2016; Dabney et al., "Distributional Reinforcement Learning with Quantile Regression",
AAAI 2018.

Differs from the papers: Adam instead of RMSProp; one trunk for both streams of the dueling network, which part in the
last layer; the interval of the target network counts updates, not steps of the environment; with quantiles too, the
critic chooses a' unless `double` is false. Where `huber_delta` is null, errors count by their square, with quantiles by
half of it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm, Hyper, Step, losses, register
from rl_training.core.batches import Batch, Metrics
from rl_training.core.options import option, options
from rl_training.models import MLPDQNModel, pick


@options
class DQNHyper(Hyper, learning_rate=1e-3, max_grad_norm=10.0):
    """Hyper-parameters of DQN."""

    gamma: float = option(0.99, "discount per step", ge=0, le=1)
    double: bool = option(True, "the critic chooses the action whose target value counts")
    dueling: bool = option(False, "separate the state's value from its actions' advantages")
    num_quantiles: int | None = option(None, "quantiles of the return that are learned; null: its mean", ge=1, le=1000)
    huber_delta: float | None = option(1.0, "error from which the loss is linear; null: squared error", gt=0)
    tau: float = option(1.0, "rate at which the target network follows; 1: a copy", gt=0, le=1)
    target_update_interval: int = option(125, "updates between moves of the target network", ge=1)


def dqn_loss(*, q_values: Tensor, actions: Tensor, target_q_values: Tensor, huber_delta: float | None = 1.0) -> Metrics:
    """The whole objective, from tensors alone: values (B, actions), actions (B,), and targets (B,).

    `q_gap` is how much higher the best action is valued than the logged one. If it keeps growing, critics extrapolate.
    """
    taken, greedy = pick(q_values, actions), q_values.amax(-1)
    errors = taken - target_q_values
    loss = (errors.square() if huber_delta is None else losses.huber(errors, huber_delta)).mean()
    return {
        "critic_loss": loss,
        "td_error_abs": errors.abs().mean(),
        "q_mean": taken.mean(),
        "q_greedy_mean": greedy.mean(),
        "q_gap": (greedy - taken).mean(),
        "agreement": losses.share(q_values.argmax(-1) == actions, taken.dtype),
        "target_q_mean": target_q_values.mean(),
    }


def quantile_dqn_loss(
    *, quantiles: Tensor, actions: Tensor, target_atoms: Tensor, huber_delta: float | None = 1.0
) -> Metrics:
    """The same with quantiles: (B, actions, N), actions (B,), and atoms of the target (B, N).

    The loss is the sum over quantiles of a mean over atoms, as QR-DQN has it. `crossing_rate` is the share of
    neighbouring quantiles in the wrong order.
    """
    metrics = dqn_loss(q_values=quantiles.mean(-1), actions=actions, target_q_values=target_atoms.mean(-1))
    taken = pick_quantiles(quantiles, actions)
    loss = losses.quantile_huber_loss(quantiles=taken, target_atoms=target_atoms, delta=huber_delta)
    steps = taken.diff(dim=-1)
    crossings = {"crossing_rate": losses.share(steps < 0, taken.dtype)} if taken.shape[-1] > 1 else {}
    spread = {"quantile_spread": (taken[:, -1] - taken[:, 0]).mean()}
    return metrics | {"critic_loss": taken.shape[-1] * loss} | spread | crossings


def pick_quantiles(quantiles: Tensor, actions: Tensor) -> Tensor:
    """The quantiles (B, N) of the given actions (B,), out of those (B, actions, N) of all actions."""
    return pick(quantiles.movedim(-1, 0), actions).movedim(0, -1)


@register("dqn", mode="online")
class DQN(Algorithm[DQNHyper, MLPDQNModel]):
    """Deep Q-learning."""

    action_kinds = ("discrete",)
    steps = (Step("critic", tracks=("critic",), track_every="target_update_interval"),)
    defaults = {
        "batch_size": 64,
        "buffer_capacity": 100_000,
        "learning_starts": 1_000,
        "update_to_data": 0.25,
        # A policy that has learned already explores little.
        "exploration_noise": 0.05,
        "online": {
            "exploration_noise": 1.0,
            "exploration_schedule": {"kind": "linear", "final_ratio": 0.05, "fraction": 0.2},
        },
        "offline": {"learning_rate": 3e-4, "batch_size": 256, "tau": 0.005, "target_update_interval": 1},
    }

    def critic_loss(self, batch: Batch) -> Metrics:
        """The logged action's value against the best action's at s'."""
        return self.td_loss(self.model.critic.quantiles(batch["obs"]), batch)

    def td_loss(self, quantiles: Tensor, batch: Batch) -> Metrics:
        """The loss of quantiles (B, actions, N) against those of the best action at s'."""
        atoms, actions, delta = self.target_atoms(batch), batch["actions"], self.hyper.huber_delta
        if self.hyper.num_quantiles is not None:
            return quantile_dqn_loss(quantiles=quantiles, actions=actions, target_atoms=atoms, huber_delta=delta)
        # There is one number per action, its value.
        return dqn_loss(q_values=quantiles[..., 0], actions=actions, target_q_values=atoms[:, 0], huber_delta=delta)

    @torch.no_grad()
    def target_atoms(self, batch: Batch) -> Tensor:
        """Targets (B, N) of the quantiles, by those of the target network at the best action at s'."""
        next_obs = batch["next_obs"]
        quantiles = self.target.critic.quantiles(next_obs)
        values = self.model.critic(next_obs) if self.hyper.double else quantiles.mean(-1)
        best = self.best_actions(values, next_obs)
        return losses.bellman_atoms(batch, pick_quantiles(quantiles, best), self.hyper.gamma)

    def best_actions(self, values: Tensor, obs: Tensor) -> Tensor:
        """The best actions (B,) by their values (B, actions)."""
        return values.argmax(-1)


DQNAlgorithm = DQN
