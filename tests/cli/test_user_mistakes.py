"""What a user can get wrong: one clear message, status 2, no traceback, and nothing left behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import TINY, Answer, Command, call_main
from conftest import transitions
from numpy.typing import NDArray

from rl_training import BC
from rl_training.compilation import graphs
from rl_training.config import TrainConfig
from rl_training.core.errors import CheckpointError
from rl_training.experiment import get_algorithm_spec
from rl_training.runtime import train

Arrays = dict[str, Any]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return partial(call_main, monkeypatch, capsys)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Where runs go: it does not exist until something is put there."""
    return tmp_path / "output" / "runs"


@pytest.fixture
def train_tiny(command: Command, output: Path) -> Command:
    def call(*overrides: str, algo: str = "td3_bc") -> Answer:
        return command("train", "-c", f"{algo}/pendulum", *TINY, f"output_dir={output}", *overrides)

    return call


@pytest.fixture
def train_on(train_tiny: Command, tmp_path: Path) -> Command:
    """Train on a file with these arrays."""

    def call(arrays: Arrays, *overrides: str) -> Answer:
        np.savez(tmp_path / "log.npz", **arrays)
        return train_tiny(*_reading(tmp_path / "log.npz"), *overrides)

    return call


def _reading(path: Path) -> list[str]:
    return [f"algo_kwargs.dataset_path={path}", "algo_kwargs.dataset_kind=null", "algo_kwargs.dataset_size=null"]


def _refused(answer: Answer, output: Path, *words: str) -> None:
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("error: ")
    assert "Traceback" not in answer.err
    for word in words:
        assert word in answer.err
    # Neither a run directory nor a hidden draft of one.
    assert not output.exists()


def _with_row(array: NDArray[Any], row: int, value: float) -> NDArray[Any]:
    array = array.copy()
    array[row] = value
    return array


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["sed=1"], "unknown option 'sed'; did you mean 'seed'?"),
        (["batch_sice=8"], "unknown option 'batch_sice'; did you mean 'algo_kwargs.batch_size'?"),
        (
            ["algo_kwargs.num_envs=2"],
            "algo_kwargs: unknown option 'num_envs'; did you mean 'num_envs' beside algo_kwargs?",
        ),
        (
            ["algo_kwargs.precision=float16"],
            "precision must be one of 'float32' or 'bfloat16', got 'float16'; did you mean 'bfloat16'?",
        ),
        (["algo=td3_cb"], "unknown algorithm 'td3_cb'; did you mean 'td3_bc'?"),
        (["env_id=Pendulun-v1"], "unknown env_id 'Pendulun-v1'; did you mean 'Pendulum-v1'?"),
        (
            ["env_id=CartPole-v1"],
            "td3_bc is for continuous actions, CartPole-v1 has 2 discrete actions: use bc,",
        ),
        (["env_kwargs.gravity=1"], "env_kwargs: "),
        (["algo_kwargs.replay=hindsight"], "Pendulum-v1 has no goals"),
        (["env_kwargs.g=heavy"], "Pendulum-v1 with env_kwargs g='heavy' cannot be used (rl-training env check"),
        (["env_kwargs.wrappers.reward=clip_1"], "env_kwargs.wrappers.reward must be a mapping"),
        (["env_id=null"], "dataset_kind 'random' needs an environment to act in: set env_id"),
        (["algo_kwargs.dataset_kind=null", "algo_kwargs.dataset_size=null"], "no dataset is named: set dataset_path"),
        (["algo_kwargs.dataset_kind=npz"], "dataset_kind 'npz' needs a dataset_path"),
        (["algo_kwargs.dataset_path=log.txt", "algo_kwargs.dataset_kind=null"], "has none of the endings .npz"),
        (["algo_kwargs.min_buffer_size=9999"], "the data has 400 transitions, min_buffer_size is 9999"),
        (["algo_kwargs.reward_clip_min=2", "algo_kwargs.reward_clip_max=1"], "clip_min must be <= clip_max"),
        (["seed=[1"], "--set seed: not valid YAML: "),
    ],
)
def test_an_option_that_is_wrong_is_named_before_anything_is_made(
    train_tiny: Command, output: Path, overrides: list[str], words: str
) -> None:
    _refused(train_tiny(*overrides), output, words)


