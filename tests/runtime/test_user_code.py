"""Environments and callbacks of the user's own that misbehave: named and logged, and resumed later."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from command_line import TINY, Answer, Command, call_main
from conftest import packaged
from gymnasium.envs.classic_control import PendulumEnv
from small_runs import differences, online_config

from rl_training.config import TrainConfig, load_config
from rl_training.core.errors import UserCodeError
from rl_training.data import collect as collection
from rl_training.envs import make_vector_env
from rl_training.runtime import TrainerState, resume, train
from rl_training.runtime.callbacks import Callback
from rl_training.storage import load_checkpoint, read_metrics


class Bad(PendulumEnv):
    """A pendulum that misbehaves from its `late`-th step on, in the process's `episode`-th episode and later ones."""

    fault: str | None = None
    late = 5
    episode = 3
    """Before that come the steps that `train` tries out, and the first episode of the run."""
    episodes = 0

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        self.time = 0
        if Bad.fault == "start":
            raise OSError("no such robot")

    @property
    def misbehaves(self) -> bool:
        return Bad.fault is not None and Bad.episodes >= Bad.episode and self.time >= Bad.late

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.time = 0
        Bad.episodes += 1
        if Bad.fault == "reset" and Bad.episodes >= Bad.episode:
            raise ValueError("the arm is stuck")
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        self.time += 1
        obs, reward, terminated, truncated, info = super().step(action)  # type: ignore[no-untyped-call]
        result: tuple[Any, ...] = (obs, float(reward), terminated, truncated, info)
        if not self.misbehaves:
            return result
        if Bad.fault == "raise":
            raise ValueError("the arm is stuck")
        if Bad.fault == "exit":
            sys.exit(0)
        changes: dict[str, tuple[int, Any]] = {
            "shape": (0, np.zeros(5, np.float32)),
            "text": (0, "far away"),
            "nan": (0, np.array([0, np.nan, 0], np.float32)),
            "inf": (1, np.inf),
            "words": (1, "much"),
        }
        if Bad.fault not in changes:
            return result
        place, value = changes[Bad.fault]
        return *result[:place], value, *result[place + 1 :]


gym.register("Bad-v0", f"{__name__}:Bad", max_episode_steps=20, disable_env_checker=True)
gym.register("Endless-v0", f"{__name__}:Bad", disable_env_checker=True)


@pytest.fixture(autouse=True)
def fault() -> Iterator[Callable[..., None]]:
    """Sets what goes wrong; nothing does after the test."""

    def set_fault(name: str | None, *, episode: int = 3) -> None:
        Bad.fault, Bad.episode, Bad.episodes = name, episode, 0

    yield set_fault
    set_fault(None)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return partial(call_main, monkeypatch, capsys)


def offline_config(output: Path, *overrides: str) -> TrainConfig:
    small = [*TINY, "eval_episodes=2", f"output_dir={output}", "env_id=Bad-v0", *overrides]
    return load_config(packaged("td3_bc"), overrides=small)


WORDS = {
    "raise": "step raised ValueError: the arm is stuck (test_user_code.py, line ",
    "exit": "step called sys.exit(0) (test_user_code.py, line ",
    "reset": "reset raised ValueError: the arm is stuck (test_user_code.py, line ",
    "shape": "the observation from step has shape (5,), its space (3,)",
    "text": "the observation from step does not consist of numbers",
    "nan": "the observation from step is nan at [1]: observations must be finite",
    "inf": "the reward is inf in step 5: rewards must be finite",
    "words": "the reward is a str: it must be one number",
}
TRACED = ("raise", "exit", "reset")


def refused(answer: Answer, name: str) -> None:
    assert answer.code == 2
    assert answer.err.startswith("error: the environment Bad-v0, in step ")
    assert WORDS[name] in answer.err
    assert "Traceback" not in answer.err + answer.out


@pytest.mark.parametrize("name", list(WORDS))
def test_an_online_run_names_the_fault_saves_itself_and_continues(
    name: str, command: Command, fault: Callable[..., None], tmp_path: Path
) -> None:
    fault(name)
    path = tmp_path / "config.yaml"
    path.write_text(
        online_config(tmp_path / "runs", "sac", "env_id=Bad-v0", "algo_kwargs.eval_interval=null").to_yaml()
    )

    answer = command("train", "--quiet", "-c", path)

    (run,) = (tmp_path / "runs").iterdir()
    refused(answer, name)
    step, episode = (0, 3) if name == "reset" else (5, 3)
    assert f"in step {step} of episode {episode - 1}: " in answer.err
    log = run / "error.log"
    assert (f"the traceback is in {log}" in answer.err, log.exists()) == (name in TRACED, name in TRACED)
    if name in TRACED:
        assert f'File "{__file__}"' in log.read_text()
    saved = load_checkpoint(run / "checkpoints" / "latest.pt")
    steps = 19 if name == "reset" else 24
    assert f"the run is saved at timestep {steps}; resume with: rl-training resume {run}\n" in answer.err
    assert saved["trainer"]["state"]["env_steps"] == steps
    # Nothing of the bad step is in the buffer.
    assert saved["trainer"]["state"]["stored"] == steps
    fault(None)
    assert resume(run).stop_reason is None
    tree = load_checkpoint(run / "checkpoints" / "latest.pt")
    assert tree["trainer"]["state"]["env_steps"] == 40


