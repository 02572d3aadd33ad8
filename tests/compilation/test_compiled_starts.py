"""Compiled graphs are kept: a second start reads what the first has compiled, and learns the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

START = """
import json, sys, torch
from torch._dynamo.utils import counters
from rl_training.algorithms import ALGORITHMS
from rl_training.core.spaces import BoxActions, SpaceSpec

torch.set_num_threads(1)
digests = []
for seed in map(int, sys.argv[1:]):
    torch.manual_seed(seed)
    cls = ALGORITHMS["td3_bc"]
    algorithm = cls.build(SpaceSpec.vector(4, BoxActions((-1.0,), (1.0,))), cls.hyper_class(hidden_sizes=(16, 16)))
    algorithm.compile_steps()
    for _ in range(4):
        shapes = {"obs": (8, 4), "actions": (8, 1), "rewards": (8,), "next_obs": (8, 4), "dones": (8,)}
        algorithm.update({name: torch.rand(shape) for name, shape in shapes.items()})
    digests.append(sum(value.double().sum().item() for value in algorithm.parameters()))
found = counters["aot_autograd"]
print(json.dumps([digests, found["autograd_cache_hit"], found["autograd_cache_miss"]]))
"""


def _start(folder: Path, *seeds: int) -> Any:
    command = [sys.executable, "-c", START, *map(str, seeds)]
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(folder)}
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    return json.loads(output.splitlines()[-1])


@pytest.mark.slow
def test_a_second_start_reads_the_graphs_of_the_first_and_learns_the_same(tmp_path: Path) -> None:
    (first, _), hits, misses = _start(tmp_path / "graphs", 0, 1)
    # The second run in one process reads what the first has compiled.
    assert (hits, misses) == (2, 2)

    assert _start(tmp_path / "graphs", 0) == [[first], 2, 0]
    for library in (tmp_path / "graphs").glob("*/*.main.so"):
        os.truncate(library, library.stat().st_size // 2)
    assert _start(tmp_path / "graphs", 0) == [[first], 2, 0]
