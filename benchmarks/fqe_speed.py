"""What an FQE estimate costs: 100,000 rows, 1 + 10 ensemble members, kappa 5, compiled, on one core.

Prints a line of JSON per width: the time of an update, that of its matrix products alone, their ratio, and the time of
a whole fit. Times are those of the processor. Rounds of both alternate, and the ratio is the median over pairs, so that
it holds on a machine that is busy. With --policies, fits of several policies one after the other are compared with one
fit of all as a larger ensemble.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from rl_training.core.machine import configure_machine
from rl_training.core.spaces import BoxActions, SpaceSpec
from rl_training.data import TransitionDataset
from rl_training.data.replay import BlockSampler
from rl_training.ope import EvaluationLog, FitOptions, ValueFitter

ROWS, EPISODE, OBS_DIM, BATCH = 100_000, 200, 3, 256


def make_log() -> EvaluationLog:
    """A log of Pendulum's size."""
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((ROWS + 1, OBS_DIM), dtype=np.float32)
    arrays = {
        "observations": obs[:-1],
        "actions": rng.uniform(-1, 1, (ROWS, 1)).astype(np.float32),
        "rewards": rng.standard_normal(ROWS, dtype=np.float32),
        "next_observations": obs[1:],
        "terminals": np.zeros(ROWS, dtype=bool),
        "timeouts": np.arange(1, ROWS + 1) % EPISODE == 0,
    }
    return EvaluationLog(TransitionDataset.from_dict(arrays), SpaceSpec.vector(OBS_DIM, BoxActions((-1.0,), (1.0,))))


def update(fitter: ValueFitter) -> Callable[[], object]:
    """One update on a fresh batch, as a fit makes it."""
    log = fitter.log
    names = ("obs", "actions", "rewards", "next_obs", "dones")
    more = {"next_actions": log.dataset.actions, "episodes": log.episodes, "row_weights": torch.ones(ROWS)}
    sampler = BlockSampler({name: log.dataset.fields[name] for name in names} | more, seed=0)
    return lambda: fitter.algorithm.update(sampler.sample(BATCH))


def bare_products(fitter: ValueFitter) -> Callable[[], object]:
    """The matrix products of an update alone: of target networks, of critics, and of the gradients of their layers."""
    weights = [layer.weight.detach().unbind() for layer in fitter.algorithm.model.critic.mlp.layers]
    members = list(zip(*weights, strict=True))
    rows = torch.randn(BATCH, OBS_DIM + 1)

    def forward(layers: tuple[Tensor, ...]) -> list[Tensor]:
        found = [rows]
        for layer in layers:
            found.append(found[-1] @ layer)
        return found

    def products() -> None:
        for layers in members:
            forward(layers)
            inputs = forward(layers)
            gradient = inputs.pop()
            for number in reversed(range(len(layers))):
                _ = inputs[number].T @ gradient
                # Nothing before the first layer is learned.
                gradient = gradient @ layers[number].T if number else gradient

    return products


def seconds(function: Callable[[], object], count: int) -> float:
    """Mean time of a call."""
    start = time.process_time()
    for _ in range(count):
        function()
    return (time.process_time() - start) / count


def measure(log: EvaluationLog, width: int, members: int, rounds: int, count: int) -> dict[str, float]:
    """Times of one width."""
    options = FitOptions(gamma=0.99, members=members, hidden_sizes=(width, width))
    fitter = ValueFitter(log, options, compiled=True)
    whole, bare = update(fitter), bare_products(fitter)
    start = time.perf_counter()
    whole()
    compilation = time.perf_counter() - start
    with torch.no_grad():
        pairs = [(seconds(whole, count), seconds(bare, count)) for _ in range(rounds)]
    best = min(each for each, _ in pairs)
    return {
        "width": width,
        "members": members + 1,
        "updates": options.num_updates,
        "kappa": round(options.reached_kappa, 3),
        "compile_seconds": round(compilation, 1),
        "update_ms": round(1000 * statistics.median(each for each, _ in pairs), 2),
        "products_ms": round(1000 * statistics.median(each for _, each in pairs), 2),
        "ratio": round(statistics.median(one / other for one, other in pairs), 3),
        "fit_seconds": round(options.num_updates * statistics.median(each for each, _ in pairs), 1),
        "fit_seconds_least": round(options.num_updates * best, 1),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--widths", type=int, nargs="*", default=[64, 256])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--policies", type=int, default=1)
    arguments = parser.parse_args()
    configure_machine(1)
    log = make_log()
    for width in arguments.widths:
        found = measure(log, width, 10, arguments.rounds, arguments.updates)
        if arguments.policies > 1:
            together = measure(log, width, 11 * arguments.policies - 1, arguments.rounds, arguments.updates)
            found["together_per_policy_ms"] = round(together["update_ms"] / arguments.policies, 2)
            found["together_ratio"] = together["ratio"]
        print(json.dumps(found))


if __name__ == "__main__":
    main()
