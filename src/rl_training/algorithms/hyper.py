"""Hyper-parameters that several algorithms have."""

from __future__ import annotations

import inspect
from dataclasses import asdict, fields, is_dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, get_type_hints

from pydantic import Field

from rl_training.binding import options, refuse_unused

Sizes: TypeAlias = tuple[Annotated[int, Field(ge=1)], ...]
Alpha: TypeAlias = Annotated[float, Field(ge=0)] | Literal["auto"]


@options
class Hyper:
    """Hyper-parameters that every algorithm has.

    A subclass names the defaults that differ from its parents' beside them: `class HERHyper(SACHyper, gamma=0.95)`.
    """

    learning_rate: float = Field(default=3e-4, gt=0, description="learning rate of Adam")
    hidden_sizes: Sizes = Field(default=(256, 256), min_length=1, description="widths of the hidden layers")
    max_grad_norm: float | None = Field(default=None, gt=0, description="bound on the gradient norm of each network")

    def __init_subclass__(cls, **defaults: Any) -> None:
        """Declare options again that get another default; type, bounds and description are those of the parent."""
        super().__init_subclass__()
        if not defaults:
            return
        hints = get_type_hints(cls, include_extras=True)
        parents: dict[str, Any] = {
            field.name: field.default for base in reversed(cls.__mro__) if is_dataclass(base) for field in fields(base)
        }
        for name, default in defaults.items():
            bounds = {bound: limit for item in parents[name].metadata for bound, limit in asdict(item).items()}
            setattr(cls, name, Field(default=default, description=parents[name].description, **bounds))
        cls.__annotations__ = inspect.get_annotations(cls) | {name: hints[name] for name in defaults}

    def __post_init__(self) -> None:
        """Check options that depend on each other; a mixin that does so calls its parents' check too."""

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
class ActorCriticHyper(Hyper):
    """Hyper-parameters of algorithms with an actor and critics."""

    gamma: float = Field(default=0.99, ge=0, le=1, description="discount per step")
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


@options
class ValueHyper(ActorCriticHyper):
    """Hyper-parameters of algorithms whose critics have target networks."""

    tau: float = Field(default=0.005, gt=0, le=1, description="rate at which target networks follow")


@options
class EntropyHyper(Hyper):
    """Hyper-parameters of algorithms that pay a policy for its entropy."""

    alpha: Alpha = Field(default="auto", description="entropy temperature: a number, or auto to learn it")
    target_entropy: float | None = Field(
        default=None, description="entropy to reach; null: minus the action's dimension"
    )
    temperature_learning_rate: float | None = Field(
        default=None, gt=0, description="learning rate of the temperature; null: learning_rate"
    )
    entropy_per_dimension: ClassVar[float] = -1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        learned = self.alpha == "auto"
        refuse_unused(self, "target_entropy", "temperature_learning_rate", unless="alpha: auto", holds=learned)

    def target_entropy_for(self, action_dim: int) -> float:
        """The entropy that the temperature is to bring about."""
        return self.entropy_per_dimension * action_dim if self.target_entropy is None else self.target_entropy


@options
class SmoothingHyper(ValueHyper):
    """Hyper-parameters of TD3's target smoothing and delayed actor."""

    policy_noise: float = Field(default=0.2, ge=0, description="standard deviation of target smoothing")
    noise_clip: float = Field(default=0.5, ge=0, description="bound on the smoothing noise")
    policy_delay: int = Field(default=2, ge=1, description="critic updates per actor update")


@options
class VAEHyper(ValueHyper):
    """Hyper-parameters of algorithms that model the behaviour by a VAE and choose among candidate actions."""

    vae_hidden_sizes: Sizes = Field(default=(750, 750), min_length=1, description="widths of the behaviour model")
    vae_learning_rate: float | None = Field(
        default=None, gt=0, description="learning rate of the behaviour model; null: learning_rate"
    )
    vae_kl_weight: float = Field(
        default=0.5, ge=0, description="weight of the latents' divergence in the behaviour model's loss"
    )
    min_q_weight: float = Field(default=0.75, ge=0, le=1, description="weight of the smaller critic: lambda")
    num_target_samples: int = Field(default=10, ge=1, description="candidate actions in the target")
    num_action_samples: int = Field(default=100, ge=1, description="candidate actions when acting")


@options
class LambdaReturnHyper(Hyper, learning_rate=1e-4):
    """Hyper-parameters of algorithms that imitate by the advantage of TD(lambda) returns."""

    value_learning_rate: float | None = Field(
        default=None, gt=0, description="learning rate of the value; null: learning_rate"
    )
    gamma: float = Field(default=0.99, ge=0, le=1, description="discount per step")
    td_lambda: float = Field(default=0.95, ge=0, le=1, description="mixture of long returns (1) and one-step ones (0)")
    recompute_interval: int = Field(default=1000, ge=1, description="updates between computations of the returns")
    max_weight: float = Field(default=20.0, gt=0, description="bound on the weight of an action")
