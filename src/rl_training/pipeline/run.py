"""From a log to a policy in one call: audit, split, training, choice, claim, export; stopped, it goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError, UserError
from rl_training.data.audit import count_verdicts
from rl_training.experiment import ExperimentManager, ProgressListener, SeedProgress, count_workers
from rl_training.pipeline.candidates import Candidate, choose_candidates, is_clone, named_candidates
from rl_training.pipeline.config import PipelineConfig, Workspace, read_pipeline
from rl_training.pipeline.outcome import Ending, Judge, conclude
from rl_training.pipeline.splits import Parts, prepare_data
from rl_training.pipeline.time_budget import Clock, Plan, make_plan, run_config, training_seconds
from rl_training.policies import load_policy
from rl_training.policies.export import require_onnx
from rl_training.reports import export_with_report
from rl_training.reports.page import write_report
from rl_training.storage import is_finished, read_json

SELECTION, CLAIM, RESULT, EXPORT = "selection.json", "claim.json", "result.json", "export"
REPORT, REPORT_CONTENT = "report.html", "report.json"
STAGES = ("data", "plan", "training", "selection", "claim", "export", "report")
"""The stages, in their order."""


@dataclass(frozen=True)
class PipelineResult:
    """What a pipeline came to."""

    out: Path
    sentence: str
    """The ending in words."""
    chosen: str
    """The run whose policy is exported."""
    is_clone: bool
    """Whether that is the clone of the logged behaviour, since nothing was shown to be better."""
    beats_the_data: bool
    claim_on: str
    """Which episodes the claim is about."""
    audit: dict[str, Any]
    candidates: tuple[Candidate, ...]
    runs: dict[str, dict[str, Any]]
    """By name of the run: how it ended, and its metrics."""
    selection: dict[str, Any] | None
    """The ranking by the selection episodes and the choice, as `select` gives them; None where rewards tell nothing."""
    claim: dict[str, Any] | None
    """What may be said about the choice; None if nothing was chosen."""
    seconds: dict[str, float]
    """How long each stage took, in all calls together; not in `result.json`, which is the same after a stop."""
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
        return {
            **plain,
            "candidates": [each.to_plain() for each in self.candidates],
            "export": EXPORT,
            "report": REPORT,
        }


def run_pipeline(
    config: PipelineConfig | Mapping[str, Any] | str | Path,
    out: str | Path,
    *,
    workers: int = 1,
    ray: str | None = None,
    watcher: ProgressListener | None = None,
    began: float | None = None,
) -> PipelineResult:
    """From a log to an exported policy and a statement about it, all in the folder `out`.

    `config` are options of `PipelineConfig`, or a YAML file with them. The same call goes on where an earlier one was
    stopped, at whatever point. Where nothing is shown to be better than the data, the clone of the logged behaviour is
    exported, and the result says so. Runs are trained by `workers` processes here, or on the Ray cluster with the
    address `ray`; everything else is done here. The time runs from now on, or from `began`, a moment of
    `time.monotonic()`.
    """
    watcher = watcher or ProgressListener()
    if workers < 1:
        raise ConfigError(f"a pipeline needs at least one worker, got {workers}")
    require_onnx()
    workers = count_workers(workers, ray)
    space = Workspace(out, read_pipeline(config))
    clock = Clock(space.out, space.config.time, began)
    clock.enter(STAGES[0])
    watcher.on_stage(STAGES[0])
    audit, parts = prepare_data(space)
    candidates = _candidates(space.config, parts)
    watcher.on_news(_describe_data(audit, parts, candidates))
    clock.enter("plan")
    watcher.on_stage("plan")
    plan = make_plan(space, parts, candidates, workers, clock)
    watcher.on_news(plan.describe())
    work = _Work(space, parts, plan, clock, watcher)
    runs = work.train(candidates, workers, ray)
    found = work.select([name for name in plan.judged if runs[name]["status"] == "done"])
    clone = str(_clone(runs))
    claim, claimed = work.claim(found)
    ending = conclude(parts, found, claim, clone=clone)
    page = work.page([name for name, run in runs.items() if run["status"] == "done"], ending, found, claim)
    work.export(ending, found, claimed, page)
    work.report(page)
    result = PipelineResult(
        space.out,
        **asdict(ending),
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


def _candidates(config: PipelineConfig, parts: Parts) -> list[Candidate]:
    if config.algorithms:
        return named_candidates(config.algorithms, parts.facts, gamma=config.gamma)
    return choose_candidates(parts.facts, gamma=config.gamma)


def _describe_data(audit: Mapping[str, Any], parts: Parts, candidates: Sequence[Candidate]) -> list[str]:
    """What was found in the data, how it is split, and what is tried on it, in sentences."""
    verdicts = [each["verdict"] for each in audit["findings"]]
    warnings = [
        f"{each['verdict']}: {each['message']}" for each in audit["findings"] if each["verdict"] in ("warn", "fail")
    ]
    split = ", ".join(f"{count:,} for {_PURPOSES[part]}" for part, count in parts.episodes.items())
    few = "" if parts.has_claim else "; too few to set some aside for the claim, which is then made on selection data"
    return [
        f"audit: {count_verdicts(verdicts)}",
        *warnings,
        f"episodes: {split}{few}",
        *parts.facts.describe(),
        f"actions: {parts.says}",
        *(f"try {each.name}: {each.reason}" for each in candidates),
    ]


_PURPOSES = {"train": "training", "selection": "the choice", "claim": "the claim"}


def _clone(runs: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The first clone of the behaviour that was trained."""
    return next((name for name, run in runs.items() if is_clone(name) and run["status"] == "done"), None)


