"""Train policies on logged data, and know how good they are.

from rl_training import TD3BC

model = TD3BC("td3_bc/pendulum")
model.learn()
print(model.evaluate(num_episodes=10)["return_mean"])
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# Loaded when asked for: importing torch takes over a second, and `rl-training --help` needs none of it. Type checkers
# and editors read `__init__.pyi` instead.
_HOMES = {
    "TrainConfig": "rl_training.config",
    "estimate": "rl_training.selection",
    "evaluate": "rl_training.runtime",
    "fetch_run": "rl_training.runtime",
    "predict": "rl_training.runtime",
    "resume": "rl_training.runtime",
    "run_pipeline": "rl_training.pipeline",
    "run_sweep": "rl_training.experiment",
    "run_tuning": "rl_training.experiment",
    "select": "rl_training.selection",
    "train": "rl_training.runtime",
}


def __getattr__(name: str) -> Any:
    if name == "__all__":  # not a plain list, so that help() and import * find the managed classes too
        return __dir__()
    if name == "__version__":
        return _version()
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    managed = import_module("rl_training.api").MANAGED
    if name in managed:
        return managed[name]
    if name in _trainers():
        return getattr(import_module("rl_training.runtime"), name)
    nearest = import_module("rl_training.core.errors").nearest
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{nearest(name, __dir__())}")


def __dir__() -> list[str]:
    return [*_HOMES, "__version__", *import_module("rl_training.api").MANAGED, *_trainers()]


def _version() -> str:
    # Reading the metadata of packages takes as long as everything else that --help does.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("rl-training")
    except PackageNotFoundError:
        return "0.1.0"


def _trainers() -> list[str]:
    """The names of the functions `train_<algo>`."""
    return [f"train_{algo}" for algo in import_module("rl_training.algorithms").ALGORITHMS]
