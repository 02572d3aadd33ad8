"""Checkpoints that are whole but wrong: every command that reads one refuses them alike, in little memory."""

from __future__ import annotations

import copy
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_training.core.errors import CheckpointError, UserError
from rl_training.runtime import evaluate, predict, resume
from rl_training.storage import load_checkpoint, load_tree, save_checkpoint, save_tree

RUN = Path(__file__).parents[1] / "fixtures" / "format_2"
OBS = [[0.5, -0.5, 1.0]]
DELETED = object()

USES: dict[str, Callable[[Path], Any]] = {
    "predict": lambda run: predict(run, OBS),
    "eval": lambda run: evaluate(run, episodes=1),
    "resume": lambda run: resume(run, total_timesteps=22),
}


def forge(folder: Path, changes: dict[str, Any]) -> Path:
    """A copy of a run whose checkpoint has other values at dotted places, and a checksum that fits."""
    run = folder / "run"
    shutil.copytree(RUN, run)
    path = run / "checkpoints" / "latest.pt"
    tree = copy.deepcopy(load_checkpoint(path))
    for place, value in changes.items():
        *parents, last = place.split("/")
        part: Any = tree
        for name in parents:
            part = part[name]
        if value is DELETED:
            del part[last]
        else:
            part[last] = value
    save_checkpoint(path, tree)
    return run


GUARDS: dict[str, Any] = {
    "initial": {"policy": 1.0},
    "raised": [],
    "looked": 0,
    "rollbacks": [],
    "good": None,
    "rewards": {"low": 0.0, "high": 0.0, "goes_on": False, "seen": 0},
}
WEIGHT = "algorithm/model.actor.net.0.weight"
EVERYWHERE: dict[str, tuple[dict[str, Any], str]] = {
    "no spaces": ({"spaces": DELETED}, "spaces is missing"),
    "spaces of text": ({"spaces": "large"}, "spaces is wrong"),
    "an observation that claims": ({"spaces/obs/obs/shape": [10**12]}, "spaces.obs.obs.shape.0 is wrong"),
    "a negative observation": ({"spaces/obs/obs/shape": [-3]}, "spaces.obs.obs.shape.0 is wrong"),
    "bounds that are no numbers": ({"spaces/action/low": ["a"]}, "spaces.action"),
    "bounds in the wrong order": ({"spaces/action/low": [9.0]}, "spaces.action"),
    "no networks": ({"algorithm": {}}, "algorithm is wrong"),
    "networks of text": ({"algorithm": {"model.actor": "text"}}, "algorithm.model.actor"),
    "no statistics": ({"algorithm/obs_mean": DELETED}, "obs_mean"),
    "options of text": ({"config/algo_kwargs": "none"}, "config.algo_kwargs is wrong"),
    "a number as algorithm": ({"config/algo": 5}, "config.algo is wrong"),
    "an unknown algorithm": ({"config/algo": "gone"}, "gone"),
    "no counters": ({"trainer/state": DELETED}, "trainer.state is missing"),
    "no window": ({"trainer/window": DELETED}, "trainer.window is missing"),
    "no generators": ({"random": None}, "random is wrong"),
    "threads of text": ({"machine/threads": "many"}, "machine.threads is wrong"),
    "rows without an end": ({"replay": [[0]]}, "replay.0 is wrong"),
    "guards of text": ({"trainer/guards": "none"}, "trainer.guards is wrong"),
    "guards that know more": ({"trainer/guards": {**GUARDS, "look": 1}}, "trainer.guards.look is wrong"),
    "a way back to another folder": ({"trainer/guards": {**GUARDS, "good": "../update_1.pt"}}, "trainer.guards.good"),
    "too many ways back": ({"trainer/guards": {**GUARDS, "rollbacks": [{}] * 4}}, "trainer.guards.rollbacks"),
    "wide networks": ({"config/algo_kwargs/hidden_sizes": [1 << 20, 1 << 20]}, "does not fit the options"),
    "impossible networks": ({"config/algo_kwargs/hidden_sizes": [1 << 40, 1 << 40]}, "does not fit the options"),
    "a million networks": ({"config/algo_kwargs/num_critics": 10**9}, "num_critics"),
}


@pytest.mark.filterwarnings("ignore:the run was made with torch")
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", EVERYWHERE)
def test_a_forged_checkpoint_is_refused_by_every_command_alike(tmp_path: Path, kind: str, use: str) -> None:
    changes, message = EVERYWHERE[kind]
    run, start = forge(tmp_path, changes), time.process_time()
    with pytest.raises(UserError) as caught:
        USES[use](run)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert time.process_time() - start < 30


RESUMED: dict[str, dict[str, Any]] = {
    "a source of another kind": {"source": {"other": 1}},
    "a short generator": {"random/torch": torch.zeros(3, dtype=torch.uint8)},
    "a window of text": {"trainer/window": [["a"]]},
    "a collector without episodes": {"collector/episodes": DELETED},
    "an environment in no state": {"collector/stepper/snapshots": ["x"]},
    "observations of nothing": {"collector/stepper/obs": torch.zeros(0, 3)},
    "observations of another shape": {"collector/stepper/obs": torch.zeros(1, 1, 3)},
    "returns of integers": {"collector/returns": torch.zeros(1, dtype=torch.int64)},
    "a task of another shape": {
        "collector/stepper/snapshots": [{"task": {"state": torch.zeros(1, 2)}, "steps": [0], "random": {}}]
    },
    "guards of other networks": {"trainer/guards": GUARDS},
    "counters of text": {"trainer/state": {"update_count": "many"}},
    "a list as counter of rows": {"source/first_stream": [0]},
    "streams beyond their type": {"source/first_stream": 1 << 40},
    "more rows than steps": {"trainer/state/stored": 1 << 31},
    "branches of lists": {"trainer/branches": [[1]]},
    "a batch that claims": {"config/algo_kwargs/batch_size": (1 << 63) - 1},
    "a buffer that claims": {"config/algo_kwargs/buffer_capacity": (1 << 63) + 1},
    "no seed": {"config/seed": DELETED},
    "a path that cannot be": {"config/algo_kwargs/initial_checkpoint": "runs/\0/checkpoints/latest.pt"},
}


@pytest.mark.filterwarnings("ignore:the run was made with torch")
@pytest.mark.parametrize("kind", RESUMED)
def test_a_state_that_cannot_be_restored_is_one_sentence(tmp_path: Path, kind: str) -> None:
    with pytest.raises(UserError) as caught:
        resume(forge(tmp_path, RESUMED[kind]), total_timesteps=22)
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:the run was made with torch")
@pytest.mark.parametrize(
    "change",
    [
        lambda rows: None,
        lambda rows: {name: value[:3] for name, value in rows.items()},
        lambda rows: {**rows, "obs": "text"},
        lambda rows: {**rows, "obs": torch.zeros(10, 99)},
        lambda rows: {name: value for name, value in rows.items() if name != "streams"},
        lambda rows: {name: value for name, value in rows.items() if name != "rewards"},
    ],
    ids=["none", "few", "text", "wide", "no streams", "no rewards"],
)
def test_wrong_rows_of_a_replay_buffer_are_one_sentence(tmp_path: Path, change: Callable[[Any], Any]) -> None:
    run = tmp_path / "run"
    shutil.copytree(RUN, run)
    path = run / "replay" / "rows_0000000010_0000000020.pt"
    save_tree(path, {"rows": change(load_tree(path)["rows"])})
    with pytest.raises(CheckpointError) as caught:
        resume(run, total_timesteps=22)
    assert "\n" not in str(caught.value)
