"""The base class of algorithms: losses over a model, and the one gradient step that minimises them."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import chain, islice
from typing import Any, ClassVar, Generic, NamedTuple, cast, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn
from typing_extensions import Self, TypeVar

from rl_training.algorithms.base.hyper import Hyper
from rl_training.algorithms.base.optimizers import Adam, Optimizer, clip, gradient_norm, polyak, trainable
from rl_training.algorithms.base.registration import Mode
from rl_training.compilation import CompiledGradient
from rl_training.core.batches import Batch, Column, Metrics, Reading, Transitions
from rl_training.core.errors import ConfigError, nearest
from rl_training.core.options import bind
from rl_training.core.spaces import ActionKind, ActionSpace, BoxActions, SpaceSpec
from rl_training.models import Model, make_encoder, products_in

Gradients = dict[str, list[Tensor]]
"""The gradients of each child of the model, in the order of its parameters."""

GradientFunction = Callable[[Batch], tuple[Metrics, Gradients]]

H = TypeVar("H", bound=Hyper, default=Any)

M = TypeVar("M", bound=Model, default=Any)

ORIGINS = {
    "next_actions": "; a dataset in episode order derives it: sample from TransitionDataset.requiring('next_actions')",
    "returns_to_go": "; sample from a dataset made by TransitionDataset.with_returns_to_go(gamma=...)",
}
"""Hints at the origin of fields that not every log contains."""


@dataclass(frozen=True)
class Step:
    """One gradient step of an update. Numbers may be given as the name of a hyper-parameter.

    The method <name>_loss returns metrics. Each child minimises the metric <child>_loss; if the loss is `shared`, all
    minimise <name>_loss, with one backward pass and one gradient norm. Children that are trained in one step move by
    gradients taken at the same point.
    """

    name: str
    trains: tuple[str, ...] = ()
    every: int | str = 1
    repeat: int | str = 1
    tracks: tuple[str, ...] = ()
    """Children whose target networks move after the step, by `tau`, on every `track_every`-th update."""
    tau: float | str = "tau"
    track_every: int | str = 1
    updates_buffers: tuple[str, ...] = ()
    """Buffers that are overwritten with the metric of the same name after this step, such as a running average."""
    shared: bool = False
    optimizer: type[Optimizer] = Adam

    @property
    def children(self) -> tuple[str, ...]:
        """Children of the model that this step trains; by default the one with the name of the step."""
        return self.trains or (self.name,)


class _Needs:
    """The fields that a batch must have: `reads.fields` of the class or of an instance."""

    def __get__(self, algorithm: Algorithm | None, cls: type[Algorithm]) -> tuple[str, ...]:
        return (cls if algorithm is None else algorithm).reads.fields


class UpdateResult(NamedTuple):
    """The report of an update: detached 0-d tensors, and the number of gradient steps of the whole algorithm."""

    metrics: Metrics
    num_gradient_steps: int = 1


class Algorithm(nn.Module, Generic[H, M]):
    """Losses over a model.

    A subclass names the classes of its hyper-parameters and its model (`class TD3(Algorithm[TD3Hyper, MLPTD3Model])`),
    declares its steps, and has one <name>_loss method per step. A variant with other hyper-parameters annotates them
    (`hyper: TD3BCHyper`).
    """

    hyper: H
    model: M
    target: M
    """The target networks, under the names of the children that they follow; typed like the model."""
    hyper_class: ClassVar[type[Hyper]]
    model_class: ClassVar[type[Model]]
    steps: tuple[Step, ...]
    action_kinds: ClassVar[tuple[ActionKind, ...]] = ("continuous",)
    reads: Reading = Transitions()
    """The contents of a batch; a class whose hyper-parameters decide about them overrides `make_reads`."""
    needs = _Needs()
    annotates: tuple[str, ...] = ()
    """Fields that `annotate` computes for all rows; those in `standardizes` get mean 0 and standard deviation 1."""
    standardizes: tuple[str, ...] = ()
    annotate_every: int | str = "rollout"
    """Updates between computations, by number or by the name of a hyper-parameter; or once per rollout."""
    defaults: ClassVar[Mapping[str, Any]] = {}
    name: ClassVar[str]
    mode: ClassVar[Mode]
    optimizers: dict[str, Any]
    obs_mean: Tensor
    obs_std: Tensor
    clock: Tensor
    """Number of updates done, for losses that change over time; a tensor, since a graph must not depend on a number."""
    online_share: Tensor
    """The share of the online phase that is done, this update included; 0 before it has begun."""

    def __init__(self, model: Model, hyper: Hyper | None = None, /, **values: Any) -> None:
        super().__init__()
        self.hyper = bind(values, self.hyper_class, where=type(self).__name__)[0] if hyper is None else cast("H", hyper)
        self.model = cast("M", model)
        self.target = cast("M", nn.Module())
        self.optimizers = cast("dict[str, Any]", nn.ModuleDict())
        declared = self.make_steps(self.hyper)
        check_parts(self, model, declared)
        actions = BoxActions((-1.0,) * model.action_dim, (1.0,) * model.action_dim)
        self.spaces = SpaceSpec.vector(model.obs_dim, actions)
        self.updates = 0
        self._tracked: dict[str, tuple[list[Tensor], list[Tensor]]] = {}
        """By step, the parameters of the target networks that follow it, and those that they follow."""
        steps = [self._with_parameters(step) for step in declared]
        self.steps = tuple(step for step in steps if step is not None)
        self.reads = self.make_reads(self.hyper)
        for step in self.steps:
            self._add_parts(step)
        self.register_buffer("obs_mean", torch.zeros(self.spaces.obs_column.shape))
        self.register_buffer("obs_std", torch.ones(self.spaces.obs_column.shape))
        self.register_buffer("clock", torch.zeros((), dtype=torch.int64), persistent=False)
        self.register_buffer("online_share", torch.zeros(()), persistent=False)
        self._gradients: dict[str, GradientFunction] = {}
        self.run_eagerly()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Read the classes of hyper-parameters and model from the brackets after `Algorithm`, or from annotations."""
        super().__init_subclass__(**kwargs)
        if "needs" in cls.__dict__:
            raise TypeError(f"{cls.__name__} declares needs; say reads = Transitions((...)) instead")
        for base in cls.__dict__.get("__orig_bases__", ()):
            if get_origin(base) is Algorithm:
                cls.hyper_class, cls.model_class = get_args(base)
        for name in {"hyper", "model"} & inspect.get_annotations(cls).keys():
            setattr(cls, f"{name}_class", get_type_hints(cls)[name])

    @classmethod
    def make_steps(cls, hyper: Any) -> tuple[Step, ...]:
        """The steps of an update; a class whose hyper-parameters decide about them overrides this."""
        return cls.steps

    @classmethod
    def make_reads(cls, hyper: Any) -> Reading:
        """The contents of a batch; a class whose hyper-parameters decide about them overrides this."""
        return cls.reads

    def _with_parameters(self, step: Step) -> Step | None:
        """The step without children that have no parameters, such as a fixed temperature; None if none is left."""
        trained = tuple(child for child in step.children if trainable(getattr(self.model, child)))
        if trained == step.children:
            return step
        return replace(step, trains=trained) if trained else None

    def _add_parts(self, step: Step) -> None:
        """The optimisers and target networks that a step asks for."""
        for child in step.children:
            self.optimizers[child] = step.optimizer(
                getattr(self.model, child),
                learning_rate=self.hyper.learning_rate_of(child),
                **self.hyper.optimizer_options(child),
            )
        # Kept as lists, for walking a module takes longer than moving its parameters.
        targets, sources = self._tracked[step.name] = ([], [])
        for child in step.tracks:
            source = getattr(self.model, child)
            target = copy.deepcopy(source).requires_grad_(False)
            self.target.add_module(child, target)
            targets += target.parameters()
            sources += source.parameters()

    @classmethod
    def build(cls, spaces: SpaceSpec, hyper: Hyper) -> Self:
        """The algorithm with a fresh model."""
        algorithm = cls(cls.build_model(spaces, hyper), hyper)
        algorithm.spaces = spaces
        return algorithm

    @property
    def action_space(self) -> ActionSpace:
        """Kind, size and bounds of actions; of continuous ones between -1 and 1 if no others were given."""
        return self.spaces.action

    @action_space.setter
    def action_space(self, actions: ActionSpace) -> None:
        self.spaces = replace(self.spaces, action=actions)

    @classmethod
    def build_model(cls, spaces: SpaceSpec, hyper: Hyper) -> Model:
        """Fresh networks; hyper-parameters that the model takes are passed on by name."""
        accepted = cls.model_class.accepts()
        shape = {field.name: getattr(hyper, field.name) for field in fields(hyper) if field.name in accepted}
        if "discrete" in accepted:
            shape["discrete"] = spaces.action.kind == "discrete"
        if shape.get("encoder") is not None:
            shape["encoder"] = make_encoder(shape["encoder"], spaces.feature_dim, hyper.encoder_kwargs)
        if spaces.is_masked and "masked" not in accepted:
            where = f"{cls.model_class.__name__}, the model of {cls.name}"
            raise ConfigError(
                f"{where}, knows no masks of actions: pass **shape on to Model, or leave valid_actions out"
            )
        if spaces.is_masked:
            shape["masked"] = True
        return cls.model_class(obs_dim=spaces.obs_dim, action_dim=spaces.action_dim, **shape)

    def set_obs_statistics(self, mean: Tensor, std: Tensor) -> None:
        """Normalise observations with these statistics from here on; they are part of the state.

        The action mask, with which observations may begin, stays as it is.
        """
        behind = slice(self.model.mask_dim, None)
        self.obs_mean[behind].copy_(mean[behind])
        self.obs_std[behind].copy_(std[behind])

    def set_learning_rate_multiplier(self, multiplier: float, **own: float) -> None:
        """Scale every optimiser's learning rate relative to its configured one; a child may have its own factor."""
        for child, optimizer in self.optimizers.items():
            optimizer.learning_rate = own.get(child, multiplier) * optimizer.base_learning_rate

    def set_online_share(self, share: float) -> None:
        """Set, before an update, the share of the online phase that will be done after it."""
        self.online_share.fill_(min(share, 1.0))

    def normalize(self, obs: Tensor) -> Tensor:
        """Observations as the networks see them."""
        return (obs - self.obs_mean) / self.obs_std

    def prepare(self, batch: Batch) -> Batch:
        """The batch as the losses see it."""
        missing = [name for name in self.needs if name not in batch]
        if missing:
            found = f"{type(self).__name__} needs {missing[0]!r} in a batch, which has {', '.join(batch)}"
            annotated = "; sample from rl_training.data.source_for(...)" if missing[0] in self.annotates else ""
            raise ValueError(found + ORIGINS.get(missing[0], annotated))
        return {key: self.normalize(value) if key in ("obs", "next_obs") else value for key, value in batch.items()}

    def annotate(self, rows: Batch, ends: Tensor) -> Batch:
        """The fields in `annotates`, for rows in episode order whose last rows are at `ends`; without gradient.

        Observations are raw. Where `annotate_every` is a number of updates, the result may change only at that
        interval, as target networks do that move with it: a resumed run must compute the same fields again.
        """
        raise NotImplementedError(f"{type(self).__name__} does not compute {self.annotates}")

    @torch.no_grad()
    def act(self, obs: Tensor, *, deterministic: bool = True) -> Tensor:
        """Actions as networks see them, for raw observations: to measure networks. Environments need a `Policy`."""
        actions: Tensor = self.model.act(self.normalize(obs), deterministic=deterministic)
        return actions

    def extra_columns(self) -> dict[str, Column]:
        """Columns that rows have beside those of a transition; the model's `explore` gives their values."""
        return {}

    def losses(self, batch: Batch) -> Metrics:
        """All losses and their metrics on a batch, without a step or dropout: for held-out data and for debugging."""
        batch, report = self.prepare(batch), {}
        was_training, self.training = self.training, False
        try:
            for step in self.steps:
                report.update(getattr(self, f"{step.name}_loss")(batch))
        finally:
            self.training = was_training
        return {name: value.detach() for name, value in report.items()}

    def update(self, batch: Batch) -> UpdateResult:
        """One update: every step that is due. The only place in the package where parameters change."""
        batch, report = self.prepare(batch), {}
        self.updates += 1
        for step in self.steps:
            if self.updates % self.resolve_number(step.every):
                continue
            for _ in range(self.resolve_number(step.repeat)):
                report.update(self._take(step, batch))
            if step.tracks and self.updates % self.resolve_number(step.track_every) == 0:
                polyak(*self._tracked[step.name], self.resolve_number(step.tau))
        self.clock.add_(1)
        return UpdateResult(report)

    def _take(self, step: Step, batch: Batch) -> Metrics:
        with products_in(self.hyper.precision):
            metrics, gradients = self._gradients[step.name](batch)
        step.optimizer.step([self.optimizers[child] for child in gradients], gradients.values())
        for name in step.updates_buffers:
            getattr(self, name).copy_(metrics[name])
        return metrics

    def resolve_number(self, value: Any) -> Any:
        """A number given as itself or as the name of a hyper-parameter."""
        return getattr(self.hyper, value) if isinstance(value, str) else value

    def gradient(self, step: Step, batch: Batch) -> tuple[Metrics, Gradients]:
        """Metrics, and for each child its gradients, clipped if there is a bound. This is what is compiled.

        It changes nothing but the running statistics of networks that normalise by the batch.
        """
        metrics: Metrics = getattr(self, f"{step.name}_loss")(batch)
        groups = {step.name: step.children} if step.shared else {child: (child,) for child in step.children}
        report, gradients = {name: value.detach() for name, value in metrics.items()}, {}
        for number, (name, children) in enumerate(groups.items(), start=1):
            params = [trainable(getattr(self.model, child)) for child in children]
            # Losses of one step may share a part of the graph.
            keep = number < len(groups)
            found = list(torch.autograd.grad(metrics[f"{name}_loss"], list(chain(*params)), retain_graph=keep))
            report[f"grad_norm_{name}"] = norm = gradient_norm(found)
            parts = iter(clip(found, norm, self.hyper.max_grad_norm))
            for child, own in zip(children, params, strict=True):
                gradients[child] = list(islice(parts, len(own)))
        return report, gradients

    def compile_steps(self, *, backend: str = "inductor") -> None:
        """Compile loss and gradient of each step as one graph; parameters, states and results stay the same."""
        for step in self.steps:
            name = f"{self.name}_{step.name}_gradient"
            self._gradients[step.name] = CompiledGradient(Algorithm.gradient, self, step, name=name, backend=backend)

    def compile_for(self, batch: Batch) -> None:
        """Make the graphs of compiled steps for batches of this shape, without an update."""
        batch = self.prepare(batch)
        with products_in(self.hyper.precision):
            for gradient in self._gradients.values():
                if isinstance(gradient, CompiledGradient):
                    gradient.graph_for(batch)

    def run_eagerly(self) -> None:
        """Compute losses and gradients without compiled graphs, as an algorithm does from the start."""
        self._gradients = {step.name: partial(self.gradient, step) for step in self.steps}

    def get_extra_state(self) -> dict[str, int]:
        """Counters that are not tensors; part of the state dict."""
        return {"updates": self.updates}

    def set_extra_state(self, state: dict[str, int]) -> None:
        """Restore what `get_extra_state` returned."""
        self.updates = state["updates"]
        self.clock.fill_(self.updates)


