"""What guards cost: the time of one look beside the time of the updates between two log lines.

    python benchmarks/guard_cost.py [--configs td3_bc/pendulum sac/pendulum ...] [--rounds 7] [--compile always]

A round trains for the log interval of the config that is shipped, and then lets all guards look at the run, as the loop
does at a log line. Both are timed in the same round; the share is the median over rounds. The aim is below 1 %.
"""

from __future__ import annotations

import argparse
import statistics
import time
from tempfile import mkdtemp

from rl_training.config import load_config
from rl_training.core.machine import configure_machine
from rl_training.runtime import open_session, read_options
from rl_training.runtime.trainer import Session

CONFIGS = (
    "bc/pendulum",
    "td3_bc/pendulum",
    "iql/pendulum",
    "cql/pendulum",
    "bcq/pendulum",
    "sac/pendulum",
    "dqn/cartpole",
)


def interval(session: Session) -> float:
    """Seconds of training between two log lines."""
    start = time.perf_counter()
    stop = session.state.global_step + session.config.log_interval
    while session.state.global_step < stop:
        updates = session.next_updates()
        if not updates:
            session.collect()
            updates = session.next_updates()
        session.learn(updates)
    return time.perf_counter() - start


def look(session: Session) -> float:
    """Seconds of what guards do at a log line."""
    start = time.perf_counter()
    session.find_broken()
    session.guards.look(session.window.drain(), session.state.update_count)
    return time.perf_counter() - start


def share(config: str, rounds: int, compiled: str) -> tuple[float, float]:
    """The seconds of a look, and its share in the time of an interval, as medians."""
    overrides = [f"output_dir={mkdtemp()}", "total_timesteps=1000000000", f"algo_kwargs.compile={compiled}"]
    session = open_session(*read_options(load_config(config, overrides=overrides)))
    with session.resources:
        pairs = [(interval(session), look(session)) for _ in range(rounds + 1)][1:]
    return statistics.median(cost for _, cost in pairs), statistics.median(cost / whole for whole, cost in pairs)


def main() -> None:
    """Print a row per config."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", nargs="+", default=CONFIGS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--compile", choices=["always", "never"], default="always")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    configure_machine(args.threads)
    print("| config | log interval | a look, ms | share |\n| --- | --- | --- | --- |")
    for config in args.configs:
        seconds, part = share(config, args.rounds, args.compile)
        print(f"| {config} | {load_config(config).log_interval} | {seconds * 1e3:.1f} | {part:.2%} |", flush=True)


if __name__ == "__main__":
    main()
