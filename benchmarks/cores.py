"""What a second core is worth: to one run, to two runs side by side, and to seeds that are trained as one.

    python benchmarks/cores.py [--what threads workers stacked] [--rounds 7] [--seconds 2] [--unpinned] [--write]

All of it is TD3+BC, compiled, with networks of 2x256 on 100,000 rows of HalfCheetah's sizes.

`threads`: updates per second of one run with two threads over those with one. Bars: 1.4 with batches of 256, and 1.6
with batches of 1,024. `workers`: updates per second of two runs at the same time, a process with one thread each, over
those of one run alone. Bar: 1.85. Each process is kept on a core of its own unless `--unpinned` is given.

`stacked`: several seeds in one process, whose parameters are stacked on the axis of ensembles, against one process per
core, in updates of a seed per second. Seeds are stacked in one process with two threads, and in one process per core
with half of the seeds each. This decides whether training stacked seeds is worth building. Bar: 1.2. The stacked
networks exist in this file only. Before they are timed, they make updates from the networks of separate runs, in
float64; if they then differ from those by more than rounding, nothing is measured.

Each variant lives in processes of its own and waits while another is timed. Ratios are medians over rounds.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from halfcheetah import ACTION_DIM, OBS_DIM, ROWS, SPACES, make_arrays, updates
from interleaving import COMPARISON, Report, Variant, Work, compared, cores, for_seconds, make_parser, rates, table
from torch import Tensor, nn

from rl_training.algorithms.base import Algorithm, Step, losses
from rl_training.algorithms.td3_bc import TD3BC, TD3BCHyper
from rl_training.cli import SPINS
from rl_training.core.batches import Batch, Metrics
from rl_training.core.machine import configure_machine
from rl_training.data import TransitionDataset, source_for
from rl_training.models import Model
from rl_training.storage import MetricWindow

BATCH, LARGE_BATCH = 256, 1024
THREAD_BARS = {BATCH: 1.4, LARGE_BATCH: 1.6}
WORKER_BAR, STACKED_BAR = 1.85, 1.2
SEEDS = (2, 4, 8)
TOLERANCE = 1e-9
"""Largest difference of weights after a few updates, in units of 1 + their size."""


class StackedMLP(nn.Module):
    """S perceptrons, each for rows of its own: (S, B, input) to (S, B, output)."""

    def __init__(self, seeds: int, sizes: Sequence[int]) -> None:
        super().__init__()
        pairs = list(pairwise(sizes))
        self.weights = nn.ParameterList(torch.randn(seeds, *fans) / fans[0] ** 0.5 for fans in pairs)
        self.biases = nn.ParameterList(torch.zeros(seeds, fan_out) for _, fan_out in pairs)

    def forward(self, inputs: Tensor) -> Tensor:
        """One product per seed, which is faster here than a batched product."""
        return torch.stack([self._forward(rows, seed) for seed, rows in enumerate(inputs.unbind())])

    def _forward(self, rows: Tensor, seed: int) -> Tensor:
        layers = list(zip(self.weights, self.biases, strict=True))
        for weight, bias in layers[:-1]:
            rows = torch.addmm(bias[seed], rows, weight[seed]).relu_()
        weight, bias = layers[-1]
        return torch.addmm(bias[seed], rows, weight[seed])


class StackedModel(Model):
    """Actors and twin critics of several seeds."""

    def __init__(self, seeds: int) -> None:
        super().__init__(obs_dim=OBS_DIM, action_dim=ACTION_DIM)
        self.actor = StackedMLP(seeds, [OBS_DIM, 256, 256, ACTION_DIM])
        self.critic = nn.ModuleList(StackedMLP(seeds, [OBS_DIM + ACTION_DIM, 256, 256, 1]) for _ in range(2))


class StackedTD3BC(Algorithm[TD3BCHyper, StackedModel]):
    """TD3+BC for several seeds; fields of a batch are (S, B, ...), and losses are sums over seeds."""

    name = "stacked_td3_bc"
    steps = (Step("critic"), Step("actor", every="policy_delay", tracks=("actor", "critic")))

    def critic_loss(self, batch: Batch) -> Metrics:
        """As TD3's."""
        hyper, next_obs = self.hyper, batch["next_obs"]
        next_actions = losses.smooth(self.target.actor(next_obs).tanh(), hyper.policy_noise, hyper.noise_clip)
        next_inputs, inputs = torch.cat([next_obs, next_actions], -1), torch.cat([batch["obs"], batch["actions"]], -1)
        next_q = torch.stack([each(next_inputs).squeeze(-1) for each in self.target.critic]).amin(0)
        targets = losses.bellman(batch, next_q, hyper.gamma)
        q = torch.stack([each(inputs).squeeze(-1) for each in self.model.critic])
        return {
            "critic_loss": (q - targets).square().mean(-1).sum(),
            "q_mean": q.mean(),
            "q_std": q.std(correction=0),
            "q_std_ensemble": q.std(0, correction=0).mean(),
            "target_q_mean": targets.mean(),
        }

    def actor_loss(self, batch: Batch) -> Metrics:
        """As TD3+BC's, with a weight of cloning for each seed."""
        actions = self.model.actor(batch["obs"]).tanh()
        q = self.model.critic[0](torch.cat([batch["obs"], actions], -1)).squeeze(-1)
        bc_loss = (actions - batch["actions"]).square().mean((1, 2))
        scale = q.detach().abs().mean(-1)
        bc_lambda = self.hyper.bc_alpha / scale.clamp_min(1e-6)
        return {
            "actor_loss": (bc_loss - bc_lambda * q.mean(-1)).sum(),
            "bc_loss": bc_loss.mean(),
            "bc_lambda": bc_lambda.mean(),
            "policy_q_abs_mean": scale.mean(),
        }


