"""Updates per second beside d3rlpy's, sampling included, as ratios from one interleaved run.

    python benchmarks/update_speed.py [--algo td3_bc] [--rounds 7] [--updates 200] [--threads 1]

Networks, batch and data are equal: 2x256, batch 256, HalfCheetah's sizes. Each variant lives in a process of its own,
as its users would run it, and waits while another is timed. Each round times every variant once, so that what else the
machine does falls on all of them; the ratio is the median over rounds of ours by theirs in that round.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from rl_training.algorithms import ALGORITHMS
from rl_training.data import TransitionDataset
from rl_training.runtime.artifacts import MetricWindow
from rl_training.runtime.performance import configure_machine
from rl_training.types import SpaceSpec

OBS_DIM, ACTION_DIM, ROWS, EPISODE, BATCH = 17, 6, 100_000, 1000, 256
SPACES = SpaceSpec(OBS_DIM, ACTION_DIM, (-1.0,) * ACTION_DIM, (1.0,) * ACTION_DIM)
WARM_UP = 20
VARIANTS = ("d3rlpy", "eager", "compiled")


def make_arrays() -> dict[str, Any]:
    """Random transitions in D4RL's names."""
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(ROWS + 1, OBS_DIM)).astype(np.float32)
    return {
        "observations": obs[:-1],
        "next_observations": obs[1:],
        "actions": rng.uniform(-1, 1, size=(ROWS, ACTION_DIM)).astype(np.float32),
        "rewards": rng.normal(size=ROWS).astype(np.float32),
        "terminals": np.zeros(ROWS, dtype=bool),
        "timeouts": np.arange(1, ROWS + 1) % EPISODE == 0,
    }


def ours(name: str, arrays: dict[str, Any], *, compiled: bool) -> Callable[[], None]:
    """One update of ours, as the training loop makes it."""
    cls = ALGORITHMS[name]
    algorithm = cls.build(SPACES, cls.hyper_class())
    if compiled:
        algorithm.compile_steps()
    source, window = TransitionDataset.from_dict(arrays).requiring(*cls.needs), MetricWindow()

    def update() -> None:
        window.add(algorithm.update(source.sample(BATCH)).metrics)

    return update


def peer(name: str, arrays: dict[str, Any]) -> Callable[[], None]:
    """One update of d3rlpy's, as its own loop makes it."""
    import d3rlpy

    configs = {"td3_bc": d3rlpy.algos.TD3PlusBCConfig, "bc": d3rlpy.algos.BCConfig}
    algo = configs[name](batch_size=BATCH).create()
    names = ("observations", "actions", "rewards", "terminals", "timeouts")
    dataset = d3rlpy.dataset.MDPDataset(*(np.asarray(arrays[key], dtype=np.float32) for key in names))
    algo.build_with_dataset(dataset)

    def update() -> None:
        algo.update(dataset.sample_transition_batch(BATCH))

    return update


def rate(update: Callable[[], None], updates: int) -> float:
    """Updates per second."""
    start = time.perf_counter()
    for _ in range(updates):
        update()
    return updates / (time.perf_counter() - start)


def serve(variant: str, algo: str, threads: int, connection: Connection) -> None:
    """A variant's process: build it, then time as many updates as it is told, until told none."""
    torch.set_num_threads(threads)
    arrays = make_arrays()
    if variant == "d3rlpy":
        update = peer(algo, arrays)
    else:
        configure_machine(threads)
        update = ours(algo, arrays, compiled=variant == "compiled")
    rate(update, WARM_UP)
    connection.send(None)
    while (updates := connection.recv()) > 0:
        connection.send(rate(update, updates))


def measure(args: argparse.Namespace) -> dict[str, list[float]]:
    """Rates of every variant, round by round."""
    context = mp.get_context("spawn")
    connections: dict[str, Connection] = {}
    for variant in VARIANTS:
        connections[variant], other = context.Pipe()
        context.Process(target=serve, args=(variant, args.algo, args.threads, other), daemon=True).start()
        connections[variant].recv()
    rates: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    for _ in range(args.rounds):
        for variant, connection in connections.items():
            connection.send(args.updates)
            rates[variant].append(connection.recv())
    for connection in connections.values():
        connection.send(0)
    return rates


def main() -> None:
    """Print a table of rates and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algo", default="td3_bc", choices=["td3_bc", "bc"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    rates = measure(args)
    print(
        f"{args.algo}, 2x256, batch {BATCH}, {args.threads} thread(s), {args.rounds} rounds of {args.updates} updates"
    )
    print(f"{'variant':<10}{'updates/s':>10}{'ratio':>8}")
    for variant, values in rates.items():
        ratios = [mine / theirs for mine, theirs in zip(values, rates["d3rlpy"], strict=True)]
        print(f"{variant:<10}{statistics.median(values):>10.0f}{statistics.median(ratios):>8.2f}")


if __name__ == "__main__":
    main()
