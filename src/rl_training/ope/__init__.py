"""The value of a policy from a log, and when not to believe it."""

from __future__ import annotations

from rl_training.ope import importance, intervals, weights
from rl_training.ope.fqe import (
    EvaluationLog,
    FitOptions,
    FitSettings,
    OutOfTimeError,
    Progress,
    ValueFit,
    ValueFitter,
    discount_options,
    policy_inputs,
)
from rl_training.ope.intervals import Floats
from rl_training.ope.policies import VALUE, PolicyValue, Support, novelty_of_log
from rl_training.ope.verdicts import (
    ASSUMPTION,
    BETTER,
    CANNOT,
    CAVEAT,
    LEAST_KAPPA,
    LEVEL,
    MOST_CLIPPED,
    MOST_NOVEL,
    SAME,
    WORSE,
    Control,
    Outcome,
    Verdict,
    among_the_best,
    anchored,
    decide_outcomes,
    horizon_text,
    judge_differences,
    movement,
    outcome_text,
    probability_above,
    probability_text,
    refuse_all,
    refuse_one,
    refuse_unsupported,
    simultaneous,
    student_interval,
    verdict_text,
)
from rl_training.ope.weighted import NO_PROBABILITIES, WeightedEstimate, WeightedValue, weigh_policies

__all__ = [
    "ASSUMPTION", "BETTER", "CANNOT", "CAVEAT", "LEAST_KAPPA", "LEVEL", "MOST_CLIPPED", "MOST_NOVEL",
    "NO_PROBABILITIES", "SAME", "VALUE", "WORSE", "Control", "EvaluationLog", "FitOptions", "FitSettings", "Floats",
    "OutOfTimeError", "Outcome", "PolicyValue", "Progress", "Support", "ValueFit", "ValueFitter", "Verdict",
    "WeightedEstimate", "WeightedValue", "among_the_best", "anchored", "decide_outcomes", "discount_options",
    "horizon_text", "importance", "intervals", "judge_differences", "movement", "novelty_of_log", "outcome_text",
    "policy_inputs", "probability_above", "probability_text", "refuse_all", "refuse_one", "refuse_unsupported",
    "simultaneous", "student_interval", "verdict_text", "weigh_policies", "weights",
]  # fmt: skip
