"""Updates of TD3+BC per second beside the same update in JAX, and beside its matrix products alone.

    python benchmarks/jax_update.py --jax-python .venv-jax/bin/python [--rounds 7] [--seconds 2] [--write]

`make bench-jax` makes the environment and runs this. Both sides have networks of 2x256, batches of 256 from 100,000
rows of HalfCheetah's sizes, target smoothing, an actor that moves on every second update, Adam and Polyak averaging;
drawing batches is included. JAX makes 100 updates per call, as one compiled `lax.scan` (jax_td3_bc.py), and reports
losses only; ours are updates of the training loop with all their metrics, compiled. The last variant is every matrix
product of an update in torch with its shapes, float32, and nothing else. Each variant has one thread and lives in a
process of its own, all of them on the same core, and waits while another is timed. Ratios are medians over rounds.

Before anything is timed, both sides make four updates from the same networks on the same batches and noise, in float64.
If losses or networks then differ by more than rounding, nothing is measured.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import fields
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from halfcheetah import ACTION_DIM, OBS_DIM, SPACES, make_arrays, updates
from interleaving import (
    Ratio,
    Report,
    Script,
    Variant,
    Work,
    cores,
    for_seconds,
    make_parser,
    plain_environment,
    rates,
    table,
)
from torch import Tensor

from rl_training.algorithms.td3_bc import TD3BC
from rl_training.core.machine import configure_machine
from rl_training.data import TransitionDataset, source_for

BATCH, WIDTH, CHECKED = 256, 256, 4
"""Rows of a batch, width of hidden layers, and updates that are compared."""
TOLERANCE = 1e-9
"""Largest difference of losses and weights after these updates, in units of 1 + their size."""
SCRIPT = Path(__file__).with_name("jax_td3_bc.py")
JAX, FLOAT32, BFLOAT16, PRODUCTS = "JAX scan", "compiled float32", "compiled bfloat16", "bare products"

Arrays = dict[str, Any]
"""Arrays by their names."""


def networks(algorithm: TD3BC) -> Arrays:
    """All networks as arrays: weight (in, out) and bias of each layer."""
    found: Arrays = {}
    for prefix, model in (("", algorithm.model), ("target_", algorithm.target)):
        for k, layer in enumerate(model.actor.mlp.layers):
            found |= _layer(f"{prefix}actor.{k}", layer.weight.T, layer.bias)
        for k, layer in enumerate(model.critic.mlp.layers):
            for member, (weight, bias) in enumerate(layer.pairs()):
                found |= _layer(f"{prefix}critic{member}.{k}", weight, bias)
    return found


def _layer(name: str, weight: Tensor, bias: Tensor) -> Arrays:
    # Copied, since updates write into the tensors.
    return {f"{name}.weight": weight.detach().numpy().copy(), f"{name}.bias": bias.detach().numpy().copy()}


def make_case() -> tuple[Arrays, Arrays]:
    """Networks, data, and the batches and noise of a few updates; and what these updates make of it here."""
    torch.manual_seed(0)
    algorithm = TD3BC.build(SPACES, TD3BC.hyper_class())
    dataset = TransitionDataset.from_dict(make_arrays()).with_obs_statistics()
    assert dataset.obs_mean is not None
    assert dataset.obs_std is not None
    algorithm.set_obs_statistics(dataset.obs_mean, dataset.obs_std)
    # In float32, Adam makes a whole step of a gradient that is only rounding.
    algorithm.double()
    source, drawn = source_for(algorithm, dataset)
    assert drawn is not None
    batches = [{name: rows.double() for name, rows in source.sample(BATCH).items()} for _ in range(CHECKED)]
    torch.manual_seed(1)
    noises = [torch.randn(BATCH, ACTION_DIM, dtype=torch.float64).numpy() for _ in range(CHECKED)]
    case = {"noises": np.stack(noises), "mean": algorithm.obs_mean.numpy(), "std": algorithm.obs_std.numpy()}
    case |= networks(algorithm)
    case |= {f"batch.{name}": np.stack([each[name].numpy() for each in batches]) for name in batches[0]}
    case |= {f"data.{name}": drawn.fields[name].numpy() for name in batches[0]}
    # The noise of the first update is what the generator gives first.
    torch.manual_seed(1)
    losses = []
    for batch in batches:
        metrics = algorithm.update(batch).metrics
        losses += [float(metrics[name]) for name in ("critic_loss", "actor_loss") if name in metrics]
    return case, {"losses": np.asarray(losses).reshape(-1, 3), **networks(algorithm)}


def refuse_different(python: str, file: Path, expected: Arrays) -> float:
    """End with an error if JAX makes something else of the same updates; the largest difference."""
    result = file.with_name("result.npz")
    checking = [python, str(SCRIPT), "check", str(file), str(result)]
    try:
        done = subprocess.run(checking, check=False, env=plain_environment())
    except OSError as error:
        sys.exit(f"{python} cannot be started: {error.strerror}; it must be the Python of an environment with JAX")
    if done.returncode:
        sys.exit(f"{python} cannot make the updates (see above): it must be the Python of an environment with JAX")
    with np.load(result) as stored:
        found = {name: stored[name] for name in stored.files}
    missing = expected.keys() ^ found.keys()
    if missing:
        sys.exit(f"the updates in JAX have other networks: {', '.join(sorted(missing))}; nothing was measured")
    differences = {
        name: float((np.abs(found[name] - value) / (1 + np.abs(value))).max()) for name, value in expected.items()
    }
    worst = max(differences, key=lambda name: differences[name])
    if not differences[worst] <= TOLERANCE:
        size = f"{worst} differs by {differences[worst]:.1e} after {CHECKED} updates"
        sys.exit(f"the updates in JAX are others: {size}, expected at most {TOLERANCE:g}; nothing was measured")
    return differences[worst]


def ours(precision: str | None) -> Work[float]:
    """Compiled updates of the training loop."""
    configure_machine(1)
    options: dict[str, Any] = {} if precision is None else {"precision": precision}
    dataset = TransitionDataset.from_dict(make_arrays())
    algorithm = TD3BC.build(SPACES, TD3BC.hyper_class(**options))
    algorithm.compile_steps()
    return for_seconds(updates(algorithm, dataset, BATCH))


def forward(sizes: list[int]) -> Iterator[tuple[Tensor, Tensor]]:
    """Operands of the products by which a perceptron computes its outputs."""
    for fan_in, fan_out in pairwise(sizes):
        yield torch.randn(BATCH, fan_in), torch.randn(fan_in, fan_out)


def backward(sizes: list[int], *, weights: bool, inputs: bool) -> Iterator[tuple[Tensor, Tensor]]:
    """Operands of the products for gradients: of weights if they are learned, of inputs if something is behind them."""
    for k, (fan_in, fan_out) in enumerate(pairwise(sizes)):
        gradient = torch.randn(BATCH, fan_out)
        if weights:
            yield torch.randn(BATCH, fan_in).T, gradient
        if k or inputs:
            yield gradient, torch.randn(fan_in, fan_out).T


def products() -> Work[float]:
    """The matrix products of updates, of every second one with those of the actor's step."""
    configure_machine(1)
    actor, critic = [OBS_DIM, WIDTH, WIDTH, ACTION_DIM], [OBS_DIM + ACTION_DIM, WIDTH, WIDTH, 1]
    first = [*forward(actor)]
    for _ in range(2):
        first += [*forward(critic), *forward(critic), *backward(critic, weights=True, inputs=False)]
    second = [*forward(actor), *forward(critic), *backward(critic, weights=False, inputs=True)]
    second += backward(actor, weights=True, inputs=False)

    def pair() -> None:
        for left, right in (*first, *first, *second):
            torch.mm(left, right)

    pairs = for_seconds(pair)
    return lambda seconds: 2 * pairs(seconds)


