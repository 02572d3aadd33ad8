"""Choosing among policies, and what may be claimed afterwards."""

from __future__ import annotations

from rl_training.selection.claim import Basis, Claim, corrected_claim, held_out_claim
from rl_training.selection.estimate import (
    FILE,
    LOWER_BOUND,
    Estimate,
    Estimates,
    Progress,
    estimate,
    judged_data,
    lower_bound,
)
from rl_training.selection.evaluation_data import EvaluationData, data_given, data_of_runs, named_policies
from rl_training.selection.ranking import FEWEST_POLICIES, ShuffleControl, regret_at_k, spearman
from rl_training.selection.real_episodes import check_can_run
from rl_training.selection.results import check_estimates, check_selection
from rl_training.selection.select import NO_TIME, Candidate, Checkpoints, Selection, choose, select

__all__ = [
    "FEWEST_POLICIES", "FILE", "LOWER_BOUND", "NO_TIME", "Basis", "Candidate", "Checkpoints", "Claim", "Estimate",
    "Estimates", "EvaluationData", "Progress", "Selection", "ShuffleControl", "check_can_run", "check_estimates",
    "check_selection", "choose", "corrected_claim", "data_given", "data_of_runs", "estimate", "held_out_claim",
    "judged_data", "lower_bound", "named_policies", "regret_at_k", "select", "spearman",
]  # fmt: skip
