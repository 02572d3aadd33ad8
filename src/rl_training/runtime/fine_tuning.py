"""What going online did to a policy that was trained offline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class FineTuning:
    """The evaluations from the switch on: the first is of the offline policy, the others of what became of it."""

    starts_with_policy: bool = False
    """Whether there is a policy to be evaluated before the first timestep of the run."""
    scores: list[float] = field(default_factory=list)
    successes: list[float] = field(default_factory=list)

    def add(self, metrics: Mapping[str, float]) -> None:
        """Take note of an evaluation."""
        if "return_mean" in metrics:
            self.scores.append(metrics["return_mean"])
        if "success_rate" in metrics:
            self.successes.append(metrics["success_rate"])

    def summary(self) -> dict[str, float]:
        """The offline score, the last one, the largest drop below the offline score, and the regret.

        The regret is by how much the evaluations online fell short of the best of them on average; where the task
        reports successes, by how much their share fell short of 1.
        """
        if len(self.scores) < 2:
            return {}
        offline, *online = self.scores
        regret = max(online) - sum(online) / len(online)
        if len(self.successes) == len(self.scores):
            regret = 1 - sum(self.successes[1:]) / len(online)
        return {
            "offline_score": offline,
            "online_score": online[-1],
            "largest_drop": max(offline - min(online), 0.0),
            "regret": regret,
        }

    def state_dict(self) -> dict[str, Any]:
        """The evaluations so far."""
        return {"scores": list(self.scores), "successes": list(self.successes)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self.scores, self.successes = list(state["scores"]), list(state["successes"])
