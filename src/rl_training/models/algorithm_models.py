"""The networks of each algorithm as one module; algorithms call its children by their roles."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from rl_training.core.errors import ConfigError
from rl_training.models.actors import DeterministicActor, GaussianActor, PerturbationActor, Spread, TanhGaussianActor
from rl_training.models.critics import Critic, QEnsemble, QuantileEnsemble, RenormCritic, ValueNetwork, best_action
from rl_training.models.discrete import CategoricalActor, ChoiceEnsemble
from rl_training.models.initializers import (
    orthogonal,
    orthogonal_small_last,
    small_last,
    uniform_small_last,
    xavier,
    xavier_small_last,
)
from rl_training.models.mlp import Multiplier, Norm, RenormMLP
from rl_training.models.mlp_bcq import LATENT_CLIP, BehaviorVAE
from rl_training.models.model import Model, Shape, StateShape, with_norm

SAC_LOG_STD_RANGE = (-20.0, 2.0)
"""Bounds on the log of the standard deviation, from SAC's authors; they hardly ever bind."""

AWAC_LOG_STD_RANGES: dict[Spread, tuple[float, float]] = {"clipped": (-20.0, 2.0), "sigmoid": (-6.0, 0.0)}


class SACShape(Shape, total=False):
    """The options of every bundle of the SAC family; `MLPSACModel` explains them."""

    num_critics: int
    alpha: float | Literal["auto"]


class MLPBCModel(Model):
    """An actor: deterministic or Gaussian, or categorical for discrete actions."""

    def __init__(self, *, policy: str = "deterministic", discrete: bool = False, **shape: Unpack[Shape]) -> None:
        super().__init__(**shape)
        if discrete and policy == "stochastic":
            raise ConfigError("policy: stochastic is a Gaussian; a clone of choices has probabilities without it")
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


class MLPBCQModel(Model):
    """A model of the behaviour, an actor that perturbs its samples, and twin critics that choose among them."""

    default_sizes = (400, 300)

    def __init__(
        self,
        *,
        vae_hidden_sizes: Sequence[int] = (750, 750),
        phi: float = 0.05,
        num_action_samples: int = 100,
        **shape: Unpack[Shape],
    ) -> None:
        super().__init__(**shape)
        self.actor = PerturbationActor(**self.actor_shape, phi=phi)
        self.critic = QEnsemble(**self.critic_shape)
        self.vae = _behavior_vae(vae_hidden_sizes, self)
        latents = torch.randn(num_action_samples, 1, self.vae.latent_dim)
        self.candidates = nn.Buffer(latents.clamp(-LATENT_CLIP, LATENT_CLIP))

    def act(self, obs: Tensor, *, deterministic: bool) -> Tensor:
        """Of many candidate actions, the one that the first critic values most.

        The candidates come from latents that were drawn once, so that an observation always gets the same action. If
        not deterministic, they come from new latents.
        """
        # Not len(obs), which would fix the size of the batch in an exported graph.
        latents = self.candidates.expand(-1, obs.shape[0], -1)
        if not deterministic:
            latents = self.vae.draw(obs, count=len(latents))
        return best_action(self.critic, obs, self.actor(obs, self.vae.decode(obs, latents)))


class MLPBEARModel(Model):
    """A model of the behaviour, a tanh-Gaussian actor, the multiplier that keeps it near that, and twin critics."""

    def __init__(
        self, *, vae_hidden_sizes: Sequence[int] = (750, 750), num_action_samples: int = 100, **shape: Unpack[Shape]
    ) -> None:
        super().__init__(**shape)
        self.actor = TanhGaussianActor(**self.actor_shape, init=small_last(1e-3))
        self.critic = QEnsemble(**self.critic_shape, init=small_last(3e-3))
        self.vae = _behavior_vae(vae_hidden_sizes, self)
        self.lagrange = Multiplier(bounds=(-5.0, 10.0))
        self.candidates = nn.Buffer(torch.randn(num_action_samples, 1, self.action_dim))

    def act(self, obs: Tensor, *, deterministic: bool) -> Tensor:
        """Of many actions of the policy, the one that the first critic values most.

        The candidates come from noise that was drawn once, so that an observation always gets the same action. If not
        deterministic, they come from new noise.
        """
        noise = self.candidates if deterministic else None
        raw = self.actor.sample_raw(obs, count=len(self.candidates), noise=noise)
        return best_action(self.critic, obs, raw.tanh())


def _behavior_vae(hidden_sizes: Sequence[int], model: Model) -> BehaviorVAE:
    # The model has no value network, whose copy of the encoder is free.
    shape: StateShape = {**model.value_shape, "hidden_sizes": hidden_sizes}
    return BehaviorVAE(**shape, action_dim=model.action_dim)


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
    """Critics that each value one policy, whatever it is; there is no policy among the networks."""

    critic: QEnsemble | ChoiceEnsemble

    def __init__(self, *, num_critics: int = 11, discrete: bool = False, **shape: Unpack[Shape]) -> None:
        super().__init__(**shape)
        self.critic = (ChoiceEnsemble if discrete else QEnsemble)(**self.critic_shape, size=num_critics)


def temperature(alpha: float | Literal["auto"], *, bounds: tuple[float, float] | None = None) -> Multiplier:
    """The temperature of the entropy: learned, starting at 1, perhaps with bounds on its logarithm; or fixed."""
    if alpha == "auto":
        return Multiplier(bounds=bounds)
    return Multiplier(math.log(alpha) if alpha > 0 else -math.inf, learned=False)
