"""The networks of each algorithm as one module; algorithms call its children by their roles."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import Unpack

from rl_training.core.batches import Batch
from rl_training.core.errors import ConfigError
from rl_training.models.actors import DeterministicActor, GaussianActor, Spread, TanhGaussianActor, gaussian_log_prob
from rl_training.models.critics import Critic, QEnsemble, QuantileEnsemble, RenormCritic, ValueNetwork
from rl_training.models.discrete import (
    CategoricalActor,
    DiscreteCritic,
    DiscreteEnsemble,
    certain,
    draw,
    likely_actions,
    pick,
)
from rl_training.models.initializers import (
    orthogonal,
    orthogonal_head,
    orthogonal_small_last,
    small_last,
    uniform_small_last,
    xavier,
    xavier_small_last,
)
from rl_training.models.mlp import Multiplier, Norm, RenormMLP
from rl_training.models.model import Model, Shape, with_norm

SAC_LOG_STD_RANGE = (-20.0, 2.0)
"""Bounds on the log of the standard deviation, from SAC's authors; they hardly ever bind."""

AWAC_LOG_STD_RANGES: dict[Spread, tuple[float, float]] = {"clipped": (-20.0, 2.0), "sigmoid": (-6.0, 0.0)}


class SACShape(Shape, total=False):
    """The options of every model of the SAC family; `MLPSACModel` explains them."""

    num_critics: int
    alpha: float | Literal["auto"]


class MLPBCModel(Model):
    """An actor: deterministic or Gaussian, or categorical for discrete actions."""

    def __init__(self, *, policy: str = "deterministic", discrete: bool = False, **shape: Unpack[Shape]) -> None:
        super().__init__(**shape)
        if discrete and policy == "stochastic":
            raise ConfigError("policy: stochastic applies to continuous actions only; leave it out")
        actor_class = DeterministicActor if policy == "deterministic" else GaussianActor
        self.actor = CategoricalActor(**self.actor_shape) if discrete else actor_class(**self.actor_shape)


class MLPTD3Model(Model):
    """A deterministic actor and `num_critics` critics."""

    def __init__(self, *, num_critics: int = 2, **shape: Unpack[Shape]) -> None:
        super().__init__(**shape)
        self.actor = DeterministicActor(**self.actor_shape)
        self.critic = QEnsemble(**self.critic_shape, size=num_critics)

    def q_values(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, ...]:
        """The values by each critic, (B,) each."""
        return tuple(self.critic(obs, actions).unbind(-2))


class MLPDDPGModel(MLPTD3Model):
    """A deterministic actor and one critic."""

    def __init__(self, **shape: Unpack[Shape]) -> None:
        super().__init__(num_critics=1, **shape)


class MLPReBRACModel(Model):
    """A deterministic actor and twin critics with layer normalisation after each activation."""

    default_sizes = (256, 256, 256)

    def __init__(self, *, critic_layer_norm: bool = True, **shape: Unpack[Shape]) -> None:
        super().__init__(**shape)
        norm: Norm = "after" if critic_layer_norm else "none"
        self.actor = DeterministicActor(**self.actor_shape, init=small_last(1e-3))
        self.critic = QEnsemble(**with_norm(self.critic_shape, norm), init=small_last(3e-3))


class MLPIQLModel(Model):
    """An actor, twin critics and a value network: IQL and XQL."""

    def __init__(
        self,
        *,
        policy: str = "stochastic",
        spread: Spread = "clipped",
        actor_dropout: float = 0.0,
        value_layer_norm: bool = False,
        **shape: Unpack[Shape],
    ) -> None:
        super().__init__(**shape)
        actor_class = DeterministicActor if policy == "deterministic" else partial(GaussianActor, spread=spread)
        self.actor = actor_class(**self.actor_shape, init=orthogonal, dropout=actor_dropout)
        self.critic = QEnsemble(**self.critic_shape, init=orthogonal)
        norm: Norm = "before" if value_layer_norm else "none"
        self.value = ValueNetwork(**with_norm(self.value_shape, norm), init=orthogonal)