def check_parts(algorithm: Algorithm, model: Any, steps: Sequence[Step]) -> None:
    """Refuse a model or a step that lacks what an update needs, in one sentence."""
    owner, title = type(algorithm).__name__, type(model).__name__
    for size in ("obs_dim", "action_dim"):
        if not isinstance(getattr(model, size, None), int):
            call = "super().__init__(obs_dim=obs_dim, action_dim=action_dim)"
            raise ConfigError(f"{title}, the model of {owner}, has no {size}: its constructor must call {call}")
    children = [name for name, _ in model.named_children()]
    for step in steps:
        for child in (*step.children, *step.tracks):
            if not isinstance(getattr(model, child, None), nn.Module):
                known = nearest(child, children) or f"; it has {', '.join(children) or 'no networks'}"
                raise ConfigError(f"step {step.name!r} of {owner} names {child!r}, which {title} lacks{known}")
        # A step whose networks have no parameters, such as a fixed temperature, is not taken.
        is_taken = any(trainable(getattr(model, child)) for child in step.children)
        if is_taken and not callable(getattr(algorithm, f"{step.name}_loss", None)):
            raise ConfigError(f"{owner} declares step {step.name!r} but has no method {step.name}_loss")
        _check_numbers(algorithm, step)


def _check_numbers(algorithm: Algorithm, step: Step) -> None:
    """Refuse the name of a hyper-parameter that the algorithm does not have."""
    group = type(algorithm.hyper)
    numbers: dict[str, float | str] = {"every": step.every, "repeat": step.repeat}
    if step.tracks:
        numbers |= {"tau": step.tau, "track_every": step.track_every}
    for field, value in numbers.items():
        if isinstance(value, str) and not hasattr(algorithm.hyper, value):
            known = nearest(value, group.__dataclass_fields__)
            where = f"{field} of step {step.name!r} of {type(algorithm).__name__}"
            raise ConfigError(f"{where} is {value!r}, which {group.__name__} does not have{known}")
