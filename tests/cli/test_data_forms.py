"""`rl-training data convert`, `mix`, `split`, `inspect`, `head`: datasets in other forms, and what is in them."""

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
from command_line import Command, call_main

from rl_training.config import TrainConfig
from rl_training.data import load_transition_dataset
from rl_training.data.convert import load_any
from rl_training.runtime import train


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """The command, in a folder of its own, which is where Minari keeps its datasets too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return partial(call_main, monkeypatch, capsys)


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
    dataset, rows = load_transition_dataset(log), json.loads(command("data", "head", log, "-n", "2", "--json").out)
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