class MLPAWACModel(Model):
    """A Gaussian actor whose standard deviation does not depend on the observation, and twin critics."""

    default_sizes = (256, 256, 256)

    def __init__(self, *, spread: Spread = "clipped", squash_mean: bool = True, **shape: Unpack[Shape]) -> None:
        super().__init__(**shape)
        bounds = AWAC_LOG_STD_RANGES[spread]
        self.actor = GaussianActor(**self.actor_shape, spread=spread, log_std_range=bounds, squash_mean=squash_mean)
        self.critic = QEnsemble(**self.critic_shape)


class MLPCRRModel(Model):
    """A Gaussian actor whose standard deviation depends on the observation, and `num_critics` critics."""

    def __init__(self, *, num_critics: int = 2, critic_layer_norm: bool = False, **shape: Unpack[Shape]) -> None:
        super().__init__(**shape)
        self.actor = GaussianActor(**self.actor_shape)
        norm: Norm = "before" if critic_layer_norm else "none"
        self.critic = QEnsemble(**with_norm(self.critic_shape, norm), size=num_critics)


class MLPAWRModel(Model):
    """A Gaussian actor of constant standard deviation, whose mean is not squashed, and a value network."""

    default_sizes = (128, 64)

    def __init__(self, *, action_std: float = 0.4, value_scale: float = 100.0, **shape: Unpack[Shape]) -> None:
        super().__init__(**shape)
        self.actor = GaussianActor(
            **self.actor_shape, spread="fixed", log_std=math.log(action_std), squash_mean=False, init=xavier_small_last
        )
        self.value = ValueNetwork(**self.value_shape, scale=value_scale, init=xavier)


class MLPMARWILModel(Model):
    """A Gaussian actor and a value network, with tanh between the layers."""

    default_activation = "tanh"

    def __init__(self, **shape: Unpack[Shape]) -> None:
        super().__init__(**shape)
        self.actor = GaussianActor(**self.actor_shape)
        self.value = ValueNetwork(**self.value_shape)


class MLPSACModel(Model):
    """A tanh-Gaussian actor, `num_critics` critics, and the temperature of the entropy.

    `alpha` is a fixed temperature, or `auto` if it is learned. Recipes are the options that a class has for all its
    actors and critics. The options that a subclass computes from its arguments are added to them.
    """

    actor: TanhGaussianActor
    critic: Critic
    critic_class: ClassVar[type[Critic]] = QEnsemble
    actor_recipe: ClassVar[Mapping[str, Any]] = {"log_std_range": SAC_LOG_STD_RANGE}
    critic_recipe: ClassVar[Mapping[str, Any]] = {}

    def __init__(
        self,
        *,
        num_critics: int = 2,
        alpha: float | Literal["auto"] = "auto",
        actor_options: Mapping[str, Any] | None = None,
        critic_options: Mapping[str, Any] | None = None,
        critic_norm: Norm = "none",
        **shape: Unpack[Shape],
    ) -> None:
        super().__init__(**shape)
        self.actor = TanhGaussianActor(**self.actor_shape, **self.actor_recipe, **(actor_options or {}))
        options = {"size": num_critics, **self.critic_recipe, **(critic_options or {})}
        self.critic = self.critic_class(**with_norm(self.critic_shape, critic_norm), **options)
        self.temperature = temperature(alpha)


class MLPSACNModel(MLPSACModel):
    """As SAC's, but with narrower bounds on the standard deviation, and last layers that start near zero."""

    critic: QEnsemble
    actor_recipe = {"init": small_last(1e-3)}
    critic_recipe = {"init": small_last(3e-3)}