def test_a_run_whose_evaluation_failed_ends_as_one_in_which_it_did_not(
    command: Command, fault: Callable[..., None], tmp_path: Path
) -> None:
    fault(None)
    straight = train(offline_config(tmp_path / "straight"))
    # Of the second and last evaluation, the first episode fails. It makes two, and as many resets at their end.
    fault("raise", episode=Bad.episodes - 3)
    path = tmp_path / "config.yaml"
    path.write_text(offline_config(tmp_path / "runs").to_yaml())

    answer = command("train", "--quiet", "-c", path)

    (run,) = (tmp_path / "runs").iterdir()
    refused(answer, "raise")
    assert "in step 5 of episode 1 (seed 10000): " in answer.err
    assert "the run is saved at timestep 20" in answer.err
    fault(None)
    resumed = resume(run)
    ours, theirs = (load_checkpoint(each.run_dir / "checkpoints" / "latest.pt") for each in (resumed, straight))
    for tree in (ours, theirs):
        tree["config"].pop("output_dir")
        tree.pop("run")
    assert differences(ours, theirs) == []
    rows = [[row | {"updates_per_second": 0} for row in read_metrics(each.run_dir)] for each in (resumed, straight)]
    assert rows[0] == rows[1]
    best = [load_checkpoint(each.run_dir / "checkpoints" / "best.pt")["algorithm"] for each in (resumed, straight)]
    assert differences(*best) == []


@pytest.mark.parametrize("name", ["raise", "exit", "nan"])
def test_commands_that_use_a_policy_name_the_fault(
    name: str, command: Command, fault: Callable[..., None], tmp_path: Path
) -> None:
    run = train(offline_config(tmp_path, "total_timesteps=1")).run_dir
    for words in (
        ["eval", run],
        ["data", "collect", "--checkpoint", run, "--episodes", "1", "--out", "log.npz"],
        ["data", "collect", "--random", "--env", "Bad-v0", "--steps", "30", "--out", "log.npz"],
    ):
        (run / "error.log").unlink(missing_ok=True)
        fault(name, episode=1)
        answer = command(*words)
        refused(answer, name)
        assert not list(tmp_path.glob("*.npz"))
        if name == "raise":
            log = run / "error.log" if "--random" not in words else next(tmp_path.glob("rl-training-*.log"))
            assert f"the traceback is in {log}\n" in answer.err
            assert 'raise ValueError("the arm is stuck")' in log.read_text()


def test_a_video_of_an_environment_that_fails_is_not_there(
    command: Command, fault: Callable[..., None], tmp_path: Path
) -> None:
    pytest.importorskip("imageio_ffmpeg")
    run = train(offline_config(tmp_path, "total_timesteps=1")).run_dir
    fault("exit", episode=4)

    answer = command("record", run, "--out", "video.gif", "--episodes", "6")

    refused(answer, "exit")
    assert f"the traceback is in {run / 'error.log'}\n" in answer.err
    assert not list(tmp_path.glob("*video*"))


def test_collecting_gives_up_an_episode_that_does_not_end(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(collection, "LONGEST_EPISODE", 50)
    where = ("--env", "Endless-v0", "--out", "log.npz")

    answer = command("data", "collect", "--random", "--episodes", "2", *where)

    assert answer.code == 2
    assert answer.err.startswith("error: episode 1 of Endless-v0 has not ended after 50 steps: give it a time limit")
    assert not list(tmp_path.glob("*.npz"))
    assert command("data", "collect", "--random", "--steps", "60", *where).code == 0


def test_an_environment_that_does_not_start_is_named_with_its_traceback(
    command: Command, fault: Callable[..., None], tmp_path: Path
) -> None:
    fault("start")

    answer = command("train", "-c", "td3_bc/pendulum", *TINY, "env_id=Bad-v0", "output_dir=runs")

    (log,) = tmp_path.glob("rl-training-*.log")
    assert answer.code == 2
    assert answer.err.startswith(
        "error: Bad-v0 cannot be made: it raised OSError: no such robot (test_user_code.py, line"
    )
    assert answer.err.endswith(f"the traceback is in {log}\n")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["exit", "raise"])
