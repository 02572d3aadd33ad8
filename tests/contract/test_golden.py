"""Training gives the same numbers as before, bit for bit; and every algorithm reports the metrics that it reported.

python tests/contract/test_golden.py --write    # after a change that is meant to change numbers or metrics
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor

from rl_training.algorithms import ALGORITHMS, Algorithm
from rl_training.data import as_dataset, source_for
from rl_training.envs import space_spec

FILE = Path(__file__).parents[1] / "fixtures" / "golden.json"
UPDATES, BATCH_SIZE, EPISODES, STEPS = 50, 16, 8, 25
OBS_DIM, ACTION_DIM, NUM_ACTIONS = 4, 2, 3

SMALL: dict[str, Any] = {
    "hidden_sizes": (8, 8),
    "vae_hidden_sizes": (8, 8),
    "recompute_interval": 20,
    "rollout_steps": 64,
}
"""Options that make updates quick, for algorithms that have them."""

FURTHER: dict[str, dict[str, Any]] = {
    "dqn/quantiles": {"dueling": True, "num_quantiles": 5, "target_update_interval": 10, "max_grad_norm": 0.1},
    "iql/deterministic": {"policy": "deterministic", "actor_dropout": 0.1, "layer_norm": "after"},
    "sac/fixed_temperature": {"alpha": 0.2},
    "td3_bc/layer_norm": {"layer_norm": "before", "activation": "silu"},
}
"""Variants beside the defaults, as options by the name of the algorithm and a word."""


class _Task(gym.Env[Any, Any]):
    """Nothing but spaces."""

    observation_space = Box(-np.inf, np.inf, (OBS_DIM,))

    def __init__(self, kind: str) -> None:
        self.action_space = Discrete(NUM_ACTIONS) if kind == "discrete" else Box(-1.0, 1.0, (ACTION_DIM,))


def _cases() -> list[str]:
    """Every algorithm of the package with every kind of action that it takes, and the variants."""
    own = {name: cls for name, cls in ALGORITHMS.items() if cls.__module__.startswith("rl_training.")}
    plain = [f"{name}/{kind}" for name, cls in own.items() for kind in cls.action_kinds]
    return sorted([*plain, *FURTHER])


def _logged(kind: str) -> dict[str, Any]:
    """Made-up episodes, half of which terminate."""
    rng = np.random.default_rng(0)
    rows = EPISODES * STEPS
    last = np.arange(rows) % STEPS == STEPS - 1
    ended = last & (np.arange(rows) // STEPS % 2 == 0)
    obs = rng.normal(size=(rows, OBS_DIM)).astype(np.float32)
    box = rng.uniform(-1, 1, size=(rows, ACTION_DIM)).astype(np.float32)
    return {
        "obs": obs,
        "actions": rng.integers(NUM_ACTIONS, size=rows) if kind == "discrete" else box,
        "rewards": rng.normal(size=rows).astype(np.float32),
        "next_obs": np.roll(obs, -1, axis=0),
        "terminations": ended,
        "truncations": last & ~ended,
    }


def _batches(algorithm: Algorithm, kind: str) -> Iterator[dict[str, Tensor]]:
    """Batches as a run on the log would draw them; those of a rollout are drawn from fields that are made up too."""
    dataset = as_dataset(_logged(kind))
    if "returns_to_go" in algorithm.needs:
        dataset = dataset.with_returns_to_go(gamma=0.9)
    if "inputs" not in algorithm.needs:
        source, _ = source_for(algorithm, dataset)
        while True:
            yield source.sample(BATCH_SIZE)
    generator = torch.Generator().manual_seed(1)
    numbers = {name: torch.randn(len(dataset), generator=generator) for name in algorithm.needs}
    rows = {**numbers, "inputs": dataset.fields["obs"], "actions": dataset.fields["actions"]}
    while True:
        drawn = torch.randint(len(dataset), (BATCH_SIZE,), generator=generator)
        yield {name: rows[name][drawn] for name in algorithm.needs}


def _trained(case: str) -> tuple[Algorithm, set[str]]:
    """An algorithm after its updates, and the names of all metrics that it reported."""
    name, kind = case.split("/")
    cls = ALGORITHMS[name]
    kind = kind if kind in cls.action_kinds else cls.action_kinds[0]
    known = {option: value for option, value in SMALL.items() if option in cls.hyper_class.__dataclass_fields__}
    torch.manual_seed(0)
    algorithm = cls.build(space_spec(_Task(kind)), cls.hyper_class(**known | FURTHER.get(case, {})))
    metrics: set[str] = set()
    for _, batch in zip(range(UPDATES), _batches(algorithm, kind), strict=False):
        metrics |= algorithm.update(batch).metrics.keys()
    return algorithm, metrics


def _digest(tensors: Iterable[Tensor]) -> str:
    """A hash of the exact bytes."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def _state(algorithm: Algorithm) -> str:
    """A hash of networks, target networks and optimisers; the order in which they are kept does not count."""
    state = algorithm.state_dict()
    return _digest(state[name] for name in sorted(state) if isinstance(state[name], Tensor))


def _machine() -> dict[str, str]:
    """The numbers of this machine and this torch: bits of what networks compute."""
    generator = torch.Generator().manual_seed(0)
    rows, weights = torch.randn(BATCH_SIZE, 8, generator=generator), torch.randn(8, 8, generator=generator)
    wide = torch.randn(4, 64, 64, generator=generator)
    hidden = rows @ weights
    results = [rows, hidden, wide @ wide, hidden.exp(), hidden.tanh(), hidden.abs().sqrt(), hidden.softmax(-1)]
    results += [hidden.mean(0), hidden.std(), hidden / rows, hidden.sigmoid(), hidden.abs().log()]
    return {"torch": torch.__version__, "probe": _digest(results)}


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _golden() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def test_every_algorithm_is_in_the_file() -> None:
    assert sorted(_golden()["cases"]) == _cases()


@pytest.mark.parametrize("case", _cases())
def test_the_same_updates_give_the_same_bits_and_metrics(case: str) -> None:
    golden = _golden()
    with _one_thread():
        machine = _machine()
        algorithm, metrics = _trained(case)
    assert " ".join(sorted(metrics)) == golden["cases"][case]["metrics"]
    if machine != golden["machine"]:
        pytest.skip(f"hashes were made with {golden['machine']}, this is {machine}: numbers may differ in the last bit")
    assert _state(algorithm) == golden["cases"][case]["state"]


def _write() -> None:
    with _one_thread():
        cases = {}
        for case in _cases():
            algorithm, metrics = _trained(case)
            cases[case] = {"state": _state(algorithm), "metrics": " ".join(sorted(metrics))}
        golden = {"machine": _machine(), "cases": cases}
    FILE.write_text(json.dumps(golden, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", required=True, help=f"make {FILE.name} anew")
    parser.parse_args()
    _write()