class MLPREDQModel(MLPSACModel):
    """As SAC's, but with ten critics by default, perhaps with dropout and layer normalisation; biases start at zero."""

    actor_recipe = {"log_std_range": SAC_LOG_STD_RANGE, "init": xavier}
    critic_recipe = {"init": xavier}

    def __init__(
        self, *, critic_dropout: float = 0.0, critic_layer_norm: bool = False, **shape: Unpack[SACShape]
    ) -> None:
        shape.setdefault("num_critics", 10)
        norm: Norm = "before" if critic_layer_norm else "none"
        super().__init__(critic_options={"dropout": critic_dropout}, critic_norm=norm, **shape)


class MLPTQCModel(MLPSACModel):
    """As SAC's, but with critics that estimate quantiles of the return."""

    critic: QuantileEnsemble
    critic_class = QuantileEnsemble

    def __init__(self, *, num_quantiles: int = 25, **shape: Unpack[SACShape]) -> None:
        super().__init__(critic_options={"num_quantiles": num_quantiles}, **shape)


class MLPCrossQModel(MLPSACModel):
    """As SAC's, but with an actor and critics that normalise by the batch, and wider critics."""

    critic: RenormCritic
    critic_class = RenormCritic

    def __init__(self, *, norm_momentum: float = 0.01, norm_warmup: int = 100_000, **shape: Unpack[SACShape]) -> None:
        shape.setdefault("critic_hidden_sizes", (1024, 1024))
        norm: dict[str, Any] = {"norm_momentum": norm_momentum, "norm_warmup": norm_warmup}
        super().__init__(actor_options={"network": partial(RenormMLP, **norm)}, critic_options=norm, **shape)


class MLPCQLModel(MLPSACModel):
    """As SAC's, but with an affine log of the standard deviation, and the multiplier of the penalty."""

    default_sizes = (256, 256, 256)
    actor_recipe = {"log_std_range": SAC_LOG_STD_RANGE, "affine_std": True}
    critic_recipe = {"init": orthogonal_small_last}

    def __init__(
        self,
        *,
        orthogonal_actor: bool = False,
        conservative_gap: float | None = None,
        initial_log_lagrange: float = 1.0,
        **shape: Unpack[SACShape],
    ) -> None:
        init = orthogonal_small_last if orthogonal_actor else uniform_small_last
        super().__init__(actor_options={"init": init}, **shape)
        self.lagrange = Multiplier(initial_log_lagrange, learned=conservative_gap is not None)


class MLPFQEModel(Model):
    """Critics that each value one given policy; there is no policy among the networks."""

    critic: QEnsemble | DiscreteEnsemble

    def __init__(self, *, num_critics: int = 11, discrete: bool = False, **shape: Unpack[Shape]) -> None:
        super().__init__(**shape)
        self.critic = (DiscreteEnsemble if discrete else QEnsemble)(**self.critic_shape, size=num_critics)


def temperature(alpha: float | Literal["auto"], *, bounds: tuple[float, float] | None = None) -> Multiplier:
    """The temperature of the entropy: learned, starting at 1, perhaps with bounds on its logarithm; or fixed."""
    if alpha == "auto":
        return Multiplier(bounds=bounds)
    return Multiplier(math.log(alpha) if alpha > 0 else -math.inf, learned=False)


LOG_TEMPERATURE_RANGE = (-20.0, 2.0)
"""Bounds on the log of a learned temperature, which rises for ever where its target entropy is out of reach."""

Extraction = Literal["weighted", "constrained", "shifted"]
"""The policy made of critics and a clone: the clone, trained with weights; or the best of the clone's likely actions;
or the clone with its log-probabilities shifted by advantages."""


class GreedyModel(Model):
    """A model whose policy takes one discrete action for certain, the one that `act` gives."""

    def log_probs(self, obs: Tensor, actions: Tensor) -> Tensor:
        """0 for the action that is taken, minus infinity for the others."""
        return certain(self.act(obs, deterministic=True), actions)


