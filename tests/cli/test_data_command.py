"""`rl-training data`: what a policy does as a dataset; datasets in other forms, and what is in them."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import Answer, Command, call_main
from small_runs import online_config

from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError
from rl_training.data import TransitionDataset, load_any, load_transition_dataset
from rl_training.runtime import predict, train
from rl_training.storage import read_metrics

EPISODE = 200
"""Steps of Pendulum-v1, which only its time limit ends."""


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """The command, in a folder of its own, which is where Minari keeps its datasets too."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder / "minari"))
    return partial(call_main, monkeypatch, capsys)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose policy is stochastic."""
    return train(online_config(tmp_path / "runs", "sac", "total_timesteps=16")).run_dir


RANDOM = ("data", "collect", "--random", "--env", "Pendulum-v1")


def _read(out: str) -> TransitionDataset:
    return load_transition_dataset(dataset_id=out) if "/" in out else load_transition_dataset(out)


def _check_physics(dataset: TransitionDataset) -> None:
    """Native actions and raw rewards: Pendulum's own equations hold from row to row."""
    (cosine, sine, speed), torque = dataset.obs.numpy().T, dataset.actions.numpy()[:, 0]
    cost = np.arctan2(sine, cosine) ** 2 + 0.1 * speed**2 + 0.001 * torque**2
    assert dataset.rewards.numpy() == pytest.approx(-cost, rel=1e-3, abs=1e-3)
    faster = np.clip(speed + 0.05 * (15 * sine + 3 * torque), -8, 8)
    assert dataset.next_obs.numpy()[:, 2] == pytest.approx(faster, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("out", ["log.npz", "log.hdf5", "log.h5", "mine/pendulum-v0"])
@pytest.mark.parametrize(
    ("amount", "lengths"), [(("--episodes", "2"), [EPISODE, EPISODE]), (("--steps", "230"), [EPISODE, 30])]
)
def test_random_actions_become_a_dataset_of_any_kind(
    amount: tuple[str, str], lengths: list[int], out: str, command: Command
) -> None:
    answer = command(*RANDOM, *amount, "--out", out)

    dataset = _read(out)
    bounds = dataset.episode_bounds()
    assert (bounds[:, 1] - bounds[:, 0]).tolist() == lengths
    assert not dataset.dones.any()
    _check_physics(dataset)
    # Uniform in [-2, 2]: more than 200 of them leave no tenth of it empty.
    assert np.histogram(dataset.actions.numpy(), bins=10, range=(-2, 2))[0].min() > 0
    mean = float(dataset.episode_returns().mean())
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == f"{out}: {sum(lengths)} transitions, 2 episodes, mean return {mean:.1f}\n"


@pytest.mark.parametrize("deterministic", [False, True], ids=["sampled", "deterministic"])
@pytest.mark.parametrize("out", ["log.npz", "log.hdf5", "mine/pendulum-v0"])
def test_a_policy_collects_in_its_own_environment(out: str, deterministic: bool, run: Path, command: Command) -> None:
    how = ["--deterministic"] if deterministic else []
    answer = command("data", "collect", "--checkpoint", run, *how, "--steps", "40", "--out", out, "--json")

    dataset = _read(out)
    report = json.loads(answer.out)
    assert (answer.code, report["out"], report["rows"], report["episodes"]) == (0, out, 40, 1)
    assert report["return_mean"] == pytest.approx(float(dataset.rewards.sum()), rel=1e-5)
    _check_physics(dataset)
    best = predict(run, dataset.obs.numpy())
    assert np.allclose(dataset.actions.numpy(), best, atol=1e-5) is deterministic


@pytest.mark.parametrize("out", ["log.npz", "log.hdf5"])
def test_equal_seeds_give_equal_files(out: str, run: Path, command: Command) -> None:
    sources: dict[str, tuple[Any, ...]] = {"random": RANDOM, "policy": ("data", "collect", "--checkpoint", run)}
    for source in sources.values():
        files = []
        for number, seed in enumerate(("3", "3", "4")):
            name = f"{number}{out}"
            assert command(*source, "--steps", "50", "--seed", seed, "--out", name).code == 0
            files.append(Path(name).read_bytes())
            Path(name).unlink()
        assert files[0] == files[1] != files[2]


def test_equal_seeds_give_equal_minari_datasets(command: Command, recwarn: pytest.WarningsRecorder) -> None:
    for number, seed in enumerate(("3", "3", "4")):
        assert command(*RANDOM, "--episodes", "1", "--seed", seed, "--out", f"mine/pendulum-v{number}").code == 0
    assert not [warning for warning in recwarn if "minari" in warning.filename]
    prints = [_read(f"mine/pendulum-v{number}").fingerprint() for number in range(3)]
    assert prints[0] == prints[1] != prints[2]


def test_what_was_collected_can_be_trained_on(run: Path, command: Command, tiny_config: Callable[..., Any]) -> None:
    assert command("data", "collect", "--checkpoint", run, "--episodes", "1", "--out", "log.npz").code == 0
    file = ("algo_kwargs.dataset_kind=npz", "algo_kwargs.dataset_path=log.npz", "algo_kwargs.dataset_size=null")
    result = train(tiny_config("td3_bc", *file))
    assert result.data_return == pytest.approx(float(_read("log.npz").rewards.sum()), rel=1e-5)


def test_a_task_with_goals_is_collected_as_its_policy_sees_it(command: Command) -> None:
    assert command(*RANDOM[:4], "PointGoal-v0", "--episodes", "1", "--out", "log.npz").code == 0
    dataset = _read("log.npz")
    # Place and goal, two numbers each; the goal stays, and a step moves the place by 0.05 times the action.
    assert dataset.obs.shape == (50, 4)
    assert (dataset.obs[:, 2:] == dataset.next_obs[:, 2:]).all()
    moved = (dataset.obs[:, :2] + 0.05 * dataset.actions).clamp(-1, 1)
    assert dataset.next_obs[:, :2].numpy() == pytest.approx(moved.numpy(), abs=1e-6)
    assert torch.equal(dataset.achieved_goals, dataset.next_obs[:, :2])


def test_goals_of_a_collected_log_are_relabelled_in_an_offline_run(
    command: Command, tiny_config: Callable[..., Any]
) -> None:
    assert command(*RANDOM[:4], "PointGoal-v0", "--episodes", "3", "--out", "log.npz").code == 0
    file = ("algo_kwargs.dataset_kind=npz", "algo_kwargs.dataset_path=log.npz", "algo_kwargs.dataset_size=null")
    options = (*file, "env_id=PointGoal-v0", "algo_kwargs.replay=hindsight", "algo_kwargs.her_ratio=1.0")
    result = train(tiny_config("td3_bc", *options, "log_interval=1"))
    rows = [row for row in read_metrics(result.run_dir) if "virtual_share" in row]
    # At random the goal is hardly ever reached; with goals that were achieved some rewards are 0 instead of -1.
    assert {row["virtual_share"] for row in rows} == {1.0}
    assert all(-1 < row["virtual_reward_mean"] < 0 for row in rows)
    with pytest.raises(ConfigError, match="env_id is required with replay: hindsight"):
        train(tiny_config("td3_bc", *options, "env_id=null"))


def test_rewards_are_raw_where_the_run_transformed_them(
    command: Command, tiny_config: Callable[..., TrainConfig]
) -> None:
    trained = train(tiny_config("td3_bc", "env_kwargs.wrappers.reward.scale=0.001"))
    assert command("data", "collect", "--checkpoint", trained.run_dir, "--steps", "20", "--out", "log.npz").code == 0
    _check_physics(_read("log.npz"))


MISTAKES: dict[str, tuple[tuple[str, ...], str]] = {
    "neither": (("--steps", "5"), "give either --checkpoint or --random"),
    "no amount": (("--random", "--env", "Pendulum-v1"), "give either --episodes or --steps"),
    "both amounts": (
        ("--random", "--env", "Pendulum-v1", "--steps", "5", "--episodes", "1"),
        "give either --episodes or --steps",
    ),
    "no environment": (("--random", "--steps", "5"), "--random needs --env"),
    "best of random": (
        ("--random", "--env", "Pendulum-v1", "--steps", "5", "--deterministic"),
        "--deterministic needs --checkpoint",
    ),
    "unknown environment": (
        ("--random", "--env", "Pendulun-v1", "--steps", "5"),
        "unknown env_id 'Pendulun-v1'; did you mean 'Pendulum-v1'?",
    ),
    "no checkpoint": (("--checkpoint", "nowhere", "--steps", "5"), "'nowhere' does not exist"),
}


def _refused(answer: Answer, words: str) -> None:
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1
    assert words in answer.err
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_gets_one_line_and_nothing_is_written(name: str, command: Command) -> None:
    arguments, words = MISTAKES[name]
    _refused(command("data", "collect", *arguments, "--out", "log.npz"), words)


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("log.csv", "'log.csv' must end in .npz, .hdf5, .h5, .pt, .parquet, .rlt, or be the id of a Minari dataset"),
        ("nowhere/log.npz", "the folder of 'nowhere/log.npz' does not exist"),
        ("my pendulum-v0", "'my pendulum-v0' is no id of a Minari dataset; expected one such as mine/pendulum-v0"),
    ],
)
def test_a_destination_that_cannot_be_written_is_refused_before_anything_is_collected(
    out: str, words: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl_training.policies.saved.collect_dataset", None)
    _refused(command(*RANDOM, "--steps", "5", "--out", out), words)


@pytest.mark.parametrize("out", ["log.npz", "log.hdf5", "mine/pendulum-v0"])
def test_a_dataset_that_is_there_is_not_written_over(out: str, command: Command) -> None:
    assert command(*RANDOM, "--steps", "5", "--out", out).code == 0
    before = _read(out).fingerprint()
    answer = command(*RANDOM, "--steps", "7", "--out", out)

    assert (answer.code, answer.out) == (2, "")
    assert answer.err.count("\n") == 1
    assert "exists already" in answer.err
    assert _read(out).fingerprint() == before


def test_both_a_checkpoint_and_chance_are_refused(run: Path, command: Command) -> None:
    answer = command("data", "collect", "--random", "--checkpoint", run, "--steps", "5", "--out", "log.npz")
    _refused(answer, "give either --checkpoint or --random")


def test_a_policy_is_not_taken_to_an_environment_that_it_does_not_fit(run: Path, command: Command) -> None:
    where = ("--env", "MountainCarContinuous-v0")
    answer = command("data", "collect", "--checkpoint", run, *where, "--steps", "5", "--out", "log.npz")
    sizes = "observations of 3 numbers, MountainCarContinuous-v0 has observations of 2 numbers"
    _refused(answer, f"the policy was trained for {sizes}")


def test_the_best_checkpoint_collects_where_it_is_asked_for(run: Path, command: Command) -> None:
    collect, how = ("data", "collect", "--deterministic", "--steps", "5"), ("--out", "best.npz")
    (run / "checkpoints" / "latest.pt").unlink()

    answer = command(*collect, "--checkpoint", run, "--best", *how)

    assert answer.code == 0
    best = predict(run / "checkpoints" / "best.pt", _read("best.npz").obs.numpy())
    assert np.allclose(_read("best.npz").actions.numpy(), best, atol=1e-5)
    assert "--best needs --checkpoint" in command(*RANDOM, "--best", "--steps", "5", "--out", "c.npz").err


@pytest.mark.parametrize("option", [("--steps", "0"), ("--episodes", "0"), ("--seed", "-1")])
def test_amounts_have_bounds(option: tuple[str, str], command: Command) -> None:
    answer = command(*RANDOM, *option, "--out", "log.npz")
    assert answer.code == 2
    assert option[0] in answer.err
    assert list(Path().iterdir()) == []


@pytest.fixture
def log(command: Command) -> str:
    assert (
        command("data", "collect", "--random", "--env", "Pendulum-v1", "--steps", "650", "--out", "log.npz").code == 0
    )
    return "log.npz"


@pytest.mark.parametrize("algo", ["td3_bc", "rebrac", "cal_ql"])
@pytest.mark.parametrize("env_id", ["Pendulum-v1", "null"])
def test_training_on_the_mapped_form_gives_the_same_policy(
    algo: str, env_id: str, log: str, command: Command, tiny_config: Callable[..., TrainConfig]
) -> None:
    assert command("data", "convert", log, "log.rlt").code == 0
    found = []
    for path in (log, "log.rlt"):
        options = (f"env_id={env_id}", f"algo_kwargs.dataset_path={path}")
        none = ("algo_kwargs.dataset_kind=null", "algo_kwargs.dataset_size=null", "algo_kwargs.normalize_obs=true")
        result = train(tiny_config(algo, *options, *none, "algo_kwargs.reward_scale=0.5"))
        found.append(torch.load(result.checkpoint_path, weights_only=True))
    trees = [tree["algorithm"] for tree in found]
    torch.testing.assert_close(trees[0], trees[1], rtol=0, atol=0)
    assert found[0]["trainer"]["fingerprint"] == found[1]["trainer"]["fingerprint"]


@pytest.mark.parametrize("out", ["a.pt", "a.hdf5", "a.h5", "a.rlt", "mine/a-v0"])
def test_a_dataset_comes_back_from_any_form(out: str, log: str, command: Command) -> None:
    answer = command("data", "convert", log, out)
    assert (answer.code, answer.out) == (0, f"{out}: 650 transitions\n")
    back = command("data", "convert", out, "back.npz", "--json")
    assert json.loads(back.out) == {"out": "back.npz", "rows": 650, "left_out": []}
    assert load_any(log).fingerprint() == load_any("back.npz").fingerprint()
    again = command("data", "convert", log, out)
    assert again.code == 2
    assert "exists already" in again.err


def test_what_has_no_place_is_named(command: Command) -> None:
    rows = np.zeros((4, 2))
    np.savez("log.npz", obs=rows, next_obs=rows, actions=rows, rewards=rows[:, 0], dones=[0, 0, 0, 1], qpos=rows)
    assert command("data", "convert", "log.npz", "log.pt").code == 0
    for source, out in (("log.npz", "log.rlt"), ("log.pt", "second.rlt"), ("log.npz", "mine/log-v0")):
        assert "left out, since no algorithm reads them: qpos" in command("data", "convert", source, out).out


def test_a_split_is_of_whole_episodes_and_mixing_joins_them_again(log: str, command: Command) -> None:
    answer = command("data", "split", log, "--fraction", "0.25", "--out", "a.npz", "b.rlt", "--json")
    assert [part["episodes"] for part in json.loads(answer.out)] == [3, 1]
    assert sum(part["rows"] for part in json.loads(answer.out)) == 650
    assert command("data", "mix", "a.npz", "b.rlt", "--out", "c.npz").out == "c.npz: 650 transitions, 4 episodes\n"
    returns = [sorted(load_transition_dataset(path).episode_returns().tolist()) for path in (log, "c.npz")]
    assert returns[0] == returns[1]


@pytest.mark.parametrize("out", ["c.npz", "c.rlt"])
def test_a_mixture_by_ratio_has_no_episodes(out: str, log: str, command: Command) -> None:
    answer = command("data", "mix", log, log, "--ratio", "1,3", "--out", out)
    assert "no episodes" in answer.out
    mixed = load_transition_dataset(out)
    assert not mixed.has_episodes
    assert "next_actions" in mixed.fields


@pytest.mark.parametrize("source", ["log.npz", "log.rlt"])
def test_inspection_says_what_is_in_a_dataset(source: str, log: str, command: Command) -> None:
    command("data", "convert", log, "log.rlt")
    found = json.loads(command("data", "inspect", source, "--json").out)
    dataset = load_transition_dataset(log)
    assert (found["rows"], found["episodes"], found["terminations"], found["truncations"]) == (650, 4, 0, 4)
    assert (found["lengths"]["min"], found["lengths"]["max"]) == (50, 200)
    assert found["returns"]["mean"] == pytest.approx(float(dataset.episode_returns().mean()))
    assert sum(found["returns"]["histogram"]["counts"]) == 4
    assert found["fields"]["actions"]["high"] == pytest.approx(dataset.actions.max(0).values.tolist())
    assert found["fingerprint"] == dataset.fingerprint()
    assert found["is_in_memory"] == (source == "log.npz")
    text = command("data", "inspect", source).out
    assert "episodes     4: 0 terminations, 4 truncations" in text
    assert "returns of episodes: mean " in text
    assert "█" in text


def test_the_first_rows_are_shown(log: str, command: Command) -> None:
    dataset, rows = (
        load_transition_dataset(log),
        json.loads(command("data", "head", log, "-n", "2", "--json").out),
    )
    assert [row["row"] for row in rows] == [0, 1]
    assert rows[1]["obs"] == dataset.obs[1].tolist()
    assert (rows[1]["terminated"], rows[1]["truncated"]) == (False, False)
    lines = command("data", "head", log, "-n", "2").out.splitlines()
    assert lines[0].split() == ["row", "obs", "actions", "rewards", "next_obs", "terminated", "truncated"]
    assert len(lines) == 3


def _rows(kind: str) -> dict[str, Any]:
    rng, rows = np.random.default_rng(0), 40
    obs = rng.normal(size=(rows, 1 if kind == "one column" else 9))
    common = {"obs": obs, "rewards": np.ones(rows), "dones": np.arange(rows) % 8 == 7}
    if kind == "choices":
        return {**common, "actions": rng.integers(0, 3, rows)}
    if kind == "shuffled":
        ends = {"truncations": np.ones(rows, bool), "dones": np.zeros(rows)}
        return {**common, "actions": rng.normal(size=(rows, 9)), "next_obs": obs, **ends}
    if kind == "single steps":
        return {**common, "actions": rng.normal(size=(rows, 2)), "dones": np.ones(rows)}
    return {**common, "actions": rng.normal(size=(rows, 2)), "rewards": rng.normal(size=rows)}


@pytest.mark.parametrize("kind", ["choices", "shuffled", "single steps", "one column", "vectors"])
@pytest.mark.filterwarnings("error")
def test_any_dataset_can_be_drawn(kind: str, command: Command) -> None:
    np.savez("log.npz", **_rows(kind))
    answer = command("data", "inspect", "log.npz", "--plot", "log.png")
    assert (answer.code, answer.err) == (0, "")
    assert Path("log.png").stat().st_size > 20_000
    assert command("data", "inspect", "log.npz").code == 0


def test_a_picture_of_an_unknown_kind_is_refused(log: str, command: Command) -> None:
    answer = command("data", "inspect", log, "--plot", "log.jpg")
    assert answer.code == 2
    assert "expected one of the endings .png, .svg, .pdf" in answer.err


def _bomb(path: Path) -> None:
    """A megabyte that claims to be 64 GiB of zeros."""
    header: Any = {"descr": "<f4", "fortran_order": False, "shape": (2**34, 1)}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("obs", "actions", "rewards", "dones"):
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array_header_1_0(file, header)
                file.write(bytes(1000))


@pytest.mark.parametrize(
    "words",
    [
        ("convert", "{}", "out.npz"),
        ("convert", "{}", "out.rlt"),
        ("mix", "{}", "{}", "--out", "out.npz"),
        ("inspect", "{}"),
        ("head", "{}"),
    ],
)
@pytest.mark.parametrize("kind", ["bomb", "empty", "loop"])
def test_a_hostile_file_is_refused_in_one_sentence(kind: str, words: tuple[str, ...], command: Command) -> None:
    path = Path("bad.npz")
    if kind == "bomb":
        _bomb(path)
    elif kind == "empty":
        path.touch()
    else:
        path.symlink_to(path)
    answer = command("data", *(word.format(path) for word in words))
    assert answer.code == 2
    assert answer.err.startswith("error: ")
    assert "bad.npz" in answer.err
    assert answer.err.count("\n") == 1
    assert ("leads nowhere" in answer.err) == (kind == "loop")
    assert not list(Path().glob("*out*"))