def test_all_problems_of_a_config_are_reported_at_once(command: Command, tmp_path: Path, output: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text(
        f"algo: td3_bc\ntotal_timestep: 5\nseed: -1\noutput_dir: {output}\n"
        "algo_kwargs: {bc_aplha: 1, policy_delay: 0, learning_rate: fast, eval_interval: 0}\n"
    )

    answer = command("train", "--config", path)

    _refused(answer, output)
    assert answer.err == (
        f"error: {path}: 6 problems\n"
        "  unknown option 'total_timestep'; did you mean 'total_timesteps'?\n"
        "  seed must be >= 0, got -1\n"
        "  algo_kwargs: unknown option 'bc_aplha'; did you mean 'bc_alpha'?\n"
        "  algo_kwargs: learning_rate must be a number, got 'fast'\n"
        "  algo_kwargs: policy_delay must be >= 1, got 0\n"
        "  algo_kwargs: eval_interval must be >= 1, got 0\n"
    )


def test_a_device_that_the_machine_lacks_is_refused(train_tiny: Command, output: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has it")

    _refused(train_tiny("device=cuda"), output, "device 'cuda' is not available on this machine")


def test_bfloat16_is_refused_where_the_processor_lacks_it(
    train_tiny: Command, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "has_bfloat16", lambda device: False)
    words = "precision: bfloat16 is not possible: this processor has no instructions for it; set float32"
    _refused(train_tiny("algo_kwargs.precision=bfloat16"), output, words)


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        (None, "no config file or packaged config"),
        (b"algo: [1\nseed: 2\n", "not valid YAML: line 2, column 5: "),
        (b"- algo\n", "expected a mapping of options, got list"),
        (b"", "expected a mapping of options, got NoneType"),
        (b"\x93NUMPY\x00\xff", "is not a text file in UTF-8"),
        (b"seed: 1\n", "algo is required"),
    ],
    ids=["missing", "not YAML", "a list", "empty", "not text", "no algorithm"],
)
def test_a_config_file_that_cannot_be_used_is_named(
    command: Command, tmp_path: Path, output: Path, contents: bytes | None, words: str
) -> None:
    path = tmp_path / "my.yaml"
    if contents is not None:
        path.write_bytes(contents)

    _refused(command("train", "--config", path, f"output_dir={output}"), output, str(path), words)


def test_a_missing_dataset_is_answered_with_the_nearest_file(train_tiny: Command, tmp_path: Path, output: Path) -> None:
    (tmp_path / "hopper.npz").touch()

    answer = train_tiny(*_reading(tmp_path / "hoper.npz"))

    _refused(answer, output, f"dataset_path '{tmp_path}/hoper.npz' does not exist; did you mean 'hopper.npz'?")


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_truncated_dataset_is_refused(train_tiny: Command, tmp_path: Path, output: Path, share: float) -> None:
    path = tmp_path / "log.npz"
    arrays: Arrays = transitions()
    np.savez_compressed(path, **arrays)
    contents = path.read_bytes()
    path.write_bytes(contents[: int(share * len(contents))])

    _refused(train_tiny(*_reading(path)), output, str(path), "it may be truncated")


def test_pickled_objects_in_a_dataset_are_refused_and_not_run(train_on: Command, output: Path) -> None:
    arrays: Arrays = transitions() | {"actions": np.array([{"steer": 1}] * 60, dtype=object)}

    _refused(train_on(arrays), output, "actions holds pickled Python objects, which are not read")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a: {"rewards": _with_row(a["rewards"], 17, np.nan)}, ["rewards has 1 values", "nan in row 17"]),
        (lambda a: {"observations": _with_row(a["observations"], 3, np.inf)}, ["observations has 3", "inf in row 3"]),
        (lambda a: {"rewards": a["rewards"][:-1]}, ["rewards has 59 rows, obs has 60"]),
        (lambda a: {"actions": a["actions"][:-20]}, ["actions has 40 rows, obs has 60"]),
        (lambda a: {"terminals": np.full(60, 2)}, ["terminals must be 0 or 1, got"]),
        (lambda a: {"actions": np.ones((60, 2), dtype=int)}, ["actions are integers of shape (60, 2); expected one"]),
        (lambda a: {"observations": np.zeros((60, 4))}, ["next_obs has 3 columns, obs has 4"]),
        (lambda a: {"actions": np.zeros((60, 2))}, ["the dataset has action_dim 2, Pendulum-v1 has 1"]),
        (
            lambda a: {"observations": np.zeros((60, 5)), "next_observations": np.zeros((60, 5))},
            ["the dataset has obs_dim 5, Pendulum-v1 has 3"],
        ),
        (lambda a: {"obs": a["observations"]}, ["'obs' and 'observations' are two spellings"]),
    ],
)
def test_arrays_that_cannot_be_transitions_are_named(
    train_on: Command, output: Path, change: Callable[[Arrays], Arrays], words: list[str]
) -> None:
    arrays: Arrays = transitions()

    _refused(train_on(arrays | change(arrays)), output, *words)