class MLPDQNModel(GreedyModel):
    """A critic; the policy takes the action that it values most."""

    def __init__(self, *, dueling: bool = False, num_quantiles: int | None = None, **shape: Unpack[Shape]) -> None:
        super().__init__(**shape)
        self.critic = DiscreteCritic(**self.critic_shape, dueling=dueling, num_quantiles=num_quantiles)

    def act(self, obs: Tensor, *, deterministic: bool) -> Tensor:
        """The action (B,) of the highest value; there is nothing to sample."""
        values: Tensor = self.critic(obs)
        return values.argmax(-1)

    def values(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Values (B,) of actions."""
        return pick(self.critic(obs), actions)


class MLPDiscreteBCQModel(MLPDQNModel):
    """A critic and a clone of the data; the policy takes the best action among those that the clone finds likely."""

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
        """The action (B,) of the highest value among those that the clone finds likely; there is nothing to sample."""
        return self.constrain(self.critic(obs), obs).argmax(-1)

    def constrain(self, values: Tensor, obs: Tensor) -> Tensor:
        """Values (B, actions), minus infinity where the clone finds an action too unlikely."""
        return values.masked_fill(~likely_actions(self.clone(obs), self.threshold), -math.inf)


class MLPDiscreteIQLModel(GreedyModel):
    """A categorical actor, twin critics and a value network.

    By `extraction`, the policy is the actor; or the best by the critics among the actions that are likely by the actor;
    or the likeliest action after the actor's log-probabilities were shifted by `beta` times the advantages.
    """

    actor: CategoricalActor
    critic: DiscreteEnsemble

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
        self.critic = DiscreteEnsemble(**self.critic_shape)
        self.value = ValueNetwork(**self.value_shape)
        self.extraction, self.threshold, self.beta = extraction, threshold, beta

    def act(self, obs: Tensor, *, deterministic: bool) -> Tensor:
        """The action (B,) that the extraction gives; only the weighted one can be sampled."""
        if self.extraction == "weighted":
            return super().act(obs, deterministic=deterministic)
        log_probs: Tensor = self.actor(obs)
        values = self.critic.all_values(obs).amin(0)
        if self.extraction == "constrained":
            return values.masked_fill(~likely_actions(log_probs, self.threshold), -math.inf).argmax(-1)
        # The value of the state is the same for all actions, and does not change which is the best. Invalid actions are
        # out by their probability; 0 times their value would be no number.
        return (log_probs + self.beta * values.masked_fill(values == -math.inf, 0)).argmax(-1)

    @property
    def acting(self) -> tuple[str, ...]:
        """The children that `act` needs."""
        return ("actor",) if self.extraction == "weighted" else ("actor", "critic")

    def log_probs(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Log-probabilities (B,) of actions."""
        if self.extraction == "weighted":
            return self.actor.log_prob(obs, actions)
        return super().log_probs(obs, actions)


class MLPDiscreteCRRModel(Model):
    """A categorical actor and `num_critics` critics."""

    def __init__(self, *, num_critics: int = 2, **shape: Unpack[Shape]) -> None:
        super().__init__(**shape)
        self.actor = CategoricalActor(**self.actor_shape)
        self.critic = DiscreteEnsemble(**self.critic_shape, size=num_critics)


class MLPDiscreteSACModel(MLPDiscreteCRRModel):
    """A categorical actor, `num_critics` critics, and the temperature of the entropy, which keeps within bounds."""

    def __init__(
        self, *, num_critics: int = 2, alpha: float | Literal["auto"] = "auto", **shape: Unpack[Shape]
    ) -> None:
        super().__init__(num_critics=num_critics, **shape)
        self.temperature = temperature(alpha, bounds=LOG_TEMPERATURE_RANGE)


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
            all_log_probs: Tensor = self.actor(obs)
            actions = draw(all_log_probs)
            log_probs = pick(all_log_probs, actions)
        else:
            mean, log_std = self.actor(obs)
            actions = mean + log_std.exp() * torch.randn_like(mean)
            log_probs = gaussian_log_prob(actions, mean, log_std)
        return actions, {"inputs": obs, "log_probs": log_probs, "values": self.value(obs)}
