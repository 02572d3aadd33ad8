"""One run: training, evaluation, prediction, and the functions `train_<algo>` for every registered algorithm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rl_training.algorithms import ALGORITHMS
from rl_training.config import TrainConfig
from rl_training.runtime.callbacks import Callback, EarlyStoppingCallback
from rl_training.runtime.evaluation import EvaluationResult, evaluate_policy
from rl_training.runtime.export import Export, export_policy
from rl_training.runtime.option_groups import EarlyStoppingConfig
from rl_training.runtime.options import read_options
from rl_training.runtime.policy import Policy
from rl_training.runtime.saved_policy import SavedPolicy, load_policy
from rl_training.runtime.schedules import ScheduleSpec, resolve_schedule_value
from rl_training.runtime.scores import normalized_score
from rl_training.runtime.trainer import TrainerState, TrainResult
from rl_training.runtime.upload import fetch_run
from rl_training.runtime.workflows import collect, evaluate, predict, resume, train
from rl_training.types import ConfigError, nearest

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
    algo = name.removeprefix("train_")
    if name.startswith("train_") and algo in ALGORITHMS:
        return trainer_for(algo)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{nearest(name, __dir__())}")


def __dir__() -> list[str]:
    return [*_NAMES, *(f"train_{algo}" for algo in ALGORITHMS)]
