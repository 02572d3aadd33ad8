"""What every algorithm is: losses over a model, and the one gradient step that minimises them."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar

import torch
from pydantic import Field
from torch import Tensor, nn
from typing_extensions import Self

from rl_training.algorithms.compilation import CompiledGradient
from rl_training.algorithms.optim import Adam, gradient_norm, polyak
from rl_training.binding import bind, options
from rl_training.models import Model
from rl_training.types import Batch, Metrics, SpaceSpec

Gradients = dict[str, list[Tensor]]
GradientFunction = Callable[[Batch], tuple[Metrics, Gradients]]
A = TypeVar("A", bound="Algorithm")

TRANSITION = ("obs", "actions", "rewards", "next_obs", "dones")


@options
class Hyper:
    """Hyper-parameters that every algorithm has."""

    learning_rate: float = Field(default=3e-4, gt=0, description="step size of Adam")
    hidden_sizes: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        default=(256, 256), min_length=1, description="widths of the hidden layers"
    )
    max_grad_norm: float | None = Field(default=None, gt=0, description="bound on the gradient norm of each network")

    def learning_rate_of(self, child: str) -> float:
        """The step size of one child of the model: its own if it has one, else the shared one."""
        own: float | None = getattr(self, f"{child}_learning_rate", None)
        return self.learning_rate if own is None else own


@options
class ValueHyper(Hyper):
    """Hyper-parameters of algorithms that learn values."""

    gamma: float = Field(default=0.99, ge=0, le=1, description="discount per step")
    tau: float = Field(default=0.005, gt=0, le=1, description="rate at which targets follow")
    actor_learning_rate: float | None = Field(default=None, gt=0, description="step size of the actor, if its own")
    critic_learning_rate: float | None = Field(default=None, gt=0, description="step size of the critics, if their own")


@dataclass(frozen=True)
class Step:
    """One gradient step of an update.

    The method <name>_loss returns metrics; the sum of "<child>_loss" over the trained children is minimised.
    """

    name: str
    trains: tuple[str, ...] = ()
    every: int | str = 1
    tracks: tuple[str, ...] = ()

    @property
    def children(self) -> tuple[str, ...]:
        """Children of the model that this step trains; by default the one called like the step."""
        return self.trains or (self.name,)


class UpdateResult(NamedTuple):
    """What an update reports: detached 0-d tensors, and how many gradient steps of the whole algorithm it was."""

    metrics: Metrics
    num_gradient_steps: int = 1


class Algorithm(nn.Module):
    """Losses over a model. Subclasses define three class attributes and one <name>_loss method per step."""

    hyper_class: ClassVar[type[Hyper]]
    model_class: ClassVar[type[Model]]
    steps: ClassVar[tuple[Step, ...]]
    needs: ClassVar[tuple[str, ...]] = TRANSITION
    defaults: ClassVar[Mapping[str, Any]] = {}
    name: ClassVar[str]
    mode: ClassVar[str]
    obs_mean: Tensor
    obs_std: Tensor

    def __init__(self, model: Model, **hyper: Any) -> None:
        super().__init__()
        self.hyper: Any = bind(hyper, self.hyper_class, where=type(self).__name__)[0]
        self.model: Any = model
        self.target: Any = nn.Module()
        self.optimizers: Any = nn.ModuleDict()
        self.updates = 0
        self._tracked: dict[str, tuple[list[Tensor], list[Tensor]]] = {}
        for step in self.steps:
            self._add_parts(step)
        self.register_buffer("obs_mean", torch.zeros(model.obs_dim))
        self.register_buffer("obs_std", torch.ones(model.obs_dim))
        self._gradients: dict[str, GradientFunction] = {step.name: partial(self.gradient, step) for step in self.steps}

    def _add_parts(self, step: Step) -> None:
        """The optimisers and lagged copies that a step asks for."""
        missing = [child for child in (*step.children, *step.tracks) if not hasattr(self.model, child)]
        if missing:
            raise ValueError(f"step {step.name!r} of {type(self).__name__} names {missing[0]!r}, which the model lacks")
        for child in step.children:
            self.optimizers[child] = Adam(
                getattr(self.model, child),
                learning_rate=self.hyper.learning_rate_of(child),
                max_grad_norm=self.hyper.max_grad_norm,
            )
        for child in step.tracks:
            source = getattr(self.model, child)
            target = copy.deepcopy(source).requires_grad_(False)
            self.target.add_module(child, target)
            # Kept as lists, for walking a module takes longer than moving its parameters.
            self._tracked[child] = (list(target.parameters()), list(source.parameters()))

    @classmethod
    def build(cls, spaces: SpaceSpec, hyper: Hyper) -> Self:
        """The algorithm with a fresh model; hyper-parameters that the model takes are passed on by name."""
        values = {field.name: getattr(hyper, field.name) for field in fields(hyper)}
        accepted = inspect.signature(cls.model_class).parameters
        shape = {name: value for name, value in values.items() if name in accepted}
        return cls(cls.model_class(obs_dim=spaces.obs_dim, action_dim=spaces.action_dim, **shape), **values)

    def set_obs_statistics(self, mean: Tensor, std: Tensor) -> None:
        """Normalise observations with these statistics from here on; they are part of the state."""
        self.obs_mean.copy_(mean)
        self.obs_std.copy_(std)

    def set_learning_rate_multiplier(self, multiplier: float) -> None:
        """Scale every optimiser's step size relative to its configured one."""
        for optimizer in self.optimizers.values():
            optimizer.learning_rate = multiplier * optimizer.base_learning_rate

    def normalize(self, obs: Tensor) -> Tensor:
        """Observations as the networks see them."""
        return (obs - self.obs_mean) / self.obs_std

    def prepare(self, batch: Batch) -> Batch:
        """The batch as the losses see it."""
        missing = [name for name in self.needs if name not in batch]
        if missing:
            raise ValueError(f"{type(self).__name__} needs {missing[0]!r} in a batch, which has {', '.join(batch)}")
        return {key: self.normalize(value) if key in ("obs", "next_obs") else value for key, value in batch.items()}

    @torch.no_grad()
    def act(self, obs: Tensor, *, deterministic: bool = True) -> Tensor:
        """Actions in [-1, 1] for raw observations: the one entry point for inference."""
        actions: Tensor = self.model.act(self.normalize(obs), deterministic=deterministic)
        return actions

    def losses(self, batch: Batch) -> Metrics:
        """All losses and their metrics on a batch, without a step: for held-out data and for debugging."""
        batch, report = self.prepare(batch), {}
        for step in self.steps:
            report.update(self._loss(step, batch))
        return {name: value.detach() for name, value in report.items()}

    def update(self, batch: Batch) -> UpdateResult:
        """One update: every step that is due. The only place in the package where parameters change."""
        batch, report = self.prepare(batch), {}
        self.updates += 1
        for step in self.steps:
            if self.updates % self.period(step):
                continue
            metrics, gradients = self._gradients[step.name](batch)
            for child in step.children:
                self.optimizers[child].step(gradients[child], metrics[f"grad_norm_{child}"])
            for child in step.tracks:
                polyak(*self._tracked[child], self.hyper.tau)
            report.update(metrics)
        return UpdateResult(report)

    def period(self, step: Step) -> int:
        """A step is due on every update whose number this divides."""
        return getattr(self.hyper, step.every) if isinstance(step.every, str) else step.every

    def gradient(self, step: Step, batch: Batch) -> tuple[Metrics, Gradients]:
        """Metrics and gradients of one step; pure, and compiled as one graph where compilation is on."""
        metrics = self._loss(step, batch)
        loss = torch.stack([metrics[f"{child}_loss"] for child in step.children]).sum()
        params = {child: list(getattr(self.model, child).parameters()) for child in step.children}
        flat = iter(torch.autograd.grad(loss, [param for group in params.values() for param in group]))
        gradients = {child: [next(flat) for _ in group] for child, group in params.items()}
        norms = {f"grad_norm_{child}": gradient_norm(group) for child, group in gradients.items()}
        return {name: value.detach() for name, value in metrics.items()} | norms, gradients

    def _loss(self, step: Step, batch: Batch) -> Metrics:
        metrics: Metrics = getattr(self, f"{step.name}_loss")(batch)
        return metrics

    def compile_steps(self, *, backend: str = "inductor") -> None:
        """Compile loss and gradient of each step as one graph; parameters, states and results stay what they are."""
        for step in self.steps:
            name = f"{self.name}_{step.name}_gradient"
            self._gradients[step.name] = CompiledGradient(Algorithm.gradient, self, step, name=name, backend=backend)

    def get_extra_state(self) -> dict[str, int]:
        """Counters that are not tensors; part of the state dict."""
        return {"updates": self.updates}

    def set_extra_state(self, state: dict[str, int]) -> None:
        """Restore what `get_extra_state` returned."""
        self.updates = state["updates"]


ALGORITHMS: dict[str, type[Algorithm]] = {}


def register(name: str, *, mode: str) -> Callable[[type[A]], type[A]]:
    """Enter an algorithm into the registry under its name."""

    def enter(cls: type[A]) -> type[A]:
        if name in ALGORITHMS:
            raise ValueError(f"algorithm {name!r} is registered twice")
        for step in cls.steps:
            if not hasattr(cls, f"{step.name}_loss"):
                raise TypeError(f"{cls.__name__} declares step {step.name!r} but has no method {step.name}_loss")
        cls.name, cls.mode = name, mode
        ALGORITHMS[name] = cls
        return cls

    return enter
