"""The command `estimate`: runs on their own data and on other logs, what is stored, and mistakes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import Command, call_main
from steering import Act, away, steering_log, towards

from rl_training import BC, SAC, estimate
from rl_training.core.errors import ConfigError
from rl_training.runtime import load_policy

FAST = ("--updates", "250", "--members", "3", "--gamma", "0.8", "--hidden-sizes", "16")


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """The command, in a folder of its own with a log."""
    monkeypatch.chdir(tmp_path)
    np.savez("log.npz", **steering_log(60))
    return partial(call_main, monkeypatch, capsys)


def train(name: str, policy: Act | None = towards, **options: Any) -> None:
    """A clone of a policy, on the log with its actions, or of the log itself."""
    defaults: Any = {"total_timesteps": 600, "hidden_sizes": (16,), "learning_rate": 3e-3, "output_dir": "runs"}
    source = {"dataset_path": "log.npz"} if policy is None else {"dataset_path": f"{name}.npz"}
    if policy is not None:
        log = steering_log(60)
        np.savez(f"{name}.npz", **{**log, "actions": np.float32(policy(log["observations"]))})
    BC(run_name=name, log_interval=600, **{**defaults, **source, **options}).learn()


def test_several_runs_are_judged_on_one_log_and_each_keeps_its_result(command: Command) -> None:
    train("good")
    train("bad", away)
    answer = command("estimate", "runs", "--data", "log.npz", *FAST, "--out", "all.json")
    assert answer.code == 0, answer.err
    assert "log.npz: 60 episodes, 1,500 rows; whether the policies were trained on them is not known" in answer.out
    assert "250 updates, kappa 2.5, networks of 16, 1 + 3 ensemble members" in answer.out
    assert "stored in runs/good/estimate.json" in answer.out
    stored = json.loads(Path("runs/good/estimate.json").read_text())
    assert [each["name"] for each in stored["policies"]] == ["runs/good"]
    both = json.loads(Path("all.json").read_text())
    assert [each["name"] for each in both["policies"]] == ["runs/bad", "runs/good"]
    assert both["gamma"] == 0.8
    # 2.5 is too little, whatever the numbers are.
    assert "runs/good cannot be judged: FQE was stopped too early (kappa 2.5, at least 3 is needed)" in answer.out
    assert "No policy can be judged by this log." in answer.out


def test_the_better_run_is_named(command: Command) -> None:
    train("good")
    train("bad", away)
    # So many updates that the estimates come to rest.
    more = ("--data", "log.npz", *FAST, "--updates", "2000", "--gamma", "0.9", "--members", "6")
    answer = command("estimate", "runs/good", "runs/bad", *more, "--out", "found.json")
    assert answer.code == 0, answer.err
    found = json.loads(Path("found.json").read_text())
    assert found["best"] == ["runs/good"]
    verdicts = {each["name"]: each["verdict"] for each in found["policies"]}
    assert verdicts == {"runs/good": "better than the data", "runs/bad": "worse than the data"}
    assert "The best is runs/good, which is better than the data." in answer.out
    assert "safe" in answer.out


def test_a_run_is_judged_on_its_own_held_out_episodes_with_raw_rewards(command: Command) -> None:
    train("clone", None, validation_fraction=0.4, env_id=None)
    answer = command("estimate", "runs/clone", *FAST, "--json")
    found = json.loads(answer.out)
    assert (found["episodes"], found["is_held_out"]) == (24, True)
    assert found["relation"] == "held out: the policies were not trained on them"
    everything = json.loads(command("estimate", "runs/clone", *FAST, "--split", "all", "--json").out)
    assert (everything["episodes"], everything["is_held_out"]) == (60, False)
    train("scaled", None, validation_fraction=0.4, env_id=None, reward_scale=100.0, normalize_obs=True)
    same = json.loads(command("estimate", "runs/scaled", *FAST, "--json").out)
    assert same["logged_value"] == pytest.approx(found["logged_value"], rel=1e-6)
    both = json.loads(command("estimate", "runs", *FAST, "--json").out)
    assert len(both["policies"]) == 2


def test_a_policy_that_sees_normalised_observations_is_the_same_as_a_function_of_raw_ones(command: Command) -> None:
    train("clone", towards, normalize_obs=True)
    saved = load_policy("runs/clone")
    options: Any = {"gamma": 0.8, "members": 2, "updates": 60, "hidden_sizes": (16,)}
    log = steering_log(60)
    run = estimate({"run": saved}, log, **options)["run"]
    logged = torch.from_numpy(log["observations"])
    mean, std = logged.mean(0), logged.std(0, correction=0) + 1e-3

    def by_hand(obs: Any) -> Any:
        """The network for normalised observations, and its actions in native units, which are in [-2, 2]."""
        normalised = (torch.from_numpy(obs) - mean) / std
        return 2 * saved.policy.model.act(normalised, deterministic=True).numpy()

    function = estimate({"function": by_hand}, log, **options)["function"]
    assert run.raw_value == pytest.approx(function.raw_value, rel=1e-3)
    assert not np.allclose(
        saved.predict(log["observations"]), by_hand(log["observations"] * std.numpy() + mean.numpy())
    )
    assert estimate({"run": "runs/clone"}, log, **options)["run"].raw_value == run.raw_value


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("runs/nothing",), "'runs/nothing' does not exist"),
        (("runs", "--split", "most"), "--split must be auto, held-out or all, got 'most'"),
        (("runs", "--out", "all.txt"), "--out expects a file that ends with .json"),
        (("runs", "--hidden-sizes", "wide"), "--hidden-sizes 'wide': expected whole numbers"),
        (("runs", "--gamma", "1"), "gamma 1 needs episodes that terminate, and 0 % of these do"),
        (("runs", "--data", "log.npy"), "log.npy"),
        (("runs", "--data", "other.npz"), "the dataset has obs_dim 3, the policy has 1"),
        (("runs", "--data", "log.npz", "--split", "held-out"), "a log named by --data is used as a whole"),
    ],
)
def test_mistakes_end_with_status_2_and_one_sentence(command: Command, arguments: tuple[str, ...], words: str) -> None:
    train("clone", None, env_id=None, total_timesteps=2)
    wide = dict.fromkeys(("observations", "next_observations"), np.zeros((100, 3)))
    np.savez("other.npz", **{**steering_log(4), **wide})
    answer = command("estimate", *arguments)
    assert answer.code == 2
    assert words in answer.err
    assert not Path("runs/clone/estimate.json").exists()


def test_runs_on_different_data_need_one_log(command: Command) -> None:
    train("one", None, env_id=None, total_timesteps=2)
    train("two", towards, total_timesteps=2)
    answer = command("estimate", "runs")
    assert answer.code == 2
    assert "the runs were trained on different data (dataset_path): evaluate them on one log, with --data" in answer.err


def test_a_run_without_a_log_needs_one(command: Command, tmp_path: Path) -> None:
    small: Any = {"hidden_sizes": (8,), "total_timesteps": 4, "learning_starts": 2, "eval_episodes": 1}
    SAC(env="Pendulum-v1", run_name="acting", output_dir="runs", **small).learn()
    answer = command("estimate", "runs")
    assert answer.code == 2
    assert "an online run of sac has no log: name one, with --data" in answer.err


def test_data_that_was_given_as_an_object_must_be_given_again(command: Command) -> None:
    BC(dataset=steering_log(60), run_name="given", output_dir="runs", hidden_sizes=(8,), total_timesteps=2).learn()
    with pytest.raises(ConfigError, match="given its data as an object: pass it again, as dataset="):
        estimate("runs/given")
    found = estimate("runs/given", steering_log(60), gamma=0.8, members=2, updates=5)
    assert found.policies[0].path == "runs/given/checkpoints/latest.pt"


FLAGS = (
    *("--obs-columns", "age", "--action-columns", "item", "--reward-column", "click"),
    *("--propensity-column", "chance", "--episodes", "each_row"),
)
QUICK = ("--updates", "80", "--members", "2", "--hidden-sizes", "8")


@pytest.fixture
def shop_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """The command, in a folder with a table of single decisions and a clone of what was decided."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    ages, items = rng.normal(size=600), rng.integers(3, size=600)
    clicks = rng.uniform(size=600) < 0.2 + 0.2 * items
    rows = [
        f"{age:.4f},{'abc'[item]},{int(click)},0.3333" for age, item, click in zip(ages, items, clicks, strict=True)
    ]
    Path("shop.csv").write_text("\n".join(["age,item,click,chance", *rows]) + "\n")
    columns = {"obs": ["age"], "actions": ["item"], "reward": "click", "propensity": "chance", "episodes": "each_row"}
    more: Any = {"env_id": None}
    BC(
        **more,
        dataset_path="shop.csv",
        dataset_columns=columns,
        run_name="clone",
        output_dir="runs",
        hidden_sizes=(8,),
        total_timesteps=150,
        log_interval=150,
    ).learn()
    return partial(call_main, monkeypatch, capsys)


