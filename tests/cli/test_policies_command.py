"""The commands that use a policy or look at an environment: `eval` of one and of several, `record`, `play`, `env`."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from command_line import TINY, Command, call_main
from conftest import transitions
from gymnasium.spaces import Box
from small_runs import online_config

from rl_training import SAC, TD3BC
from rl_training.acting import video as showing
from rl_training.config import load_config
from rl_training.core import machine
from rl_training.core.errors import ConfigError, MissingExtraError
from rl_training.runtime import load_policy, train

PENDULUM = ("--env", "Pendulum-v1")


class Square(gym.Env[Any, Any]):
    """Four steps with pictures of a size that is odd; remembers its actions."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 200}
    observation_space = Box(-9, 9, (3,), np.float32)
    actions: list[float] = []

    def __init__(self, render_mode: str | None = None, bound: float = 0.25, picture: str = "good") -> None:
        self.action_space = Box(-bound, bound, (1,), np.float32)
        self.render_mode, self.picture = render_mode, picture

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self.np_random.normal(size=3).clip(-9, 9).astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        self.actions.append(float(action[0]))
        return np.zeros(3, np.float32), 1.0, False, self.time == 4, {"is_success": True}

    def render(self) -> Any:
        return np.full((33, 35, 3), 255, np.uint8) if self.picture == "good" else None


