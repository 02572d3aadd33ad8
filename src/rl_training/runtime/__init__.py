"""One run: training, evaluation, prediction, and the functions `train_<algo>` for every registered algorithm."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rl_training.acting import EvaluationResult, Policy, evaluate_policy, normalized_score
from rl_training.algorithms import ALGORITHMS
from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError, nearest
from rl_training.runtime.assembly import open_session
from rl_training.runtime.callbacks import (
    Callback,
    CheckpointCallback,
    EarlyStoppingCallback,
    ThresholdCallback,
    TimeBudgetCallback,
    VideoCallback,
)
from rl_training.runtime.controls import EarlyStoppingConfig
from rl_training.runtime.fine_tuning import fine_tuning_config
from rl_training.runtime.loop import log_trace, traces_logged
from rl_training.runtime.progress import ProgressCallback
from rl_training.runtime.run_data import (
    ENOUGH_HELD_OUT,
    TRAINED_ON,
    Split,
    chooses_by_log,
    find_task,
    keys_in,
    load_data,
    log_of_run,
)
from rl_training.runtime.run_options import (
    BoundConfig,
    ConfigSource,
    RunOptions,
    bind_hyper,
    bind_options,
    find_algorithm,
    merge,
    missing_files,
    mode_defaults,
    option_groups,
    plain_config,
    read_options,
    read_saved_config,
)
from rl_training.runtime.schedules import ScheduleSpec, resolve_schedule_value
from rl_training.runtime.train import defining_options, find_same, resume, train, train_missing, train_or_resume
from rl_training.runtime.trainer import Session, TrainerState, TrainResult
from rl_training.storage import fetch_run

if TYPE_CHECKING:
    from rl_training.policies import SavedPolicy, collect, evaluate, load_policy, predict
    from rl_training.policies.export import Export, export_policy

__all__ = [
    "ENOUGH_HELD_OUT", "TRAINED_ON", "BoundConfig", "Callback", "CheckpointCallback", "ConfigSource",
    "EarlyStoppingCallback", "EarlyStoppingConfig", "EvaluationResult", "Export", "Policy", "ProgressCallback",
    "RunOptions", "SavedPolicy", "ScheduleSpec", "Session", "Split", "ThresholdCallback", "TimeBudgetCallback",
    "TrainResult", "TrainerState", "VideoCallback", "bind_hyper", "bind_options", "chooses_by_log",
    "collect", "defining_options", "evaluate", "evaluate_policy", "export_policy", "fetch_run", "find_algorithm",
    "find_same", "find_task", "fine_tuning_config", "keys_in", "load_data", "load_policy", "log_of_run", "log_trace",
    "merge", "missing_files", "mode_defaults", "normalized_score", "open_session", "option_groups", "plain_config",
    "predict", "read_options", "read_saved_config", "resolve_schedule_value", "resume", "traces_logged", "train",
    "train_missing", "train_or_resume",
]  # fmt: skip
# From here on `__getattr__` answers for it, so that algorithms registered later are in it too.
_NAMES: list[str] = globals().pop("__all__")


# Policies are made of runs, so their modules import this one: these names are looked up when they are asked for.
_POLICIES = {
    **dict.fromkeys(("Export", "export_policy"), "rl_training.policies.export"),
    **dict.fromkeys(("SavedPolicy", "collect", "evaluate", "load_policy", "predict"), "rl_training.policies"),
}


def trainer_for(algo: str) -> Callable[..., TrainResult]:
    """The function `train_<algo>`."""

    def train_algorithm(config: Any, **options: Any) -> TrainResult:
        bound = read_options(config)
        check_algorithm(bound[0], algo)
        return train(bound, **options)

    train_algorithm.__name__ = train_algorithm.__qualname__ = f"train_{algo}"
    train_algorithm.__doc__ = f"Train {ALGORITHMS[algo].__name__} from a config: a TrainConfig, a path or a name."
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
