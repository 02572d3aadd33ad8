"""The networks of the SAC family."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from rl_training.models.bundle import Model
from rl_training.models.init import orthogonal_small_last, small_last, uniform_small_last
from rl_training.models.layers import Multiplier, QEnsemble
from rl_training.models.policies import TanhGaussianActor

WIDE = (-20.0, 2.0)
"""Bounds on the log-deviation that hardly ever bind: those of SAC's authors."""


class MLPSACModel(Model):
    """A tanh-Gaussian actor, critics, two unless told otherwise, and the temperature of the entropy."""

    actor_recipe: ClassVar[dict[str, Any]] = {"log_std_range": WIDE}
    critic_recipe: ClassVar[dict[str, Any]] = {}

    def __init__(
        self,
        *,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int] = (256, 256),
        actor_hidden_sizes: Sequence[int] | None = None,
        critic_hidden_sizes: Sequence[int] | None = None,
        num_critics: int = 2,
        alpha: float | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(obs_dim=obs_dim, action_dim=action_dim)
        self.actor = TanhGaussianActor(
            obs_dim, action_dim, hidden_sizes=actor_hidden_sizes or hidden_sizes, **self.actor_recipe
        )
        self.critic = QEnsemble(
            obs_dim,
            action_dim,
            hidden_sizes=critic_hidden_sizes or hidden_sizes,
            size=num_critics,
            **self.critic_recipe,
        )
        self.temperature = temperature(alpha)


class MLPSACNModel(MLPSACModel):
    """As SAC's, but with narrower bounds on the deviation, and last layers that start near zero."""

    actor_recipe = {"init": small_last(1e-3)}
    critic_recipe = {"init": small_last(3e-3)}


class MLPCQLModel(Model):
    """A tanh-Gaussian actor with an affine log-deviation, twin critics, and two multipliers: of entropy and penalty."""

    def __init__(
        self,
        *,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int] = (256, 256, 256),
        actor_hidden_sizes: Sequence[int] | None = None,
        critic_hidden_sizes: Sequence[int] | None = None,
        orthogonal_actor: bool = False,
        alpha: float | Literal["auto"] = "auto",
        conservative_gap: float | None = None,
        initial_log_lagrange: float = 1.0,
    ) -> None:
        super().__init__(obs_dim=obs_dim, action_dim=action_dim)
        self.actor = TanhGaussianActor(
            obs_dim,
            action_dim,
            hidden_sizes=actor_hidden_sizes or hidden_sizes,
            log_std_range=WIDE,
            affine_std=True,
            init=orthogonal_small_last if orthogonal_actor else uniform_small_last,
        )
        self.critic = QEnsemble(
            obs_dim, action_dim, hidden_sizes=critic_hidden_sizes or hidden_sizes, init=orthogonal_small_last
        )
        self.temperature = temperature(alpha)
        self.lagrange = Multiplier(initial_log_lagrange, learned=conservative_gap is not None)


def temperature(alpha: float | Literal["auto"]) -> Multiplier:
    """The temperature of the entropy: learned from 1 on, or fixed at a number."""
    if alpha == "auto":
        return Multiplier()
    return Multiplier(math.log(alpha) if alpha > 0 else -math.inf, learned=False)
