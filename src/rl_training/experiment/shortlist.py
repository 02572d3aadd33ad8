"""A shortlist of many policies: a cheap fit of all of them says which are worth a good one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rl_training.experiment.claims import LEAST_KAPPA, refuse_unsupported
from rl_training.experiment.estimation import Progress
from rl_training.runtime.evaluation_data import JudgedData, Support, as_inputs
from rl_training.runtime.fitting import EARNED_AFTER, FitOptions, ValueFitter, in_chunks
from rl_training.runtime.performance import can_compile

MANY = 8
"""Policies above which not all of them get a good fit."""
FEWEST = 5
SHARE = 0.25
"""The best of so many, and at least the fewest, are on the shortlist."""

Named = Mapping[str, tuple[Any, str | None]]


@dataclass(frozen=True)
class Shortlist:
    """Policies that are worth a good fit, and what is known about the others."""

    named: dict[str, tuple[Any, str | None]]
    differences: dict[str, float] = field(default_factory=dict)
    """Of policies outside the shortlist: the rough difference of their values from the behaviour's."""
    refused: dict[str, list[str]] = field(default_factory=dict)
    """Policies whose actions the log does not back, with the reasons."""


def make_shortlist(
    named: Named,
    data: JudgedData,
    options: FitOptions,
    *,
    compiled: bool | None = None,
    progress: Progress | None = None,
) -> Shortlist:
    """All policies, if they are few; else the best quarter, and at least five, by a fit with one member."""
    if len(named) <= MANY:
        return Shortlist(dict(named))
    log = data.log
    acting = {name: as_inputs(policy, log, name) for name, (policy, _) in named.items()}
    support = Support(log, seed=options.seed)
    shares = {name: support.novel_share(in_chunks(act, log.dataset.obs)) for name, act in acting.items()}
    reasons = {name: refuse_unsupported(share, support.missing) for name, share in shares.items()}
    backed = [name for name, why in reasons.items() if not why]
    rough = replace(options, members=0, kappa=LEAST_KAPPA)
    if compiled is None:
        compiled = rough.num_updates * (len(backed) + 1) >= EARNED_AFTER
    fitter = ValueFitter(log, rough, compiled=can_compile(compiled))
    behavior = float(fitter.fit_behavior(progress=_told(progress, "the logged behaviour")).values[0])
    differences = {
        name: float(fitter.fit_policy(acting[name], progress=_told(progress, name)).values[0]) - behavior
        for name in backed
    }
    ordered = sorted(backed, key=lambda name: -differences[name])
    kept = ordered[: max(FEWEST, math.ceil(SHARE * len(named)))]
    # With nothing to keep, the good fit says for itself why nothing can be judged.
    names = kept or list(named)[:1]
    return Shortlist(
        {name: named[name] for name in names},
        {name: differences[name] for name in ordered if name not in names},
        {name: why for name, why in reasons.items() if why and name not in names},
    )


def _told(progress: Progress | None, name: str) -> Any:
    return None if progress is None else lambda done, total: progress(f"first look at {name}", done, total)
