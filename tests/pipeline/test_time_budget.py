"""The time of a pipeline: what is planned for it, what it ends, and how it is counted."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from steering import steering_log

from rl_training import run_pipeline
from rl_training.core.errors import ConfigError
from rl_training.core.text import duration_text
from rl_training.experiment import manager, pools
from rl_training.pipeline import outcome, time_budget
from rl_training.pipeline.candidates import AlgorithmCandidate
from rl_training.pipeline.config import PipelineConfig, Workspace
from rl_training.pipeline.outcome import Judge, conclude
from rl_training.pipeline.splits import DataSplits, prepare_data
from rl_training.pipeline.time_budget import Clock, TimeBudget, describe_times, make_budget, run_config
from rl_training.runtime import train, train_or_resume
from rl_training.storage import is_finished, read_json

CANDIDATES = [AlgorithmCandidate(name, "bc", "") for name in ("bc", "iql", "td3_bc")]


@pytest.fixture
def parts(tmp_path: Path) -> DataSplits:
    """A log of 120 episodes in its three parts; its estimates look 25 steps ahead."""
    np.savez(tmp_path / "log.npz", **steering_log(120))
    return prepare_data(space(tmp_path))[1]


def space(tmp_path: Path, name: str = "out", **options: Any) -> Workspace:
    return Workspace(tmp_path / name, PipelineConfig(data=str(tmp_path / "log.npz"), minutes=10.0, **options))


def planned(
    tmp_path: Path, parts: DataSplits, monkeypatch: pytest.MonkeyPatch, speed: float, **options: Any
) -> TimeBudget:
    """The plan for ten minutes on a machine that makes so many updates of a fit with ten members per second."""
    monkeypatch.setattr(time_budget, "fit_speed", lambda path, gamma, members: speed * 10 / members)
    (tmp_path / "other").mkdir()
    return make_budget(space(tmp_path, "other", **options), parts, CANDIDATES, 2, Clock(tmp_path, 10.0))


ALL = ("bc_seed0", "iql_seed0", "td3_bc_seed0", "bc_seed1", "iql_seed1", "td3_bc_seed1")


def test_with_enough_time_everything_is_trained_and_judged(
    tmp_path: Path, parts: DataSplits, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(tmp_path, parts, monkeypatch, speed=500)
    assert set(plan.runs) == set(plan.judged) == set(ALL)
    # A clone can hardly win.
    assert plan.judged[-2:] == ("bc_seed0", "bc_seed1")
    assert (plan.members, plan.gamma, plan.left_out, plan.too_short) == (10, parts.gamma, (), None)
    # Six runs, the behaviour, and both again for the claim; kappa 5.
    assert (plan.fits, plan.fit_updates) == (9, 2500)
    assert plan.run_seconds == pytest.approx((600 - 20 - plan.fits_seconds) / 3, rel=0.01)


def test_where_time_is_short_there_are_fewer_members_then_fewer_seeds(
    tmp_path: Path, parts: DataSplits, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(tmp_path, parts, monkeypatch, speed=14)
    assert plan.members == 5
    assert plan.judged == ("iql_seed0", "td3_bc_seed0", "iql_seed1")
    assert plan.runs == ("bc_seed0", *plan.judged)
    assert any("the time is too short for td3_bc_seed1, bc_seed1" in line for line in plan.describe())
    assert any("over the next 25 steps (discount 0.96)" in line for line in plan.describe())


@pytest.mark.parametrize(("speed", "judged"), [(500, 6), (24, 2), (16, 1), (15, 0), (1, 0), (0.01, 0)])
def test_a_slow_machine_judges_fewer_policies_and_never_by_a_shorter_horizon(
    tmp_path: Path, parts: DataSplits, monkeypatch: pytest.MonkeyPatch, speed: float, judged: int
) -> None:
    plan = planned(tmp_path, replace(parts, gamma=0.98), monkeypatch, speed=speed)
    assert plan.gamma == 0.98
    assert plan.judged == ("iql_seed0", "td3_bc_seed0", "iql_seed1", "td3_bc_seed1", "bc_seed0", "bc_seed1")[:judged]
    assert "bc_seed0" in plan.runs
    assert (plan.too_short is None) == (judged > 0)


def test_where_no_policy_can_be_judged_the_plan_says_what_could_be_done(
    tmp_path: Path, parts: DataSplits, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(tmp_path, replace(parts, gamma=0.98), monkeypatch, speed=15)
    assert (plan.runs, plan.fits) == (("bc_seed0",), 0)
    why = "about 11 minutes would be needed for values over the next 50 steps (discount 0.98)"
    assert plan.too_short == f"{why}; --gamma 0.95 asks a shorter question"
    found = conclude(parts, None, None, clone="bc_seed0", too_short=plan.too_short)
    assert found.sentence.startswith(f"No policy was judged, for lack of time: {plan.too_short}.")
    assert found.sentence.endswith("is exported, marked as such.")


def test_what_was_asked_for_stays_as_it_was(tmp_path: Path, parts: DataSplits, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(tmp_path, parts, monkeypatch, speed=5, gamma=0.96, members=4)
    assert (plan.gamma, plan.members) == (0.96, 4)
    assert plan.run_seconds >= 0.15 * 600


def test_a_clone_ends_when_it_has_learned_all_and_short_runs_are_not_compiled(
    tmp_path: Path, parts: DataSplits
) -> None:
    plan = TimeBudget(ALL, ALL, (), parts.gamma, members=10, fits=9, fit_updates=2500, run_seconds=60.0)
    clone, learner = (run_config(space(tmp_path), parts, each, 0, plan) for each in CANDIDATES[:2])
    assert (clone.total_timesteps, learner.total_timesteps) == (5000, 1_000_000)
    assert clone.algo_kwargs["compile"] == "never"


def test_a_run_whose_time_is_over_ends_after_a_hundred_updates_with_an_evaluation(
    tmp_path: Path, parts: DataSplits
) -> None:
    plan = TimeBudget(ALL, ALL, (), parts.gamma, members=10, fits=9, fit_updates=2500, run_seconds=60.0)
    config = run_config(
        space(tmp_path, "other", algo_kwargs={"hidden_sizes": [8], "validation_fraction": 0.2}),
        parts,
        CANDIDATES[0],
        0,
        plan,
    )
    result = train(config, callbacks=[pools.TimeLimit(time.time(), 1.0)])
    assert not result.interrupted
    assert result.stop_reason == "its 1 seconds were over"
    assert is_finished(result.run_dir)
    assert read_json(result.run_dir / "result.json")["update_count"] == pools.FEWEST_UPDATES
    assert "action_mse" in result.metrics


def test_seconds_of_all_calls_count_and_the_time_between_them_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(time_budget, "time", type("Time", (), {"monotonic": staticmethod(lambda: now[0])}))
    first = Clock(tmp_path, 1.0)
    first.enter("data")
    now[0] = 10.0
    first.enter("training")
    now[0] = 14.0
    first.tick()
    now[0] = 16.0
    first.tick()
    now[0] = 1000.0
    again = Clock(tmp_path, 1.0)
    again.enter("training")
    now[0] = 1004.0
    assert (again.spent, again.left) == (20.0, 40.0)
    assert again.stop() == {"data": 10.0, "training": 10.0}
    assert describe_times(again.seconds, 1.0) == "20 seconds of 60 seconds: data 10 seconds, training 10 seconds"
    assert Clock(tmp_path, None).left is None
    assert [duration_text(each) for each in (0.2, 100, 3600)] == ["1 second", "1.7 minutes", "60 minutes"]


@pytest.fixture
def hurried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Options of a pipeline whose runs end, or continue, with as few updates as a time limit allows."""

    def train_all(_: Any, configs: Any, **options: Any) -> list[pools.SeedProgress]:
        assert options["seconds"] > 0
        ended = []
        for each in configs:
            result = train_or_resume(each, callbacks=[pools.TimeLimit(time.time(), 1.0)])
            ended.append(pools.SeedProgress(each.seed, "done", each.run_name, metrics=result.metrics))
        return ended

    monkeypatch.setattr(manager.ExperimentManager, "train_all", train_all)
    np.savez(tmp_path / "log.npz", **steering_log(120))
    options = {"minutes": 1.0, "seeds": [0], "gamma": 0.8, "members": 3, "algorithms": ["td3_bc"]}
    small = {"hidden_sizes": [8], "batch_size": 32}
    return {"data": str(tmp_path / "log.npz"), "fit_updates": 320, **options, "algo_kwargs": small}


