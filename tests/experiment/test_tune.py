"""The search for good options: what it tries, what it stops, what it says of the result, and how it continues."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from steering import steering_log

from rl_training.config import dump_yaml, load_config
from rl_training.core.errors import ConfigError
from rl_training.experiment import tune as tuning
from rl_training.experiment.pools import ProgressListener, SeedProgress
from rl_training.experiment.tune import compare_scores, run_tuning
from rl_training.experiment.tune_spec import (
    check_space,
    open_study,
    packaged_spaces,
    pick_metric,
    plan_trial,
    read_space,
    read_tune,
)
from rl_training.runtime import read_options
from rl_training.storage import is_finished, read_json

OPTIONS: dict[str, Any] = {
    "env_id": "Pendulum-v1",
    "total_timesteps": 20,
    "eval_episodes": 1,
    "log_interval": 10,
    "checkpoint_interval": 10,
    "algo_kwargs": {
        "dataset_kind": "random",
        "dataset_size": 400,
        "batch_size": 16,
        "eval_interval": 5,
        "hidden_sizes": [8, 8],
    },
}
SPACE = {
    "algo_kwargs.bc_alpha": {"low": 1.0, "high": 10.0, "log": True},
    "algo_kwargs.hidden_sizes": [[8, 8], [4]],
    "algo_kwargs.policy_delay": {"low": 1, "high": 3, "int": True},
}


def small(**changes: Any) -> dict[str, Any]:
    spec = {"config": "td3_bc", "options": OPTIONS, "space": SPACE, "trials": 3, "check_seeds": "100-103"}
    return {**spec, **changes}


class Watcher(ProgressListener):
    def __init__(self) -> None:
        self.news: list[str] = []
        self.told: list[SeedProgress] = []

    def on_news(self, lines: Sequence[str]) -> None:
        self.news += lines

    def on_run(self, progress: SeedProgress) -> None:
        self.told.append(progress)

    @property
    def ends(self) -> dict[str, str]:
        """How the trials ended."""
        return {str(each.name): each.status for each in self.told if each.has_ended and "trial " in str(each.name)}


def test_a_search_tries_compares_and_hands_over(tmp_path: Path) -> None:
    watcher, out = Watcher(), tmp_path / "search"
    result = run_tuning(small(), out, watcher=watcher)
    assert watcher.ends == {"trial 0": "done", "trial 1": "done", "trial 2": "done"}
    assert [line.partition(":")[0] for line in watcher.news[1:4]] == ["trial 0", "trial 1", "trial 2"]
    tried = [load_config(run / "config.yaml").algo_kwargs for run in sorted((out / "trials").iterdir())]
    for kwargs in tried:
        assert 1 <= kwargs["bc_alpha"] <= 10
        assert kwargs["hidden_sizes"] in ([8, 8], [4])
        assert kwargs["policy_delay"] in (1, 2, 3)
    # The best configuration is one that train takes, with the options of the best trial.
    config = load_config(out / "best.yaml")
    for key, value in result.params.items():
        assert config.algo_kwargs[key.removeprefix("algo_kwargs.")] == value
    assert result.params == {key: tried[result.number][key.removeprefix("algo_kwargs.")] for key in SPACE}
    read_options(config)
    assert len(result.check.best) == len(result.check.default) == 4
    stored = read_json(out / "result.json")
    assert stored["trials"] == {"complete": 3, "pruned": 0, "failed": 0}
    assert stored["sentence"] == result.check.sentence
    assert (out / "history.png").stat().st_size > 1000
    # The same call again trains nothing, and says the same.
    before = sorted(path.stat().st_mtime_ns for path in out.glob("*/*/checkpoints/latest.pt"))
    again = run_tuning(small(), out)
    assert again.to_plain() == result.to_plain()
    assert sorted(path.stat().st_mtime_ns for path in out.glob("*/*/checkpoints/latest.pt")) == before


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that does not train its best options again."""
    monkeypatch.setattr(tuning, "check_best", lambda *_, **__: compare_scores("return_mean", [], []))


