"""The networks of PPO."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from rl_training.models.actors import GaussianActor
from rl_training.models.critics import ValueNetwork
from rl_training.models.discrete import CategoricalActor
from rl_training.models.initializers import Init
from rl_training.models.model import Model, Shape

LOG_STD_RANGE = (-20.0, 2.0)


def orthogonal_head(gain: float) -> Init:
    """Orthogonal weights without biases: times sqrt(2), in the last layer times `gain`."""

    def fill(weight: Tensor, bias: Tensor, last: bool) -> None:
        nn.init.orthogonal_(weight, gain if last else 2**0.5)
        nn.init.zeros_(bias)

    return fill


class MLPPPOModel(Model):
    """An actor, Gaussian with one learned standard deviation or categorical, and a value of states; tanh layers."""

    default_sizes = (64, 64)

    def __init__(self, *, log_std: float = 0.0, discrete: bool = False, **shape: Unpack[Shape]) -> None:
        super().__init__(**shape)
        head = orthogonal_head(0.01)
        if discrete:
            self.actor = CategoricalActor(**self.actor_shape, init=head, activation=torch.tanh)
        else:
            self.actor = GaussianActor(
                **self.actor_shape,
                spread="clipped",
                log_std=log_std,
                log_std_range=LOG_STD_RANGE,
                squash_mean=False,
                init=head,
                activation=torch.tanh,
            )
        self.value = ValueNetwork(**self.value_shape, init=orthogonal_head(1.0), activation=torch.tanh)
