"""Estimates written by hand: what tests of pages share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_training.ope import CANNOT, SAME
from rl_training.selection import Estimate, Estimates

MEMBERS = (-11.0, -10.0, -9.0)


def estimate_of(path: Path | None, value: float | None, *, half: float = 2.0, name: str | None = None) -> Estimate:
    """A policy of this value, with an interval of this half-width; without a value it cannot be judged."""
    is_judged = value is not None
    return Estimate(
        name=name or str(path),
        verdict=SAME if is_judged else CANNOT,
        reasons=() if is_judged else ("its actions are far",),
        value=value,
        interval=None if value is None else (value - half, value + half),
        difference=None if value is None else value + 10.0,
        probability_better=0.5 if is_judged else None,
        raw_value=-10.0 if value is None else value,
        members=MEMBERS,
        fit_error=0.0,
        clipped_share=0.0,
        novel_share=0.1,
        path=None if path is None else str(path),
    )


def estimates_of(policies: Sequence[Estimate]) -> dict[str, Any]:
    """Estimates made together, as a file has them."""
    judged = [each for each in policies if each.value is not None]
    best = max(judged, key=lambda each: each.value or 0.0)
    found = Estimates(
        policies=tuple(policies),
        best=(best.name,),
        source="log",
        relation="held out",
        is_held_out=True,
        episodes=50,
        rows=5000,
        logged_return=-20.0,
        logged_value=-10.0,
        logged_std=3.0,
        behavior_value=-10.1,
        behavior_members=MEMBERS,
        control_passes=True,
        control_tolerance=1.0,
        gamma=0.9,
        kappa=5.0,
        updates=100,
        fit={"hidden_sizes": [8], "seed": 0},
    )
    plain: dict[str, Any] = json.loads(json.dumps(found.to_plain()))
    return plain


def candidates_of(estimates: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Policies that were estimated, as candidates of a selection."""
    kept = ("name", "path", "value", "interval", "probability_better", "verdict")
    best = estimates["best"]
    return [
        {**{name: each[name] for name in kept}, "rank": rank, "is_among_the_best": each["name"] in best}
        for rank, each in enumerate(estimates["policies"], start=1)
    ]


def selection_with(estimates: Mapping[str, Any], *, rough: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """A selection without real episodes; `rough` are candidates that have a value but no interval."""
    candidates = candidates_of(estimates)
    chosen = estimates["best"][0]
    return {
        "candidates": [*candidates, *rough],
        "chosen": chosen,
        "best": [chosen],
        "estimates": estimates,
        "pulls": [],
        "claim": None,
        "budget": 0,
    }
