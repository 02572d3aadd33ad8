"""DQN: learn the value of every choice, and take the best.

    critic minimises  mean huber(Q(s, a) - y),    y = r + gamma * (1 - done) * Q'(s', a'),  a' = argmax_a Q(s', a)

With `double: false`, a' is the best choice by the target network Q' itself. With `dueling`, the network splits Q into
a value of the state and advantages of the choices, whose mean is taken out. The target network is a copy of the critic
that is made anew every `target_update_interval` updates.

Mnih et al., "Human-level control through deep reinforcement learning", Nature 2015; van Hasselt, Guez and Silver, "Deep
Reinforcement Learning with Double Q-learning", AAAI 2016; Wang et al., "Dueling Network Architectures for Deep
Reinforcement Learning", ICML 2016.

Differs from the papers: Adam instead of RMSProp; one trunk for both streams of the dueling network, which part in the
last layer; the interval of the target network counts updates, not steps of the environment.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from rl_training.algorithms import losses
from rl_training.algorithms.base import Algorithm, Hyper, Step, register
from rl_training.binding import option, options
from rl_training.models.discrete import MLPDQNModel, pick
from rl_training.types import Batch, Metrics


@options
class DQNHyper(Hyper, learning_rate=1e-3, max_grad_norm=10.0):
    """Hyper-parameters of DQN."""

    gamma: float = option(0.99, "discount per step", ge=0, le=1)
    double: bool = option(True, "the critic chooses the action whose target value counts")
    dueling: bool = option(False, "separate the state's value from its choices' advantages")
    huber_delta: float | None = option(1.0, "error from which the loss is linear; null: squared error", gt=0)
    tau: float = option(1.0, "rate at which the target network follows; 1: a copy", gt=0, le=1)
    target_update_interval: int = option(125, "updates between moves of the target network", ge=1)


def dqn_loss(*, q_values: Tensor, actions: Tensor, target_q_values: Tensor, huber_delta: float | None = 1.0) -> Metrics:
    """The whole objective, from tensors alone: values (B, choices), choices (B,), and targets (B,).

    `q_gap` is how much higher the best choice is valued than the logged one. If it keeps growing, critics extrapolate.
    """
    taken, greedy = pick(q_values, actions), q_values.amax(-1)
    if huber_delta is None:
        loss = functional.mse_loss(taken, target_q_values)
    else:
        loss = functional.huber_loss(taken, target_q_values, delta=huber_delta)
    return {
        "critic_loss": loss,
        "td_error_abs": (taken - target_q_values).abs().mean(),
        "q_mean": taken.mean(),
        "q_greedy_mean": greedy.mean(),
        "q_gap": (greedy - taken).mean(),
        "agreement": (q_values.argmax(-1) == actions).to(taken.dtype).mean(),
        "target_q_mean": target_q_values.mean(),
    }


def next_values(*, target_q_values: Tensor, next_q_values: Tensor | None = None) -> Tensor:
    """Target values (B,) of the best choices: by the critic's values (B, choices), or by the target values alone."""
    chosen_by = target_q_values if next_q_values is None else next_q_values
    return pick(target_q_values, chosen_by.argmax(-1))


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
        """The logged choice's value against the best choice's at s'."""
        hyper, next_obs = self.hyper, batch["next_obs"]
        with torch.no_grad():
            next_q = self.model.critic(next_obs) if hyper.double else None
            best_q = next_values(target_q_values=self.target.critic(next_obs), next_q_values=next_q)
            target_q = losses.bellman(batch, best_q, hyper.gamma)
        return dqn_loss(
            q_values=self.model.critic(batch["obs"]),
            actions=batch["actions"],
            target_q_values=target_q,
            huber_delta=hyper.huber_delta,
        )


DQNAlgorithm = DQN
