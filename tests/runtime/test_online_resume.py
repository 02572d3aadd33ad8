"""A run that acts and was stopped, wherever that was, ends as if it had never stopped."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import PRIOR, differences, online_config

from rl_training.algorithms import Algorithm
from rl_training.config import TrainConfig, load_config
from rl_training.core.errors import CheckpointError, ConfigError
from rl_training.runtime import Callback, TrainerState, loop, resume, train
from rl_training.runtime.trainer import Session
from rl_training.storage import load_checkpoint, load_tree, read_metrics

SPEEDS = ("updates_per_second", "steps_per_second")

SCENARIOS = {
    "sac": (
        "sac",
        # Five episodes of 25 steps in each of two environments, and a ring of less than half of them.
        "env_kwargs.max_episode_steps=25",
        "num_envs=2",
        "total_timesteps=250",
        "algo_kwargs.buffer_capacity=101",
        "algo_kwargs.n_step=3",
        "algo_kwargs.normalize_obs=true",
        "algo_kwargs.learning_starts=20",
        "algo_kwargs.update_to_data=0.5",
    ),
    "async": (
        "sac",
        "env_kwargs.max_episode_steps=15",
        "num_envs=2",
        "total_timesteps=80",
        "algo_kwargs.vector_env=async",
        "algo_kwargs.normalize_obs=true",
        "algo_kwargs.train_frequency=3",
        "algo_kwargs.gradient_updates_per_step=2",
    ),
    "her": (
        "her",
        "env_kwargs.max_episode_steps=20",
        "algo_kwargs.normalize_obs=true",
        "num_envs=2",
        "total_timesteps=250",
        "algo_kwargs.buffer_capacity=110",
        "algo_kwargs.learning_starts=20",
        "algo_kwargs.update_to_data=0.5",
        "algo_kwargs.n_step=3",
    ),
    "hopper": (
        "td3",
        "env_id=Hopper-v4",
        "total_timesteps=120",
        "algo_kwargs.buffer_capacity=70",
        "algo_kwargs.n_step=3",
        "algo_kwargs.learning_starts=30",
        "algo_kwargs.warmup_steps=15",
    ),
    "rebrac": (
        "rebrac",
        *PRIOR,
        "env_kwargs.max_episode_steps=20",
        "num_envs=2",
        "total_timesteps=120",
        "algo_kwargs.buffer_capacity=70",
        "algo_kwargs.learning_starts=20",
        "algo_kwargs.n_step=3",
        "algo_kwargs.normalize_obs=true",
    ),
    "awr": (
        "awr",
        "env_kwargs.max_episode_steps=20",
        "num_envs=2",
        "total_timesteps=200",
        "algo_kwargs.mode=online",
        "algo_kwargs.dataset_kind=null",
        "algo_kwargs.dataset_size=null",
        "algo_kwargs.buffer_capacity=70",
        "algo_kwargs.learning_starts=20",
        "algo_kwargs.recompute_interval=9",
    ),
    "marwil": (
        "marwil",
        *PRIOR,
        "env_kwargs.max_episode_steps=20",
        "total_timesteps=120",
        "algo_kwargs.buffer_capacity=50",
        "algo_kwargs.learning_starts=20",
        "algo_kwargs.recompute_interval=7",
    ),
}


class Killed(BaseException):
    """What no code is prepared for."""


class Stop(Callback):
    """Ends a run at a moment, with an interrupt, or without giving it a chance to save anything."""

    def __init__(self, moment: int, *, kill: bool) -> None:
        self.moment, self.kill = moment, kill

    def on_collect_end(self, state: TrainerState) -> None:
        self.look(state, state.global_step)

    def look(self, state: TrainerState, count: int) -> None:
        if count >= self.moment:
            if self.kill:
                raise Killed
            state.interrupt("asked to")


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # The simulator writes its log into the working directory.
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of a scenario's run that was never stopped."""
    done: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in done:
            algo, *overrides = SCENARIOS[name]
            done[name] = train(online_config(tmp_path_factory.mktemp(name), algo, *overrides)).run_dir
        return done[name]

    return get


