"""Choosing among policies, and what may be claimed afterwards."""

from __future__ import annotations

from rl_training.selection.claim import claim_without_choice, held_out_claim
from rl_training.selection.estimate import LOWER_BOUND, compare_groups, estimate, lower_bound
from rl_training.selection.evaluation_data import (
    EvaluationData,
    data_given,
    data_of_runs,
    find_evaluation_data,
    named_policies,
)
from rl_training.selection.ranking import FEWEST_POLICIES, ShuffleControl, regret_at_k, spearman
from rl_training.selection.real_episodes import NormalSelection, RealEpisodes
from rl_training.selection.results import (
    ESTIMATES_FILE,
    Basis,
    Claim,
    Estimate,
    Estimates,
    PolicyCandidate,
    Selection,
    check_estimates,
    check_selection,
)
from rl_training.selection.select import NO_TIME, Checkpoints, choose, not_judged, select

__all__ = [
    "ESTIMATES_FILE", "FEWEST_POLICIES", "LOWER_BOUND", "NO_TIME", "Basis", "Checkpoints", "Claim", "Estimate",
    "Estimates", "EvaluationData", "NormalSelection", "PolicyCandidate", "RealEpisodes", "Selection",
    "ShuffleControl", "check_estimates", "check_selection", "choose", "claim_without_choice", "compare_groups",
    "data_given", "data_of_runs", "estimate", "find_evaluation_data", "held_out_claim", "lower_bound",
    "named_policies", "not_judged", "regret_at_k", "select", "spearman",
]  # fmt: skip