@dataclass(frozen=True)
class _Work:
    """The stages after the plan."""

    space: Workspace
    parts: Parts
    plan: Plan
    clock: Clock
    watcher: ProgressListener

    def begin(self, stage: str) -> None:
        """A stage begins."""
        self.clock.enter(stage)
        self.watcher.on_stage(stage)

    def train(self, candidates: Sequence[Candidate], workers: int, ray: str | None) -> dict[str, dict[str, Any]]:
        """All runs, of which those that have ended are not started again; how each ended."""
        self.begin("training")
        configs = [
            run_config(self.space, self.parts, each, seed, self.plan)
            for seed in self.space.config.seeds
            for each in candidates
            if each.run_name(seed) in self.plan.runs
        ]
        names = [str(config.run_name) for config in configs]
        self.watcher.on_runs(len(names), names)
        ended = {
            name: self._ended(config) for name, config in zip(names, configs, strict=True) if self._has_ended(name)
        }
        for progress in ended.values():
            self.watcher.on_run(progress)
        open_configs = [config for config in configs if config.run_name not in ended]
        if open_configs:
            seconds = training_seconds(self.plan, self.clock)
            results = ExperimentManager().train_all(
                open_configs, workers=workers, ray=ray, resume=True, seconds=seconds, on_progress=self._tell
            )
            ended |= {str(each.name): each for each in results}
        if any(each.status == "interrupted" for each in ended.values()):
            raise KeyboardInterrupt
        runs = {name: self._outcome(ended[name]) for name in names}
        if _clone(runs) is None:
            errors = "\n".join(f"{name}: {each['error']}" for name, each in runs.items() if each["error"])
            raise UserError(f"no clone of the behaviour could be trained:\n{errors}")
        return runs

    def _tell(self, progress: SeedProgress) -> None:
        self.clock.tick()
        self.watcher.on_run(progress)

    def _has_ended(self, name: str) -> bool:
        return is_finished(self.space.out / "runs" / name)

    def _ended(self, config: TrainConfig) -> SeedProgress:
        made = int(read_json(self.space.out / "runs" / str(config.run_name) / "result.json")["update_count"])
        return SeedProgress(config.seed, "done", config.run_name, made, made)

    def _outcome(self, progress: SeedProgress) -> dict[str, Any]:
        """How a run ended, by what it wrote: that is the same whether it was stopped in between or not."""
        if progress.status != "done":
            return {"status": progress.status, "updates": progress.global_step, "metrics": {}, "error": progress.error}
        result = read_json(self.space.out / "runs" / str(progress.name) / "result.json")
        about = {"status": "done", "updates": result["update_count"], "metrics": result.get("metrics", {})}
        return {**about, "error": None}

    def select(self, names: Sequence[str]) -> dict[str, Any] | None:
        """The ranking of runs by the selection episodes and the choice, where rewards tell anything."""
        self.begin("selection")
        if not names:
            return None
        return self.space.stage(SELECTION, lambda: self._judge.choose(list(names)))

    def claim(self, found: Mapping[str, Any] | None) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """What may be said about the choice, and the estimates behind it where other episodes than its own say it."""
        self.begin("claim")
        if found is None or found["chosen"] is None:
            return None, None
        if not self.parts.has_claim:
            return found["claim"], None
        stored = self.space.stage(CLAIM, lambda: self._judge.claim(found["chosen"]))
        return stored["claim"], stored["estimates"]

    @property
    def _judge(self) -> Judge:
        return Judge(self.space, self.parts, self.plan, self.clock, self.watcher)

    def page(
        self, names: Sequence[str], ending: Ending, found: Mapping[str, Any] | None, claim: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """What the report is about, as options of `write_report`."""
        runs = self.space.out / "runs"
        return {
            "runs": [runs / name for name in names],
            "title": f"Policies from {Path(self.space.config.data).name}",
            "selection": None if found is None or found["estimates"] is None else {**found, "claim": claim},
            "dataset": str(self.parts.path("selection")),
            "chosen": runs / ending.chosen,
            "sentence": ending.sentence,
        }

    def export(
        self,
        ending: Ending,
        found: Mapping[str, Any] | None,
        claimed: Mapping[str, Any] | None,
        page: Mapping[str, Any],
    ) -> None:
        """Hand over the chosen policy, with what may be said of it and the report."""
        self.begin("export")
        if (self.space.out / EXPORT).exists():
            return
        remarks: dict[str, Any] = {
            "role": "clone of the logged behaviour" if ending.is_clone else "chosen policy",
            "claim": {"sentence": ending.sentence, "beats_the_data": ending.beats_the_data, "on": ending.claim_on},
        }
        for judged in [each for each in (claimed, found and found["estimates"]) if each]:
            own = [{**each, "path": None} for each in judged["policies"] if each["name"] == ending.chosen]
            if own:
                remarks["estimates"] = {**judged, "policies": own, "source": Path(judged["source"]).name}
                break
        about = {name: value for name, value in page.items() if name != "runs"}
        policy = load_policy(self.space.out / "runs" / ending.chosen)
        export_with_report(policy, self.space.out / EXPORT, remarks=remarks, runs=page["runs"], report=about)

    def report(self, page: Mapping[str, Any]) -> None:
        """Write everything that was found as one page."""
        self.begin("report")
        out = self.space.out
        # The page is written first, so that both are there once its content is.
        if (out / REPORT_CONTENT).exists():
            return
        write_report(out=out / REPORT, bundle=out / EXPORT, **page)
