"""The value of a policy from a log, and when not to believe it."""

from __future__ import annotations

from rl_training.ope.fqe import (
    EARNED_AFTER,
    VALUE,
    EvaluationLog,
    FitOptions,
    OutOfTimeError,
    PolicyValue,
    ValueFit,
    ValueFitter,
    as_inputs,
    default_gamma,
    in_chunks,
)
from rl_training.ope.intervals import Floats
from rl_training.ope.policies import Support, novelty_of_log
from rl_training.ope.verdicts import (
    BETTER,
    CANNOT,
    LEAST_KAPPA,
    MOST_CLIPPED,
    MOST_NOVEL,
    SAME,
    WORSE,
    Control,
    Outcome,
    Verdict,
    among_the_best,
    outcome_text,
    probability_text,
    refuse_unsupported,
    simultaneous,
    verdict_text,
)
from rl_training.ope.weighted import (
    NO_PROBABILITIES,
    CrossFit,
    WeightedEstimate,
    WeightedValue,
    compared,
    weigh_policies,
)

__all__ = [
    "BETTER", "CANNOT", "EARNED_AFTER", "LEAST_KAPPA", "MOST_CLIPPED", "MOST_NOVEL", "NO_PROBABILITIES", "SAME",
    "VALUE", "WORSE", "Control", "CrossFit", "EvaluationLog", "FitOptions", "Floats", "OutOfTimeError", "Outcome",
    "PolicyValue", "Support", "ValueFit", "ValueFitter", "Verdict", "WeightedEstimate", "WeightedValue",
    "among_the_best", "as_inputs", "compared", "default_gamma", "in_chunks", "novelty_of_log", "outcome_text",
    "probability_text", "refuse_unsupported", "simultaneous", "verdict_text", "weigh_policies",
]  # fmt: skip
