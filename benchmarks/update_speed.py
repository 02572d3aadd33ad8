"""Updates per second beside d3rlpy's, sampling included, as ratios from one interleaved run.

    python benchmarks/update_speed.py [--algos td3_bc iql] [--rounds 7] [--seconds 2] [--threads 1]

Networks, batch, data and numbers of sampled actions are equal on both sides; data has HalfCheetah's sizes, with six
choices in place of its actions for algorithms that choose. Target networks follow as on the other side. Each variant
lives in a process of its own, as its users would run it, and waits while another is timed. Each round times every
variant once, so that what else the machine does falls on all of them; the ratio is the median over rounds of ours by
theirs in that round. Where d3rlpy lacks the algorithm, the ratio is to our own eager update.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from halfcheetah import CHOICES, SPACES, make_arrays, updates
from interleaving import Ratio, Variant, Work, for_seconds, make_parser, rates

from rl_training.algorithms import ALGORITHMS
from rl_training.data import TransitionDataset
from rl_training.runtime.performance import configure_machine


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
    choices: bool = False
    """Whether actions are choices."""

    @property
    def variants(self) -> tuple[str, ...]:
        """What is timed, the one that ratios refer to first."""
        return ("eager", "compiled") if self.peer is None else ("d3rlpy", "eager", "compiled")


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
    "bc_choices": Case({}, "DiscreteBCConfig", widths=ONE_NETWORK, algo="bc", choices=True),
    "dqn": Case({**COPIED, "double": False}, "DQNConfig", widths=ONE_NETWORK, choices=True),
    "double_dqn": Case(COPIED, "DoubleDQNConfig", widths=ONE_NETWORK, algo="dqn", choices=True),
    "discrete_bcq": Case(COPIED, "DiscreteBCQConfig", {"share_encoder": False}, widths=ONE_NETWORK, choices=True),
    "discrete_cql": Case(COPIED, "DiscreteCQLConfig", widths=ONE_NETWORK, choices=True),
    "discrete_sac": Case(
        {"huber_delta": 1.0, "tau": 1.0, "target_update_interval": 8000}, "DiscreteSACConfig", choices=True
    ),
    "discrete_iql": Case(choices=True),
    "discrete_crr": Case(choices=True),
}


def ours(name: str, arrays: dict[str, Any], *, compiled: bool) -> Callable[[], None]:
    """One update of ours, as the training loop makes it."""
    case = CASES[name]
    cls = ALGORITHMS[case.algo or name]
    algorithm = cls.build(CHOICES if case.choices else SPACES, cls.hyper_class(**case.ours))
    if compiled:
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
    if case.choices:
        columns[1] = np.asarray(arrays["actions"])[:, None]
    dataset = d3rlpy.dataset.MDPDataset(*columns)
    algo.build_with_dataset(dataset)

    def update() -> None:
        algo.update(dataset.sample_transition_batch(case.batch))

    return update


def make(variant: str, algo: str, threads: int) -> Work[float]:
    """A variant in its process."""
    torch.set_num_threads(threads)
    arrays = make_arrays(choices=CASES[algo].choices)
    if variant == "d3rlpy":
        return for_seconds(peer(algo, arrays))
    configure_machine(threads)
    return for_seconds(ours(algo, arrays, compiled=variant == "compiled"))


def main() -> None:
    """Print a table of rates and ratios."""
    parser = make_parser(__doc__, writes=False)
    parser.add_argument("--algos", nargs="+", default=["td3_bc"], choices=[*CASES, "all"])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    print(f"{args.threads} thread(s), {args.rounds} rounds of {args.seconds:g} s")
    print(f"{'algorithm':<14}{'batch':>6}  {'variant':<10}{'updates/s':>10}{'ratio':>8}")
    for algo in CASES if "all" in args.algos else args.algos:
        variants = {name: Variant(partial(make, name, algo, args.threads)) for name in CASES[algo].variants}
        found = rates(variants, args.seconds, args.rounds)
        reference = found[CASES[algo].variants[0]]
        for variant, values in found.items():
            ratio, _ = Ratio.of(values, reference).cells()
            rate = statistics.median(values)
            print(f"{algo:<14}{CASES[algo].batch:>6}  {variant:<10}{rate:>10.1f}{ratio:>8}", flush=True)


if __name__ == "__main__":
    main()
