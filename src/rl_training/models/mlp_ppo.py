"""The networks of PPO."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from typing_extensions import Unpack

from rl_training.core.batches import Batch
from rl_training.models.actors import GaussianActor, gaussian_log_prob
from rl_training.models.critics import ValueNetwork
from rl_training.models.discrete import CategoricalActor, draw, pick
from rl_training.models.initializers import orthogonal_head
from rl_training.models.model import Model, Shape

LOG_STD_RANGE = (-20.0, 2.0)


class MLPPPOModel(Model):
    """An actor, Gaussian with one learned standard deviation or categorical, and a value of states; tanh layers."""

    default_sizes = (64, 64)
    default_activation = "tanh"

    def __init__(self, *, log_std: float = 0.0, discrete: bool = False, **shape: Unpack[Shape]) -> None:
        super().__init__(**shape)
        gaussian = partial(
            GaussianActor, spread="clipped", log_std=log_std, log_std_range=LOG_STD_RANGE, squash_mean=False
        )
        actor_class = CategoricalActor if discrete else gaussian
        self.actor = actor_class(**self.actor_shape, init=orthogonal_head(0.01))
        self.value = ValueNetwork(**self.value_shape, init=orthogonal_head(1.0))

    def explore(self, obs: Tensor) -> tuple[Tensor, Batch]:
        """A sample that is not clipped, with the inputs of the networks, its log-probability, and the state's value."""
        if isinstance(self.actor, CategoricalActor):
            choices: Tensor = self.actor(obs)
            actions = draw(choices)
            log_probs = pick(choices, actions)
        else:
            mean, log_std = self.actor(obs)
            actions = mean + log_std.exp() * torch.randn_like(mean)
            log_probs = gaussian_log_prob(actions, mean, log_std)
        return actions, {"inputs": obs, "log_probs": log_probs, "values": self.value(obs)}