def test_env_check_names_code_that_fails(name: str, command: Command, fault: Callable[..., None]) -> None:
    fault(name)

    answer = command("env", "check", "Bad-v0")

    assert answer.code == 2
    assert WORDS[name].partition(" ")[2] in answer.out


def test_an_evaluation_gives_up_an_episode_that_does_not_end(command: Command, tmp_path: Path) -> None:
    endless = offline_config(tmp_path / "runs", "env_id=Endless-v0", "algo_kwargs.eval_max_steps=50")
    with pytest.raises(UserCodeError) as caught:
        train(endless)
    words = "episode 1 (seed 10000) of Endless-v0 has not ended after 50 steps: give it a time limit"
    assert str(caught.value).startswith(words)
    assert "or raise eval_max_steps" in str(caught.value)
    (run,) = (tmp_path / "runs").iterdir()

    answer = command("eval", run)
    assert (answer.code, answer.err.startswith(f"error: {words}")) == (2, True)
    assert command("eval", run, "env_kwargs.max_episode_steps=30").code == 0


def step_often(envs: Any) -> None:
    for _ in range(5):
        envs.step(np.zeros((2, 1), np.float32))


def test_the_process_of_an_environment_that_is_killed_is_named() -> None:
    envs: Any = make_vector_env("Bad-v0", num_envs=2, kind="async")
    envs.reset(seed=0)
    os.kill(int(envs.processes[1].pid), signal.SIGKILL)

    with pytest.raises(UserCodeError, match="the process of environment 1 was ended by SIGKILL, as systems do when"):
        step_often(envs)

    assert envs.closed


def test_a_fault_in_the_process_of_an_environment_has_its_traceback(fault: Callable[..., None]) -> None:
    fault("raise", episode=0)
    envs: Any = make_vector_env("Bad-v0", num_envs=2, kind="async")
    # A reset after a reset begins the same episode again.
    for _ in range(2):
        envs.reset(seed=0)

    with pytest.raises(UserCodeError, match=r"in step 5 of episode 1 \(seed .\): step raised") as caught:
        step_often(envs)

    envs.close()
    assert 'raise ValueError("the arm is stuck")' in caught.value.trace


class Failing(Callback):
    """Raises when it is called the second time."""

    def __init__(self) -> None:
        self.calls = 0

    def fail(self, state: TrainerState, *_: object) -> None:
        self.calls += 1
        if self.calls == 2:
            raise KeyError("my_metric")


def failing(event: str) -> Callback:
    """A callback that fails at an event."""
    kind: type[Callback] = type("Mine", (Failing,), {event: Failing.fail})
    return kind()


@pytest.mark.parametrize("event", ["on_each_update", "on_update_end", "on_eval_end"])
def test_a_callback_that_raises_is_named_and_the_run_is_saved(event: str, tmp_path: Path) -> None:
    straight = train(offline_config(tmp_path / "straight"))

    with pytest.raises(KeyError) as caught:
        train(offline_config(tmp_path / "runs"), callbacks=[failing(event)])

    (run,) = (tmp_path / "runs").iterdir()
    step = 2 if event == "on_each_update" else 20
    words = f"the callback Mine, fail at timestep {step}, raised KeyError: 'my_metric' (test_user_code.py, line "
    (note,) = caught.value.__notes__
    assert note.startswith(words)
    assert f"the traceback is in {run / 'error.log'}; the run is saved at timestep {step}" in note
    assert f'File "{__file__}"' in (run / "error.log").read_text()
    resume(run)
    ours, theirs = (load_checkpoint(each / "checkpoints" / "latest.pt") for each in (run, straight.run_dir))
    for tree in (ours, theirs):
        tree["config"].pop("output_dir")
        tree.pop("run")
    ours["trainer"]["callbacks"] = theirs["trainer"]["callbacks"]
    assert differences(ours, theirs) == []


def test_a_callback_that_raises_while_a_run_acts_leaves_its_episodes_as_they_are(tmp_path: Path) -> None:
    config = partial(online_config, algo="sac")
    straight = train(config(tmp_path / "straight"))

    with pytest.raises(KeyError):
        train(config(tmp_path / "runs"), callbacks=[failing("on_collect_end")])

    (run,) = (tmp_path / "runs").iterdir()
    resume(run)
    ours, theirs = (load_checkpoint(each / "checkpoints" / "latest.pt") for each in (run, straight.run_dir))
    assert differences(ours["algorithm"], theirs["algorithm"]) == []
    assert differences(ours["collector"], theirs["collector"]) == []