def test_runs_without_prospect_are_stopped(tmp_path: Path, unchecked: None) -> None:
    kwargs = {**OPTIONS["algo_kwargs"], "eval_interval": 50}
    options = {**OPTIONS, "total_timesteps": 3000, "algo_kwargs": kwargs}
    spec, out = read_tune(small(trials=4, startup_trials=1, options=options)), tmp_path / "out"
    out.mkdir()
    study = open_study(spec, out / "study.journal")
    # A trial of long ago whose every score is out of reach.
    trial = study.ask()
    for step in range(50, 3001, 50):
        trial.report(1e6, step)
    study.tell(trial, 1e6)
    watcher = Watcher()
    run_tuning(spec, out, watcher=watcher)
    assert watcher.ends == {"trial 1": "pruned", "trial 2": "pruned", "trial 3": "pruned"}
    stopped = [each for each in watcher.told if each.status == "pruned"]
    assert len(stopped) == 3
    assert all(each.global_step < 3000 for each in stopped)


def test_options_that_come_again_get_the_next_seed(tmp_path: Path, unchecked: None) -> None:
    run_tuning(small(space={"algo_kwargs.bc_alpha": [2.0]}, trials=2), tmp_path / "out")
    runs = sorted(path.name for path in (tmp_path / "out" / "trials").iterdir())
    assert ["__seed0__" in runs[0], "__seed1__" in runs[1]] == [True, True]


@pytest.mark.parametrize("kind", ["journal", "database"])
def test_several_folders_work_on_one_study(kind: str, tmp_path: Path, unchecked: None) -> None:
    storage = str(tmp_path / "shared.journal") if kind == "journal" else f"sqlite:///{tmp_path / 'shared.db'}"
    shared = {"storage": storage, "study": "shared", "sampler": "random"}
    run_tuning(small(trials=1, **shared), tmp_path / "first")
    watcher = Watcher()
    result = run_tuning(small(trials=2, **shared), tmp_path / "second", watcher=watcher)
    # The first trial counts, and is not trained again.
    assert watcher.ends == {"trial 1": "done"}
    assert result.trials["complete"] == 2
    assert len(list((tmp_path / "second" / "trials").iterdir())) == 1


def test_a_trial_that_fails_does_not_end_the_search(tmp_path: Path) -> None:
    (tmp_path / "no.npz").write_bytes(b"PK")
    kwargs = {name: value for name, value in OPTIONS["algo_kwargs"].items() if not name.startswith("dataset")}
    spec = small(options={**OPTIONS, "algo_kwargs": {**kwargs, "dataset_path": str(tmp_path / "no.npz")}}, trials=2)
    watcher = Watcher()
    with pytest.raises(Exception, match=r"no trial has come to its end with a return_mean.*no\.npz"):
        run_tuning(spec, tmp_path / "out", watcher=watcher)
    assert watcher.ends == {"trial 0": "failed", "trial 1": "failed"}


