"""Where the time of an update goes: products, other loops, the optimiser, memory, Python.

    python benchmarks/update_profile.py [--algos td3_bc sac] [--seconds 5] [--write]

Updates on data of HalfCheetah's sizes with default networks and batches of 256, one thread, as the training loop makes
them: eager, compiled, and compiled with products in bfloat16. `perf` (Debian's package linux-perf) looks 5,000 times a
second at what the process is doing, from outside, so that nothing is slowed down. Names of functions and libraries say
what a sample belongs to. There is no bar.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from halfcheetah import SPACES, make_arrays, updates
from interleaving import Report, for_seconds, make_parser, table

from rl_training.algorithms import ALGORITHMS
from rl_training.core.machine import configure_machine
from rl_training.data import TransitionDataset
from rl_training.models import Precision

BATCH, FREQUENCY = 256, 5000
VARIANTS = ("eager", "compiled", "bfloat16")
KINDS = {
    "products": r"mkl_|gemm|^\[JIT\]|dnnl|rl_training::(?!normalize)",
    "Adam": r"fused_adam",
    "target networks": r"lerp",
    "loops of the graph": r"\.main\.so",
    "memory": r"malloc|_int_free|cfree|free@|unlink_chunk|memmove|memset|posix_memalign|_int_memalign|kernel",
    "Python": r"libpython|libtorch_python",
}
"""By kind of work, what the library and the function of a sample look like; the first that fits counts."""
REST = "other functions of torch"


def work(algo: str, variant: str, seconds: float, output: Path) -> None:
    """Make updates in this process while perf watches, and print how many there were per second."""
    configure_machine(1)
    cls = ALGORITHMS[algo]
    precision: Precision = "bfloat16" if variant == "bfloat16" else "float32"
    algorithm = cls.build(SPACES, cls.hyper_class(precision=precision))
    if variant != "eager":
        algorithm.compile_steps()
    rate = for_seconds(updates(algorithm, TransitionDataset.from_dict(make_arrays()), BATCH), time.process_time)
    rate(1.0)
    watching = ["perf", "record", "-e", "cpu-clock", "-F", str(FREQUENCY), "-o", str(output), "-p", str(os.getpid())]
    perf = subprocess.Popen(watching, stderr=subprocess.DEVNULL)
    # It says nothing when it has begun.
    time.sleep(1)
    print(rate(seconds))
    perf.send_signal(signal.SIGINT)
    perf.wait()


def shares(output: Path) -> dict[str, float]:
    """The share of every kind of work."""
    command = ["perf", "report", "-i", str(output), "--no-children", "--sort", "dso,symbol", "--percentage", "absolute"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: defaultdict[str, float] = defaultdict(float)
    for line in text.splitlines():
        match = re.match(r"\s*([\d.]+)%\s+(.*)", line)
        if match is not None:
            place = match[2]
            kind = next((name for name, pattern in KINDS.items() if re.search(pattern, place)), REST)
            found[kind] += float(match[1])
    return {name: found[name] for name in (*KINDS, REST)}


def profile(algo: str, variant: str, seconds: float) -> tuple[float, dict[str, float]]:
    """Updates per second of the processor, and shares of the kinds of work."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "perf.data"
        command = [sys.executable, __file__, "--work", algo, variant, str(seconds), str(output)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return float(done.stdout.split()[-1]), shares(output)


def main() -> None:
    """Print a table for each algorithm."""
    parser = make_parser(__doc__, rounds=False)
    parser.add_argument("--algos", nargs="+", default=["td3_bc", "sac"], choices=list(ALGORITHMS))
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--work", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work is not None:
        algo, variant, seconds, output = args.work
        work(algo, variant, float(seconds), Path(output))
        return
    if shutil.which("perf") is None:
        parser.error("perf is not installed; Debian's package is linux-perf")
    report = Report("Where the time of an update goes", "Milliseconds per update, and shares. One thread.", args)
    for algo in args.algos:
        rows = []
        for variant in VARIANTS:
            rate, parts = profile(algo, variant, args.seconds)
            cells = [f"{10 * share / rate:.2f} ({share:.0f} %)" for share in parts.values()]
            rows.append([variant, f"{1e3 / rate:.2f}", *cells])
        header = ["Variant", "Update, ms", *(name.capitalize() for name in (*KINDS, REST))]
        report.add(f"## {algo}", table(header, rows))
    report.finish()


if __name__ == "__main__":
    main()
