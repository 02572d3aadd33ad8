"""The command, as a user types it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from functools import partial
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import TINY, Answer, Command, call_main

from rl_training import cli
from rl_training.algorithms import ALGORITHMS
from rl_training.cli import config as index
from rl_training.config import TrainConfig, load_config
from rl_training.core.errors import ConfigError
from rl_training.core.seeds import parse_seeds
from rl_training.diagnostics import doctor
from rl_training.experiment import list_algorithms
from rl_training.experiment.registry import describe_options
from rl_training.runtime import loop, predict, resume, run_options, train
from rl_training.storage import read_metrics

CHECKOUT = Path(__file__).parents[2]

FRAGILE = '''
"""An environment of five steps, in which exactly one process comes to harm."""

import os
from pathlib import Path

import gymnasium as gym
import numpy as np


class Fragile(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    made = 0

    def __init__(self, victim):
        Fragile.made += 1
        # The first is looked at, the second collects data, from the third on they are for evaluation.
        if Fragile.made == 3:
            try:
                Path(victim).touch(exist_ok=False)
            except FileExistsError:
                return
            os._exit(7)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.time += 1
        return np.full(2, self.time / 5, np.float32), float(action[0]), False, self.time == 5, {}


gym.register("Fragile-v0", entry_point=Fragile)
'''


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The entry point, called with these arguments."""

    return partial(call_main, monkeypatch, capsys)