def _everything(run: Path) -> dict[str, Any]:
    """All that a run has come to: its latest checkpoint, the rows of its buffer, and its metrics without speeds."""
    tree = load_checkpoint(run / "checkpoints" / "latest.pt")
    # Rows are in files that end where the run was stopped; what they hold together is the same.
    parts = [load_tree(run / "replay" / f"rows_{start:010d}_{stop:010d}.pt")["rows"] for start, stop in tree["replay"]]
    size = tree["config"]["algo_kwargs"]["buffer_capacity"]
    tree["replay"] = {name: torch.cat([part[name] for part in parts])[-size:] for name in parts[0]}
    tree["metrics"] = [{name: value for name, value in row.items() if name not in SPEEDS} for row in read_metrics(run)]
    del tree["config"]["output_dir"], tree["run"]
    return tree


def _stopped(config: TrainConfig, stop: Stop) -> Path:
    """The directory of a run that was."""
    try:
        result = train(config, callbacks=[stop])
    except Killed:
        (run,) = Path(config.output_dir).iterdir()
        return run
    assert result.interrupted
    return result.run_dir


def _without_stop(tree: dict[str, Any]) -> dict[str, Any]:
    """A tree without the callback that was there to stop the run."""
    tree["trainer"]["callbacks"].pop("Stop", None)
    return tree


@pytest.mark.parametrize(
    ("name", "moment"),
    [
        # In random steps; in a round; at the end of an episode; after the ring was overwritten.
        ("sac", 6),
        ("sac", 30),
        ("sac", 50),
        ("sac", 203),
        ("async", 5),
        ("async", 50),
        ("her", 11),
        ("her", 40),
        ("her", 190),
        ("hopper", 10),
        ("hopper", 44),
        ("hopper", 100),
        ("rebrac", 16),
        ("rebrac", 60),
        ("rebrac", 120),
        ("awr", 50),
        ("awr", 150),
        ("marwil", 40),
        ("marwil", 120),
    ],
)
@pytest.mark.parametrize("kill", [False, True], ids=["interrupted", "killed"])
def test_a_run_continues_as_if_it_had_never_stopped(
    name: str, moment: int, kill: bool, straight: Callable[[str], Path], tmp_path: Path
) -> None:
    algo, *overrides = SCENARIOS[name]
    run = _stopped(online_config(tmp_path / "runs", algo, *overrides), Stop(moment, kill=kill))
    (run / "replay").mkdir(exist_ok=True)
    (run / "replay" / ".rows_0000000000_0000000001.pt.tmp").write_text("half a file")
    before = load_checkpoint(run / "checkpoints" / "latest.pt")["trainer"]["state"]
    result = resume(run)

    assert before["global_step"] < result.metrics["global_step"]
    assert all(path.name.startswith("rows_") for path in (run / "replay").iterdir())
    assert differences(_without_stop(_everything(run)), _everything(straight(name))) == []


