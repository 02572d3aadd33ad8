"""Every format that the package reads: small valid files, and what reads them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from rl_training import estimate, select
from rl_training.config import load_config
from rl_training.data import TransitionDataset, convert, load_any
from rl_training.data.files.formats import write_dataset
from rl_training.policies import name_actions, table_observations
from rl_training.reports import read_runs, summarize
from rl_training.reports.page import write_report
from rl_training.runtime import load_policy, resume, train
from rl_training.storage import is_finished, read_json
from rl_training.storage.trust import INDEX, is_own_run

OBS = [[0.5, -0.5, 1.0]]
COLUMNS = {"obs": ["x_*"], "actions": ["a"], "reward": "r", "episode": "run"}
MINARI = "fuzz/log-v0"


class Format(NamedTuple):
    """Files of one format under a name, of which those that a pattern fits are changed, and their reader."""

    name: str
    pattern: str
    read: Callable[[Path], Any]


def log(rows: int = 30, *, episode: int = 15) -> dict[str, Any]:
    """Episodes of a task with three numbers and one action."""
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(rows + 1, 3)).astype(np.float32)
    return {
        "observations": obs[:-1],
        "actions": rng.uniform(-1, 1, (rows, 1)).astype(np.float32),
        "rewards": rng.normal(size=rows).astype(np.float32),
        "next_observations": obs[1:],
        "terminals": np.zeros(rows, dtype=bool),
        "timeouts": np.arange(1, rows + 1) % episode == 0,
    }


def make_files(folder: Path) -> None:
    """A valid file of every format."""
    arrays = log()
    dataset = TransitionDataset.from_dict(arrays)
    for ending in ("npz", "pt", "hdf5", "rlt", "parquet"):
        dataset.save(folder / f"log.{ending}")
    np.savez(folder / "plain.npz", **arrays)
    episodes = [
        {
            "observations": torch.randn(6, 3),
            "actions": torch.zeros(5, 1),
            "rewards": torch.ones(5),
            "terminations": True,
        }
    ]
    torch.save(episodes, folder / "episodes.pt")
    os.environ["MINARI_DATASETS_PATH"] = str(folder / "minari")
    write_dataset(dataset, MINARI)
    _make_table(folder / "log.csv", arrays)
    (folder / "index").mkdir()
    (folder / "index" / INDEX).write_text(json.dumps(str(folder)) + "\n")
    (folder / "obs.json").write_text(json.dumps(OBS))
    np.save(folder / "obs.npy", np.array(OBS, dtype=np.float32))
    _make_runs(folder)


def _make_table(path: Path, arrays: dict[str, Any]) -> None:
    rows = zip(
        arrays["timeouts"].cumsum(), *arrays["observations"].T, arrays["actions"][:, 0], arrays["rewards"], strict=True
    )
    lines = ["run,x_0,x_1,x_2,a,r", *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")


def _make_runs(folder: Path) -> None:
    shared: dict[str, Any] = {
        "env_id": "Pendulum-v1",
        "eval_episodes": 1,
        "log_interval": 4,
        "checkpoint_interval": 8,
        "output_dir": str(folder),
        "env_kwargs": {"max_episode_steps": 5},
    }
    small: dict[str, Any] = {"batch_size": 4, "hidden_sizes": [4], "eval_interval": 8}
    sac = {"algo": "sac", "total_timesteps": 12, "run_name": "run", "algo_kwargs": {**small, "learning_starts": 4}}
    table: dict[str, Any] = {
        "algo": "bc",
        "env_id": None,
        "env_kwargs": {},
        "total_timesteps": 4,
        "run_name": "table",
        "algo_kwargs": {**small, "dataset_path": str(folder / "log.csv"), "dataset_columns": COLUMNS},
    }
    train({**shared, **sac}, threads=1)
    train({**shared, **table}, threads=1)
    judged = {**table, "output_dir": str(folder / "judged"), "run_name": "one"}
    run = train({**shared, **judged}, threads=1).run_dir
    fit: dict[str, Any] = {"gamma": 0.5, "members": 2, "updates": 40, "hidden_sizes": (4,), "threads": 1}
    many = TransitionDataset.from_dict(log(300, episode=15))
    estimate(run, many, **fit).save()
    select(run, many, **fit).save(folder / "judged" / "selection.json")


def _predict(path: Path) -> None:
    load_policy(path).predict(OBS)


def _observations(path: Path) -> None:
    from rl_training.cli.policies import _read_observations

    _read_observations(path)


def _report(run: Path) -> None:
    summarize(read_runs(run))
    is_finished(run)
    read_json(run / "metadata.json")


def _page(folder: Path) -> None:
    write_report([folder], folder / "page.html")


def _continue(run: Path) -> None:
    # More threads hang in a copy of a process that has used some.
    resume(run, total_timesteps=13, threads=1)


def _table_prediction(run: Path) -> None:
    saved = load_policy(run)
    name_actions(saved, saved.predict(table_observations(saved, run.parent / "log.csv")))


def _own(folder: Path) -> None:
    os.environ["XDG_STATE_HOME"] = str(folder.parent)
    shutil.move(folder, folder.with_name("rl-training"))
    is_own_run(folder)


def _inspect(path: Path) -> None:
    load_any(str(path))


def _minari(path: Path) -> None:
    os.environ["MINARI_DATASETS_PATH"] = str(path)
    load_any(MINARI)


def _table(path: Path) -> None:
    load_any(str(path), COLUMNS)


def _convert(ending: str) -> Callable[[Path], None]:
    def convert_file(path: Path) -> None:
        convert(str(path), str(path.with_name(f"converted.{ending}")))

    return convert_file


def _convert_table(path: Path) -> None:
    convert(str(path), str(path.with_name("converted.rlt")), columns=COLUMNS)


FORMATS = {
    "npz": Format("log.npz", "*", _inspect),
    "npz, stored": Format("plain.npz", "*", _inspect),
    "npz, converted": Format("log.npz", "*", _convert("rlt")),
    "pt": Format("log.pt", "*", _inspect),
    "pt, converted": Format("log.pt", "*", _convert("npz")),
    "pt of episodes": Format("episodes.pt", "*", _inspect),
    "hdf5": Format("log.hdf5", "*", _inspect),
    "hdf5, converted": Format("log.hdf5", "*", _convert("rlt")),
    "mapped": Format("log.rlt", "*", _inspect),
    "minari": Format("minari", "**/*", _minari),
    "csv": Format("log.csv", "*", _table),
    "csv, converted": Format("log.csv", "*", _convert_table),
    "parquet": Format("log.parquet", "*", _inspect),
    "parquet, converted": Format("log.parquet", "*", _convert("rlt")),
    "observations, json": Format("obs.json", "*", _observations),
    "observations, npy": Format("obs.npy", "*", _observations),
    "checkpoint": Format("run", "checkpoints/latest.pt", _predict),
    "policy file": Format("run", "policies/*.pt", lambda run: _predict(min((run / "policies").glob("*.pt")))),
    "checkpoint, resumed": Format("run", "checkpoints/latest.pt", _continue),
    "rows, resumed": Format("run", "replay/*.pt", _continue),
    "metrics, resumed": Format("run", "metrics.jsonl", _continue),
    "run, reported": Format("run", "*.*", _report),
    "estimates, as a page": Format("judged", "**/*.json", _page),
    "config": Format("run", "config.yaml", lambda run: load_config(run / "config.yaml")),
    "policy for tables": Format("table", "checkpoints/latest.pt", _table_prediction),
    "index of runs": Format("index", "*", _own),
}
