"""Hyper-parameters that several algorithms have."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from rl_training.binding import options

Sizes: TypeAlias = tuple[Annotated[int, Field(ge=1)], ...]
Alpha: TypeAlias = Annotated[float, Field(ge=0)] | Literal["auto"]


@options
class Hyper:
    """Hyper-parameters that every algorithm has."""

    learning_rate: float = Field(default=3e-4, gt=0, description="learning rate of Adam")
    hidden_sizes: Sizes = Field(default=(256, 256), min_length=1, description="widths of the hidden layers")
    max_grad_norm: float | None = Field(default=None, gt=0, description="bound on the gradient norm of each network")

    def learning_rate_of(self, child: str) -> float:
        """The learning rate of one child of the model: its own if it has one, else the shared one."""
        own: float | None = getattr(self, f"{child}_learning_rate", None)
        return self.learning_rate if own is None else own

    def optimizer_options(self, child: str) -> dict[str, float]:
        """What the optimiser of a child is told beside its learning rate: fields like `adam_eps` or `critic_beta1`."""
        names = ("weight_decay", "beta1", "eps")
        places = {name: place for name in names for place in ("adam", child) if hasattr(self, f"{place}_{name}")}
        return {name: getattr(self, f"{place}_{name}") for name, place in places.items()}


@options
class ValueHyper(Hyper):
    """Hyper-parameters of algorithms that learn values."""

    gamma: float = Field(default=0.99, ge=0, le=1, description="discount per step")
    tau: float = Field(default=0.005, gt=0, le=1, description="rate at which target networks follow")
    actor_learning_rate: float | None = Field(
        default=None, gt=0, description="learning rate of the actor; null: learning_rate"
    )
    critic_learning_rate: float | None = Field(
        default=None, gt=0, description="learning rate of the critics; null: learning_rate"
    )
    actor_hidden_sizes: Sizes | None = Field(
        default=None, min_length=1, description="widths of the actor; null: hidden_sizes"
    )
    critic_hidden_sizes: Sizes | None = Field(
        default=None, min_length=1, description="widths of the critics; null: hidden_sizes"
    )