def stacked(seeds: int, **options: Any) -> StackedTD3BC:
    """The algorithm with fresh networks."""
    return StackedTD3BC(StackedModel(seeds), TD3BCHyper(**options))


def split(batch: Batch, seeds: int) -> Batch:
    """A large batch as one batch per seed."""
    return {name: rows.reshape(seeds, -1, *rows.shape[1:]) for name, rows in batch.items()}


def check_stacked(seeds: int = 2, count: int = 4) -> None:
    """End with an error if stacked seeds learn something else than separate ones. There is no noise to be equal."""
    torch.manual_seed(0)
    separate = [TD3BC.build(SPACES, TD3BCHyper(policy_noise=0.0)).double() for _ in range(seeds)]
    together = stacked(seeds, policy_noise=0.0).double()
    for part, other in ((together.model, "model"), (together.target, "target")):
        _visit(part, [getattr(each, other) for each in separate], lambda own, given: own.data.copy_(given))
    source, _ = source_for(separate[0], TransitionDataset.from_dict(make_arrays()))
    for _ in range(count):
        batch = {name: rows.double() for name, rows in split(source.sample(seeds * BATCH), seeds).items()}
        together.update(batch)
        for seed, each in enumerate(separate):
            each.update({name: rows[seed] for name, rows in batch.items()})
    differences: list[Tensor] = []
    for part, other in ((together.model, "model"), (together.target, "target")):
        _visit(
            part,
            [getattr(each, other) for each in separate],
            lambda own, given: differences.append(((own - given).abs() / (1 + given.abs())).detach().max()),
        )
    worst = float(torch.stack(differences).max())
    if not worst <= TOLERANCE:
        sys.exit(f"stacked seeds learn something else: weights differ by {worst:.1e}; nothing was measured")


def _visit(model: Any, separate: Sequence[Any], visit: Callable[[Tensor, Tensor], object]) -> None:
    """Show every stacked weight and bias together with that of a separate run."""
    for seed, each in enumerate(separate):
        for number, layer in enumerate(each.actor.mlp.layers):
            visit(model.actor.weights[number][seed], layer.weight.T)
            visit(model.actor.biases[number][seed], layer.bias)
        for number, layer in enumerate(each.critic.mlp.layers):
            for member, (weight, bias) in enumerate(layer.pairs()):
                visit(model.critic[member].weights[number][seed], weight)
                visit(model.critic[member].biases[number][seed], bias)


