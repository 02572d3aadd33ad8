"""Hyper-parameters that several algorithms have."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, get_type_hints

from pydantic import BeforeValidator, Field, JsonValue

from rl_training.core.errors import ConfigError
from rl_training.core.options import given_options, option, options, refuse_unused
from rl_training.models import Activation, Norm, Precision, encoder_path

Sizes: TypeAlias = tuple[Annotated[int, Field(ge=1)], ...]
Alpha: TypeAlias = Annotated[float, Field(ge=0)] | Literal["auto"]
EncoderPath: TypeAlias = Annotated[str, BeforeValidator(encoder_path)]

network_option = partial(option, resume="fixed", agree=True)
"""An option that decides what networks compute. Weights trained with one value mean nothing with another."""


@options
class Hyper:
    """Hyper-parameters that every algorithm has.

    A subclass changes defaults of its parents by class arguments: `class HERHyper(SACHyper, gamma=0.95)`.
    """

    learning_rate: float = option(3e-4, "learning rate of Adam", gt=0)
    hidden_sizes: Sizes = option((256, 256), "widths of the hidden layers; none: linear networks")
    activation: Activation = network_option("relu", "function between the layers of all networks")
    layer_norm: Norm = network_option("none", "normalise all hidden layers, before or after the activation")
    encoder: EncoderPath | None = network_option(None, "class in front of every network, such as my_module:MyEncoder")
    encoder_kwargs: dict[str, JsonValue] = network_option({}, "arguments of the encoder, after the observation's size")
    max_grad_norm: float | None = option(None, "bound on the gradient norm of each network", gt=0)
    precision: Precision = option("float32", "precision of the products between hidden layers", resume="fixed")
    learning_rate_like: ClassVar[Mapping[str, str]] = {}
    """By child of the model, another child whose learning rate it has unless it has its own."""

    def __init_subclass__(cls, **defaults: Any) -> None:
        """Declare options again that get another default; everything else is as in the parent."""
        super().__init_subclass__()
        if not defaults:
            return
        hints = get_type_hints(cls, include_extras=True)
        parents: dict[str, Any] = {
            field.name: field.default for base in reversed(cls.__mro__) if is_dataclass(base) for field in fields(base)
        }
        for name, default in defaults.items():
            parent = parents[name]
            bounds = {bound: limit for item in parent.metadata for bound, limit in asdict(item).items()}
            setattr(cls, name, option(default, parent.description, **(parent.json_schema_extra or {}), **bounds))
        cls.__annotations__ = inspect.get_annotations(cls) | {name: hints[name] for name in defaults}

    def __post_init__(self) -> None:
        """Check options that depend on each other; a subclass that does so calls its parents' check too."""
        own = [name for name in given_options(self) if name.endswith("_layer_norm")]
        if self.layer_norm != "none" and own:
            both = f"{own[0]} does not go with layer_norm: {self.layer_norm}"
            raise ConfigError(f"{both}, which normalises all networks: leave one of them out")
        refuse_unused(self, "encoder_kwargs", unless="encoder", holds=self.encoder is not None)

    def require(self, low: str, relation: Literal["<", "<="], high: str) -> None:
        """Refuse two options in the wrong order, if both are given."""
        first, second = getattr(self, low), getattr(self, high)
        if first is not None and second is not None and (first > second or (relation == "<" and first == second)):
            raise ConfigError(f"{low} must be {relation} {high}, got {first:g} and {second:g}")

    def only(self, *names: str) -> dict[str, Any]:
        """The named options, as keyword arguments of an objective."""
        return {name: getattr(self, name) for name in names}

    def learning_rate_of(self, child: str) -> float:
        """The learning rate of one child of the model: its own, else that of the child it follows or the shared one."""
        own: float | None = getattr(self, f"{child}_learning_rate", None)
        if own is None and child in self.learning_rate_like:
            return self.learning_rate_of(self.learning_rate_like[child])
        return self.learning_rate if own is None else own

    def optimizer_options(self, child: str) -> dict[str, float]:
        """Options of a child's optimiser beside the learning rate, from fields such as `adam_eps` or `critic_beta1`."""
        names = ("weight_decay", "beta1", "eps")
        places = {name: place for name in names for place in ("adam", child) if hasattr(self, f"{place}_{name}")}
        return {name: getattr(self, f"{place}_{name}") for name, place in places.items()}


