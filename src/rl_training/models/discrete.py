"""Networks for discrete actions: a number for each choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import Unpack

from rl_training.models.encoders import encoder_for
from rl_training.models.initializers import Init, uniform
from rl_training.models.layers import MLP
from rl_training.models.model import Model, Shape


class CategoricalActor(nn.Module):
    """Probabilities of choices: softmax(mlp(obs))."""

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        *,
        hidden_sizes: Sequence[int],
        encoder: nn.Module | None = None,
        init: Init = uniform,
        activation: Callable[[Tensor], Tensor] = functional.relu_,
    ) -> None:
        super().__init__()
        self.encoder = encoder_for(obs_dim, encoder)
        self.mlp = MLP(self.encoder.output_size, hidden_sizes, action_dim, init=init, activation=activation)

    def forward(self, obs: Tensor) -> Tensor:
        """Log-probabilities (B, choices)."""
        logits: Tensor = self.mlp(self.encoder(obs))
        return logits.log_softmax(-1)

    def act(self, obs: Tensor, *, deterministic: bool) -> Tensor:
        """The most likely choice (B,), or a sample."""
        log_probs: Tensor = self(obs)
        return log_probs.argmax(-1) if deterministic else log_probs.exp().multinomial(1)[:, 0]


class ChoiceCritic(nn.Module):
    """The value of every choice: obs (B, dim) to (B, choices).

    With `dueling`, the network gives the value of the state and an advantage of each choice, and the value of a choice
    is the sum of both, less the mean advantage.
    """

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        *,
        hidden_sizes: Sequence[int],
        encoder: nn.Module | None = None,
        dueling: bool = False,
    ) -> None:
        super().__init__()
        self.dueling = dueling
        self.encoder = encoder_for(obs_dim, encoder)
        self.mlp = MLP(self.encoder.output_size, hidden_sizes, action_dim + dueling)

    def forward(self, obs: Tensor) -> Tensor:
        """Values (B, choices)."""
        outputs: Tensor = self.mlp(self.encoder(obs))
        return duel(outputs[:, :1], outputs[:, 1:]) if self.dueling else outputs


def duel(values: Tensor, advantages: Tensor) -> Tensor:
    """Values (B, choices) from values of states (B, 1) and advantages (B, choices)."""
    return values + advantages - advantages.mean(-1, keepdim=True)


def pick(values: Tensor, actions: Tensor) -> Tensor:
    """Of numbers for all choices, (B, choices), those of the choices (B,)."""
    return values.gather(-1, actions[..., None]).squeeze(-1)


class MLPDQNModel(Model):
    """A critic, whose best choice is the policy."""

    def __init__(self, *, dueling: bool = False, **shape: Unpack[Shape]) -> None:
        super().__init__(**shape)
        self.critic = ChoiceCritic(**self.critic_shape, dueling=dueling)

    def act(self, obs: Tensor, *, deterministic: bool) -> Tensor:
        """The choice (B,) of the highest value; there is nothing to sample."""
        values: Tensor = self.critic(obs)
        return values.argmax(-1)

    def values(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Values (B,) of choices."""
        return pick(self.critic(obs), actions)
