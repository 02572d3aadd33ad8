"""The pipeline in this process: parts of the data, outcomes, refusals, and that it resumes after any stop."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from steering import steering_log

from rl_training import run_pipeline
from rl_training.core.errors import ConfigError, DatasetError
from rl_training.data import load_transition_dataset
from rl_training.experiment import ExperimentManager, ProgressListener, SeedProgress
from rl_training.pipeline.candidates import AlgorithmCandidate
from rl_training.pipeline.config import PipelineConfig, Workspace, read_pipeline
from rl_training.pipeline.outcome import conclude
from rl_training.pipeline.run import STAGES
from rl_training.pipeline.splits import DataSplits, prepare_data
from rl_training.pipeline.time_budget import TimeBudget, run_config
from rl_training.runtime import train, train_or_resume
from rl_training.runtime.callbacks import TimeBudgetCallback

SMALL: dict[str, Any] = {"hidden_sizes": [32], "batch_size": 64, "learning_rate": 3e-3}
QUICK: dict[str, Any] = {"updates": 150, "seeds": [0], "gamma": 0.8, "members": 4, "fit_updates": 320}
QUICK |= {"algorithms": ["td3_bc"], "algo_kwargs": SMALL}
LEARNED: dict[str, Any] = {**QUICK, "updates": 1000, "fit_updates": 800}
"""Enough for a policy that is clearly better than random steps, and for a fit that shows it."""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Writes a log of so many episodes; runs are trained in this process, which saves the start of others."""

    def train_all(_: Any, configs: Sequence[Any], **options: Any) -> list[SeedProgress]:
        results = []
        for config in configs:
            result = train_or_resume(config)
            results.append(SeedProgress(config.seed, "done", config.run_name, metrics=result.metrics))
            options["on_progress"](results[-1])
        return results

    monkeypatch.setattr(ExperimentManager, "train_all", train_all)

    def write(episodes: int, **changes: Any) -> str:
        arrays = {**steering_log(episodes), **changes}
        path = tmp_path / "log.npz"
        np.savez(path, **{name: value for name, value in arrays.items() if value is not None})
        return str(path)

    return write


def parts_of(data: str, out: Path, **options: Any) -> DataSplits:
    return prepare_data(Workspace(out, PipelineConfig(data=data, **options)))[1]


@pytest.mark.parametrize(("episodes", "counts"), [(100, (60, 20, 20)), (30, (10, 10, 10)), (29, (17, 12)), (3, (2, 1))])
def test_parts_share_no_episode_and_few_episodes_leave_no_claim(
    log: Callable[..., str], tmp_path: Path, episodes: int, counts: tuple[int, ...]
) -> None:
    parts = parts_of(log(episodes), tmp_path / "out")
    assert tuple(parts.episodes.values()) == counts
    assert parts.has_claim == (len(counts) == 3)
    firsts = [
        float(dataset.obs[start, 0])
        for part in parts.episodes
        for dataset in [load_transition_dataset(parts.path(part))]
        for start, _ in dataset.episode_bounds().tolist()
    ]
    every = steering_log(episodes)["observations"][::25, 0]
    assert sorted(firsts) == sorted(every.tolist())


def test_the_split_is_that_of_its_seed_and_bounds_are_those_of_all_data(
    log: Callable[..., str], tmp_path: Path
) -> None:
    data = log(100)
    first, again, other = (parts_of(data, tmp_path / name, seed=seed) for name, seed in (("a", 0), ("b", 0), ("c", 1)))
    rows = [load_transition_dataset(each.path("train")).fingerprint() for each in (first, again, other)]
    assert rows[0] == rows[1] != rows[2]
    actions = steering_log(100)["actions"]
    assert first.space == {"action_low": [float(actions.min())], "action_high": [float(actions.max())]}
    assert first.gamma == 0.96


