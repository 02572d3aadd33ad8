"""The names of `evaluation` and `collecting` in one place."""

from rl_training.runtime.collecting import Collector, LocalCollector, RunningStatistics, Stepper, StepResult
from rl_training.runtime.evaluation import EVAL_SEED, EvaluationResult, evaluate_policy

__all__ = [
    "EVAL_SEED",
    "Collector",
    "EvaluationResult",
    "LocalCollector",
    "RunningStatistics",
    "StepResult",
    "Stepper",
    "evaluate_policy",
]