@options
class ActorCriticHyper(Hyper):
    """Hyper-parameters of algorithms with an actor and critics."""

    gamma: float = option(0.99, "discount per step", ge=0, le=1)
    actor_learning_rate: float | None = option(None, "learning rate of the actor; null: learning_rate", gt=0)
    critic_learning_rate: float | None = option(None, "learning rate of the critics; null: learning_rate", gt=0)
    actor_hidden_sizes: Sizes | None = option(None, "widths of the actor; null: hidden_sizes", min_length=1)
    critic_hidden_sizes: Sizes | None = option(None, "widths of the critics; null: hidden_sizes", min_length=1)


@options
class ValueHyper(ActorCriticHyper):
    """Hyper-parameters of algorithms whose critics have target networks."""

    tau: float = option(0.005, "rate at which target networks follow", gt=0, le=1)


@options
class EntropyHyper(Hyper):
    """Hyper-parameters of algorithms that reward a policy for its entropy."""

    alpha: Alpha = option("auto", "entropy temperature: a number, or auto to learn it")
    target_entropy: float | None = option(None, "entropy to reach; null: minus the action's dimension")
    temperature_learning_rate: float | None = option(None, "learning rate of temperature; null: learning_rate", gt=0)
    entropy_per_dimension: ClassVar[float] = -1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        learned = self.alpha == "auto"
        refuse_unused(self, "target_entropy", "temperature_learning_rate", unless="alpha: auto", holds=learned)

    def target_entropy_for(self, action_dim: int) -> float:
        """The entropy that the temperature aims at."""
        return self.entropy_per_dimension * action_dim if self.target_entropy is None else self.target_entropy


@options
class SmoothingHyper(ValueHyper):
    """Hyper-parameters of TD3's target smoothing and delayed actor."""

    policy_noise: float = option(0.2, "standard deviation of target smoothing", ge=0)
    noise_clip: float = option(0.5, "bound on the smoothing noise", ge=0)
    policy_delay: int = option(2, "critic updates per actor update", ge=1)


@options
class VAEHyper(ValueHyper):
    """Hyper-parameters of algorithms that model the behaviour policy by a VAE and choose among candidate actions."""

    vae_hidden_sizes: Sizes = option((750, 750), "widths of the behaviour model", min_length=1)
    vae_learning_rate: float | None = option(None, "learning rate of the behaviour model; null: learning_rate", gt=0)
    vae_kl_weight: float = option(0.5, "weight of the latents' divergence in the behaviour model's loss", ge=0)
    min_q_weight: float = option(0.75, "weight of the smaller critic: lambda", ge=0, le=1)
    num_target_samples: int = option(10, "candidate actions in the target", ge=1)
    num_action_samples: int = option(100, "candidate actions when acting", ge=1)


@options
class LambdaReturnHyper(Hyper, learning_rate=1e-4):
    """Hyper-parameters of algorithms that imitate by the advantage of TD(lambda) returns."""

    value_learning_rate: float | None = option(None, "learning rate of the value; null: learning_rate", gt=0)
    gamma: float = option(0.99, "discount per step", ge=0, le=1)
    td_lambda: float = option(0.95, "mixture of long returns (1) and one-step ones (0)", ge=0, le=1)
    recompute_interval: int = option(1000, "updates between computations of the returns", ge=1)
    max_weight: float = option(20.0, "bound on the weight of an action", gt=0)


@options
class CalibrationHyper(Hyper):
    """Hyper-parameters of Cal-QL's calibration, which is an option of CQL."""

    calibrated: bool = option(False, "bound the policy's values by logged returns: Cal-QL")
    online_calibrated: bool = option(True, "keep the bounds in an online phase")
    failure_reward: float | None = option(None, "reward per step of a failed episode, whose return counts as endless")

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_unused(self, "failure_reward", "online_calibrated", unless="calibrated: true", holds=self.calibrated)
