"""Updates per second beside d3rlpy's, sampling included, as ratios from one interleaved run.

    python benchmarks/update_speed.py [--algos td3_bc iql] [--rounds 7] [--seconds 2] [--threads 1] [--write]

Networks, batch, data and numbers of sampled actions are equal on both sides; data has HalfCheetah's sizes, with six
discrete actions for algorithms that take those. Target networks follow as on the other side. Each variant
lives in a process of its own, as its users would run it, and waits while another is timed. Each round times every
variant once, so that what else the machine does falls on all of them; the ratio is the median over rounds of ours by
theirs in that round. Where d3rlpy lacks the algorithm, the ratio is to our own eager update. Variants are eager and
compiled updates in float32, and compiled ones with products in bfloat16.

With --write, what was found is kept in benchmarks/results/update_speed.json, beside what earlier calls found for other
algorithms. The table in benchmarks/results/update_speed.md and the chart docs/images/speed.svg are made of all of it.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from halfcheetah import DISCRETE, SPACES, make_arrays, updates
from interleaving import RESULTS, Ratio, Variant, Work, for_seconds, machine, make_parser, rates, table

from rl_training.algorithms import ALGORITHMS
from rl_training.core.machine import configure_machine
from rl_training.data import TransitionDataset
from rl_training.models import Precision

KEPT = RESULTS / "update_speed.json"
CHART = Path(__file__).parents[1] / "docs" / "images" / "speed.svg"
OURS = ("eager", "compiled", "bfloat16")
ABOUT = """\
# What an update costs

Written by `benchmarks/update_speed.py`: one thread, data of HalfCheetah's sizes, sampling included on both sides, equal
networks, batches and numbers of sampled actions. Each ratio is the median over at least seven rounds in which every
variant was timed once, with its range. *bfloat16* is compiled too. Networks are 2x256, but 400-300 with an autoencoder
of 750-750 for BCQ, the latter for BEAR too, and 3x256 with layer normalisation for ReBRAC.
"""
Found = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One algorithm on both sides: our options, d3rlpy's class and its options, widths of networks by their role."""

    ours: dict[str, Any] = field(default_factory=dict)
    peer: str | None = None
    theirs: dict[str, Any] = field(default_factory=dict)
    widths: dict[str, tuple[int, ...]] = field(default_factory=lambda: {"actor": (256, 256), "critic": (256, 256)})
    layer_norm: bool = False
    batch: int = 256
    algo: str | None = None
    """Our algorithm, where the case has another name."""
    discrete: bool = False
    """Whether actions are discrete."""

    @property
    def variants(self) -> tuple[str, ...]:
        """What is timed, the one that ratios refer to first."""
        return OURS if self.peer is None else ("d3rlpy", *OURS)


