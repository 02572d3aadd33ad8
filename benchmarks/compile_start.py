"""What compiling costs at the first start of a configuration, and at a second one, in seconds.

    python benchmarks/compile_start.py [--algos td3_bc sac cql] [--rounds 7] [--write]

Each start is a process of its own, with default networks, HalfCheetah's sizes and another seed. The first start of a
round finds an empty folder of compiled graphs, the second what the first has left there. Counted is the time from the
question whether there is a compiler to the end of the first updates: by the clock, and in seconds of the processor with
those of child processes, which say on a busy machine about what the clock says on an idle one. `--write` writes
`benchmarks/results/compile_start.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

TABLE = Path(__file__).parent / "results" / "compile_start.md"
STARTS = ("first", "second")
BATCH, UPDATES = 256, 4


def start(name: str, seed: int) -> dict[str, float]:
    """One start, in this process."""
    import torch
    from halfcheetah import DISCRETE, SPACES, make_arrays
    from torch._dynamo.utils import counters

    from rl_training.algorithms import ALGORITHMS
    from rl_training.compilation import can_compile
    from rl_training.core.machine import configure_machine
    from rl_training.data import TransitionDataset, source_for

    configure_machine(1)
    cls = ALGORITHMS[name]
    is_discrete = "continuous" not in cls.action_kinds
    torch.manual_seed(seed)
    algorithm = cls.build(DISCRETE if is_discrete else SPACES, cls.hyper_class())
    dataset = TransitionDataset.from_dict(make_arrays(discrete=is_discrete))
    if "returns_to_go" in algorithm.needs:
        dataset = dataset.with_returns_to_go(algorithm.hyper.gamma)
    source, _ = source_for(algorithm, dataset)
    batches = [source.sample(BATCH) for _ in range(UPDATES)]
    clock, processor = time.perf_counter(), processor_seconds()
    assert can_compile(True)
    checked = processor_seconds()
    algorithm.compile_steps()
    for batch in batches:
        algorithm.update(batch)
    return {
        "clock": time.perf_counter() - clock,
        "checking": checked - processor,
        "processor": processor_seconds() - processor,
        "read": counters["aot_autograd"]["autograd_cache_hit"],
        "compiled": counters["aot_autograd"]["autograd_cache_miss"],
    }


def processor_seconds() -> float:
    """Seconds that this process and its children have used so far."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def measure(name: str, rounds: int) -> dict[str, list[dict[str, float]]]:
    """Both starts, round by round."""
    found: dict[str, list[dict[str, float]]] = {which: [] for which in STARTS}
    for number in range(rounds):
        with TemporaryDirectory() as folder:
            for which in STARTS:
                command = [sys.executable, __file__, "--start", name, "--seed", str(2 * number + STARTS.index(which))]
                environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": folder}
                output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
                found[which].append(json.loads(output.splitlines()[-1]))
    return found


def rows(name: str, found: dict[str, list[dict[str, float]]]) -> list[str]:
    """The lines of one algorithm in the table."""
    lines = []
    for which, starts in found.items():
        middle: dict[str, Any] = {key: statistics.median(each[key] for each in starts) for key in starts[0]}
        times = " | ".join(f"{middle[key]:.1f}" for key in ("clock", "processor", "checking"))
        lines.append(f"| {name} | {which} | {times} | {middle['compiled']:.0f} | {middle['read']:.0f} |")
    return lines


def main() -> None:
    """Print the table, and write it if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algos", nargs="+", default=["td3_bc", "sac", "cql"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--start", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.start is not None:
        print(json.dumps(start(args.start, args.seed)))
        return
    table = [
        "| algorithm | start | seconds by the clock | of the processor | of these for checking the compiler "
        "| graphs compiled | graphs read |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    print(*table, sep="\n")
    for name in args.algos:
        table += (lines := rows(name, measure(name, args.rounds)))
        print(*lines, sep="\n", flush=True)
    if args.write:
        about = (
            f"Medians of {args.rounds} rounds, one thread. What is counted is said in `benchmarks/compile_start.py`."
        )
        TABLE.write_text("\n".join(["# Compiling at the start of a run", "", about, "", *table]) + "\n")


if __name__ == "__main__":
    main()