def test_a_killed_search_continues(tmp_path: Path, unchecked: None) -> None:
    kwargs = {**OPTIONS["algo_kwargs"], "eval_interval": 750}
    options = {**OPTIONS, "total_timesteps": 1500, "checkpoint_interval": 50, "algo_kwargs": kwargs}
    spec = small(options=options, pruner="none", trials=2, sampler="random")
    file, out = tmp_path / "search.yaml", tmp_path / "out"
    file.write_text(dump_yaml(spec), encoding="utf-8")
    command = [sys.executable, "-m", "rl_training", "tune", str(file), "--out", str(out), "--workers", "2"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    # One is enough: its worker may be far ahead of the other.
    while not list(out.glob("trials/*/checkpoints/update_*[1-9]*.pt")):
        time.sleep(0.05)
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    # A directory that was killed while it was made has a hidden name, and is made again.
    runs = sorted(run for run in (out / "trials").iterdir() if not run.name.startswith("."))
    assert not all(map(is_finished, runs))
    begun = {
        f"trial {int(run.name[5:9])}"
        for run in runs
        if list(run.glob("checkpoints/update_*[1-9]*.pt")) and not is_finished(run)
    }
    watcher = Watcher()
    result = run_tuning(file, out, workers=2, watcher=watcher)
    assert result.trials == {"complete": 2, "pruned": 0, "failed": 0}
    # The trials that were begun went on; none was begun anew.
    assert {*runs} <= {*(out / "trials").iterdir()}
    assert min((each.global_step for each in watcher.told if str(each.name) in begun), default=1) > 0


@pytest.mark.slow
def test_without_an_environment_the_lower_bound_decides(tmp_path: Path, unchecked: None) -> None:
    """The policy that acts as the log does is judged; its score is the lower end of the interval."""

    np.savez(tmp_path / "log.npz", **steering_log(60))
    kwargs = {"dataset_path": str(tmp_path / "log.npz"), "batch_size": 32, "eval_interval": 100, "hidden_sizes": [16]}
    options = {**OPTIONS, "env_id": None, "total_timesteps": 100, "algo_kwargs": kwargs}
    spec = small(config="bc", options=options, space={"algo_kwargs.learning_rate": [0.003, 0.001]}, trials=1)
    result = run_tuning(spec, tmp_path / "out")
    assert result.metric == "fqe_lower"
    assert math.isfinite(result.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tirals": 3}, "unknown option 'tirals'; did you mean 'trials'?"),
        ({"space": "rebrak"}, "no packaged search space 'rebrak'; did you mean 'rebrac'?"),
        ({"space": {}}, "space must not be empty"),
        ({"space": {"algo_kwargs.bc_alfa": [1]}}, "'bc_alfa'; did you mean 'bc_alpha'?"),
        ({"space": {"algo_kwargs.bc_alpha": [-1.0]}}, "bc_alpha must be > 0"),
        ({"space": {"algo_kwargs.bc_alpha": {"low": 1}}}, "a range needs low and high"),
        ({"metric": "td_error"}, "metric must be one of"),
        ({"options": {**OPTIONS, "env_id": None}, "metric": "return_mean"}, "metric return_mean needs an environment"),
        ({"check_seeds": "100-101"}, "check_seeds must be at least 4"),
        ({"check_seeds": "0-4"}, "check_seeds must be fresh"),
        ({"storage": "nothing://here"}, "storage 'nothing' cannot be used"),
    ],
)
def test_mistakes_are_named(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        run_tuning(small(**changes), tmp_path / "out")


@pytest.mark.parametrize("algo", packaged_spaces())
def test_packaged_spaces_fit_their_algorithms(algo: str, tmp_path: Path) -> None:
    kwargs = {} if algo == "sac" else {"algo_kwargs": {"dataset_kind": "random"}}
    spec = read_tune({"config": algo, "options": {"env_id": "Pendulum-v1", "total_timesteps": 20, **kwargs}})
    default = plan_trial(spec, {}, tmp_path, seed=0)
    space = read_space(spec, default.config.algo)
    check_space(spec, space, tmp_path)
    assert pick_metric(spec, default) == "return_mean"


def test_what_is_said_depends_on_what_is_known() -> None:
    better = compare_scores("return_mean", [5.0, 6, 7, 8, 9], [0.0, 1, 2, 3, 4])
    assert better.sentence.endswith("they are better than the default options")
    same = compare_scores("return_mean", [1.0, 6, 2, 8, 3], [0.0, 7, 2, 3, 4])
    assert same.sentence.endswith("they are not distinguishable from the default options")
    worse = compare_scores("return_mean", [0.0, 1, 2, 3, 4], [5.0, 6, 7, 8, 9])
    assert "what the search found was chance" in worse.sentence
    few = compare_scores("return_mean", [1.0], [0.0], ["best: it failed"])
    assert "is not known" in few.sentence