SMALL = {"hidden_sizes": (256, 256)}
COPIED: dict[str, Any] = {"tau": 1.0, "target_update_interval": 8000, "max_grad_norm": None}
"""d3rlpy's target networks of algorithms that choose."""
ONE_NETWORK: dict[str, tuple[int, ...]] = {"": (256, 256)}
CASES = {
    "awac": Case(SMALL, "AWACConfig"),
    "awr": Case(),
    "bc": Case({}, "BCConfig", widths={"": (256, 256)}),
    "bcq": Case(
        {},
        "BCQConfig",
        {"n_action_samples": 10},
        widths={"actor": (400, 300), "critic": (400, 300), "imitator": (750, 750)},
        batch=100,
    ),
    "bear": Case(
        {"mmd_warmup_updates": 0},
        "BEARConfig",
        {"warmup_steps": 0},
        widths={"actor": (256, 256), "critic": (256, 256), "imitator": (750, 750)},
    ),
    "cal_ql": Case({**SMALL, "critic_hidden_sizes": None, "max_backup": "none"}, "CalQLConfig"),
    "cql": Case({**SMALL, "conservative_gap": 10.0}, "CQLConfig"),
    "crr": Case({}, "CRRConfig", {"n_critics": 2, "target_update_type": "soft"}),
    "edac": Case(SMALL),
    "iql": Case({}, "IQLConfig", widths={"actor": (256, 256), "critic": (256, 256), "value": (256, 256)}),
    "marwil": Case(),
    "rebrac": Case(
        {}, "ReBRACConfig", widths={"actor": (256, 256, 256), "critic": (256, 256, 256)}, layer_norm=True, batch=1024
    ),
    "sac_n": Case(SMALL),
    "td3_bc": Case({}, "TD3PlusBCConfig"),
    "xql": Case(),
    "bc_choices": Case({}, "DiscreteBCConfig", widths=ONE_NETWORK, algo="bc", discrete=True),
    "dqn": Case({**COPIED, "double": False}, "DQNConfig", widths=ONE_NETWORK, discrete=True),
    "double_dqn": Case(COPIED, "DoubleDQNConfig", widths=ONE_NETWORK, algo="dqn", discrete=True),
    "discrete_bcq": Case(COPIED, "DiscreteBCQConfig", {"share_encoder": False}, widths=ONE_NETWORK, discrete=True),
    "discrete_cql": Case(COPIED, "DiscreteCQLConfig", widths=ONE_NETWORK, discrete=True),
    "discrete_sac": Case(
        {"huber_delta": 1.0, "tau": 1.0, "target_update_interval": 8000}, "DiscreteSACConfig", discrete=True
    ),
    "discrete_iql": Case(discrete=True),
    "discrete_crr": Case(discrete=True),
}


def ours(name: str, arrays: dict[str, Any], variant: str) -> Callable[[], None]:
    """One update of ours, as the training loop makes it."""
    case = CASES[name]
    cls = ALGORITHMS[case.algo or name]
    precision: Precision = "bfloat16" if variant == "bfloat16" else "float32"
    algorithm = cls.build(DISCRETE if case.discrete else SPACES, cls.hyper_class(**case.ours, precision=precision))
    if variant != "eager":
        algorithm.compile_steps()
    return updates(algorithm, TransitionDataset.from_dict(arrays), case.batch)


def peer(name: str, arrays: dict[str, Any]) -> Callable[[], None]:
    """One update of d3rlpy's, as its own loop makes it."""
    import d3rlpy

    case = CASES[name]
    encoders = {
        f"{role}_encoder_factory".lstrip("_"): d3rlpy.models.VectorEncoderFactory(
            list(widths), use_layer_norm=case.layer_norm and role == "critic"
        )
        for role, widths in case.widths.items()
    }
    algo = getattr(d3rlpy.algos, str(case.peer))(batch_size=case.batch, **encoders, **case.theirs).create()
    names = ("observations", "actions", "rewards", "terminals", "timeouts")
    columns = [np.asarray(arrays[key], dtype=np.float32) for key in names]
    if case.discrete:
        columns[1] = np.asarray(arrays["actions"])[:, None]
    dataset = d3rlpy.dataset.MDPDataset(*columns)
    algo.build_with_dataset(dataset)

    def update() -> None:
        algo.update(dataset.sample_transition_batch(case.batch))

    return update


def make(variant: str, algo: str, threads: int, clock: Callable[[], float]) -> Work[float]:
    """A variant in its process."""
    torch.set_num_threads(threads)
    arrays = make_arrays(discrete=CASES[algo].discrete)
    if variant == "d3rlpy":
        return for_seconds(peer(algo, arrays), clock)
    configure_machine(threads)
    return for_seconds(ours(algo, arrays, variant), clock)


def summarize(algo: str, found: dict[str, list[float]]) -> Found:
    """Median rates of the variants, and their ratios to the first one: median, lowest, highest."""
    reference = found[CASES[algo].variants[0]]
    ratios = {name: Ratio.of(values, reference) for name, values in found.items()}
    return {
        "rates": {name: round(statistics.median(values), 1) for name, values in found.items()},
        "ratios": {name: [round(each, 2) for each in (r.median, r.low, r.high)] for name, r in ratios.items()},
    }


