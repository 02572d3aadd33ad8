"""Where the time of an environment step goes: acting, the environment, the buffer, and updates.

    python benchmarks/online_profile.py [--algos sac td3] [--rounds 7] [--steps 300] [--write]

SAC and TD3 on HalfCheetah-v4 with one environment, networks of 2x256, batches of 256 and one update per step, eager and
compiled, with one thread. Acting is the policy's call; insertion is `ReplayBuffer.add`; sampling is drawing a batch;
the rest is the loop around them, with checks of what environments give. Each variant lives in a process of its own and
waits while another is timed. Times are medians over rounds; shares are those of the medians. There is no bar.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from interleaving import Report, Variant, Work, make_parser, measure, table
from quiet_runs import proceed, quiet_run

from rl_training.acting import LocalCollector
from rl_training.core.machine import configure_machine

PARTS = ("acting", "environment", "insertion", "sampling", "update", "rest")
WARM_UP = 600
"""Steps before the first that counts; updates begin within them."""


class Stopwatch:
    """Seconds that were spent in methods, by the name of a part."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)

    def watch(self, part: str, owner: Any, method: str) -> None:
        """Count the time in a method of this object."""
        setattr(owner, method, self._timed(part, getattr(owner, method)))

    def _timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                self.seconds[part] += time.perf_counter() - start

        return timed


def make(algo: str, *, compiled: bool) -> Work[dict[str, float]]:
    """Seconds per step, part by part."""
    configure_machine(1)
    run = partial(quiet_run, algo, env_id="HalfCheetah-v4", compiled=compiled)
    session, watch = run(learning_starts=WARM_UP // 2, buffer_capacity=100_000), Stopwatch()
    collector = session.collector
    assert isinstance(collector, LocalCollector)
    watch.watch("acting", collector.policy, "explore")
    watch.watch("environment", collector.stepper, "step")
    watch.watch("insertion", collector.buffer, "add")
    watch.watch("sampling", session.source, "sample")
    watch.watch("update", session.algorithm, "update")

    def work(steps: float) -> dict[str, float]:
        watch.seconds = dict.fromkeys(PARTS, 0.0)
        start = time.perf_counter()
        proceed(session, int(steps))
        whole = time.perf_counter() - start
        watch.seconds["rest"] = whole - sum(watch.seconds.values())
        return {part: seconds / steps for part, seconds in watch.seconds.items()}

    return work


def main() -> None:
    """Measure and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--algos", nargs="+", default=["sac", "td3"], choices=["sac", "td3"])
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    variants = {
        f"{algo}, {'compiled' if compiled else 'eager'}": Variant(partial(make, algo, compiled=compiled), WARM_UP)
        for algo in args.algos
        for compiled in (False, True)
    }
    rows = []
    for name, rounds in measure(variants, args.steps, args.rounds).items():
        times = {part: 1e6 * statistics.median(found[part] for (found,) in rounds) for part in PARTS}
        whole = sum(times.values())
        cells = [f"{times[part]:.0f} ({times[part] / whole:.0%})" for part in PARTS]
        rows.append((name, *cells, f"{whole:.0f}"))
    report = Report(
        "Where the time of an environment step goes",
        f"HalfCheetah-v4, one thread, {args.rounds} rounds of {args.steps} steps. Microseconds per step, and shares.",
        args,
    )
    report.add(table(("Run", *(part.capitalize() for part in PARTS), "Step"), rows))
    report.finish()


if __name__ == "__main__":
    main()
