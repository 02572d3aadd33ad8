"""Whether the best options of a search are better than the default ones: both are trained again on fresh seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rl_training.config import dump_yaml
from rl_training.core.statistics import interquartile_mean
from rl_training.experiment.jobs import ProgressListener
from rl_training.experiment.manager import ExperimentManager
from rl_training.experiment.sweep_spec import write_over
from rl_training.experiment.tune_spec import FEWEST_SEEDS, TuneSpec, trial_cell
from rl_training.ope.verdicts import Outcome, outcome_text
from rl_training.reports.compare import improvement
from rl_training.selection.lower_bound import LOWER_BOUND

CHECKS = "checks"


@dataclass(frozen=True)
class Check:
    """The best options against the default ones."""

    metric: str
    best: tuple[float, ...]
    """The scores of the best options on fresh seeds."""
    default: tuple[float, ...]
    probability: float | None
    """The probability that a run with the best options scores higher than one with the default ones."""
    interval: tuple[float, float] | None
    """95 % interval of that probability."""
    p_value: float | None = None
    """Of the hypothesis that both score alike, by a test of ranks."""
    verdict: Outcome = "not distinguishable"
    """What the best options are in comparison with the default ones."""
    failed: tuple[str, ...] = ()
    """Runs that have no score, and why."""

    @property
    def sentence(self) -> str:
        """What may be said."""
        if self.probability is None or self.interval is None or self.p_value is None:
            return f"too few runs have a {self.metric} on fresh seeds: whether the best options are better is not known"
        low, high = self.interval
        scores = f"{interquartile_mean(self.best):.4g} against {interquartile_mean(self.default):.4g}"
        seeds = f"on {len(self.best)} fresh seeds, {self.metric} is {scores} with the default options (IQM)"
        chance = f"a run with the best options scores higher with probability {self.probability:.2f}"
        verdict = f"they are {outcome_text(self.verdict, 'the default options')}"
        if self.verdict == "worse":
            verdict += ", and what the search found was chance"
        test = f"95 % interval [{low:.2f}, {high:.2f}], p = {self.p_value:.2g} by a test of ranks"
        return f"{seeds}; {chance}, {test}: {verdict}"


def check_best(
    spec: TuneSpec,
    params: Mapping[str, Any],
    metric: str,
    out: Path,
    *,
    workers: int,
    ray: str | None,
    watcher: ProgressListener,
) -> Check:
    """Train both on fresh seeds, except runs that have ended before, and compare their scores."""
    cells = {
        (label, seed): trial_cell(spec, values, out / CHECKS, seed=seed, label=label)
        for seed in spec.fresh_seeds()
        for label, values in (("best", params), ("default", {}))
    }
    watcher.on_news([f"{len(cells)} runs on fresh seeds, with the best options and with the default ones"])
    watcher.on_runs(len(cells))
    found = ExperimentManager().train_all(
        [cell.bound for cell in cells.values()],
        workers=workers,
        ray=ray,
        threads=spec.threads,
        resume=True,
        judge=metric == LOWER_BOUND,
        on_progress=watcher.on_run,
    )
    if any(each.status == "interrupted" for each in found):
        raise KeyboardInterrupt
    scores: dict[str, list[float]] = {"best": [], "default": []}
    failed = []
    for (label, _), cell, progress in zip(cells, cells.values(), found, strict=True):
        if progress.metrics and metric in progress.metrics:
            scores[label].append(progress.metrics[metric])
        else:
            failed.append(f"{cell.name}: {progress.error or f'it has no {metric}'}")
    return compare_scores(metric, scores["best"], scores["default"], failed)


def compare_scores(metric: str, best: Sequence[float], default: Sequence[float], failed: Sequence[str] = ()) -> Check:
    """What the scores say; nothing where there are too few."""
    check = Check(metric, tuple(best), tuple(default), None, None, failed=tuple(failed))
    if min(len(best), len(default)) < FEWEST_SEEDS:
        return check
    found = improvement(("best", "default"), metric, [""], [best], [default])
    numbers = {name: getattr(found, name) for name in ("probability", "interval", "p_value", "verdict")}
    return replace(check, **numbers)


def best_config(spec: TuneSpec, params: Mapping[str, Any]) -> str:
    """The configuration with the best options as YAML, which `train` takes."""
    return dump_yaml(write_over(spec.config, [spec.options, params]))