@pytest.mark.parametrize("name", ["sac", "rebrac"])
def test_an_interrupt_between_two_blocks_costs_nothing(
    name: str, straight: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, after_block = _everything(straight(name)), loop.after_block

    def interrupted(session: Session) -> None:
        after_block(session)
        if session.state.update_count >= 7:
            session.state.interrupt("asked to")

    algo, *overrides = SCENARIOS[name]
    with monkeypatch.context() as patched:
        patched.setattr(loop, "after_block", interrupted)
        result = train(online_config(tmp_path / "runs", algo, *overrides))
    saved = load_checkpoint(result.checkpoint_path)["trainer"]["state"]
    assert result.interrupted
    assert saved["update_count"] == json.loads((result.run_dir / "result.json").read_text())["update_count"]
    resume(result.run_dir)
    assert differences(_everything(result.run_dir), expected) == []


@pytest.mark.parametrize(
    ("name", "update"), [("sac", 31), ("async", 7), ("her", 45), ("rebrac", 7), ("rebrac", 40), ("awr", 30)]
)
def test_a_round_of_updates_continues_where_it_was_interrupted(
    name: str, update: int, straight: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Seen(Stop):
        def on_train_start(self, state: TrainerState) -> None:
            self.state = state

        def on_collect_end(self, state: TrainerState) -> None:
            """Wait for the update."""

    expected = _everything(straight(name))
    stop, original = Seen(update, kill=False), Algorithm.update

    def updating(self: Algorithm, batch: Any) -> Any:
        stop.look(stop.state, stop.state.update_count + 1)
        return original(self, batch)

    algo, *overrides = SCENARIOS[name]
    with monkeypatch.context() as patched:
        patched.setattr(Algorithm, "update", updating)
        run = _stopped(online_config(tmp_path / "runs", algo, *overrides), stop)
    state = load_checkpoint(run / "checkpoints" / "latest.pt")["trainer"]["state"]
    assert state["update_count"] == update
    resume(run)

    found = _everything(run)
    found["trainer"]["callbacks"].pop("Seen", None)
    assert differences(found, expected) == []


def test_a_run_may_be_stopped_again_and_again(straight: Callable[[str], Path], tmp_path: Path) -> None:
    algo, *overrides = SCENARIOS["sac"]
    run = _stopped(online_config(tmp_path / "runs", algo, *overrides), Stop(7, kill=True))
    for moment in (22, 60, 61, 140, 222):
        try:
            assert resume(run, callbacks=[Stop(moment, kill=moment % 2 == 0)]).interrupted
        except Killed:
            continue
    resume(run)

    assert differences(_without_stop(_everything(run)), _everything(straight("sac"))) == []


@pytest.mark.parametrize(("name", "step"), [("async", 40), ("sac", 220)])
def test_a_run_continues_from_an_older_checkpoint_too(
    name: str, step: int, straight: Callable[[str], Path], tmp_path: Path
) -> None:
    run = tmp_path / "copy"
    shutil.copytree(straight(name), run)
    resume(run / "checkpoints" / f"step_{step:09d}.pt")

    assert differences(_everything(run), _everything(straight(name))) == []


def test_files_that_no_checkpoint_needs_any_more_are_deleted(straight: Callable[[str], Path]) -> None:
    run = straight("sac")
    kept = [load_checkpoint(path)["replay"] for path in (run / "checkpoints").iterdir()]
    names = sorted(path.name for path in (run / "replay").iterdir())
    assert names == sorted({f"rows_{start:010d}_{stop:010d}.pt" for spans in kept for start, stop in spans})
    # The last 101 of 250 rows, and those before them that were written in one file with some of them.
    spans = load_checkpoint(run / "checkpoints" / "latest.pt")["replay"]
    assert spans[0][0] <= 149 < spans[0][1]
    assert spans[-1][1] == 250


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped"])
def test_a_replay_file_that_cannot_be_used_is_named(
    damage: str, straight: Callable[[str], Path], tmp_path: Path
) -> None:
    run = tmp_path / "copy"
    shutil.copytree(straight("her"), run)
    start, stop = load_checkpoint(run / "checkpoints" / "latest.pt")["replay"][0]
    path = run / "replay" / f"rows_{start:010d}_{stop:010d}.pt"
    contents = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(contents[: len(contents) // 2])
    else:
        needle = load_tree(path)["rows"]["obs"].numpy().tobytes()
        place = contents.index(needle)
        path.write_bytes(contents[:place] + bytes([contents[place] ^ 1]) + contents[place + 1 :])
    rows = (run / "metrics.jsonl").read_bytes()

    with pytest.raises(CheckpointError) as caught:
        resume(run)

    assert str(path) in str(caught.value)
    assert (run / "metrics.jsonl").read_bytes() == rows


class Notes(Callback):
    """What the user of a run is told."""

    def __init__(self) -> None:
        self.notes: tuple[str, ...] = ()

    def on_train_start(self, state: TrainerState) -> None:
        self.notes = state.notes


def _watch_windows(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How far the windows that are drawn reach; none may leave the episode of its environment."""
    reaches: list[float] = []
    original = Algorithm.update

    def updating(self: Algorithm, batch: Any) -> Any:
        assert torch.equal(batch["obs"][:, :2], batch["next_obs"][:, :2])
        reach = batch["next_obs"][:, 2] - batch["obs"][:, 2]
        assert torch.equal(batch["discounts"], torch.tensor(0.5) ** reach)
        reaches.extend(reach.tolist())
        return original(self, batch)

    monkeypatch.setattr(Algorithm, "update", updating)
    return reaches


UNKNOWN = ("env_id=Probe-v0", "env_kwargs.lengths=[9, 7]", "algo_kwargs.reward_scale=0.001", "num_envs=2")
"""An environment whose state is not known how to save, in episodes of nine and seven steps."""


def test_an_environment_that_cannot_be_saved_begins_new_episodes_and_the_user_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reaches = _watch_windows(monkeypatch)
    options = ("algo_kwargs.n_step=3", "algo_kwargs.gamma=0.5", "total_timesteps=80")
    run = _stopped(online_config(tmp_path / "runs", "sac", *UNKNOWN, *options), Stop(24, kill=False))
    # Stopped again, so that what was broken off twice is put together from files.
    notes = Notes()
    assert resume(run, callbacks=[Stop(46, kill=False)]).interrupted
    result = resume(run, callbacks=[notes])

    assert notes.notes == ("the state of Probe-v0 cannot be saved: the run continues with new episodes",)
    assert result.metrics["env_steps"] == 80
    assert set(reaches) == {1.0, 2.0, 3.0}
    rows = _everything(run)["replay"]
    # Environments 0 and 1, then 2 and 3, then 4 and 5: each has a stream of its own, from the beginning of an episode.
    assert torch.equal(rows["streams"], rows["obs"][:, 0].int())
    assert rows["obs"][:, 0].unique().tolist() == [0, 1, 2, 3, 4, 5]
    for stream in range(6):
        first = rows["obs"][rows["streams"] == stream][0]
        assert first.tolist() == [stream, 0, 0]


def test_an_episode_that_was_broken_off_is_not_stored(tmp_path: Path) -> None:
    options = ("algo_kwargs.offline_pretrain_updates=1", "algo_kwargs.num_action_samples=2", "total_timesteps=80")
    config = online_config(tmp_path / "runs", "cal_ql", *UNKNOWN, *PRIOR, *options)
    # After 12 steps of each environment: three into the second episode of one, five into that of the other.
    run = _stopped(config, Stop(25, kill=False))
    pending = load_checkpoint(run / "checkpoints" / "latest.pt")["source"]["online"]["pending"]
    assert [len(stream["obs"]) for stream in pending] == [3, 5]
    resume(run)

    obs = _everything(run)["replay"]["obs"]
    lengths = {number: length for number in range(4) for length in [(9, 7)[number % 2]]}
    episodes = {tuple(row[:2]) for row in obs.tolist()}
    # One whole episode of each before the break; 28 steps of each after it: three whole ones and four.
    assert sorted(episodes) == [(0, 0), (1, 0), *((2, k) for k in range(3)), *((3, k) for k in range(4))]
    for number, which in episodes:
        times = obs[(obs[:, 0] == number) & (obs[:, 1] == which), 2]
        assert times.tolist() == list(range(lengths[int(number)]))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mode", "offline_to_online"),
        ("n_step", 2),
        ("buffer_capacity", 500),
        ("replay", "hindsight"),
        ("learning_starts", 3),
        ("warmup_steps", 3),
        ("min_buffer_size", 3),
        ("update_to_data", 3),
        ("train_frequency", 3),
        ("gradient_updates_per_step", 3),
    ],
)
def test_what_a_run_counts_by_is_kept_on_resume(name: str, value: Any, straight: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match=f"a run keeps its {name}"):
        resume(straight("hopper"), algo_kwargs={name: value})


def test_a_run_that_acts_keeps_its_number_of_environments(straight: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match="a run keeps its num_envs"):
        resume(straight("hopper"), num_envs=2)


def test_a_finished_run_is_prolonged(straight: Callable[[str], Path], tmp_path: Path) -> None:
    run = tmp_path / "copy"
    shutil.copytree(straight("async"), run)
    result = resume(run, total_timesteps=100, algo_kwargs={"vector_env": "sync", "exploration_noise": 0.1})

    # 50 steps of two environments, 6 of them waited for; two updates with every third of the others.
    assert (result.metrics["env_steps"], result.metrics["update_count"]) == (100, 28)


KILLS = 2
KILLED = {
    "Pendulum-v1": ("sac/pendulum", "num_envs=2", "algo_kwargs.n_step=3", "algo_kwargs.normalize_obs=true"),
    "PointGoal-v0": ("her/point_goal", "algo_kwargs.buffer_capacity=500"),
    "HalfCheetah-v4": (
        "td3/pendulum",
        "env_id=HalfCheetah-v4",
        "env_kwargs.max_episode_steps=100",
        "num_envs=2",
        "algo_kwargs.vector_env=async",
    ),
}
LENGTH = 400


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "rl_training", *arguments]


def _settings(task: str, output: Path) -> list[str]:
    """The name of a config, and overrides."""
    options = {
        "total_timesteps": LENGTH,
        "output_dir": output,
        "eval_episodes": 1,
        "log_interval": 20,
        "checkpoint_interval": 45,
        "algo_kwargs.batch_size": 32,
        "algo_kwargs.eval_interval": 150,
        "algo_kwargs.hidden_sizes": "[16, 16]",
        "algo_kwargs.learning_starts": 100,
        "algo_kwargs.update_to_data": 0.4,
    }
    return [*KILLED[task], *(f"{name}={value}" for name, value in options.items())]


def _train_command(task: str, output: Path) -> list[str]:
    return _command("train", "--quiet", "--config", *_settings(task, output))


def _logged(output: Path) -> int:
    return max((row["global_step"] for run in output.glob("*__*") for row in read_metrics(run)), default=0)


def _kill_after(command: list[str], output: Path, step: int, delay: float) -> None:
    """Start a process and kill it a moment after it has logged a timestep."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        while process.poll() is None and _logged(output) < step:
            time.sleep(0.005)
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        _, errors = process.communicate()
        assert process.returncode == -signal.SIGKILL, errors.decode()


@pytest.mark.parametrize("task", sorted(KILLED))
def test_a_run_whose_process_was_killed_ends_as_if_it_had_not_been(task: str, tmp_path: Path) -> None:
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    rng = random.Random(task)
    moments = sorted(rng.randrange(20, LENGTH * 6 // 10) for _ in range(KILLS))
    for number, moment in enumerate(moments):
        command = _command("resume", "--quiet", str(*killed.glob("*__*"))) if number else _train_command(task, killed)
        _kill_after(command, killed, moment, rng.uniform(0, 0.02))
    (run,) = killed.glob("*__*")
    resume(run)

    name, *overrides = _settings(task, straight)
    other = train(load_config(name, overrides=overrides)).run_dir
    assert differences(_everything(run), _everything(other)) == []


def test_an_interrupt_from_the_terminal_reaches_the_run_and_not_its_environments(tmp_path: Path) -> None:
    # Ctrl-C goes to all processes of a terminal's foreground group.
    command = _train_command("HalfCheetah-v4", tmp_path)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        while process.poll() is None and _logged(tmp_path) < 40:
            time.sleep(0.005)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=300)
    (run,) = tmp_path.glob("*__*")

    assert process.returncode == 130
    assert f"resume with: rl-training resume {run}" in errors
    assert "Traceback" not in errors
    assert load_checkpoint(run / "checkpoints" / "latest.pt")["trainer"]["state"]["env_steps"] >= 40
