"""One run: training, evaluation, prediction, and the functions `train_<algo>` for every registered algorithm."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rl_training.acting.evaluation import EvaluationResult, evaluate_policy
from rl_training.acting.policy import Policy
from rl_training.acting.scores import normalized_score
from rl_training.algorithms import ALGORITHMS
from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError, nearest
from rl_training.runtime.callbacks import Callback, EarlyStoppingCallback
from rl_training.runtime.controls import EarlyStoppingConfig
from rl_training.runtime.run_options import read_options
from rl_training.runtime.schedules import ScheduleSpec, resolve_schedule_value
from rl_training.runtime.train import collect, evaluate, predict, resume, train
from rl_training.runtime.trainer import TrainerState, TrainResult
from rl_training.storage.upload import fetch_run

if TYPE_CHECKING:
    from rl_training.policies.export.bundle import Export, export_policy
    from rl_training.policies.saved import SavedPolicy, load_policy

__all__ = [
    "Callback",
    "EarlyStoppingCallback",
    "EarlyStoppingConfig",
    "EvaluationResult",
    "Export",
    "Policy",
    "SavedPolicy",
    "ScheduleSpec",
    "TrainResult",
    "TrainerState",
    "collect",
    "evaluate",
    "evaluate_policy",
    "export_policy",
    "fetch_run",
    "load_policy",
    "normalized_score",
    "predict",
    "read_options",
    "resolve_schedule_value",
    "resume",
    "train",
]
# From here on `__getattr__` answers for it, so that algorithms registered later are in it too.
_NAMES: list[str] = globals().pop("__all__")


# Policies are made of runs, so their modules import this one: these names are looked up when they are asked for.
_POLICIES = {
    "Export": "rl_training.policies.export.bundle",
    "SavedPolicy": "rl_training.policies.saved",
    "export_policy": "rl_training.policies.export.bundle",
    "load_policy": "rl_training.policies.saved",
}


def trainer_for(algo: str) -> Callable[..., TrainResult]:
    """The function `train_<algo>`."""

    def train_algorithm(config: Any, **options: Any) -> TrainResult:
        bound = read_options(config)
        check_algorithm(bound[0], algo)
        return train(bound, **options)

    train_algorithm.__name__ = train_algorithm.__qualname__ = f"train_{algo}"
    train_algorithm.__doc__ = (
        f"Train {ALGORITHMS[algo].__name__} from a config: a TrainConfig, a path or a packaged name."
    )
    return train_algorithm


def check_algorithm(config: TrainConfig, algo: str) -> None:
    """Refuse a config that is for another algorithm."""
    if config.algo != algo:
        raise ConfigError(f"the config is for {config.algo!r}, not for {algo!r}")


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return __dir__()
    if name in _POLICIES:
        return getattr(import_module(_POLICIES[name]), name)
    algo = name.removeprefix("train_")
    if name.startswith("train_") and algo in ALGORITHMS:
        return trainer_for(algo)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{nearest(name, __dir__())}")


def __dir__() -> list[str]:
    return [*_NAMES, *(f"train_{algo}" for algo in ALGORITHMS)]