def test_a_table_of_single_decisions_is_evaluated_by_importance_sampling_beside_fqe(
    shop_command: Command,
) -> None:
    answer = shop_command("estimate", "runs/clone", "--data", "shop.csv", *FLAGS, *QUICK)
    assert answer.code == 0, answer.err
    assert "a value is the mean reward of one decision" in answer.out
    assert "Importance sampling: episodes count more if the policy would have acted as the log did." in answer.out
    assert "SNIPS: rewards weighted by their actions" in answer.out
    assert "80 more updates per policy" in answer.out
    assert (
        "runs/clone: importance weights evaluate the stochastic policy; FQE evaluates its most likely action"
        in answer.out
    )
    stored = json.loads(Path("runs/clone/estimate.json").read_text())
    weighted = stored["weighted"][0]
    assert (weighted["name"], weighted["recommended"], weighted["is_drawn"]) == ("runs/clone", "SNIPS", True)
    # A clone of uniform actions is about as good as the log.
    assert weighted["estimates"][0]["value"] == pytest.approx(stored["logged_value"], abs=0.06)


@pytest.mark.parametrize("option", ["--no-importance", "--no-weights"])
def test_importance_sampling_can_be_left_out_by_either_name_of_the_option(shop_command: Command, option: str) -> None:
    answer = shop_command("estimate", "runs/clone", "--split", "all", option, *QUICK)
    assert answer.code == 0, answer.err
    assert "No importance sampling: it was not asked for." in answer.out


def test_columns_go_with_a_table_that_is_named(shop_command: Command) -> None:
    answer = shop_command("estimate", "runs/clone", *FLAGS, *QUICK)
    assert answer.code == 2
    assert "options for columns go with --data; runs know the columns of their own data" in answer.err
    answer = shop_command("estimate", "runs/clone", "--data", "shop.csv", *FLAGS, "--reward-column", "clicks")
    assert answer.code == 2
    assert "'clicks'" in answer.err


def test_a_log_is_refused_where_a_run_is_expected(shop_command: Command) -> None:
    answer = shop_command("estimate", "shop.csv", "--data", "shop.csv", *FLAGS)
    assert answer.code == 2
    assert "shop.csv is a log, not a policy" in answer.err