gym.register("Square-v0", entry_point=f"{__name__}:Square")


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """The command, in a folder of its own, on a machine without a display."""
    monkeypatch.chdir(tmp_path)
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return partial(call_main, monkeypatch, capsys)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs on Pendulum, one of them stochastic, and one on logged data alone."""
    folder = tmp_path_factory.mktemp("some")
    train(load_config("td3_bc/pendulum", overrides=[*TINY, f"output_dir={folder / 'a'}", "eval_episodes=3"]))
    train(online_config(folder / "b", "sac", "total_timesteps=16"))
    arrays = transitions()
    arrays["actions"] = 3 * arrays["actions"]
    TD3BC(dataset=arrays, total_timesteps=5, hidden_sizes=[8], batch_size=16, output_dir=folder / "c").learn()
    return folder


def _run(runs: Path, name: str) -> Path:
    (run,) = (runs / name).iterdir()
    return run


def test_several_policies_are_compared_on_the_same_episodes(runs: Path, command: Command) -> None:
    first, second = _run(runs, "a"), _run(runs, "b")

    text = command("eval", first, second, "--seed", "5")
    values = json.loads(command("eval", first, second, "--seed", "5", "--json").out)
    alone = json.loads(command("eval", second, "--seed", "5", "--episodes", "3", "--json").out)

    # As many episodes as the one that has more of them by itself.
    assert text.out.splitlines()[0] == f"2 policies ({first}, {second}), 3 episodes each, seeds 5 to 7"
    assert [row["path"] for row in values] == [str(run / "checkpoints" / "latest.pt") for run in (first, second)]
    assert [row["algo"] for row in values] == ["td3_bc", "sac"]
    assert values[1] == alone
    for row, line in zip(values, text.out.splitlines()[2:], strict=True):
        cells = [row["path"].removesuffix("/checkpoints/latest.pt"), row["algo"], "Pendulum-v1"]
        score = f"{row['return_mean']:.1f} ± {row['return_std']:.1f}".split()
        assert line.split() == [*cells, *score, f"{row['return_min']:.1f}", f"{row['return_max']:.1f}", "200"]


@pytest.mark.parametrize("threads", [2], indirect=True)
@pytest.mark.parametrize(
    "words",
    [
        ("eval", "a", "--episodes", "1"),
        ("eval", "a", "b", "--episodes", "1"),
        ("predict", "a", "--obs", "obs.npy"),
        ("export", "a", "--out", "exported", "--no-report"),
        ("data", "collect", "--checkpoint", "a", "--episodes", "1", "--out", "log.npz"),
    ],
    ids=["eval", "comparison", "predict", "export", "collect"],
)
def test_a_policy_is_used_with_no_more_threads_than_cores(
    runs: Path, command: Command, monkeypatch: pytest.MonkeyPatch, threads: None, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(machine, "available_cores", lambda: 1)
    np.save("obs.npy", np.zeros((2, 3), np.float32))

    answer = command(*(str(_run(runs, word)) if word in ("a", "b") else word for word in words))

    assert answer.code == 0
    assert torch.get_num_threads() == 1


def test_a_folder_means_all_runs_in_it_and_one_that_fails_says_why_in_its_row(runs: Path, command: Command) -> None:
    answer = command("eval", runs, "--episodes", "1")
    rows = json.loads(command("eval", runs, "--episodes", "1", "--json").out)

    assert answer.code == 2
    assert answer.err == "error: 1 of 3 policies could not be evaluated\n"
    assert answer.out.startswith(f"3 policies ({runs}), 1 episode each, seed 10000\n")
    (line,) = [line for line in answer.out.splitlines() if str(_run(runs, "c")) in line]
    assert "the run has no env_id: name an environment, with --env or as env=" in line
    assert ["error" in row for row in rows] == [False, False, True]
    assert command("eval", runs, "--json").code == 2


def test_a_broken_or_missing_checkpoint_among_several_is_a_row(runs: Path, command: Command, tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copytree(runs / name, tmp_path / "copy" / name)
    shutil.copytree(runs / "a", tmp_path / "copy" / "d")
    (_run(tmp_path / "copy", "a") / "checkpoints" / "best.pt").unlink()
    broken = _run(tmp_path / "copy", "b") / "checkpoints" / "best.pt"
    broken.unlink()
    broken.write_bytes(b"nothing")

    answer = command("eval", tmp_path / "copy", "--best", "--episodes", "1", "--json")

    assert answer.code == 2
    rows = json.loads(answer.out)
    assert "does not exist" in rows[0]["error"]
    assert "is not a readable checkpoint" in rows[1]["error"]
    assert rows[2]["lengths"] == [200]


def test_a_column_is_shown_where_a_policy_has_it(runs: Path, command: Command) -> None:
    both = (_run(runs, "a"), _run(runs, "b"))

    answer = command("eval", *both, "--env", "Square-v0", "--episodes", "2")

    heads, first, _ = answer.out.splitlines()[1:4]
    assert heads.split() == ["policy", "algorithm", "environment", "return", "min", "max", "length", "success"]
    assert first.split()[2:] == ["Square-v0", "4.0", "±", "0.0", "4.0", "4.0", "4", "1.00"]


def test_a_policy_of_data_alone_acts_in_an_environment_that_is_named(runs: Path, command: Command) -> None:
    answer = command("eval", _run(runs, "c"), *PENDULUM, "--episodes", "2")
    values = json.loads(command("eval", _run(runs, "c"), *PENDULUM, "--episodes", "2", "--json").out)

    assert answer.code == 0
    assert values["lengths"] == [200, 200]
    assert values["env_id"] == "Pendulum-v1"
    (note,) = values["notes"]
    assert "Pendulum-v1 has continuous actions in 1 dimension from -2 to 2: actions keep their units" in note
    assert answer.out.splitlines()[-1] == f"note: {note}"


def test_actions_are_clipped_to_the_bounds_of_another_environment(runs: Path, command: Command) -> None:
    Square.actions.clear()
    saved = load_policy(_run(runs, "b"))
    spread = saved.evaluate(env="Square-v0", episodes=8, deterministic=False)

    assert (min(Square.actions), max(Square.actions)) == (-0.25, 0.25)
    assert any("clipped to its bounds" in note for note in spread.notes)
    Square.actions.clear()
    assert saved.evaluate(env="Square-v0", env_kwargs={"bound": 2.0}, episodes=8, deterministic=False).notes == ()
    assert max(map(abs, Square.actions)) > 0.25


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("--env", "CartPole-v1"),
            ["trained for observations of 3 numbers, CartPole-v1 has observations of 4", "2 discrete actions"],
        ),
        (("--env", "PointGoal-v0"), ["PointGoal-v0 has observations of 4 numbers (observation 2, desired_goal 2)"]),
        (("--env", "Pendulun-v1"), ["did you mean 'Pendulum-v1'?"]),
        (("seed=5",), ["a trained policy takes overrides of env_kwargs, such as env_kwargs.g=5; got 'seed=5'"]),
        (("env_kwargs.gravity=5",), ["env_kwargs: ", "gravity"]),
        (("--video", "out.mp3"), ["a video must end in .mp4 or .gif, got 'out.mp3'; did you mean '.mp4'?"]),
        (("--video", "no/out.mp4"), ["the folder of 'no/out.mp4' does not exist"]),
        (("--video", "out.mp4", "--num-envs", "2"), ["--video shows one episode after the other"]),
        (("--video", "out.mp4", "--env", "PointGoal-v0"), ["PointGoal-v0 cannot show itself", "it has none"]),
    ],
)
def test_what_a_policy_cannot_do_is_said_in_a_sentence(
    arguments: tuple[str, ...], words: list[str], runs: Path, command: Command, tmp_path: Path
) -> None:
    answer = command("eval", _run(runs, "a"), *arguments)

    assert (answer.code, answer.out) == (2, "")
    assert "Traceback" not in answer.err
    for word in words:
        assert word in answer.err
    assert list(tmp_path.iterdir()) == []


def test_arguments_of_the_environment_are_overridden_or_added(runs: Path, command: Command) -> None:
    run = _run(runs, "a")

    heavy, short = (
        json.loads(command("eval", run, *words, "--episodes", "1", "--json").out)
        for words in (("env_kwargs.g=5",), ("--set", "env_kwargs.max_episode_steps=7", "env_kwargs.g=10"))
    )

    plain = json.loads(command("eval", run, "--episodes", "1", "--json").out)
    assert heavy["returns"] != plain["returns"]
    assert short["lengths"] == [7]


def test_samples_differ_from_the_best_actions_and_are_repeatable(runs: Path, command: Command) -> None:
    best, sampled, again = (
        json.loads(command("eval", _run(runs, "b"), "--episodes", "1", "--json", *words).out)["returns"]
        for words in ((), ("--stochastic",), ("--stochastic",))
    )

    assert sampled == again
    assert sampled != best


def test_the_number_of_environments_does_not_matter(runs: Path, command: Command) -> None:
    one, two = (
        json.loads(command("eval", _run(runs, "a"), "--episodes", "2", "--json", "--num-envs", count).out)["returns"]
        for count in ("1", "2")
    )

    assert one == pytest.approx(two)


def _pictures(path: Path) -> list[Any]:
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    reader = ffmpeg.read_frames(str(path))
    width, height = next(reader)["size"]
    return [np.frombuffer(picture, np.uint8).reshape(height, width, 3) for picture in reader]


@pytest.mark.parametrize("name", ["out.mp4", "out.gif"])
def test_a_video_shows_the_episodes_of_an_evaluation(name: str, runs: Path, command: Command, tmp_path: Path) -> None:
    pytest.importorskip("pygame")
    words = ("--episodes", "2", "env_kwargs.max_episode_steps=10")

    answer = command("record", _run(runs, "a"), "--out", name, *words, "--json")
    values = json.loads(command("eval", _run(runs, "a"), *words, "--json").out)

    shown = json.loads(answer.out)
    assert shown.pop("video") == name
    assert shown["returns"] == pytest.approx(values["returns"])
    # Both episodes begin with their first observation.
    pictures = _pictures(tmp_path / name)
    assert len(pictures) == 22
    assert pictures[0].shape == (500, 500, 3)
    assert (pictures[0] != pictures[9]).any()
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_eval_makes_a_video_of_its_episodes(runs: Path, command: Command, tmp_path: Path) -> None:
    answer = command("eval", _run(runs, "a"), "--env", "Square-v0", "--video", "out.mp4")

    assert "Square-v0: return 4.0 ± 0.0, success 1.00 over 3 episodes" in answer.out
    assert answer.out.splitlines()[-1] == "video in out.mp4"
    # 15 pictures at 200 a second: every fourth of them, and sides that are even.
    pictures = _pictures(tmp_path / "out.mp4")
    assert (len(pictures), pictures[0].shape) == (4, (34, 36, 3))
    assert "video is for one policy, got 3" in command("eval", runs, "--video", "out.mp4").err


def test_a_video_that_fails_leaves_nothing_behind(runs: Path, command: Command, tmp_path: Path) -> None:
    (tmp_path / "out.mp4").write_bytes(b"the old one")

    answer = command("record", _run(runs, "a"), "--env", "Square-v0", "env_kwargs.picture=none", "--out", "out.mp4")

    assert answer.code == 2
    assert "render() of Square-v0 must give uint8 pictures of shape (height, width, 3), got NoneType" in answer.err
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"the old one"]


def test_a_missing_library_names_the_extra(runs: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Any:
        raise MissingExtraError("imageio_ffmpeg", "video", "making a video")

    monkeypatch.setattr(showing, "_ffmpeg", fail)

    answer = command("record", _run(runs, "a"), "--out", "out.mp4")

    assert (
        "making a video needs the package 'imageio_ffmpeg'; install it with: pip install 'rl-training[video]'"
        in answer.err
    )


def test_play_needs_a_display(runs: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pygame")
    monkeypatch.setattr("sys.platform", "linux")
    refused = command("play", _run(runs, "a"))

    assert (refused.code, refused.out) == (2, "")
    assert "there is no display to open a window on" in refused.err
    assert "`rl-training record` makes a video instead" in refused.err
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    shown = command("play", _run(runs, "a"), "env_kwargs.max_episode_steps=3")
    assert (shown.code, shown.out.splitlines()[-1].split()[-1]) == (0, "3")


def test_python_takes_an_environment_as_an_object_too(tmp_path: Path) -> None:
    model = SAC(
        env="Pendulum-v1", total_timesteps=10, learning_starts=5, hidden_sizes=[8], output_dir=tmp_path / "runs"
    )
    model.learn()
    known = set(gym.registry)

    for env in (Square(), Square, "Square-v0"):
        assert model.evaluate(env=env, num_episodes=2)["lengths"] == [4, 4]
    shown = model.record(tmp_path / "out.gif", env=Square(render_mode="rgb_array"), num_episodes=2)

    assert shown["lengths"] == [4, 4]
    assert len(_pictures(tmp_path / "out.gif")) == 3
    # What was passed as an object is forgotten again.
    assert set(gym.registry) == known
    with pytest.raises(ConfigError, match=r"was passed as an object: make it with render_mode='rgb_array'"):
        model.record(tmp_path / "none.gif", env=Square())
    with pytest.raises(ConfigError, match="at least 1 episode is needed, got 0"):
        model.evaluate(num_episodes=0)


OWN = """
import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box


