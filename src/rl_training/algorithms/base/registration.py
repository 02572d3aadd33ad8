"""The table of algorithms, and the checks of a class that enters it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from rl_training.algorithms.base.hyper import Hyper
from rl_training.core.errors import ConfigError
from rl_training.models import Model

if TYPE_CHECKING:
    from rl_training.algorithms.base.algorithm import Algorithm

Mode: TypeAlias = Literal["offline", "online", "offline_to_online"]
A = TypeVar("A", bound="Algorithm")

ALGORITHMS: dict[str, type[Algorithm]] = {}
"""The table of algorithms: those of this package, of installed packages, and of the user's own modules."""

TAKEN = {"Algorithm", "ManagedAlgorithm", "Step", "TrainConfig", "UpdateResult"}
"""Names of other classes in the places where the classes of algorithms are found."""


def register(name: str, *, mode: Mode) -> Callable[[type[A]], type[A]]:
    """Enter an algorithm into the table under its name.

    Defined again in the same file or notebook, it takes the place of the class before. Names of others are refused.
    """

    def enter(cls: type[A]) -> type[A]:
        _check_class(cls)
        _check_name(name, cls)
        cls.name, cls.mode = name, mode
        ALGORITHMS[name] = cls
        return cls

    return enter


def _check_class(cls: type[Algorithm]) -> None:
    """Refuse a class that lacks hyper-parameters, a model, steps or losses."""
    title, declared = cls.__name__, f"class {cls.__name__}(Algorithm[MyHyper, MyModel])"
    hyper: Any = getattr(cls, "hyper_class", None)
    if not (isinstance(hyper, type) and issubclass(hyper, Hyper)):
        raise ConfigError(f"{title} names no class of hyper-parameters: write {declared}, or hyper: MyHyper in it")
    model: Any = getattr(cls, "model_class", None)
    if not (isinstance(model, type) and issubclass(model, Model)):
        found = "" if model is None else f", but {getattr(model, '__name__', model)}"
        raise ConfigError(f"{title} names no subclass of rl_training.models.Model{found}: write {declared}")
    steps = getattr(cls, "steps", ())
    if not steps and cls.make_steps.__qualname__ == "Algorithm.make_steps":
        raise ConfigError(f'{title} declares no steps: write steps = (Step("critic"), ...)')
    for step in steps:
        if not hasattr(cls, f"{step.name}_loss"):
            raise ConfigError(f"{title} declares step {step.name!r} but has no method {step.name}_loss")


def _check_name(name: str, cls: type[Algorithm]) -> None:
    """Refuse names that are taken. Exports and managed classes go by the name of the class."""
    here, title = _place(cls), cls.__name__
    known = ALGORITHMS.get(name)
    if known is not None and _place(known) != here:
        raise ConfigError(f"algorithm {name!r} exists already, in {_place(known)}: choose another name, in {here}")
    if title in TAKEN:
        raise ConfigError(f"{title} is the name of another class of this package: rename yours, in {here}")
    for other, each in ALGORITHMS.items():
        if other != name and title in (each.__name__, f"{each.__name__}Algorithm"):
            taken = f"the class of {other!r}, in {_place(each)}, is called {title} too"
            raise ConfigError(f"{taken}: rename yours, in {here}")


def _place(cls: type[Algorithm]) -> str:
    """The file in which a class is defined, or its module if that has no file, as in a notebook."""
    return getattr(sys.modules.get(cls.__module__), "__file__", None) or cls.__module__
