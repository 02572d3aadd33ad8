"""How fast a machine is: matrix products on one thread, and updates of three algorithms."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from rl_training.algorithms import ALGORITHMS
from rl_training.data import TransitionDataset, source_for
from rl_training.runtime.artifacts import MetricWindow
from rl_training.runtime.performance import one_thread
from rl_training.spaces import BoxActions, SpaceSpec

PRODUCT_SECONDS, UPDATE_SECONDS = 0.4, 1.0
"""How long each product, and the updates of each algorithm, are measured."""
ROUNDS = 5
SMALL, LARGE = 256, 1024
"""Rows and columns of square matrices: those of a hidden layer at the default batch, and where products are fastest."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
ALGOS = ("td3_bc", "iql", "sac")
OBS_DIM, ACTION_DIM = 17, 6
"""Those of HalfCheetah."""
ROWS, EPISODE, BATCH, WARM_UP = 20_000, 1000, 256, 5


@dataclass(frozen=True)
class Product:
    """How fast square matrices are multiplied."""

    size: int
    dtype: str
    gflops: float
    """Billions of operations per second that the process had its core."""
    core_share: float
    """The share of the time in which the process had its core: below 1, something else used it, or a quota ended."""


def measure_products(seconds: float | None = None) -> list[Product]:
    """Products of small and large matrices in both precisions, on one thread."""
    length = PRODUCT_SECONDS if seconds is None else seconds
    with one_thread(), torch.inference_mode():
        return [_product(size, dtype, length) for size in (SMALL, LARGE) for dtype in DTYPES]


def _product(size: int, dtype: str, seconds: float) -> Product:
    left, right = (torch.randn(size, size).to(DTYPES[dtype]) for _ in range(2))
    out = torch.empty_like(left)

    def multiply() -> None:
        torch.mm(left, right, out=out)

    multiply()
    worked, passed = time.process_time(), time.perf_counter()
    # By the time of the core, so that other programs do not make it look slower.
    rate = _rate(multiply, seconds, clock=time.process_time)
    worked, passed = time.process_time() - worked, time.perf_counter() - passed
    return Product(size, dtype, rate * 2 * size**3 / 1e9, min(worked / passed, 1.0))


def measure_updates(algo: str, seconds: float | None = None) -> float:
    """Updates per second, sampling included, at default sizes, on random rows of HalfCheetah's size; not compiled."""
    cls = ALGORITHMS[algo]
    action = BoxActions((-1.0,) * ACTION_DIM, (1.0,) * ACTION_DIM)
    algorithm = cls.build(SpaceSpec.vector(OBS_DIM, action), cls.hyper_class())
    source, _ = source_for(algorithm, _random_rows())
    window = MetricWindow()

    def update() -> None:
        window.add(algorithm.update(source.sample(BATCH)).metrics)

    for _ in range(WARM_UP):
        update()
    return _rate(update, UPDATE_SECONDS if seconds is None else seconds)


def _random_rows() -> TransitionDataset:
    drawn = torch.Generator().manual_seed(0)
    obs = torch.randn(ROWS + 1, OBS_DIM, generator=drawn)
    fields = {
        "observations": obs[:-1],
        "next_observations": obs[1:],
        "actions": torch.rand(ROWS, ACTION_DIM, generator=drawn) * 2 - 1,
        "rewards": torch.randn(ROWS, generator=drawn),
        "terminals": torch.zeros(ROWS, dtype=torch.bool),
        "timeouts": torch.arange(1, ROWS + 1) % EPISODE == 0,
    }
    return TransitionDataset.from_dict({name: values.numpy() for name, values in fields.items()})


def _rate(call: Callable[[], None], seconds: float, clock: Callable[[], float] = time.perf_counter) -> float:
    """Calls per second, the median over rounds; slow calls make fewer rounds, so that all take about these seconds."""
    rates: list[float] = []
    end = time.perf_counter() + seconds
    while len(rates) < ROUNDS and (not rates or time.perf_counter() < end):
        count, start, passed = 0, clock(), 0.0
        while passed < seconds / ROUNDS:
            call()
            count, passed = count + 1, clock() - start
        rates.append(count / passed)
    return statistics.median(rates)
