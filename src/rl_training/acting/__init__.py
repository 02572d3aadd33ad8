"""A policy in an environment: collect, evaluate, show."""

from __future__ import annotations

from rl_training.acting.collecting import SCALED_REWARDS, Collector, LocalCollector, Stepper, StepResult
from rl_training.acting.evaluation import (
    EVAL_SEED,
    EVALUATION_METRICS,
    Acting,
    EpisodeOptions,
    EvaluationResult,
    evaluate_policy,
    normalized_score,
)
from rl_training.acting.policy import Policy, check_networks, model_part, unused_in_acting
from rl_training.acting.video import check_video, play_policy, record_policy

__all__ = [
    "EVALUATION_METRICS", "EVAL_SEED", "SCALED_REWARDS", "Acting", "Collector", "EpisodeOptions", "EvaluationResult",
    "LocalCollector", "Policy", "StepResult", "Stepper", "check_networks", "check_video", "evaluate_policy",
    "model_part", "normalized_score", "play_policy", "record_policy", "unused_in_acting",
]  # fmt: skip