@pytest.mark.parametrize("field", ["observations", "actions", "rewards", "terminals"])
def test_a_missing_field_is_named(train_on: Command, output: Path, field: str) -> None:
    arrays: Arrays = transitions()
    del arrays[field]
    if field == "terminals":
        # With time limits alone, the data would be that of a task that never ends.
        del arrays["timeouts"]

    words = {"observations": "field 'obs' is missing", "terminals": "field 'dones' is missing"}
    words["rewards"] = "the data has no rewards, which td3_bc learns from"
    _refused(train_on(arrays), output, words.get(field, f"field '{field}' is missing"))


def test_actions_outside_the_bounds_are_refused_until_clipping_is_asked_for(train_on: Command, output: Path) -> None:
    arrays: Arrays = transitions()
    arrays["actions"] = _with_row(arrays["actions"], 5, 2.5)

    _refused(
        train_on(arrays),
        output,
        "1 rows have actions outside the bounds of Pendulum-v1",
        "row 5, column 0 is 2.5, expected [-2, 2]",
        "set clip_actions: true to clip them",
    )
    assert train_on(arrays, "algo_kwargs.clip_actions=true").code == 0
    assert len(list(output.iterdir())) == 1


def test_reward_wrappers_on_logged_data_are_refused_with_what_to_use_instead(train_on: Command, output: Path) -> None:
    arrays: Arrays = transitions()

    _refused(train_on(arrays, "env_kwargs.wrappers.reward.scale=2.0"), output, "use reward_preset, reward_scale")


@pytest.mark.parametrize("place", ["file", "file/inside"])
def test_an_output_folder_that_cannot_be_written_is_named(train_tiny: Command, tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("not a folder")

    answer = train_tiny(f"output_dir={tmp_path / place}")

    _refused(answer, tmp_path / "file" / "inside", f"output_dir '{tmp_path / place}' cannot be written: ")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_run_whose_loss_is_no_number_any_more_ends_with_advice(train_tiny: Command, output: Path) -> None:
    answer = train_tiny("--quiet", "algo_kwargs.learning_rate=1e30")

    assert answer.code == 2
    assert "training has diverged; try a lower learning_rate or max_grad_norm" in answer.err
    assert "Traceback" not in answer.err
    (run,) = output.iterdir()
    assert f"the last checkpoint is {run / 'checkpoints' / 'latest.pt'}" in answer.err
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert None in rows[-1].values()


@pytest.fixture
def td3_bc_run(tiny_config: Callable[..., TrainConfig]) -> Path:
    return train(tiny_config("td3_bc", "total_timesteps=1")).run_dir


def test_a_checkpoint_of_another_algorithm_is_refused_everywhere(td3_bc_run: Path) -> None:
    spec, checkpoint = get_algorithm_spec("bc"), td3_bc_run / "checkpoints" / "latest.pt"
    uses: list[Callable[[Path], object]] = [
        BC.load,
        partial(spec.evaluate, episodes=1),
        partial(spec.predict, obs=np.zeros(3)),
        partial(spec.resume, total_timesteps=2),
    ]

    for use in uses:
        for path in (checkpoint, td3_bc_run):
            with pytest.raises(CheckpointError) as caught:
                use(path)
            assert str(caught.value) == f"{checkpoint} is a checkpoint of 'td3_bc', not of 'bc'"


@pytest.mark.parametrize("name", ["eval", "resume"])
@pytest.mark.parametrize("damage", ["missing", "empty", "foreign", "flipped"])
def test_a_checkpoint_that_cannot_be_used_is_named(command: Command, td3_bc_run: Path, name: str, damage: str) -> None:
    checkpoint = td3_bc_run / "checkpoints" / "latest.pt"
    contents = checkpoint.read_bytes()
    # latest.pt shares its contents with the checkpoint that it is a second name of.
    checkpoint.unlink()
    if damage == "empty":
        checkpoint.touch()
    elif damage == "foreign":
        torch.save({"model": torch.zeros(3)}, checkpoint)
    elif damage == "flipped":
        weights = torch.load(td3_bc_run / "checkpoints" / "update_000000001.pt", weights_only=True)["algorithm"]
        needle = weights["model.actor.mlp.layers.0.weight"].numpy().tobytes()
        place = contents.index(needle)
        checkpoint.write_bytes(contents[:place] + bytes([contents[place] ^ 1]) + contents[place + 1 :])

    answer = command(name, checkpoint)

    assert (answer.code, answer.out) == (2, "")
    assert str(checkpoint) in answer.err
    assert "Traceback" not in answer.err
    words = {"missing": "does not exist", "empty": "is not a readable checkpoint", "flipped": "is damaged"}
    assert words.get(damage, "is not a checkpoint of rl_training") in answer.err


@pytest.mark.parametrize("name", ["eval", "resume", "report"])
def test_a_folder_that_is_no_run_is_named(command: Command, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()

    answer = command(name, folder)

    assert (answer.code, answer.out) == (2, "")
    assert str(folder) in answer.err
    assert list(folder.iterdir()) == []