def test_a_claim_is_made_on_episodes_that_chose_nothing(log: Callable[..., str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run_pipeline({"data": log(400), **LEARNED}, out)
    assert result.beats_the_data, result.sentence
    said = f"{result.chosen} is better than the data over the next 5 steps (discount 0.8), on 80 episodes that neither"
    assumed = "provided that everything that made the logged decisions what they were is in the observations."
    assert result.sentence == f"{said} training nor selection has seen, {assumed}"
    assert result.gamma == 0.8
    assert result.claim_on == "claim episodes"
    assert result.claim is not None
    assert (result.claim["episodes"], result.claim["basis"]) == (80, "held-out episodes")
    policy = json.loads((out / "export" / "policy.json").read_text())
    assert policy["role"] == "chosen policy"
    assert policy["policy"]["run"] == result.chosen
    assert policy["claim"] == {"sentence": result.sentence, "beats_the_data": True, "on": "claim episodes"}
    assert [each["name"] for each in policy["estimates"]["policies"]] == [result.chosen]
    assert policy["report"]["available"]
    for name in ("policy.json", "report.html"):
        assert str(tmp_path) not in (out / "export" / name).read_text()


def test_few_episodes_select_a_policy_and_claim_nothing(log: Callable[..., str], tmp_path: Path) -> None:
    result = run_pipeline({"data": log(28), **LEARNED}, tmp_path / "out")
    assert result.claim is not None
    assert (result.claim["basis"], result.claim_on) == ("selection episodes", "selection data")
    assert result.claim["verdict"] == "cannot be judged"
    assert not result.beats_the_data
    assert "the same 11 episodes selected it among 2" in result.sentence


def test_where_nothing_can_be_judged_the_clone_is_exported_and_marked(log: Callable[..., str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run_pipeline({"data": log(60), **QUICK, "updates": 20, "fit_updates": 40}, out)
    assert (result.chosen, result.is_clone, result.beats_the_data) == ("bc_seed0", True, False)
    why = "No policy can be judged by this log over the next 5 steps (discount 0.8): FQE was stopped too early"
    assert result.sentence.startswith(why)
    assert "The clone of the logged behaviour is exported, marked as such. It imitates" in result.sentence
    policy = json.loads((out / "export" / "policy.json").read_text())
    assert policy["role"] == "clone of the logged behaviour"
    assert policy["policy"]["algorithm"] == "bc"


def test_data_without_rewards_is_cloned_and_nothing_is_estimated(log: Callable[..., str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run_pipeline({"data": log(60, rewards=None), **QUICK, "algorithms": []}, out)
    assert list(result.runs) == ["bc_seed0"]
    assert result.selection is None
    assert result.sentence.startswith("Nothing can be called better: the data has no rewards.")
    assert not (out / "selection.json").exists()


class Stop(ProgressListener):
    """Ends a pipeline at the beginning of a stage, as a kill would."""

    def __init__(self, stage: str) -> None:
        self.stage, self.trained = stage, 0

    def on_stage(self, stage: str) -> None:
        if stage == self.stage:
            raise KeyboardInterrupt

    def on_run(self, progress: SeedProgress) -> None:
        self.trained += 1


def test_a_pipeline_that_is_stopped_before_any_stage_ends_as_if_it_had_not_been(
    log: Callable[..., str], tmp_path: Path
) -> None:
    config = {"data": log(120), **QUICK}
    straight = run_pipeline(config, tmp_path / "straight").to_plain()
    out = tmp_path / "stopped"
    for stage in STAGES:
        with pytest.raises(KeyboardInterrupt):
            run_pipeline(config, out, watcher=Stop(stage))
    made = {path: path.stat().st_mtime_ns for path in out.rglob("*.json")}
    stopped = run_pipeline(config, out).to_plain()
    assert plain(stopped, out) == plain(straight, tmp_path / "straight")
    kept = [path for path, moment in made.items() if path.stat().st_mtime_ns == moment]
    assert {"selection.json", "plan.json", "split.json"} <= {path.name for path in kept}


def test_a_run_on_a_table_that_was_stopped_in_the_middle_is_resumed(log: Callable[..., str], tmp_path: Path) -> None:
    table = tmp_path / "log.csv"
    rows = steering_log(20)
    cells = zip(np.repeat(np.arange(20), 25), rows["observations"][:, 0], rows["actions"][:, 0], strict=True)
    table.write_text("run,x,u,r\n" + "".join(f"{run},{x},{u},{-abs(x)}\n" for run, x, u in cells))
    columns = {"obs": ["x"], "actions": ["u"], "reward": "r", "episode": "run"}
    config = {"data": str(table), "columns": columns, **QUICK, "updates": 40, "fit_updates": 40}
    with pytest.raises(KeyboardInterrupt):
        run_pipeline(config, tmp_path / "out", watcher=Stop("training"))
    space = Workspace(tmp_path / "out", read_pipeline(config))
    parts = prepare_data(space)[1]
    budget = TimeBudget(("bc_seed0",), (), (), 0.8, members=4, fits=3, fit_updates=40, updates=40)
    begun = run_config(space, parts, AlgorithmCandidate("bc", "bc", ""), 0, budget)
    train(begun, callbacks=[TimeBudgetCallback(seconds=1e-9)])
    assert run_pipeline(config, tmp_path / "out").runs["bc_seed0"]["updates"] == 40


def test_the_page_has_the_audit_all_parts_all_columns_and_the_names_of_episodes(
    log: Callable[..., str], tmp_path: Path
) -> None:
    table, rows = tmp_path / "log.csv", steering_log(28)
    # A constant column, of which the audit warns, and more columns than a narrow table has room for.
    names = [f"x{place}" for place in range(12)]
    lines = [",".join(["run", *names, "u", "r"])]
    for row, (x, u) in enumerate(zip(rows["observations"][:, 0], rows["actions"][:, 0], strict=True)):
        more = [f"{x * np.cos(row * place):.4f}" for place in range(10)]
        lines.append(",".join([f"shift {row // 25:03d}", f"{x}", "7", *more, f"{u}", f"{-abs(x)}"]))
    table.write_text("\n".join(lines) + "\n")
    columns = {"obs": ["x*"], "actions": ["u"], "reward": "r", "episode": "run"}
    run_pipeline({"data": str(table), "columns": columns, **QUICK, "updates": 40, "fit_updates": 320}, tmp_path / "out")
    content = json.loads((tmp_path / "out" / "report.json").read_text())
    warned = [each for each in content["log"]["audit"]["findings"] if each["verdict"] == "warn"]
    page = (tmp_path / "out" / "report.html").read_text()
    assert warned
    assert all(f"<li>warn: {html.escape(each['message'], quote=False)}" in page for each in warned)
    assert "found nothing unusual" not in page
    assert content["behavior"]["most_different"]["features"] == names
    situation = content["behavior"]["most_different"]["rows"][0]
    assert situation["episode"].startswith("shift 0")
    own = np.array([line.split(",")[1:14] for line in lines if line.startswith(f"{situation['episode']},")], float)
    assert own[situation["step"]] == pytest.approx([*situation["observation"], *situation["logged"]], rel=1e-3)
    parts = {each["part"]: each for each in content["log"]["parts"]}
    assert list(parts) == ["all", "train", "selection"]
    assert [each["episodes"] for each in parts.values()] == [28, 17, 11]
    assert parts["selection"]["mean"] == pytest.approx(content["log"]["return_mean"])
    assert content["verdict"]["chosen"]["why"] == "it was chosen by the pipeline"
    assert "the log, selection episodes" in page
    assert "An unobserved cause (a hidden variable) of both actions and rewards is confounding" in page
    assert "everything that made the logged decisions what they were is in the observations" in page


def plain(result: dict[str, Any], out: Path) -> dict[str, Any]:
    """A result without its folder."""
    found: dict[str, Any] = json.loads(json.dumps(result, sort_keys=True).replace(str(out), "out"))
    return found


def test_a_folder_of_other_options_is_refused_by_name(log: Callable[..., str], tmp_path: Path) -> None:
    data, out = log(20), tmp_path / "out"
    parts_of(data, out, seeds=(0, 1))
    with pytest.raises(ConfigError, match=r"holds a pipeline with other options \(seeds: \[0, 1\], not \[3\]\)"):
        Workspace(out, PipelineConfig(data=data, seeds=(3,)))
    Workspace(out, PipelineConfig(data=data, seeds=(0, 1), accept_audit=True, minutes=10))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="holds something other than a pipeline"):
        Workspace(tmp_path / "mine", PipelineConfig(data=data))


def test_a_folder_belongs_to_its_data_from_wherever_the_command_is_given(
    log: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, out = log(20), tmp_path / "out"
    monkeypatch.chdir(tmp_path)
    first = parts_of("log.npz", out)
    monkeypatch.chdir("/")
    assert parts_of(data, out) == first


def test_data_that_changed_is_refused_and_data_that_was_only_touched_is_not(
    log: Callable[..., str], tmp_path: Path
) -> None:
    data, out = log(20), tmp_path / "out"
    parts_of(data, out)
    before = (out / "data" / "train.rlt").stat().st_ino
    Path(data).touch()
    parts_of(data, out)
    log(21)
    with pytest.raises(DatasetError, match=r"log.npz has changed since the pipeline in .* began"):
        parts_of(data, out)
    assert before
    assert (out / "data" / "train.rlt").is_dir()


def test_data_that_fails_the_audit_is_refused_unless_it_is_accepted(log: Callable[..., str], tmp_path: Path) -> None:
    wrong = steering_log(20)
    data, out = log(20, next_observations=wrong["observations"] * 3 + 5), tmp_path / "out"
    for _ in range(2):
        with pytest.raises(DatasetError, match=r"(?s)the audit refuses the data.*--accept-audit"):
            parts_of(data, out)
    assert not (out / "data" / "split.json").exists()
    assert parts_of(data, out, accept_audit=True).episodes == {"train": 12, "selection": 8}
    with pytest.raises(DatasetError, match="the audit refuses the data"):
        parts_of(data, out)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"minutes": 1, "updates": 10}, "minutes and updates both set the length"),
        ({"selection_fraction": 0.5, "claim_fraction": 0.5}, "leave no episodes to train on"),
        ({"algorithms": ["td3bc"]}, "did you mean 'td3_bc'"),
        ({"action_low": [-1]}, "action_low and action_high go together"),
        ({"minuets": 3}, "unknown option 'minuets'; did you mean 'minutes'"),
    ],
)
def test_mistakes_in_options_are_named(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        run_pipeline({"data": "log.npz", **options}, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_one_episode_is_too_few(log: Callable[..., str], tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="has 1 episode: selecting a policy needs at least 2"):
        run_pipeline({"data": log(1), **QUICK}, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def claimed(verdict: str, reasons: Sequence[str] = ()) -> dict[str, Any]:
    return {"name": "iql_seed0", "verdict": verdict, "reasons": list(reasons), "looks": 1}


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        ("not distinguishable", "it is not distinguishable from the data{horizon}"),
        ("worse than the data", "it is worse than the data{horizon}"),
        ("cannot be judged", "it cannot be judged{horizon}: importance sampling and FQE disagree"),
    ],
)
def test_a_selected_policy_that_the_claim_does_not_confirm_is_not_exported(
    log: Callable[..., str], tmp_path: Path, verdict: str, words: str
) -> None:
    parts = parts_of(log(100), tmp_path / "out")
    reasons = ["importance sampling and FQE disagree"] if verdict == "cannot be judged" else []
    outcome = conclude(parts, {"chosen": "iql_seed0"}, claimed(verdict, reasons), clone="bc_seed0")
    assert (outcome.chosen, outcome.is_clone, outcome.beats_the_data) == ("bc_seed0", True, False)
    said = words.format(horizon=" over the next 25 steps (discount 0.96)")
    assert f"on 20 episodes that neither training nor selection has seen, {said}" in outcome.sentence


def test_candidates_that_fail_are_not_taken_for_data_without_rewards(
    log: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_others(_: Any, configs: Sequence[Any], **options: Any) -> list[SeedProgress]:
        bad: dict[str, Any] = {"status": "failed", "error": "RuntimeError: no"}
        return [
            SeedProgress(each.seed, "done", each.run_name, metrics=train_or_resume(each).metrics)
            if each.algo == "bc"
            else SeedProgress(each.seed, name=each.run_name, **bad)
            for each in configs
        ]

    monkeypatch.setattr(ExperimentManager, "train_all", fail_others)
    config = {"data": log(120), **QUICK}
    result = run_pipeline(config, tmp_path / "out")
    assert [each["name"] for each in (result.selection or {})["candidates"]] == ["bc_seed0"]
    assert result.runs["td3_bc_seed0"]["error"] == "RuntimeError: no"
    parts = parts_of(config["data"], tmp_path / "other")
    assert conclude(parts, None, None, clone="bc_seed0").sentence.startswith("No policy was judged: the training of ")
