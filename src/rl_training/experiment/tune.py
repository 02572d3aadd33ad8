"""Search for good options: Optuna proposes, workers train, and hopeless runs are stopped."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rl_training.config import dump_yaml
from rl_training.core.errors import UserError
from rl_training.core.files import write_json, write_text
from rl_training.core.statistics import interquartile_mean
from rl_training.core.text import number_text
from rl_training.core.user_code import IMPORTED
from rl_training.experiment.manager import ExperimentManager
from rl_training.experiment.pools import Job, JobKey, Pool, ProgressListener, SeedProgress, count_workers, open_pool
from rl_training.experiment.sweep import locked_folder
from rl_training.experiment.sweep_spec import Range, write_over
from rl_training.experiment.tune_spec import (
    FEWEST_SEEDS,
    TuneSpec,
    check_space,
    decode,
    importances,
    open_study,
    pick_metric,
    plan_trial,
    read_space,
    read_tune,
    report,
    require_optuna,
    resume_trial,
    suggest,
    tell_end,
)
from rl_training.ope import LEVEL, Outcome, outcome_text
from rl_training.reports import draw_history, draw_importances, improvement
from rl_training.selection import LOWER_BOUND, compare_groups
from rl_training.storage import check_sinks

SPEC, JOURNAL, TRIALS, RESULT, BEST = "tune.yaml", "study.journal", "trials", "result.json", "best.yaml"
CHECKS = "checks"
OUTCOMES = {"complete": "COMPLETE", "pruned": "PRUNED", "failed": "FAIL"}
"""How trials end, and the state of Optuna for it."""
FOLDER, RUN, ERROR = "folder", "run", "error"
"""Attributes of a trial: the folder of the search that trains it, its run, and why it failed."""


@dataclass(frozen=True)
class TuneResult:
    """The result of a search."""

    out: Path
    metric: str
    number: int
    """The first trial with the best options."""
    value: float
    """The mean score of all trials with them."""
    params: dict[str, Any]
    trials: dict[str, int]
    """The numbers of complete, pruned and failed trials."""
    check: Check

    @property
    def config(self) -> Path:
        """The best configuration, which `train` takes."""
        return self.out / BEST

    def to_plain(self) -> dict[str, Any]:
        """Plain values, as `result.json` has them."""
        plain = {**asdict(self), "sentence": self.check.sentence, "config": BEST}
        return {name: value for name, value in plain.items() if name != "out"}


def run_tuning(
    spec: TuneSpec | Mapping[str, Any] | str | Path,
    out: str | Path,
    *,
    workers: int = 1,
    ray: str | None = None,
    watcher: ProgressListener | None = None,
) -> TuneResult:
    """Search for good options in the folder `out`, then compare the best with the default ones on fresh seeds.

    The same call continues a search that was stopped at any point. Several machines may work on one study: each has a
    folder of its own, and all name the same `storage`.
    """
    watcher, spec, out = watcher or ProgressListener(), read_tune(spec), Path(out)
    require_optuna()
    default = plan_trial(spec, {}, out / TRIALS, seed=spec.seed)
    space = read_space(spec, default.config.algo)
    check_space(spec, space, out / TRIALS)
    metric = pick_metric(spec, default)
    check_sinks(default.config.sinks)
    slots = count_workers(workers, ray, threads=spec.threads)
    with locked_folder(out):
        write_text(out / SPEC, dump_yaml(json.loads(json.dumps(asdict(spec)))))
        search = _Search(open_study(spec, out / JOURNAL), spec, space, metric, out, watcher)
        pool = open_pool(workers, ray, threads=spec.threads)
        try:
            search.run(pool, slots)
        finally:
            pool.close()
        number, value, params = search.best()
        check = check_best(search, params, workers=workers, ray=ray)
        result = TuneResult(out, metric, number, value, params, search.counts(), check)
        write_text(out / BEST, dump_yaml(write_over(spec.config, [spec.options, params])))
        write_json(out / RESULT, result.to_plain())
        draw_history(search.study.get_trials(), search.metric, out / "history.png")
        draw_importances(importances(search.study), out / "importance.png")
    return result


@dataclass(frozen=True)
class _Search:
    """A study, and its trials in training here."""

    study: Any
    spec: TuneSpec
    space: Mapping[str, Range]
    metric: str
    out: Path
    watcher: ProgressListener
    running: dict[JobKey, Any] = field(default_factory=dict)
    pruned: set[JobKey] = field(default_factory=set)
    reported: dict[JobKey, int] = field(default_factory=dict)
    """The timestep of the last reported score, by run."""

    def run(self, pool: Pool, slots: int) -> None:
        """Train the given number of trials; those that an earlier call has begun come first."""
        # Only this folder can continue a trial that it has begun.
        folder = str(self.out.resolve())
        left = [each for each in self._trials("RUNNING") if each.user_attrs.get(FOLDER) == folder]
        ended = [each for each in self.study.get_trials() if each.state.is_finished()]
        before = f", of which {len(ended)} have ended before" if ended else ""
        self.watcher.on_news([f"{self.spec.trials} trials by {self.metric}{before}"])
        self.watcher.on_runs(max(self.spec.trials - len(ended), 0), scores=[self.metric])
        while True:
            while pool.busy < slots and (left or len(self.study.get_trials(deepcopy=False)) < self.spec.trials):
                trial = resume_trial(self.study, left.pop(0)) if left else self._ask()
                self._submit(pool, trial)
            if not pool.busy:
                return
            for progress in pool.collect():
                self._hear(pool, progress)

    def best(self) -> tuple[int, float, dict[str, Any]]:
        """The options with the highest mean score, the first trial that had them, and that mean."""
        trials: dict[str, list[Any]] = {}
        for trial in self._trials("COMPLETE"):
            trials.setdefault(_key(trial), []).append(trial)
        if not trials:
            errors = [each.user_attrs[ERROR] for each in self._trials("FAIL") if ERROR in each.user_attrs]
            why = f": {errors[-1].splitlines()[-1]}" if errors else ""
            raise UserError(f"no trial has come to its end with a {self.metric}{why}")
        means = {key: sum(each.value for each in same) / len(same) for key, same in trials.items()}
        best = max(means, key=means.__getitem__)
        first = trials[best][0]
        return first.number, means[best], self.params(first)

    def params(self, trial: Any) -> dict[str, Any]:
        """The options of a trial."""
        return {key: decode(value, self.space[key]) for key, value in trial.params.items() if key in self.space}

    def counts(self) -> dict[str, int]:
        """The number of trials by outcome."""
        return {name: len(self._trials(state)) for name, state in OUTCOMES.items()}

    def _trials(self, state: str) -> list[Any]:
        return [each for each in self.study.get_trials() if each.state.name == state]

    def _ask(self) -> Any:
        trial = self.study.ask()
        for key, each in self.space.items():
            suggest(trial, key, each)
        trial.set_user_attr(FOLDER, str(self.out.resolve()))
        return trial

    def _submit(self, pool: Pool, trial: Any) -> None:
        params = self.params(trial)
        # An earlier process may have been killed while it chose them.
        params |= {key: suggest(trial, key, each) for key, each in self.space.items() if key not in params}
        # Options that are proposed again get the next seed, because the same run again would add no information.
        before = [each for each in self.study.get_trials() if each.number < trial.number and _key(each) == _key(trial)]
        seed, label = self.spec.seed + len(before), f"trial{trial.number:04d}"
        run = plan_trial(self.spec, params, self.out / TRIALS, seed=seed, label=label)
        trial.set_user_attr(RUN, run.name)
        modules = tuple(dict.fromkeys([*IMPORTED, run.options.algorithm.__module__]))
        job = Job(run.config, True, self.spec.threads, modules, judge=self.metric == LOWER_BOUND)
        self.running[job.key] = trial
        self.watcher.on_news([f"trial {trial.number}: {options_text(params)}"])
        pool.submit(job)

    def _hear(self, pool: Pool, progress: SeedProgress) -> None:
        """Report the score of a run to the study, and stop the run if others were better at that point."""
        trial, metrics = self.running[progress.key], progress.metrics or {}
        step = int(metrics.get("global_step", 0))
        # Every message repeats the last score, and access to the storage may be slow.
        if self.metric in metrics and step != self.reported.get(progress.key):
            self.reported[progress.key] = step
            report(self.study, trial, metrics[self.metric], step)
            if not progress.has_ended and progress.key not in self.pruned and trial.should_prune():
                self.pruned.add(progress.key)
                pool.stop(progress.key)
        if progress.has_ended:
            self._end(trial, progress)
        else:
            self._show(trial, progress)

    def _end(self, trial: Any, progress: SeedProgress) -> None:
        """Report the end of a trial to the study; the next call resumes one that was interrupted."""
        metrics, is_pruned = progress.metrics or {}, progress.key in self.pruned
        del self.running[progress.key]
        if progress.status == "done" and self.metric in metrics:
            self.study.tell(trial, metrics[self.metric])
        elif progress.status == "interrupted":
            if not is_pruned:
                raise KeyboardInterrupt
            tell_end(self.study, trial, "PRUNED")
            progress = replace(progress, status="pruned")
        else:
            error = progress.error or f"the run has reported no {self.metric}"
            trial.set_user_attr(ERROR, error)
            tell_end(self.study, trial, "FAIL")
            progress = replace(progress, status="failed", error=error)
        self._show(trial, progress)

    def _show(self, trial: Any, progress: SeedProgress) -> None:
        self.watcher.on_run(replace(progress, name=f"trial {trial.number}"))


def options_text(params: Mapping[str, Any]) -> str:
    """Options on one line."""
    texts = {key: number_text(value) if isinstance(value, float) else value for key, value in params.items()}
    return ", ".join(f"{key.removeprefix('algo_kwargs.')} {text}" for key, text in texts.items())


def _key(trial: Any) -> str:
    """The options of a trial as a key."""
    return json.dumps(trial.params, sort_keys=True)


@dataclass(frozen=True)
class Check:
    """The comparison of the best options with the default ones."""

    metric: str
    best: tuple[float, ...]
    """The scores of the best options on fresh seeds."""
    default: tuple[float, ...]
    probability: float | None
    """The probability that a run with the best options scores higher than one with the default ones."""
    interval: tuple[float, float] | None
    """95 % interval of that probability."""
    p_value: float | None = None
    """Rank test of equal scores."""
    verdict: Outcome = "not distinguishable"
    """The best options in comparison with the default ones."""
    failed: tuple[str, ...] = ()
    """Runs without a score, and why."""
    log_p_value: float | None = None
    """Where the score comes from the log: test of equal values on held-out episodes that chose nothing."""
    log_reasons: tuple[str, ...] = ()
    """Why these episodes cannot judge the runs."""

    @property
    def sentence(self) -> str:
        """The verdict on the best options."""
        if self.probability is None or self.p_value is None:
            return f"too few runs have a {self.metric} on fresh seeds: whether the best options are better is not known"
        interval = "" if self.interval is None else "95 % interval [{:.2f}, {:.2f}], ".format(*self.interval)
        scores = f"{interquartile_mean(self.best):.4g} against {interquartile_mean(self.default):.4g}"
        seeds = f"on {len(self.best)} fresh seeds, {self.metric} is {scores} with the default options (IQM)"
        chance = f"a run with the best options scores higher with probability {self.probability:.2f}"
        verdict = f"they are {outcome_text(self.verdict, 'the default options')}"
        if self.verdict == "worse":
            verdict += ", and what the search found was chance"
        test = f"{interval}p = {self.p_value:.2g} by a test of ranks"
        if self.log_p_value is not None:
            test += f", p = {self.log_p_value:.2g} by held-out episodes that the search has not used"
        if self.log_reasons:
            return f"{seeds}; {chance}, {test}: whether they are better cannot be judged: {self.log_reasons[0]}"
        return f"{seeds}; {chance}, {test}: {verdict}"


def check_best(search: _Search, params: Mapping[str, Any], *, workers: int, ray: str | None) -> Check:
    """Train best and default options on fresh seeds, except finished runs, and compare their scores."""
    spec, metric = search.spec, search.metric
    runs = {
        (label, seed): plan_trial(spec, values, search.out / CHECKS, seed=seed, label=label)
        for seed in spec.fresh_seeds()
        for label, values in (("best", params), ("default", {}))
    }
    search.watcher.on_news([f"{len(runs)} runs on fresh seeds, with the best options and with the default ones"])
    search.watcher.on_runs(len(runs))
    found = ExperimentManager().train_all(
        [run.bound for run in runs.values()],
        workers=workers,
        ray=ray,
        threads=spec.threads,
        resume=True,
        judge=metric == LOWER_BOUND,
        on_progress=search.watcher.on_run,
    )
    if any(each.status == "interrupted" for each in found):
        raise KeyboardInterrupt
    scores: dict[str, list[float]] = {"best": [], "default": []}
    folders: dict[str, list[str]] = {"best": [], "default": []}
    failed = []
    for (label, _), run, progress in zip(runs, runs.values(), found, strict=True):
        if progress.metrics and metric in progress.metrics:
            scores[label].append(progress.metrics[metric])
            folders[label].append(str(progress.run_dir))
        else:
            failed.append(f"{run.name}: {progress.error or f'it has no {metric}'}")
    check = compare_scores(metric, scores["best"], scores["default"], failed)
    if metric != LOWER_BOUND or check.p_value is None:
        return check
    # All runs were scored by the same episodes, whose chance a test of ranks does not see.
    by_log = compare_groups(folders["best"], folders["default"], threads=spec.threads)
    is_clear = by_log.p_value < LEVEL and not by_log.reasons
    verdict = check.verdict if is_clear else "not distinguishable"
    return replace(check, verdict=verdict, log_p_value=by_log.p_value, log_reasons=by_log.reasons)


def compare_scores(metric: str, best: Sequence[float], default: Sequence[float], failed: Sequence[str] = ()) -> Check:
    """Compare scores; without a verdict if there are too few."""
    check = Check(metric, tuple(best), tuple(default), None, None, failed=tuple(failed))
    if min(len(best), len(default)) < FEWEST_SEEDS:
        return check
    found = improvement(("best", "default"), metric, [""], [best], [default])
    numbers = {name: getattr(found, name) for name in ("probability", "interval", "p_value", "verdict")}
    return replace(check, **numbers)