class Own(gym.Env):
    observation_space = Box(-1, 1, (2,), np.float32)
    action_space = Box(-1, 1, (1,), np.float32)

    def __init__(self, wrong=False):
        self.wrong = wrong

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        obs = np.zeros(3, np.float32) if self.wrong else np.zeros(2, np.float32)
        return (obs, 1.0, False, {}) if self.wrong else (obs, 1.0, False, False, {})


gym.register("CheckedOwn-v0", Own, max_episode_steps=20)
"""


def test_env_check_says_what_is_wrong_and_what_is_seen(command: Command) -> None:
    Path("own.py").write_text(OWN)
    good = command("env", "check", "CheckedOwn-v0", "--import", "own.py")
    bad = command("env", "check", "CheckedOwn-v0", "wrong=true", "--import", "own.py")
    values = command("env", "check", "CheckedOwn-v0", "env_kwargs.wrong=true", "--json", "--import", "own.py")

    assert (good.code, good.err) == (0, "")
    assert "mistake" not in good.out
    assert "observations  2 numbers\nactions       continuous actions in 1 dimension from -1 to 1\n" in good.out
    assert "time limit    20 steps\nepisodes      10 of random actions, on average 20 steps long" in good.out
    algorithms = good.out.splitlines()[-1].split(maxsplit=1)[1].split(", ")
    assert {"sac", "bc"} <= set(algorithms)
    assert not {"dqn", "her"} & set(algorithms)
    assert (bad.code, bad.err) == (2, "error: CheckedOwn-v0 has 2 mistakes\n")
    lines = [line for line in bad.out.splitlines() if line.startswith("mistake")]
    assert [line.split()[1] for line in lines] == ["step", "the"]
    assert values.code == 2
    assert len(json.loads(values.out)["mistakes"]) == 2


def test_train_refuses_an_environment_with_all_its_mistakes(command: Command) -> None:
    Path("own.py").write_text(OWN)

    answer = command("train", "sac", "--env", "own:CheckedOwn-v0", "env_kwargs.wrong=true", "--out", "runs")

    assert (answer.code, answer.out) == (2, "")
    assert "(rl-training env check own:CheckedOwn-v0 wrong=True says more): 2 problems\n" in answer.err
    assert "step returns 4 values" in answer.err
    assert "has shape (3,), its space (2,)" in answer.err
    assert not Path("runs").exists()


def test_an_algorithm_that_needs_goals_is_named_for_a_task_that_has_them(command: Command) -> None:
    assert ", her, " in command("env", "check", "PointGoal-v0").out