def test_more_minutes_in_the_same_folder_continue_the_work(
    tmp_path: Path, hurried: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, speed = tmp_path / "out", [0.01]
    monkeypatch.setattr(time_budget, "fit_speed", lambda *_: speed[0])
    monkeypatch.setattr(outcome, "fit_speed", lambda *_: speed[0])
    first = run_pipeline(hurried, out)
    assert first.sentence.startswith("No policy was judged, for lack of time: about ")
    assert (list(first.runs), first.runs["bc_seed0"]["updates"]) == (["bc_seed0"], pools.FEWEST_UPDATES)
    split, speed[0] = (out / "data" / "split.json").stat().st_mtime_ns, 1e5
    for looks, minutes in enumerate((5, 6), start=1):
        found = run_pipeline({**hurried, "minutes": minutes}, out)
        assert found.runs["bc_seed0"]["updates"] == pools.FEWEST_UPDATES + looks
        assert found.runs["td3_bc_seed0"]["updates"] == pools.FEWEST_UPDATES + looks - 1
        assert found.claim is not None
        assert found.claim["looks"] == looks
        assert read_json(out / "export" / "policy.json")["claim"]["sentence"] == found.sentence
        assert found.sentence in (out / "report.html").read_text()
    assert ("neither training nor selection has seen (but 1 earlier claim)" in found.sentence) == (looks == 2)
    assert (out / "data" / "split.json").stat().st_mtime_ns == split
    again = run_pipeline({**hurried, "minutes": 6}, out)
    assert again.to_plain() == found.to_plain()
    with pytest.raises(ConfigError, match=r"\(minutes: 6, which may be raised, not 5\)"):
        run_pipeline({**hurried, "minutes": 5}, out)


def test_if_the_time_is_over_before_selection_the_clone_is_exported(
    tmp_path: Path, hurried: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Judge, "_affordable", lambda *_: (50, 1.0))
    monkeypatch.setattr(Clock, "left", property(lambda self: -100.0 if self.stage == "selection" else 60.0))
    result = run_pipeline(hurried, tmp_path / "out")
    late = "No policy was judged, for lack of time: the time was over before the first value over the next 5 steps"
    assert result.sentence.startswith(late)
    assert "It imitates the logged behaviour on average; on held-out episodes its actions differ by " in result.sentence
    assert result.sentence.endswith("it may be worse than each of them, and than the log.")
    assert (result.is_clone, result.claim) == (True, None)
    assert set(json.loads((tmp_path / "out" / "time.json").read_text())) >= {"data", "training", "selection"}
    assert result.report.is_file()


def test_a_schedule_needs_a_number_of_updates() -> None:
    options: dict[str, Any] = {"data": "log.npz", "algo_kwargs": {"learning_rate_schedule": "cosine"}}
    with pytest.raises(ConfigError, match="learning_rate_schedule needs the length of a run: give updates"):
        PipelineConfig(**options)
    assert PipelineConfig(**options, updates=10).updates == 10
