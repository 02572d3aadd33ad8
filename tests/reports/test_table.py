"""Tables over run directories."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_directories import Rows, make_run, returns

from rl_training.config import TrainConfig
from rl_training.core.errors import CheckpointError, ConfigError, UserError
from rl_training.core.statistics import bootstrap_interval
from rl_training.reports.runs import read_runs
from rl_training.reports.table import check_metric, pick_metrics, summarize
from rl_training.runtime import train
from rl_training.storage.metrics import encode_row


def test_a_row_says_what_the_seeds_of_one_task_come_to(tmp_path: Path) -> None:
    for seed, values in enumerate([(1.0, 9.0, 4.0), (2.0, 6.0), (3.0, 8.0), (0.0, 100.0)]):
        make_run(tmp_path, seed, returns(*values))

    (row,) = summarize(read_runs([tmp_path]))

    low, high = bootstrap_interval([[4.0, 6.0, 8.0, 100.0]])
    assert row == {
        "algo": "bc",
        "task": "Task-v0",
        "variant": "",
        "metric": "return_mean",
        "runs": 4,
        "last": pytest.approx((4 + 6 + 8 + 100) / 4),
        "best": pytest.approx((9 + 6 + 8 + 100) / 4),
        "iqm": pytest.approx(7.0),
        "interval": [low, high],
    }
    assert low <= row["iqm"] <= high


def test_algorithms_and_tasks_have_rows_of_their_own(tmp_path: Path) -> None:
    make_run(tmp_path, 0, returns(1.0), algo="td3_bc")
    make_run(tmp_path, 0, returns(2.0), env_id="Other-v0")
    make_run(tmp_path, 0, returns(3.0))
    make_run(tmp_path, 1, returns(5.0))

    rows = summarize(read_runs([tmp_path]))

    assert [(row["algo"], row["task"], row["runs"], row["last"]) for row in rows] == [
        ("bc", "Other-v0", 1, 2.0),
        ("bc", "Task-v0", 2, 4.0),
        ("td3_bc", "Task-v0", 1, 1.0),
    ]


@pytest.mark.parametrize(
    ("metric", "best"), [("return_mean", 9.0), ("td_error", 1.0), ("action_mse", 1.0), ("critic_loss", 1.0)]
)
def test_the_best_of_an_error_is_its_smallest_value(tmp_path: Path, metric: str, best: float) -> None:
    make_run(tmp_path, 0, [{metric: value} for value in (4.0, 1.0, 9.0, 2.0)])

    (row,) = summarize(read_runs([tmp_path]), metrics=[metric])

    assert (row["last"], row["best"]) == (2.0, best)


def test_a_run_without_an_environment_is_named_after_its_data(tmp_path: Path) -> None:
    make_run(tmp_path, 0, [{"td_error": 2.0}], env_id=None, kind="validation")

    (row,) = summarize(read_runs([tmp_path]))

    assert (row["task"], row["metric"], row["last"]) == ("log", "td_error", 2.0)


def test_runs_are_found_one_by_one_in_folders_and_by_patterns(tmp_path: Path) -> None:
    first, second = make_run(tmp_path / "a", 0, returns(1.0)), make_run(tmp_path / "b" / "deep", 1, returns(2.0))
    third = make_run(tmp_path / "b" / "deep", 2, returns(3.0))

    for names in ([first, tmp_path / "b"], [first, tmp_path / "*" / "*" / "bc__*"], [tmp_path], tmp_path):
        assert [record.path for record in read_runs(names)] == [first, second, third]


def test_runs_of_one_task_are_reported_by_the_same_metric(tmp_path: Path) -> None:
    make_run(tmp_path, 0, [{"td_error": 1.0, "action_mse": 2.0}], algo="td3_bc", env_id=None)
    make_run(tmp_path, 0, [{"action_mse": 3.0}], env_id=None)

    assert [row["metric"] for row in summarize(read_runs([tmp_path]))] == ["action_mse", "action_mse"]


def test_runs_without_a_common_metric_are_reported_each_by_its_own(tmp_path: Path) -> None:
    make_run(tmp_path, 0, [{"td_error": 1.0}], algo="td3_bc")
    make_run(tmp_path, 0, [{"action_agreement": 0.5}])

    assert [row["metric"] for row in summarize(read_runs([tmp_path]))] == ["action_agreement", "td_error"]


def test_each_metric_that_is_asked_for_has_rows_of_its_own(tmp_path: Path) -> None:
    make_run(tmp_path, 0, [{"return_mean": 1.0, "td_error": 2.0}])
    make_run(tmp_path, 0, [{"return_mean": 3.0}], algo="td3_bc")

    rows = summarize(read_runs([tmp_path]), metrics=["return_mean", "td_error"])

    assert [(row["algo"], row["metric"], row["last"]) for row in rows] == [
        ("bc", "return_mean", 1.0),
        ("bc", "td_error", 2.0),
        ("td3_bc", "return_mean", 3.0),
    ]


@pytest.mark.parametrize("runs", [1, 2, 3])
def test_fewer_than_three_runs_have_no_interval(tmp_path: Path, runs: int) -> None:
    for seed in range(runs):
        make_run(tmp_path, seed, returns(float(seed)))

    (row,) = summarize(read_runs([tmp_path]))

    assert (row["runs"], row["interval"] is None) == (runs, runs < 3)


def test_a_run_that_is_still_going_counts_with_what_it_has(tmp_path: Path) -> None:
    make_run(tmp_path, 0, returns(1.0))
    torn = make_run(tmp_path, 1, returns(3.0))
    with (torn / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "eval", "return_me')
    make_run(tmp_path, 2, [])

    with pytest.warns(UserWarning, match="line 3 is torn: left out"):
        (row,) = summarize(read_runs([tmp_path]))

    assert (row["runs"], row["last"]) == (2, 2.0)


def test_of_two_evaluations_at_one_timestep_the_second_counts(tmp_path: Path) -> None:
    run = make_run(tmp_path, 0, returns(1.0, 2.0))
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "eval", "global_step": 100, "return_mean": 5.0}) + "\n")

    assert read_runs([run])[0].curve("return_mean") == [(100, 5.0), (200, 2.0)]


@pytest.mark.parametrize(
    ("counters", "options", "acts_from"),
    [
        ([{"epoch": 1}], {}, None),
        ([{"env_steps": 100}, {"env_steps": 200}], {}, 0),
        ([{"env_steps": 0}, {"env_steps": 0}, {"env_steps": 50}], {}, 250),
        ([{"env_steps": 0}], {"offline_pretrain_updates": 500}, 500),
    ],
    ids=["offline", "online", "pretraining", "still pretraining"],
)
def test_a_run_knows_from_when_on_it_acts(
    tmp_path: Path, counters: Rows, options: dict[str, Any], acts_from: int | None
) -> None:
    run = make_run(tmp_path, 0, counters, algo_kwargs=options)

    assert read_runs([run])[0].acts_from == acts_from


def test_values_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    # JSON has no word for NaN, so the log says null.
    rows: Any = [{"return_mean": 1.0}, {"return_mean": None}]
    make_run(tmp_path, 0, rows)

    assert read_runs([tmp_path])[0].curve("return_mean") == [(100, 1.0)]


@pytest.mark.parametrize(
    ("rows", "metric"),
    [
        (
            [{"return_mean": 1.0, "normalized_score": 2.0}, {"return_mean": 1.0, "normalized_score": 3.0}],
            "normalized_score",
        ),
        ([{"return_mean": 1.0, "normalized_score": 2.0}, {"return_mean": 1.0}], "return_mean"),
        ([{"td_error": 1.0, "fqe_value": 1.0}, {"td_error": 1.0, "fqe_value": 1.0}], "fqe_value"),
        ([{"td_error": 1.0, "action_mse": 1.0}, {"action_mse": 1.0}], "action_mse"),
    ],
)
def test_the_most_telling_metric_that_all_runs_have_is_reported(tmp_path: Path, rows: Rows, metric: str) -> None:
    for seed, row in enumerate(rows):
        make_run(tmp_path, seed, [row])

    assert pick_metrics(read_runs([tmp_path])) == [metric]


def test_held_out_measures_are_shown_without_a_best_unless_they_are_named(tmp_path: Path) -> None:
    make_run(tmp_path, 0, [{"td_error": 2.0, "action_mse": 1.0}, {"td_error": 3.0, "action_mse": 4.0}], env_id=None)
    records = read_runs([tmp_path])

    shown = [(row["metric"], row["last"], row["best"]) for row in summarize(records)]
    assert shown == [("action_mse", 4.0, None), ("td_error", 3.0, None)]
    (named,) = summarize(records, metrics=["td_error"])
    assert (named["last"], named["best"]) == (3.0, 2.0)


@pytest.mark.parametrize("by", ["estimate", "selection"])
def test_an_estimate_from_the_log_comes_before_held_out_measures(tmp_path: Path, by: str) -> None:
    run = make_run(tmp_path, 0, [{"td_error": 2.0}], env_id=None)
    latest = {"path": str(run / "checkpoints" / "latest.pt"), "value": -3.5}
    judged = [{"path": str(run / "policies" / "step_000000100.pt"), "value": -9.0}, latest]
    if by == "estimate":
        (run / "estimate.json").write_text(json.dumps({"policies": judged}))
    else:
        (tmp_path / "selection.json").write_text(json.dumps({"candidates": judged}))

    (row,) = summarize(read_runs([tmp_path]))

    assert (row["metric"], row["last"], row["best"]) == ("fqe_value", -3.5, -3.5)


def test_a_policy_that_cannot_be_judged_has_no_value_to_report(tmp_path: Path) -> None:
    run = make_run(tmp_path, 0, [{"td_error": 2.0}], env_id=None)
    refused = {"path": str(run / "checkpoints" / "latest.pt"), "value": None}
    (run / "estimate.json").write_text(json.dumps({"policies": [refused]}))

    (row,) = summarize(read_runs([tmp_path]))

    assert (row["metric"], row["best"]) == ("td_error", None)


def test_runs_with_and_without_an_environment_are_reported_by_what_they_have(tmp_path: Path) -> None:
    make_run(tmp_path, 0, returns(1.0))
    make_run(tmp_path, 1, [{"td_error": 1.0}], env_id=None)

    assert {row["metric"] for row in summarize(read_runs([tmp_path]))} == {"return_mean", "td_error"}


def test_runs_that_differ_in_more_than_their_seed_are_not_averaged(tmp_path: Path) -> None:
    for seed, value in ((0, 1.0), (1, 3.0)):
        make_run(tmp_path, seed, returns(value), algo_kwargs={"learning_rate": 1e-3})
        make_run(tmp_path, seed, returns(10 * value), algo_kwargs={"learning_rate": 1e-4})

    rows = summarize(read_runs([tmp_path]))

    assert sorted((row["variant"], row["runs"], row["last"]) for row in rows) == [
        ("learning_rate=0.0001", 2, 20.0),
        ("learning_rate=0.001", 2, 2.0),
    ]


def test_variants_stand_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for rate in (10.0, 0.5, 1e-5, 2.5):
        make_run(tmp_path, 0, returns(1.0), algo_kwargs={"learning_rate": rate})

    rows = summarize(read_runs([tmp_path]))

    assert [row["variant"].partition("=")[2] for row in rows] == ["1e-05", "0.5", "2.5", "10.0"]


def test_an_option_that_only_some_runs_have_tells_them_apart(tmp_path: Path) -> None:
    make_run(tmp_path, 0, returns(1.0))
    make_run(tmp_path, 0, returns(1.0), algo_kwargs={"tau": 0.1})

    assert [row["variant"] for row in summarize(read_runs([tmp_path]))] == ["tau=0.1", "tau=None"]


def test_runs_without_an_evaluation_have_nothing_to_report(tmp_path: Path) -> None:
    make_run(tmp_path, 0, [])

    with pytest.raises(ConfigError, match="none of these runs has an evaluation yet"):
        summarize(read_runs([tmp_path]))


def test_a_folder_that_holds_no_run_is_refused_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()

    with pytest.raises(CheckpointError, match=f"'{folder}' holds no run"):
        read_runs([folder])


def _broken_config(run: Path) -> None:
    (run / "config.yaml").write_text("algo: bc\nsed: 1\n")


def _other_run(run: Path) -> None:
    (run / "metadata.json").write_text('{"run_id": "ab"}')
    (run / "metrics.jsonl").write_bytes(encode_row("eval", {"global_step": 1}, "cd"))


def _foreign_metrics(run: Path) -> None:
    (run / "metrics.jsonl").write_text('{"loss": 1.0}\n')


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_broken_config, "unknown option 'sed'; did you mean 'seed'"),
        (_other_run, r"metrics.jsonl, line 1, belongs to another run \(cd, this one is ab\)"),
        (_foreign_metrics, "metrics.jsonl' has a row without kind or global_step"),
    ],
)
def test_a_run_that_cannot_be_read_is_left_out_of_a_folder_and_refused_by_its_name(
    tmp_path: Path, damage: Callable[[Path], None], words: str
) -> None:
    whole, broken = make_run(tmp_path, 0, returns(1.0)), make_run(tmp_path, 1, returns(2.0))
    damage(broken)

    with pytest.warns(UserWarning, match=f"{broken} is left out: .*(\n.*)?{words}"):
        assert [record.path for record in read_runs(tmp_path)] == [whole]
    checkpoint = broken / "checkpoints" / "latest.pt"
    checkpoint.touch()
    for name in (broken, checkpoint):
        with pytest.raises(UserError, match=words):
            read_runs([name, whole])


def test_a_folder_in_which_no_run_can_be_read_is_refused(tmp_path: Path) -> None:
    _broken_config(make_run(tmp_path, 0, []))

    with pytest.warns(UserWarning, match="is left out"), pytest.raises(ConfigError, match="none of the 1 runs there"):
        read_runs([tmp_path])


def test_a_metric_that_no_run_has_is_answered_with_the_nearest_one(tmp_path: Path) -> None:
    make_run(tmp_path, 0, [{"return_mean": 1.0, "return_std": 2.0}])
    records = read_runs([tmp_path])

    check_metric(records, "return_std")
    with pytest.raises(ConfigError, match="no run reports 'return_men'; did you mean 'return_mean'"):
        check_metric(records, "return_men")
    with pytest.raises(ConfigError, match=r"no run reports 'zzz'; there are \['return_mean', 'return_std'\]"):
        check_metric(records, "zzz")


def test_the_report_of_a_real_run_agrees_with_its_result(tiny_config: Callable[..., TrainConfig]) -> None:
    result = train(tiny_config("bc"))

    (row,) = summarize(read_runs([result.run_dir]))

    assert (row["algo"], row["task"], row["runs"]) == ("bc", "Pendulum-v1", 1)
    assert row["last"] == row["iqm"] == result.metrics["return_mean"]
    assert row["best"] == result.best_metrics["return_mean"]
