"""The networks of each algorithm for discrete actions as one module."""

from __future__ import annotations

import math
from typing import Literal

from torch import Tensor
from typing_extensions import Unpack

from rl_training.models.algorithm_models import temperature
from rl_training.models.critics import ValueNetwork
from rl_training.models.discrete import CategoricalActor, ChoiceCritic, ChoiceEnsemble, allowed_choices, certain, pick
from rl_training.models.model import Model, Shape

LOG_TEMPERATURE_RANGE = (-20.0, 2.0)
"""Bounds on the log of a learned temperature, which rises for ever where its target entropy is out of reach."""

Extraction = Literal["weighted", "constrained", "shifted"]
"""How a policy is made of critics and a clone: it is the clone, trained by weights; or the best of the clone's likely
choices; or the clone with its log-probabilities shifted by advantages."""


class GreedyModel(Model):
    """A model whose policy takes one choice for certain; `act` says which."""

    def log_probs(self, obs: Tensor, actions: Tensor) -> Tensor:
        """0 for the choice that is taken, minus infinity for the others."""
        return certain(self.act(obs, deterministic=True), actions)


class MLPDQNModel(GreedyModel):
    """A critic; the policy takes the choice that it values most."""

    def __init__(self, *, dueling: bool = False, num_quantiles: int | None = None, **shape: Unpack[Shape]) -> None:
        super().__init__(**shape)
        self.critic = ChoiceCritic(**self.critic_shape, dueling=dueling, num_quantiles=num_quantiles)

    def act(self, obs: Tensor, *, deterministic: bool) -> Tensor:
        """The choice (B,) of the highest value; there is nothing to sample."""
        values: Tensor = self.critic(obs)
        return values.argmax(-1)

    def values(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Values (B,) of choices."""
        return pick(self.critic(obs), actions)


class MLPDiscreteBCQModel(MLPDQNModel):
    """A critic and a clone of the data; the policy takes the best choice among those that the clone finds likely."""

    def __init__(
        self,
        *,
        threshold: float = 0.3,
        dueling: bool = False,
        num_quantiles: int | None = None,
        **shape: Unpack[Shape],
    ) -> None:
        super().__init__(dueling=dueling, num_quantiles=num_quantiles, **shape)
        self.clone = CategoricalActor(**self.actor_shape)
        self.threshold = threshold

    def act(self, obs: Tensor, *, deterministic: bool) -> Tensor:
        """The choice (B,) of the highest value among the allowed ones; there is nothing to sample."""
        return self.constrain(self.critic(obs), obs).argmax(-1)

    def constrain(self, values: Tensor, obs: Tensor) -> Tensor:
        """Values (B, choices), minus infinity where the clone finds a choice too unlikely."""
        return values.masked_fill(~allowed_choices(self.clone(obs), self.threshold), -math.inf)


class MLPDiscreteIQLModel(GreedyModel):
    """A categorical actor, twin critics and a value network.

    By `extraction`, the policy is the actor; or the best by the critics among the choices that are likely by the actor;
    or the likeliest choice after the actor's log-probabilities were shifted by `beta` times the advantages.
    """

    actor: CategoricalActor
    critic: ChoiceEnsemble

    def __init__(
        self,
        *,
        extraction: Extraction = "weighted",
        threshold: float = 0.3,
        beta: float = 3.0,
        **shape: Unpack[Shape],
    ) -> None:
        super().__init__(**shape)
        self.actor = CategoricalActor(**self.actor_shape)
        self.critic = ChoiceEnsemble(**self.critic_shape)
        self.value = ValueNetwork(**self.value_shape)
        self.extraction, self.threshold, self.beta = extraction, threshold, beta

    def act(self, obs: Tensor, *, deterministic: bool) -> Tensor:
        """The choice (B,) that the extraction gives; only that by weights can be sampled."""
        if self.extraction == "weighted":
            return super().act(obs, deterministic=deterministic)
        log_probs: Tensor = self.actor(obs)
        values = self.critic.choices(obs).amin(0)
        if self.extraction == "constrained":
            return values.masked_fill(~allowed_choices(log_probs, self.threshold), -math.inf).argmax(-1)
        # The value of the state is the same for all choices, and does not change which is the best. Those that are not
        # possible are out by their probability; 0 times their value would be no number.
        return (log_probs + self.beta * values.masked_fill(values == -math.inf, 0)).argmax(-1)

    @property
    def acting(self) -> tuple[str, ...]:
        """The children that `act` needs."""
        return ("actor",) if self.extraction == "weighted" else ("actor", "critic")

    def log_probs(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Log-probabilities (B,) of choices."""
        if self.extraction == "weighted":
            return self.actor.log_prob(obs, actions)
        return super().log_probs(obs, actions)


class MLPDiscreteCRRModel(Model):
    """A categorical actor and `num_critics` critics."""

    def __init__(self, *, num_critics: int = 2, **shape: Unpack[Shape]) -> None:
        super().__init__(**shape)
        self.actor = CategoricalActor(**self.actor_shape)
        self.critic = ChoiceEnsemble(**self.critic_shape, size=num_critics)


class MLPDiscreteSACModel(MLPDiscreteCRRModel):
    """A categorical actor, `num_critics` critics, and the temperature of the entropy, which keeps within bounds."""

    def __init__(
        self, *, num_critics: int = 2, alpha: float | Literal["auto"] = "auto", **shape: Unpack[Shape]
    ) -> None:
        super().__init__(num_critics=num_critics, **shape)
        self.temperature = temperature(alpha, bounds=LOG_TEMPERATURE_RANGE)
