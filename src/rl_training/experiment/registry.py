"""Table of algorithms; each row follows from its class."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike, NDArray

from rl_training.algorithms import ALGORITHMS, Algorithm
from rl_training.config import TrainConfig, packaged_configs
from rl_training.core.options import describe
from rl_training.policies import load_policy
from rl_training.runtime import (
    Callback,
    ConfigSource,
    TrainResult,
    check_algorithm,
    find_algorithm,
    mode_defaults,
    option_groups,
    read_options,
    resume,
    train,
)


@dataclass(frozen=True)
class AlgorithmSpec:
    """One row of the registry."""

    name: str
    algorithm: type[Algorithm]

    @property
    def mode(self) -> str:
        """The source of its data: offline, online, or both."""
        return self.algorithm.mode

    @property
    def idea(self) -> str:
        """The algorithm in a sentence."""
        module = self.algorithm.__module__
        # The docstring of a program or notebook is about something else.
        about = None if module == "__main__" else getattr(sys.modules.get(module), "__doc__", None)
        text = about or self.algorithm.__doc__ or ""
        line = text.strip().partition("\n")[0]
        return line.partition(": ")[2] or line

    @property
    def configs(self) -> list[str]:
        """Names of the configurations shipped for it."""
        return [name for name in packaged_configs() if name.split("/")[0] == self.name]

    def row(self) -> dict[str, Any]:
        """Name, mode, idea and configurations, as `rl-training list` shows them."""
        return {"name": self.name, "mode": self.mode, "idea": self.idea, "configs": self.configs}

    def options(self) -> dict[str, list[dict[str, Any]]]:
        """Every option by group, with the defaults that hold for this algorithm."""
        defaults = mode_defaults(self.algorithm, self.algorithm.mode)
        return {group.__name__: describe(group, defaults) for group in option_groups(self.algorithm)}

    def train(self, config: ConfigSource, *, callbacks: Sequence[Callback] = ()) -> TrainResult:
        """Train from a config that is for this algorithm."""
        bound = read_options(config)
        check_algorithm(bound[0], self.name)
        return train(bound, callbacks=callbacks)

    def evaluate(self, checkpoint: str | Path, *, episodes: int | None = None) -> dict[str, Any]:
        """Raw returns and lengths of a checkpoint's policy, with their mean and standard deviation."""
        return load_policy(checkpoint, algo=self.name).evaluate(episodes=episodes).to_dict()

    def predict(self, checkpoint: str | Path, obs: ArrayLike, *, deterministic: bool = True) -> NDArray[Any]:
        """Actions of a checkpoint's policy in native units."""
        return load_policy(checkpoint, algo=self.name).predict(obs, deterministic=deterministic)

    def resume(self, checkpoint: str | Path, *, callbacks: Sequence[Callback] = (), **overrides: Any) -> TrainResult:
        """Continue a run from a checkpoint or its directory."""
        return resume(checkpoint, callbacks=callbacks, expected_algo=self.name, **overrides)


def get_algorithm_spec(name: str) -> AlgorithmSpec:
    """The row of one algorithm."""
    return AlgorithmSpec(name, find_algorithm(name))


def list_algorithms() -> list[AlgorithmSpec]:
    """All rows, by name."""
    return [AlgorithmSpec(name, ALGORITHMS[name]) for name in sorted(ALGORITHMS)]


def describe_options(name: str | None = None) -> dict[str, list[dict[str, Any]]]:
    """The options of a run and, where one is named, of an algorithm, by group."""
    groups = {"TrainConfig": describe(TrainConfig)}
    return groups if name is None else groups | get_algorithm_spec(name).options()


def build_index() -> dict[str, Any]:
    """The index of algorithms and options for `rl-training list` and `config explain`, without repeated rows."""
    rows: dict[str, int] = {}

    def numbers(group: list[dict[str, Any]]) -> list[int]:
        return [rows.setdefault(json.dumps(row, default=list), len(rows)) for row in group]

    run = numbers(describe(TrainConfig))
    specs = list_algorithms()
    options = {spec.name: {group: numbers(found) for group, found in spec.options().items()} for spec in specs}
    algorithms = [spec.row() for spec in specs]
    return {"algorithms": algorithms, "run": run, "options": options, "rows": [json.loads(row) for row in rows]}