def variants(python: str, file: Path) -> dict[str, Variant[float] | Script]:
    """What is timed, the one that ratios refer to first."""
    core = cores()[:1]
    found: dict[str, Variant[float] | Script] = {JAX: Script([python, str(SCRIPT), "serve", str(file)], core)}
    found[FLOAT32] = Variant(partial(ours, None), cores=core)
    if any(field.name == "precision" for field in fields(TD3BC.hyper_class)):
        found[BFLOAT16] = Variant(partial(ours, "bfloat16"), cores=core)
    return found | {PRODUCTS: Variant(products, cores=core)}


def read_arguments() -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--jax-python", default=os.environ.get("JAX_PYTHON"), metavar="PYTHON")
    args = parser.parse_args()
    if args.jax_python is None:
        parser.error("--jax-python (or JAX_PYTHON) must be the Python of an environment with JAX; try make bench-jax")
    return args


def main() -> None:
    """Check, measure and print."""
    args = read_arguments()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "case.npz"
        case, expected = make_case()
        np.savez(file, **case)
        difference = refuse_different(args.jax_python, file, expected)
        found = rates(variants(args.jax_python, file), args.seconds, args.rounds)
    asking = [args.jax_python, "-c", "import jax; print(jax.__version__)"]
    version = subprocess.run(asking, check=True, capture_output=True, text=True, env=plain_environment()).stdout.strip()
    report = Report(
        "TD3+BC beside JAX",
        f"JAX {version}, one thread, {args.rounds} rounds of {args.seconds:g} s. After {CHECKED} updates from the same "
        f"networks on the same batches, losses and networks of both sides differed by {difference:.0e} at most.",
        args,
    )
    if BFLOAT16 not in found:
        report.add(f"{TD3BC.hyper_class.__name__} has no option `precision`: bfloat16 was not measured.")
    rows = [
        (name, f"{statistics.median(values):.1f}", *Ratio.of(values, found[JAX]).cells(),
         Ratio.of(values, found[PRODUCTS]).cells()[0])
        for name, values in found.items()
    ]  # fmt: skip
    report.add(table(("Variant", "Updates/s", "By JAX", "Range", "By bare products"), rows))
    report.finish()


if __name__ == "__main__":
    main()
