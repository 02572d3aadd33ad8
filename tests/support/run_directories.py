"""Run directories written by hand: what tests of reports share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_training.config import TrainConfig

Rows = Sequence[Mapping[str, float]]


def make_run(
    folder: Path,
    seed: int,
    rows: Rows,
    *,
    algo: str = "bc",
    env_id: str | None = "Task-v0",
    kind: str = "eval",
    algo_kwargs: dict[str, Any] | None = None,
    steps: Sequence[int] | None = None,
    data_return: float | None = None,
) -> Path:
    """A run directory with these evaluations, 100 updates apart unless their steps are given."""
    config = TrainConfig(algo=algo, env_id=env_id, seed=seed, algo_kwargs=algo_kwargs or {})
    folder.mkdir(parents=True, exist_ok=True)
    number = len(list(folder.iterdir()))
    path = folder / f"{algo}__{env_id or 'log'}__seed{seed}__20240506-12{number:04d}"
    (path / "checkpoints").mkdir(parents=True)
    (path / "config.yaml").write_text(config.to_yaml())
    lines: list[dict[str, Any]] = [{"kind": "train", "global_step": 50, "actor_loss": 1.0}]
    steps = steps or [100 * (number + 1) for number in range(len(rows))]
    lines += [{"kind": kind, "global_step": step, **row} for step, row in zip(steps, rows, strict=True)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if data_return is not None:
        (path / "metadata.json").write_text(json.dumps({"data": {"return_mean": data_return}}))
    return path


def returns(*values: float) -> Rows:
    """Evaluations with these returns."""
    return [{"return_mean": value} for value in values]