def make_run(threads: int, batch: int) -> Work[float]:
    """Updates of one run."""
    configure_machine(threads)
    algorithm = TD3BC.build(SPACES, TD3BCHyper())
    algorithm.compile_steps()
    return for_seconds(updates(algorithm, TransitionDataset.from_dict(make_arrays()), batch))


def make_stacked(threads: int, seeds: int) -> Work[float]:
    """Updates of stacked seeds, counted seed by seed."""
    configure_machine(threads)
    algorithm, window = stacked(seeds), MetricWindow()
    algorithm.compile_steps()
    source, _ = source_for(algorithm, TransitionDataset.from_dict(make_arrays()))

    def update() -> None:
        window.add(algorithm.update(split(source.sample(seeds * BATCH), seeds)).metrics)

    together = for_seconds(update)
    return lambda seconds: seeds * together(seconds)


def threads(args: argparse.Namespace, report: Report) -> None:
    """One run on two threads over one thread."""
    rows = []
    for batch, bar in THREAD_BARS.items():
        made = {f"batch {batch}, {count} thread(s)": Variant(partial(make_run, count, batch)) for count in (1, 2)}
        found = rates(made, args.seconds, args.rounds)
        (one, alone), (two, both) = found.items()
        rows += [compared(one, alone, alone, None), compared(two, both, alone, bar)]
    report.add("## One run on two threads", "Updates per second.", table(COMPARISON, rows))


def places(count: int, args: argparse.Namespace) -> list[int | None]:
    """Cores for as many processes."""
    return [None] * count if args.unpinned else list(cores()[:count])


def workers(args: argparse.Namespace, report: Report) -> None:
    """Two workers over one."""
    run = partial(make_run, 1, BATCH)
    names = {"one worker": 1, "two workers": 2}
    made = {name: Variant(run, cores=places(count, args)) for name, count in names.items()}
    (one, alone), (two, both) = rates(made, args.seconds, args.rounds).items()
    rows = [compared(one, alone, alone, None), compared(two, both, alone, WORKER_BAR)]
    report.add("## Two workers", "Updates per second.", table(COMPARISON, rows))


def stacked_seeds(args: argparse.Namespace, report: Report) -> None:
    """Stacked seeds over one process per core."""
    torch.set_num_threads(1)
    check_stacked()
    made = {"separate seeds, one process per core": Variant(partial(make_run, 1, BATCH), cores=places(2, args))}
    for seeds in args.seeds:
        made[f"{seeds} stacked seeds, two threads"] = Variant(partial(make_stacked, 2, seeds))
        if seeds >= 4:
            halves = partial(make_stacked, 1, seeds // 2)
            made[f"{seeds} seeds, {seeds // 2} stacked per core"] = Variant(halves, cores=places(2, args))
    found = rates(made, args.seconds, args.rounds)
    separate = next(iter(found.values()))
    rows = [
        compared(name, values, separate, STACKED_BAR if name in list(found)[1:] else None)
        for name, values in found.items()
    ]
    report.add("## Stacked seeds", "Updates of a seed per second.", table(COMPARISON, rows))


PARTS = {"threads": threads, "workers": workers, "stacked": stacked_seeds}


def main() -> None:
    """Measure what is asked for."""
    parser = make_parser(__doc__)
    parser.add_argument("--what", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS), help="numbers of stacked seeds")
    parser.add_argument("--unpinned", action="store_true", help="let the system choose the cores")
    args = parser.parse_args()
    if len(cores()) < 2:
        parser.error("this needs two cores, and the process may use one")
    # As the command does for its runs: threads that wait give up their core soon.
    os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
    where = "cores as the system chooses" if args.unpinned else "one core for each process with one thread"
    about = f"{args.rounds} rounds of {args.seconds:g} s, {ROWS:,} rows, {where}."
    report = Report("What a second core is worth", about, args)
    for part in args.what:
        PARTS[part](args, report)
    report.finish()


if __name__ == "__main__":
    main()