def write(kept: dict[str, Found], command: str) -> None:
    """The table and the chart of everything that was found."""
    KEPT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    sections = []
    for is_compared, title in ((True, "Beside d3rlpy"), (False, "Algorithms that d3rlpy lacks")):
        names = [name for name in CASES if name in kept and (CASES[name].peer is not None) == is_compared]
        reference = "d3rlpy" if is_compared else "eager"
        header = ["Algorithm", "Batch", *(f"{name}, updates/s" for name in kept[names[0]]["rates"])] if names else []
        header += [f"{name} by {reference}" for name in OURS if name != reference]
        rows = [[f"`{name}`", str(CASES[name].batch), *_cells(kept[name], reference)] for name in names]
        sections += [f"## {title}", table(header, rows)] if rows else []
    about = f"{ABOUT}\nLast call: `{command}` on {machine()}."
    (RESULTS / "update_speed.md").write_text("\n\n".join([about, *sections]) + "\n", encoding="utf-8")
    draw({name: each["ratios"] for name, each in kept.items() if CASES[name].peer is not None})


def _cells(found: Found, reference: str) -> list[str]:
    rates_of = [f"{rate:.1f}" for rate in found["rates"].values()]
    ratios = {name: each for name, each in found["ratios"].items() if name != reference}
    return [*rates_of, *(f"{median:.2f} ({low:.2f} to {high:.2f})" for median, low, high in ratios.values())]


def draw(ratios: dict[str, dict[str, list[float]]]) -> None:
    """A bar chart of compiled updates by d3rlpy's, in both precisions."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    mpl.rcParams["svg.hashsalt"] = "speed"
    names = sorted(ratios, key=lambda name: ratios[name]["bfloat16"][0])
    figure, axes = plt.subplots(figsize=(7, 0.34 * len(names) + 1.2))
    for shift, (variant, label, color) in enumerate(
        (("compiled", "float32", "#9db7d5"), ("bfloat16", "bfloat16", "#2b5c8a"))
    ):
        places = [number + 0.38 * shift - 0.19 for number in range(len(names))]
        axes.barh(places, [ratios[name][variant][0] for name in names], 0.36, label=label, color=color)
    axes.set_yticks(range(len(names)), names)
    axes.axvline(1, color="#555555", linewidth=0.8)
    axes.set_xlabel("updates per second, as a multiple of d3rlpy's (compiled, one thread)")
    axes.legend(frameon=False, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(CHART, metadata={"Date": None})


def main() -> None:
    """Print a table of rates and ratios."""
    parser = make_parser(__doc__)
    parser.add_argument("--algos", nargs="+", default=["td3_bc"], choices=[*CASES, "all"])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--cpu-time", action="store_true", help="time on a core, for a machine that does other work too"
    )
    args = parser.parse_args()
    clock = time.process_time if args.cpu_time else time.perf_counter
    print(f"{args.threads} thread(s), {args.rounds} rounds of {args.seconds:g} s")
    print(f"{'algorithm':<14}{'batch':>6}  {'variant':<10}{'updates/s':>10}{'ratio':>8}  range")
    kept: dict[str, Found] = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    for algo in CASES if "all" in args.algos else args.algos:
        variants = {name: Variant(partial(make, name, algo, args.threads, clock)) for name in CASES[algo].variants}
        kept[algo] = summarize(algo, rates(variants, args.seconds, args.rounds))
        for variant, rate in kept[algo]["rates"].items():
            median, low, high = kept[algo]["ratios"][variant]
            line = (
                f"{algo:<14}{CASES[algo].batch:>6}  {variant:<10}{rate:>10.1f}{median:>8.2f}  {low:.2f} to {high:.2f}"
            )
            print(line, flush=True)
        if args.write:
            write(kept, f"python benchmarks/update_speed.py {' '.join(sys.argv[1:])}")


if __name__ == "__main__":
    main()
