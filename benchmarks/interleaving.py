"""Variants of a benchmark, each in processes of its own, timed in turns; and tables of what was found.

A variant is built in its process, works for a while, and then waits while others are timed. Each round times every
variant once, so that what else the machine does falls on all of them. The file imports neither torch nor the package,
for a variant may live in an environment that has neither.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Work = Callable[[float], T]
"""Does an amount of work, such as seconds of updates or a number of steps, and gives what was measured."""
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Variant(Generic[T]):
    """What one variant does. `make` builds it in its process, and must be a function of a module, or a part of one."""

    make: Callable[[], Work[T]]
    warm_up: float = 1.0
    """Work before the first that counts."""
    cores: Sequence[int | None] = (None,)
    """The core of each of its processes, which work at the same time; None: as the system decides."""


@dataclass(frozen=True)
class Script:
    """A variant that is a script for an interpreter of its own; the descriptor of its connection is added last."""

    command: Sequence[str]
    cores: Sequence[int | None] = (None,)


def serve(variant: Variant[Any], connection: Connection) -> None:
    """A process of a variant: build it, then do as much work as it is told, until it is told none."""
    work = variant.make()
    if variant.warm_up:
        work(variant.warm_up)
    answer(work, connection)


def answer(work: Work[Any], connection: Connection) -> None:
    """Say that a variant is ready, and do the work that is asked for."""
    connection.send(None)
    while (amount := connection.recv()) > 0:
        connection.send(work(amount))


def cores() -> list[int]:
    """The cores that this process may use, the last one first: the system's own work tends to be on the first."""
    return sorted(os.sched_getaffinity(0), reverse=True) if hasattr(os, "sched_getaffinity") else [0]


@contextmanager
def started(variant: Variant[Any] | Script) -> Iterator[list[Connection]]:
    """The processes of a variant, ready to work."""
    with ExitStack() as stack:
        begun = [_start(variant, core) for core in variant.cores]
        for process, _ in begun:
            stack.callback(process.kill)
        for _, connection in begun:
            _receive(connection)
        yield [connection for _, connection in begun]
        for process, connection in begun:
            connection.send(0)
            process.wait() if isinstance(process, subprocess.Popen) else process.join()


def _start(
    variant: Variant[Any] | Script, core: int | None
) -> tuple[subprocess.Popen[bytes] | BaseProcess, Connection]:
    """One process of a variant, on a core of its own where it has one and the system can keep it there."""
    context = mp.get_context("spawn")
    mine, other = context.Pipe()
    process: subprocess.Popen[bytes] | BaseProcess
    if isinstance(variant, Script):
        descriptor = other.fileno()
        process = subprocess.Popen([*variant.command, str(descriptor)], pass_fds=[descriptor], env=plain_environment())
    else:
        process = context.Process(target=serve, args=(variant, other), daemon=True)
        process.start()
    if core is not None and process.pid is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(process.pid, {core})
    # Closed here, so that the end of the process ends the conversation.
    other.close()
    return process, mine


def plain_environment() -> dict[str, str]:
    """The environment without what would bring packages of this interpreter into another."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def _receive(connection: Connection) -> Any:
    """The next answer of a process. If it ends instead, it has printed the reason itself."""
    try:
        return connection.recv()
    except EOFError:
        sys.exit("a variant has ended with the error above: nothing was measured")


def measure(variants: Mapping[str, Variant[T] | Script], amount: float, rounds: int) -> dict[str, list[list[T]]]:
    """What every process of every variant measured, round by round."""
    found: dict[str, list[list[T]]] = {name: [] for name in variants}
    with ExitStack() as stack:
        processes = {name: stack.enter_context(started(variant)) for name, variant in variants.items()}
        for _ in range(rounds):
            for name, connections in processes.items():
                for connection in connections:
                    connection.send(amount)
                found[name].append([_receive(connection) for connection in connections])
    return found


def rates(variants: Mapping[str, Variant[float] | Script], amount: float, rounds: int) -> dict[str, list[float]]:
    """The rates of all variants, round by round; processes of one variant are taken together."""
    return {name: [sum(each) for each in found] for name, found in measure(variants, amount, rounds).items()}


def for_seconds(update: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> Work[float]:
    """Updates for a number of seconds; how many there were per second."""

    def work(seconds: float) -> float:
        count, start, passed = 0, clock(), 0.0
        while passed < seconds:
            update()
            count, passed = count + 1, clock() - start
        return count / passed

    update()
    return work


def for_count(steps: Callable[[int], object]) -> Work[float]:
    """A number of steps; how many there were per second."""

    def work(count: float) -> float:
        start = time.perf_counter()
        steps(int(count))
        return count / (time.perf_counter() - start)

    return work


@dataclass(frozen=True)
class Ratio:
    """A ratio of two variants over rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float], reference: Sequence[float]) -> Ratio:
        """Values by those of the same round."""
        found = [value / other for value, other in zip(values, reference, strict=True)]
        return cls(statistics.median(found), min(found), max(found))

    def cells(self) -> tuple[str, str]:
        """Median, and range over rounds."""
        return f"{self.median:.2f}", f"{self.low:.2f} to {self.high:.2f}"

    def verdict(self, bar: float | None, *, at_most: bool = False) -> tuple[str, str]:
        """The bar, and whether it is met."""
        if bar is None:
            return "", ""
        is_met = self.median <= bar if at_most else self.median >= bar
        return f"{'at most' if at_most else 'at least'} {bar:g}", "met" if is_met else "missed"


COMPARISON = ("Variant", "Per second", "Ratio", "Range", "Bar", "")
"""The header of a table of `compared` rows."""


def compared(name: str, values: Sequence[float], reference: Sequence[float], bar: float | None) -> tuple[str, ...]:
    """A row of a table: the median rate, its ratio to a reference, and the least that is asked for."""
    ratio = Ratio.of(values, reference)
    return name, f"{statistics.median(values):.1f}", *ratio.cells(), *ratio.verdict(bar)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, which can be read on a terminal too."""
    lines = [tuple(header), *(tuple(row) for row in rows)]
    widths = [max(3, *(len(line[column]) for line in lines)) for column in range(len(header))]
    padded = [" | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    padded.insert(1, " | ".join("-" * width for width in widths))
    return "\n".join(f"| {line} |" for line in padded)


def machine() -> str:
    """The machine and what runs on it, without a date."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}, torch {version('torch')}"


def make_parser(description: str | None, *, rounds: bool = True) -> argparse.ArgumentParser:
    """A parser with the options of every benchmark that writes a report, and perhaps interleaves variants."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if rounds:
        parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--write", action="store_true", help="store the tables in benchmarks/results/")
    return parser


class Report:
    """What a benchmark prints, and stores if it is asked to."""

    def __init__(self, title: str, about: str, args: argparse.Namespace) -> None:
        self.path = RESULTS / f"{Path(sys.argv[0]).stem}.md" if args.write else None
        command = shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
        self.parts = [f"# {title}", f"`{command}` on {machine()}.", about]
        print("\n\n".join(self.parts[1:]), end="\n\n", flush=True)

    def add(self, *parts: str) -> None:
        """Print parts, such as tables, and keep them."""
        self.parts += parts
        print("\n\n".join(parts), end="\n\n", flush=True)

    def finish(self) -> None:
        """Store all parts, if that was asked for."""
        if self.path is not None:
            self.path.write_text("\n\n".join(self.parts) + "\n", encoding="utf-8")
            print(f"written to {self.path}")