@pytest.fixture
def train_tiny(command: Command, tmp_path: Path) -> Command:
    """`rl-training train` on a packaged config, made tiny."""

    def call(algo: str, *arguments: str) -> Answer:
        return command("train", "-c", f"{algo}/pendulum", *arguments, *TINY, f"output_dir={tmp_path / 'runs'}")

    return call


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, to look at."""
    output = tmp_path_factory.mktemp("finished")
    return train(load_config("td3_bc/pendulum", overrides=[*TINY, f"output_dir={output}"])).run_dir


def test_the_installed_command_is_this_one() -> None:
    (script,) = entry_points(group="console_scripts", name="rl-training")

    assert script.load() is cli.main


def test_training_shows_progress_and_says_what_it_came_to(train_tiny: Command, tmp_path: Path) -> None:
    answer = train_tiny("td3_bc")

    assert (answer.code, answer.err) == (0, "")
    (run,) = (tmp_path / "runs").iterdir()
    assert answer.out.startswith(f"run         {run}\ndata        random: 400 transitions in 2 episodes")
    assert re.search(r"^10/20  evaluation  return_mean", answer.out, re.MULTILINE)
    assert re.search(
        r"^meaning +the policy's mean return is \d+\.\d (above|below) the data's$", answer.out, re.MULTILINE
    )
    assert answer.out.endswith(f"Next: rl-training eval {run} --episodes 100\n")
    assert re.search(r"^policy +return -\d+\.\d ± \d+\.\d$", answer.out, re.MULTILINE)
    assert re.search(r"^data +return -\d+\.\d$", answer.out, re.MULTILINE)
    assert re.search(rf"^checkpoint +{run}/checkpoints/latest.pt$", answer.out, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "td3_bx"], "did you mean 'td3_bc'?"),
        (["eval", "nowhere"], "'nowhere' does not exist"),
        (["report"], "Missing argument"),
        (["eval", "--episodes", "0", "x"], "greater than or equal to 1"),
    ],
)
def test_where_json_was_asked_for_an_error_is_json_too(command: Command, arguments: list[str], words: str) -> None:
    answer = command(*arguments, "--json")

    assert (answer.code, answer.err) == (2, "")
    assert words in json.loads(answer.out)["error"]


def test_without_an_environment_the_end_says_what_is_not_known(command: Command, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "log.npz",
        observations=rng.normal(size=(200, 2)),
        actions=rng.uniform(0, 1, (200, 1)),
        rewards=np.ones(200),
        terminals=np.zeros(200, bool),
        timeouts=np.arange(1, 201) % 20 == 0,
    )

    answer = command("train", "td3_bc", "--data", tmp_path / "log.npz", "--total-timesteps=10", "--out", tmp_path)

    assert "ends        0 episodes terminated, 10 ended otherwise (time limits)" in answer.out
    assert "within [0, 1], assumed since all logged ones are" in answer.out
    assert "diagnostics on 1 episode held out (19 transitions)" in answer.out
    # 20 rewards of 1, discounted by 0.99.
    assert re.search(
        r"Its critic guesses \S+ \(discounted, transformed rewards\); held-out episodes had 18.2", answer.out
    )
    assert re.search(r"^Next: rl-training predict \S+ --obs observations.npy$", answer.out, re.MULTILINE)


def test_training_quietly_says_only_what_it_came_to(train_tiny: Command) -> None:
    answer = train_tiny("bc", "--quiet")

    assert answer.code == 0
    assert [line.split()[0] for line in answer.out.splitlines() if not line.startswith("best")] == [
        "policy",
        "data",
        "meaning",
        "run",
        "checkpoint",
        "Next:",
    ]


def test_training_with_json_prints_one_value_and_progress_on_standard_error(train_tiny: Command) -> None:
    answer = train_tiny("bc", "--json")

    assert "20/20  evaluation" in answer.err
    assert train_tiny("bc", "--json", "--quiet").err == ""
    result = json.loads(answer.out)
    ending = {"data_return", "stop_reason", "interrupted"}
    assert set(result) == {"run_dir", "checkpoint", "metrics", "best_metrics", *ending}
    assert Path(result["checkpoint"]).is_file()
    assert result["metrics"]["length_mean"] == 200
    assert json.loads((Path(result["run_dir"]) / "metadata.json").read_text())["command"][:2] == [
        "rl-training",
        "train",
    ]


def test_overrides_may_be_bare_words_after_set_and_the_last_one_wins(train_tiny: Command) -> None:
    answer = train_tiny("bc", "--json", "--set", "seed=1", "seed=2", "-s", "tags=[a, b]")

    config = load_config(Path(json.loads(answer.out)["run_dir"]) / "config.yaml")
    assert (config.seed, config.tags) == (2, ("a", "b"))


def test_a_config_may_be_a_path_through_the_checkouts_configs_link(command: Command) -> None:
    path = CHECKOUT / "configs" / "bc" / "pendulum.yaml"
    if not path.is_file():
        pytest.skip("only a checkout has the link")

    answer = command("config", "validate", path)

    assert (answer.code, answer.out) == (0, f"{path}: ok\n")


def test_eval_runs_the_policy_for_as_many_episodes_as_asked(command: Command, run_dir: Path) -> None:
    text = command("eval", run_dir, "--episodes", "2").out
    values = json.loads(command("eval", run_dir, "--episodes", "2", "--json").out)

    assert len(values["returns"]) == 2
    assert values["lengths"] == [200, 200]
    assert values["return_mean"] == pytest.approx(np.mean(values["returns"]))
    score = f"Pendulum-v1: return {values['return_mean']:.1f} ± {values['return_std']:.1f} over 2 episodes"
    assert text.splitlines()[:2] == [str(run_dir / "checkpoints" / "latest.pt"), score]


def test_eval_starts_from_the_seed_that_is_given(command: Command, run_dir: Path) -> None:
    first, second, again = (
        json.loads(command("eval", run_dir, "--json", "--episodes", "1", "--seed", seed).out)["returns"]
        for seed in ("1", "2", "1")
    )

    assert first == again
    assert first != second


def test_eval_repeats_what_training_saw_last_or_best(command: Command, run_dir: Path) -> None:
    result = json.loads((run_dir / "result.json").read_text())

    for options, metrics in (([], "metrics"), (["--best"], "best_metrics")):
        values = json.loads(command("eval", run_dir, "--json", *options).out)
        assert values["return_mean"] == pytest.approx(result[metrics]["return_mean"])


@pytest.mark.parametrize("ending", [".npy", ".json"])
def test_predict_reads_and_writes_files_and_agrees_with_the_library(
    command: Command, run_dir: Path, tmp_path: Path, ending: str
) -> None:
    obs = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    source, target = tmp_path / f"obs{ending}", tmp_path / f"actions{ending}"
    if ending == ".npy":
        np.save(source, obs)
    else:
        source.write_text(json.dumps(obs.tolist()))

    shown = command("predict", run_dir, "--obs", source, "--json")
    written = command("predict", run_dir, "--obs", source, "--out", target)

    expected = predict(run_dir, obs)
    np.testing.assert_allclose(json.loads(shown.out), expected, rtol=1e-6)
    actions = np.load(target) if ending == ".npy" else json.loads(target.read_text())
    np.testing.assert_allclose(actions, expected, rtol=1e-6)
    assert written == Answer(0, "", "")


def test_predict_prints_actions_when_told_nothing_else(command: Command, run_dir: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "obs.npy", np.zeros(3))

    answer = command("predict", run_dir, "--obs", tmp_path / "obs.npy")

    assert re.fullmatch(r"\[-?\d+\.\d+\]\n", answer.out)


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (("obs.npy", None), "does not exist"),
        (("obs.txt", b"1,2,3"), "must be a .npy, .json, .csv or .parquet file"),
        (("obs.csv", b"1,2,3"), "was not trained on a table"),
        (("obs.npy", b"hello"), "cannot be read"),
        (("obs.json", b"[[1, 2, 3"), "cannot be read"),
        (("obs.json", b'{"obs": [1, 2, 3]}'), "cannot be read"),
        (("obs.json", b'[["a", "b", "c"]]'), "cannot be read"),
        (("obs.json", b"[[1, 2]]"), "obs must have shape (3,) or (batch, 3), got (1, 2)"),
    ],
)
def test_observations_that_cannot_be_used_are_refused(
    command: Command, run_dir: Path, tmp_path: Path, file: tuple[str, bytes | None], words: str
) -> None:
    name, contents = file
    path = tmp_path / name
    if contents is not None:
        path.write_bytes(contents)

    answer = command("predict", run_dir, "--obs", path)

    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("error: ")
    assert words in answer.err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("actions.txt", "--out must end in .npy or .json"),
        ("missing/actions.npy", "cannot be written: No such file or directory"),
    ],
)
def test_actions_that_cannot_be_written_are_an_error_without_a_traceback(
    command: Command, run_dir: Path, tmp_path: Path, name: str, words: str
) -> None:
    np.save(tmp_path / "obs.npy", np.zeros((1, 3)))

    answer = command("predict", run_dir, "--obs", tmp_path / "obs.npy", "--out", tmp_path / name)

    assert answer.code == 2
    assert words in answer.err
    assert name in answer.err


def test_resume_continues_to_a_later_end(train_tiny: Command, command: Command) -> None:
    run = json.loads(train_tiny("bc", "--json").out)["run_dir"]

    answer = command("resume", run, "--set", "total_timesteps=40", "--json")

    assert answer.code == 0
    assert json.loads(answer.out)["run_dir"] == run
    rows = [row["update_count"] for row in read_metrics(Path(run)) if row["kind"] == "train"]
    assert rows == [10, 20, 30, 40]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A file of transitions."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {"observations": rng.normal(size=(400, 3)), "actions": rng.uniform(-1, 1, (400, 1))}
    arrays |= {"rewards": np.ones(400), "terminals": np.zeros(400, bool), "timeouts": np.arange(1, 401) % 50 == 0}
    np.savez(tmp_path / "log.npz", **arrays)
    return tmp_path / "log.npz"


@pytest.mark.parametrize("name", ["td3_bc", "td3_bc/pendulum"])
def test_an_algorithm_and_a_file_are_enough(name: str, command: Command, log: Path) -> None:
    length = ("--total-timesteps", "20", "--seed", "3", "--out", str(log.parent / "runs"))
    answer = command("train", name, "--data", log, *length, "env_id=null", "algo_kwargs.batch_size=16", "--json")

    assert answer.code == 0, answer.err
    config = load_config(Path(json.loads(answer.out)["run_dir"]) / "config.yaml")
    assert (config.algo, config.seed, config.total_timesteps) == ("td3_bc", 3, 20)
    assert config.algo_kwargs["dataset_path"] == str(log)
    # The paper's weight, or that of the packaged configuration.
    assert config.algo_kwargs["bc_alpha"] == (2.5 if name == "td3_bc" else 40.0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("td3bc",), "no config file or packaged config 'td3bc'; did you mean 'td3_bc'?"),
        (("bc", "-c", "bc/pendulum"), "'bc' and --config 'bc/pendulum' both name a configuration: give one"),
        (("bc", "--data", "lost.npz"), "dataset_path 'lost.npz' does not exist"),
    ],
)
def test_what_stands_first_is_a_configuration_or_an_algorithm(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = command("train", *arguments)

    assert answer.code == 2
    assert words in answer.err
    assert list(tmp_path.iterdir()) == []


def test_overrides_need_no_set_in_any_command(train_tiny: Command, command: Command) -> None:
    run = json.loads(train_tiny("bc", "--json").out)["run_dir"]

    resumed = command("resume", run, "total_timesteps=30", "--json")
    shown = command("config", "show", "bc/pendulum", "seed=7", "--json")

    assert json.loads(resumed.out)["metrics"]["update_count"] == 30
    assert json.loads(shown.out)["seed"] == 7


def test_the_version_is_printed(command: Command) -> None:
    assert command("--version") == (0, f"{version('rl-training')}\n", "")


def test_resume_may_set_options_that_were_null(train_tiny: Command, command: Command) -> None:
    run = json.loads(train_tiny("bc", "--json").out)["run_dir"]
    stopping = "algo_kwargs.early_stopping.threshold=200"

    answer = command(
        "resume",
        run,
        "--set",
        "total_timesteps=60",
        "--set",
        stopping,
        "--set",
        "algo_kwargs.early_stopping.metric=length_mean",
    )

    assert answer.code == 0
    assert "stopped after 30 updates: length_mean reached 200 (threshold 200)" in answer.out


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("sed=1", "unknown option 'sed'; did you mean 'seed'?"),
        # The names of the function's own arguments are not options.
        ("threads=1", "unknown option 'threads'"),
        ("path=elsewhere", "unknown option 'path'"),
        ("algo_kwargs.bc_aplha=1", "algo_kwargs: unknown option 'bc_aplha'; did you mean 'bc_alpha'?"),
        ("algo_kwargs.hidden_sizes=[4, 4]", "latest.pt does not fit the options of the networks: size mismatch"),
        ("algo_kwargs.dataset_seed=9", "the data is not what the run was trained on"),
    ],
)
def test_resume_refuses_what_the_run_cannot_become(command: Command, run_dir: Path, override: str, words: str) -> None:
    before = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}

    answer = command("resume", run_dir, "--set", override)

    assert answer.code == 2
    assert words in answer.err
    assert "Traceback" not in answer.err
    assert {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(("name", "status"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_an_interrupted_run_ends_with_the_status_of_the_signal_and_can_be_resumed(
    name: str, status: int, train_tiny: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(loop, "log", lambda session: signal.raise_signal(getattr(signal, name)))
        answer = train_tiny("bc", "--quiet")

    (run,) = (tmp_path / "runs").iterdir()
    assert answer.code == status
    assert answer.err == f"resume with: rl-training resume {run}\n"
    assert json.loads((run / "result.json").read_text())["stop_reason"] == f"interrupted by {name}"
    assert resume(run).stop_reason is None
    result = json.loads((run / "result.json").read_text())
    assert (result["update_count"], result["stop_reason"]) == (20, None)


def test_list_shows_each_algorithm_with_its_idea_and_configs(command: Command) -> None:
    text, rows = command("list").out, json.loads(command("list", "--json").out)

    names = [row["name"] for row in rows]
    assert {"bc", "td3_bc"} <= set(names)
    assert names == sorted(names)
    for row in rows:
        assert set(row) == {"name", "mode", "idea", "configs"}
        assert all(config in text for config in [row["name"], row["idea"], *row["configs"]])


def test_config_show_writes_out_every_option_and_can_be_trained_from(command: Command, tmp_path: Path) -> None:
    tiny = [word for override in TINY for word in ("--set", override)]
    path = tmp_path / "full.yaml"
    path.write_text(command("config", "show", "td3_bc/pendulum", *tiny).out, encoding="utf-8")

    shown = json.loads(command("config", "show", path, "--json").out)

    assert shown["algo_kwargs"]["policy_delay"] == 2
    assert shown["algo_kwargs"]["early_stopping"] is None
    assert shown == json.loads(command("config", "show", "td3_bc/pendulum", "--json", *tiny).out)
    assert command("train", "-q", "-c", path, f"output_dir={tmp_path / 'runs'}").code == 0


def test_config_explain_describes_the_outer_record_and_an_algorithms_groups(command: Command) -> None:
    outer = json.loads(command("config", "explain", "--json").out)
    groups = json.loads(command("config", "explain", "td3_bc", "--json").out)
    text = command("config", "explain", "td3_bc").out

    assert list(outer) == ["TrainConfig"]
    assert list(groups) == [
        "TrainConfig",
        "TD3BCHyper",
        "DataOptions",
        "LoopOptions",
        "OnlineOptions",
        "ControlOptions",
        "GuardOptions",
    ]
    assert "TD3BCHyper (in algo_kwargs)" in text
    assert re.search(r"^policy_delay +integer +>= 1 +2 +critic updates per actor update", text, re.MULTILINE)
    # Rich would take square brackets for colours.
    assert re.search(r"^hidden_sizes +list of integer +256, 256 ", text, re.MULTILINE)


def test_config_validate_checks_several_files_and_reports_all_that_are_wrong(command: Command, tmp_path: Path) -> None:
    for name, text in {"a": "algo: bc\nsed: 1\n", "b": "algo: td3_bc\nalgo_kwargs: {tau: 2}\n"}.items():
        (tmp_path / f"{name}.yaml").write_text(text)

    answer = command("config", "validate", tmp_path / "a.yaml", "bc/pendulum", tmp_path / "b.yaml")

    assert (answer.code, answer.out) == (2, "bc/pendulum: ok\n")
    assert answer.err == (
        f"error: {tmp_path}/a.yaml: 1 problem\n  unknown option 'sed'; did you mean 'seed'?\n"
        f"{tmp_path}/b.yaml: 1 problem\n  algo_kwargs: tau must be <= 1, got 2\n"
    )


def test_report_tables_runs_and_draws_them(command: Command, run_dir: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "curves.png"

    looks = ("--smooth", "2", "--title", "Curves", "--size", "6x4.5")
    text = command("report", run_dir.parent, "--plot", picture, *looks).out
    (row,) = json.loads(command("report", run_dir, "--json", "--plot", picture).out)

    assert text.splitlines()[0] == f"1 run in {run_dir.parent}: return_mean"
    assert re.search(rf"^td3_bc +Pendulum-v1 +1 +{row['last']:.0f} .* - *$", text, re.MULTILINE)
    assert f"curves in {picture}" in text
    several = command("report", run_dir, "--metric", "return_mean", "--metric", "length_mean").out
    assert re.findall(r"^td3_bc +Pendulum-v1 +(\w+) +1 ", several, re.MULTILINE) == ["return_mean", "length_mean"]
    assert picture.stat().st_size > 1000


def test_report_says_what_it_leaves_out_and_prints_nothing_but_json_if_asked(
    command: Command, run_dir: Path, tmp_path: Path
) -> None:
    for name in ("whole", "waiting", "broken"):
        shutil.copytree(run_dir, tmp_path / name)
    (tmp_path / "waiting" / "metrics.jsonl").unlink()
    (tmp_path / "broken" / "config.yaml").write_text("algo: [")

    with pytest.warns(UserWarning, match=f"{tmp_path / 'broken'} is left out: .*not valid YAML"):
        text, plain = command("report", tmp_path), command("report", tmp_path, "--json")
    refused = command("report", tmp_path / "broken")

    assert text.out.splitlines()[0] == f"2 runs in {tmp_path}, 1 without an evaluation yet: return_mean"
    assert len(json.loads(plain.out)) == 1
    assert (refused.code, refused.out) == (2, "")
    assert str(tmp_path / "broken" / "config.yaml") in refused.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--metric", "retrn_mean"], "no run reports 'retrn_mean'; did you mean 'return_mean'?"),
        (["--plot", f"{__file__}/curves.png"], f"the folder '{__file__}' does not exist"),
        (["--plot", "curves.gif"], "--plot 'curves.gif': expected one of the endings .png, .svg, .pdf"),
        (["--plot", "curves.png", "--size", "7"], "--size '7': expected width and height in inches"),
        (["--plot", "curves.png", "--size", "7x0"], "--size '7x0': expected width and height in inches"),
        (["--smooth", "3"], "--smooth, --title and --size change a picture; name its file with --plot"),
        (["--title", "Curves"], "--smooth, --title and --size change a picture; name its file with --plot"),
        (["--size", "7x4"], "--smooth, --title and --size change a picture; name its file with --plot"),
    ],
)
def test_report_refuses_what_it_cannot_do(command: Command, run_dir: Path, options: list[str], words: str) -> None:
    pytest.importorskip("matplotlib")

    answer = command("report", run_dir, *options)

    assert answer.code == 2
    assert answer.err.startswith("error: ")
    assert words in answer.err


@pytest.mark.parametrize(
    ("text", "seeds"), [("3", [3]), ("0-2", [0, 1, 2]), ("0,3,7", [0, 3, 7]), ("1-2,9", [1, 2, 9]), ("4-4", [4])]
)
def test_seeds_are_numbers_and_ranges(text: str, seeds: list[int]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "0-2-4", "1.5", "3-1", "²", "0-99999999999", "9" * 5000])
def test_seeds_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--seeds"):
        parse_seeds(text)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--workers", "2"], "--workers goes with --seeds"),
        (["--seeds", "0-1", "--workers", "0"], "--workers must be a number >= 1 or auto, got '0'"),
        (["--seeds", "0-1", "--workers", "many"], "--workers must be a number >= 1 or auto, got 'many'"),
    ],
)
def test_workers_that_make_no_sense_are_refused(train_tiny: Command, options: list[str], words: str) -> None:
    answer = train_tiny("bc", *options)

    assert (answer.code, answer.out, answer.err) == (2, "", f"error: {words}\n")


def test_a_worker_that_dies_is_reported_and_does_not_take_the_other_seeds_along(
    train_tiny: Command, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fragile_task.py").write_text(FRAGILE)
    monkeypatch.syspath_prepend(tmp_path)

    answer = train_tiny(
        "bc",
        "--seeds",
        "0-2",
        "--workers",
        "2",
        "--json",
        "env_id=fragile_task:Fragile-v0",
        f"env_kwargs.victim={tmp_path / 'victim'}",
    )

    results = {result["status"]: result for result in json.loads(answer.out)}
    assert [result["seed"] for result in json.loads(answer.out)] == [0, 1, 2]
    assert sorted(result["status"] for result in json.loads(answer.out)) == ["done", "done", "failed"]
    assert results["done"]["global_step"] == results["done"]["total"] == 20
    assert results["done"]["metrics"]["length_mean"] == 5
    dead = results["failed"]
    assert dead["error"] == f"the process ended with status 7; resume it with: rl-training resume {dead['run_dir']}"
    assert answer.code == 2
    assert f"seed {dead['seed']}  failed  {dead['error']}\n" in answer.err
    # What the message says can be done.
    assert resume(dead["run_dir"]).metrics["length_mean"] == 5


def _python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    # The narrowest terminal that still counts as one, to see that nothing depends on its width.
    environment = {**os.environ, "COLUMNS": "80"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def test_threads_that_wait_give_way_unless_the_user_has_decided(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def spins(**environment: str) -> str | None:
        for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
            # Set before it is deleted, or what the command sets would outlive this test.
            monkeypatch.setenv(name, "")
            monkeypatch.delenv(name)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        call_main(monkeypatch, capsys, "--help")
        return os.environ.get("GOMP_SPINCOUNT")

    assert spins() == cli.SPINS
    assert spins(GOMP_SPINCOUNT="7") == "7"
    assert spins(OMP_WAIT_POLICY="active") is None


def test_help_and_looking_things_up_do_not_wait_for_torch(tmp_path: Path) -> None:
    script = (
        "import sys, rl_training\n"
        "assert not {'torch', 'pyarrow', 'h5py', 'rich', 'jinja2', 'scipy'} & set(sys.modules)\n"
        "import rl_training.cli\n"
        "def call(*arguments):\n"
        "    sys.argv = ['rl-training', *arguments]\n"
        "    try: rl_training.cli.main()\n"
        "    except SystemExit as stop: assert not stop.code, stop.code\n"
        "for words in ('--help', 'train --help', 'config explain --help'): call(*words.split())\n"
        "assert not {'torch', 'numpy', 'gymnasium'} & set(sys.modules)\n"
        "for words in ('list', 'config explain td3_bc', '--version'): call(*words.split())\n"
        "assert 'torch' not in sys.modules\n"
    )

    done = _python("-c", script, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "Train policies on logged data" in done.stdout
    assert "[CONFIG|KEY=VALUE]..." in done.stdout


def test_the_package_can_be_run_as_a_module(tmp_path: Path) -> None:
    done = _python("-m", "rl_training", "list", "--json", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert {row["name"] for row in json.loads(done.stdout)} >= {"bc", "td3_bc"}
    assert done.stderr == ""


def test_a_mistake_in_another_process_is_one_message_and_status_2(tmp_path: Path) -> None:
    done = _python("-m", "rl_training", "train", "--config", "td3_bc/pendulm", cwd=tmp_path)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: no config file or packaged config 'td3_bc/pendulm'; did you mean 'td3_bc/pendulum'?\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_command_without_arguments_explains_itself(command: Command) -> None:
    answer = command()

    words = answer.out + answer.err
    assert all(name in words for name in ("train", "resume", "eval", "predict", "list", "config", "report"))


def test_a_start_checks_its_options_once(train_tiny: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    bound: list[str] = []

    def counted(config: TrainConfig) -> run_options.RunOptions:
        bound.append(config.algo)
        return bind_options(config)

    bind_options = run_options.bind_options
    monkeypatch.setattr(run_options, "bind_options", counted)

    assert train_tiny("bc", "--quiet").code == 0
    assert bound == ["bc"]


def test_the_index_says_what_the_registry_says() -> None:
    assert index.is_complete()
    assert index.list_rows() == [spec.row() for spec in list_algorithms()]
    for name in (None, *(spec.name for spec in list_algorithms())):
        said = json.loads(json.dumps(describe_options(name), default=list))
        assert index.option_rows(name) == said


def test_algorithms_that_were_imported_are_listed_too(command: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        '"""Mine: clones, under another name."""\n'
        "from rl_training.algorithms import BC, register\n\n\n"
        '@register("mine_listed", mode="offline")\n'
        "class MineListed(BC):\n"
        '    """Clones."""\n'
    )
    try:
        answer = command("list", "--json", "--import", tmp_path / "mine.py")
        explained = command("config", "explain", "mine_listed", "--import", tmp_path / "mine.py")
    finally:
        ALGORITHMS.pop("mine_listed", None)

    assert {"name": "mine_listed", "mode": "offline", "idea": "clones, under another name.", "configs": []} in (
        json.loads(answer.out)
    )
    assert explained.code == 0


def test_words_are_completed_with_algorithms_and_configurations() -> None:
    assert index.names_beginning("td3_bc/p") == ["td3_bc/pendulum", "td3_bc/pendulum_fine_tuning"]
    assert "iql" in index.names_beginning("iq")


def test_validation_names_files_that_are_missing_and_takes_overrides(command: Command, tmp_path: Path) -> None:
    wrong = command("config", "validate", "td3_bc", "bc", f"algo_kwargs.dataset_path={tmp_path}/log.npz", "--json")
    (tmp_path / "log.npz").touch()
    right = command("config", "validate", "td3_bc", f"algo_kwargs.dataset_path={tmp_path}/log.npz")

    problem = f"algo_kwargs: dataset_path '{tmp_path}/log.npz' does not exist"
    assert (wrong.code, json.loads(wrong.out)) == (2, {"td3_bc": [problem], "bc": [problem]})
    assert (right.code, right.out) == (0, "td3_bc: ok\n")


def test_the_command_reports_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CXX", "no-such-compiler")
    for name in ("SHARE_SECONDS", "UPDATE_SECONDS"):
        monkeypatch.setattr(doctor, name, 0.01)
    command: Command = partial(call_main, monkeypatch, capsys)

    code, text, _ = command("doctor")
    assert code == 0
    for words in ("affinity mask", "AVX2", "updates/s, td3_bc", "no C++ compiler found"):
        assert words in text

    code, text, _ = command("doctor", "--json")
    found = json.loads(text)
    assert code == 0
    assert found["cores"]["available"] >= found["threads"] >= 1
    assert set(found["updates_per_second"]) >= {"td3_bc", "iql", "sac"}
    assert found["compiler"]["obstacle"] == "no C++ compiler found (looked for no-such-compiler)"
    assert any(found["compiler"]["obstacle"] in each["what"] for each in found["advice"])
    assert list(tmp_path.iterdir()) == []
