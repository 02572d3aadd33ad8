"""Updates per second on 10 million rows over those on 100,000: in memory, and mapped from files that are cached.

    python benchmarks/scale.py [--rounds 7] [--seconds 2] [--rows 10000000] [--folder FOLDER] [--write]

TD3+BC, compiled, one thread, batches of 256 rows of HalfCheetah's sizes. Bars: 0.9 in memory, 0.75 mapped. The log of
10 million rows takes 2 GB of disk while the benchmark runs, as much of the system's cache, and 1.7 GB of memory in the
variant that holds its rows. Every page of the mapped files is read before anything is timed. Each variant lives in a
process of its own and waits while another is timed. Ratios are medians over rounds.

`mapped_speed.py` measures how fast batches are drawn, without updates, and what memory the mapped form takes.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

from halfcheetah import ROWS, SPACES, updates
from interleaving import COMPARISON, Report, Variant, Work, compared, for_seconds, make_parser, rates, table
from mapped_speed import in_memory, write_log

from rl_training.algorithms.td3_bc import TD3BC
from rl_training.core.batches import TRANSITION
from rl_training.core.machine import configure_machine
from rl_training.data import load_transition_dataset

BATCH = 256


def make(path: Path, *, mapped: bool) -> Work[float]:
    """Updates on a log."""
    configure_machine(1)
    dataset = load_transition_dataset(path).requiring(*TRANSITION)
    if mapped:
        # Reads every page.
        for name in TRANSITION:
            dataset.fields[name].sum()
    algorithm = TD3BC.build(SPACES, TD3BC.hyper_class())
    algorithm.compile_steps()
    return for_seconds(updates(algorithm, dataset if mapped else in_memory(dataset), BATCH))


def main() -> None:
    """Write two logs, measure and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of the large log")
    parser.add_argument("--folder", type=Path, help="where logs are written; default: a temporary folder")
    args = parser.parse_args()
    few, many = f"{ROWS:,} rows, in memory", f"{args.rows:,} rows"
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        small, large = Path(folder) / "small.rlt", Path(folder) / "large.rlt"
        write_log(small, ROWS)
        write_log(large, args.rows)
        variants = {
            few: Variant(partial(make, small, mapped=False)),
            f"{many}, in memory": Variant(partial(make, large, mapped=False)),
            f"{many}, mapped": Variant(partial(make, large, mapped=True)),
        }
        found = rates(variants, args.seconds, args.rounds)
    bars = dict(zip(found, (None, 0.9, 0.75), strict=True))
    rows = [compared(name, values, found[few], bars[name]) for name, values in found.items()]
    report = Report(
        "Updates on large logs", f"Updates per second, one thread, {args.rounds} rounds of {args.seconds:g} s.", args
    )
    report.add(table(COMPARISON, rows))
    report.finish()


if __name__ == "__main__":
    main()
