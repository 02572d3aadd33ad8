"""From a log to a policy in one call: audit, split, training, selection, claim, export; it resumes after a stop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rl_training.core.errors import ConfigError, UserError
from rl_training.data.audit import count_verdicts
from rl_training.experiment import ExperimentManager, ProgressListener, SeedProgress, count_workers
from rl_training.pipeline.candidates import AlgorithmCandidate, choose_candidates, is_clone, named_candidates
from rl_training.pipeline.config import EXPORT, REPORT, RESULT, SELECTION, PipelineConfig, Workspace, read_pipeline
from rl_training.pipeline.outcome import Judge, PipelineOutcome, conclude
from rl_training.pipeline.splits import AUDIT, DataSplits, prepare_data
from rl_training.pipeline.time_budget import Clock, make_budget, run_config, training_seconds
from rl_training.policies import load_policy
from rl_training.policies.export import require_onnx
from rl_training.reports import export_with_report
from rl_training.reports.page import write_report
from rl_training.storage import is_finished, read_json

CLAIM = "claim.json"
STAGES = ("data", "plan", "training", "selection", "claim", "export", "report")
"""The stages, in their order."""
PURPOSES = {"train": "training", "selection": "selection", "claim": "the claim"}
"""The purpose of the episodes of each part."""


@dataclass(frozen=True)
class PipelineResult(PipelineOutcome):
    """The result of a pipeline."""

    out: Path
    audit: dict[str, Any]
    candidates: tuple[AlgorithmCandidate, ...]
    runs: dict[str, dict[str, Any]]
    """By name of the run: how it ended, and its metrics."""
    selection: dict[str, Any] | None
    """The selection on the selection episodes, as `select` gives it; None if rewards are not informative."""
    claim: dict[str, Any] | None
    """The claim about the selected policy; None if none was selected."""
    seconds: dict[str, float]
    """The time of each stage, in all calls together; not in `result.json`, which is the same after a stop."""
    minutes: float | None
    """The time that was given for everything, if any."""

    @property
    def export(self) -> Path:
        """The folder of the exported policy."""
        return self.out / EXPORT

    @property
    def report(self) -> Path:
        """The report, one page."""
        return self.out / REPORT

    def to_plain(self) -> dict[str, Any]:
        """Plain values, as `result.json` has them; paths are relative to the folder of the pipeline."""
        plain = {name: value for name, value in asdict(self).items() if name not in ("out", "seconds", "minutes")}
        return {**plain, "candidates": list(plain["candidates"]), "export": EXPORT, "report": REPORT}


def run_pipeline(
    config: PipelineConfig | Mapping[str, Any] | str | Path,
    out: str | Path,
    *,
    workers: int = 1,
    ray: str | None = None,
    watcher: ProgressListener | None = None,
    began: float | None = None,
) -> PipelineResult:
    """Train, select and export a policy from a log, with a claim about it, all in the folder `out`.

    `config` are options of `PipelineConfig`, or a YAML file with them. The same call continues an earlier one wherever
    that was stopped. If nothing is shown to be better than the data, the clone of the logged behaviour is exported, and
    the result says so. Runs are trained by `workers` processes here, or on the Ray cluster with the address `ray`;
    everything else is done here. `watcher` is told about progress. The time runs from now on, or from `began`, a moment
    of `time.monotonic()`.
    """
    listener = watcher or ProgressListener()
    if workers < 1:
        raise ConfigError(f"a pipeline needs at least one worker, got {workers}")
    require_onnx()
    workers = count_workers(workers, ray)
    space = Workspace(out, read_pipeline(config))
    clock = Clock(space.out, space.config.time, began)
    clock.enter("data")
    listener.on_stage("data")
    audit, splits = prepare_data(space)
    names, facts, gamma = space.config.algorithms, splits.facts, space.config.gamma
    candidates = named_candidates(names, facts, gamma=gamma) if names else choose_candidates(facts, gamma=gamma)
    listener.on_news(_describe_data(audit, splits, candidates))
    clock.enter("plan")
    listener.on_stage("plan")
    budget = make_budget(space, splits, candidates, workers, clock)
    listener.on_news(budget.describe())
    work = Stages(space, splits, budget, clock, listener)
    runs = work.train(candidates, workers, ray)
    done = [name for name, run in runs.items() if run["status"] == "done"]
    found = work.select([name for name in budget.judged if name in done])
    claim, claimed = work.claim(found)
    clone = next(filter(is_clone, done))
    outcome = conclude(splits, found, claim, clone=clone, too_short=budget.too_short)
    if claim is None:
        outcome = replace(outcome, sentence=f"{outcome.sentence} {work.describe_clone(clone)}")
    page = work.page(done, outcome, found, claim)
    work.export(outcome, found, claimed, page)
    work.report(page)
    result = PipelineResult(
        **asdict(outcome),
        out=space.out,
        audit=audit,
        candidates=tuple(candidates),
        runs=runs,
        selection=found,
        claim=claim,
        seconds=clock.stop(),
        minutes=clock.minutes,
    )
    space.keep(RESULT, result.to_plain())
    return result


def _describe_data(audit: Mapping[str, Any], splits: DataSplits, candidates: Sequence[AlgorithmCandidate]) -> list[str]:
    """The audit, the split and the candidates, in sentences."""
    found = audit["findings"]
    split = ", ".join(f"{count:,} for {PURPOSES[part]}" for part, count in splits.episodes.items())
    few = "" if splits.has_claim else "; too few to set some aside for a claim, so nothing will be called better"
    return [
        f"audit: {count_verdicts([each['verdict'] for each in found])}",
        *(f"{each['verdict']}: {each['message']}" for each in found if each["verdict"] in ("warn", "fail")),
        f"episodes: {split}{few}",
        *splits.facts.describe(),
        f"actions: {splits.says}",
        *(f"try {each.name}: {each.reason}" for each in candidates),
    ]


@dataclass(frozen=True)
class Stages(Judge):
    """The stages after the time budget."""

    def begin(self, stage: str) -> None:
        """Begin a stage."""
        self.clock.enter(stage)
        self.listener.on_stage(stage)

    def train(
        self, candidates: Sequence[AlgorithmCandidate], workers: int, ray: str | None
    ) -> dict[str, dict[str, Any]]:
        """Train all runs that have not ended; how each ended."""
        self.begin("training")
        configs = {
            each.run_name(seed): run_config(self.space, self.splits, each, seed, self.budget)
            for seed in self.space.config.seeds
            for each in candidates
            if each.run_name(seed) in self.budget.runs
        }
        self.listener.on_runs(len(configs), list(configs))
        ended: dict[str, SeedProgress] = {}
        for name, config in configs.items():
            if is_finished(self.space.out / "runs" / name):
                made = int(self._result(name)["update_count"])
                ended[name] = SeedProgress(config.seed, "done", name, made, made)
                self.listener.on_run(ended[name])
        missing = [config for name, config in configs.items() if name not in ended]
        if missing:
            seconds = training_seconds(self.budget, self.clock)
            results = ExperimentManager().train_all(
                missing, workers=workers, ray=ray, resume=True, seconds=seconds, on_progress=self._tell_run
            )
            ended |= {str(each.name): each for each in results}
        if any(each.status == "interrupted" for each in ended.values()):
            raise KeyboardInterrupt
        runs = {name: self._ending(ended[name]) for name in configs}
        if not any(is_clone(name) and run["status"] == "done" for name, run in runs.items()):
            errors = "\n".join(f"{name}: {each['error']}" for name, each in runs.items() if each["error"])
            raise UserError(f"no clone of the behaviour could be trained:\n{errors}")
        return runs

    def _tell_run(self, progress: SeedProgress) -> None:
        self.clock.tick()
        self.listener.on_run(progress)

    def _result(self, name: str) -> dict[str, Any]:
        return read_json(self.space.out / "runs" / name / "result.json")

    def _ending(self, progress: SeedProgress) -> dict[str, Any]:
        """How a run ended, by its result file, which does not depend on whether it was interrupted."""
        if progress.status != "done":
            return {"status": progress.status, "updates": progress.global_step, "metrics": {}, "error": progress.error}
        result = self._result(str(progress.name))
        about = {"status": "done", "updates": result["update_count"], "metrics": result.get("metrics", {})}
        return {**about, "error": None}

    def select(self, names: list[str]) -> dict[str, Any] | None:
        """The selection among runs on the selection episodes, if there are any to judge."""
        self.begin("selection")
        return self.space.stage(SELECTION, lambda: self.judge_runs(names)) if names else None

    def claim(self, found: Mapping[str, Any] | None) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """The claim about the selected run, and the estimates behind it if it is made on claim episodes."""
        self.begin("claim")
        if found is None or found["chosen"] is None:
            return None, None
        if not self.splits.has_claim:
            return found["claim"], None
        before = (read_json(self.space.out / CLAIM).get("claim") or {}).get("looks", 0)
        stored = self.space.stage(CLAIM, lambda: self.judge_selected(found["chosen"], before))
        return stored["claim"], stored["estimates"]

    def page(
        self,
        names: Sequence[str],
        outcome: PipelineOutcome,
        found: Mapping[str, Any] | None,
        claim: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        """The options of `write_report`."""
        runs, parts = self.space.out / "runs", {part: str(self.splits.path(part)) for part in self.splits.episodes}
        about: dict[str, Any] = {"parts": parts, "part": "selection episodes", "episodes": self.splits.names}
        about["audit"] = self.space.known(AUDIT)
        return {
            "runs": [runs / name for name in names],
            "title": f"Policies from {Path(self.space.config.data).name}",
            "selection": None if found is None or found["estimates"] is None else {**found, "claim": claim},
            "dataset": str(self.splits.path("selection")),
            "chosen": runs / outcome.chosen,
            "sentence": outcome.sentence,
            "pipeline": about,
        }

    def export(
        self,
        outcome: PipelineOutcome,
        found: Mapping[str, Any] | None,
        claimed: Mapping[str, Any] | None,
        page: Mapping[str, Any],
    ) -> None:
        """Export the policy, with the claim about it and the report."""
        self.begin("export")
        if (self.space.out / EXPORT).exists():
            return
        remarks: dict[str, Any] = {
            "role": "clone of the logged behaviour" if outcome.is_clone else "chosen policy",
            "claim": {"sentence": outcome.sentence, "beats_the_data": outcome.beats_the_data, "on": outcome.claim_on},
        }
        for judged in [each for each in (claimed, found and found["estimates"]) if each]:
            own = [{**each, "path": None} for each in judged["policies"] if each["name"] == outcome.chosen]
            if own:
                remarks["estimates"] = {**judged, "policies": own, "source": Path(judged["source"]).name}
                break
        about = {name: value for name, value in page.items() if name != "runs"}
        policy = load_policy(self.space.out / "runs" / outcome.chosen)
        export_with_report(policy, self.space.out / EXPORT, remarks=remarks, runs=page["runs"], report=about)

    def report(self, page: Mapping[str, Any]) -> None:
        """Write the report."""
        self.begin("report")
        out = self.space.out
        # The page is written before its content, so both exist once the content does.
        if not (out / REPORT).with_suffix(".json").exists():
            write_report(out=out / REPORT, bundle=out / EXPORT, **page)
