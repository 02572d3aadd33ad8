"""The command `doctor`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rl_training.cli.console import number_text, print_json, print_table, working
from rl_training.cli.options import JsonOption

if TYPE_CHECKING:
    from rl_training.runtime.machine import Machine
    from rl_training.runtime.machine_speed import Product


def doctor(as_json: JsonOption = False) -> None:
    """Say what this machine offers to training, how fast it is, and what is missing; takes about ten seconds."""
    from rl_training.runtime.machine import examine
    from rl_training.runtime.machine_advice import advise
    from rl_training.runtime.machine_speed import ALGOS, measure_products, measure_updates
    from rl_training.runtime.performance import configure_machine

    with working(quiet=as_json) as show:
        show("looking at the machine")
        machine = examine(Path.cwd())
        configure_machine()
        show("measuring matrix products")
        products, rates = measure_products(), dict[str, float]()
        for algo in ALGOS:
            show(f"measuring updates of {algo}")
            rates[algo] = measure_updates(algo)
    advice = advise(machine, products)
    if as_json:
        measured = {"products": [asdict(each) for each in products], "updates_per_second": rates}
        cores = {**asdict(machine.cores), "available": machine.cores.available}
        found = {**asdict(machine), "cores": cores, "threads": machine.threads}
        print_json({**found, **measured, "advice": [asdict(each) for each in advice]})
        return
    print_table(("what", "found"), [*_offers(machine), *_speeds(machine, products, rates)])
    print()
    if advice:
        print_table(("what could be better", "what to do"), [(each.what, each.how) for each in advice])
    else:
        print("nothing is missing")


def _offers(machine: Machine) -> Iterator[tuple[str, str]]:
    from rl_training.files import size_text

    cores, build, compiler = machine.cores, machine.torch, machine.compiler
    quota = "none" if cores.quota is None else f"{cores.quota:g} cores"
    yield "cores", f"{cores.available} (machine {cores.machine}, affinity mask {cores.affinity}, quota {quota})"
    named = "" if machine.omp_num_threads is None else f" (OMP_NUM_THREADS is {machine.omp_num_threads})"
    yield "threads of a run", f"{machine.threads}{named}"
    words = {True: "yes", False: "no", None: "not known"}
    yield "instructions", ", ".join(f"{name} {words[has]}" for name, has in machine.instructions.items())
    can = "runs can be compiled" if compiler.obstacle is None else "runs cannot be compiled"
    yield "C++ compiler", f"{compiler.version or compiler.path or 'none'}; {can}"
    parts = {"BLAS": build.blas, "oneDNN": build.onednn, "CUDA": build.cuda, "kernels": build.kernels}
    yield "torch", ", ".join([build.version, *(f"{name} {value or 'none'}" for name, value in parts.items())])
    yield "accelerators", ", ".join(machine.accelerators) or "none"
    yield "free memory", "not known" if machine.memory is None else size_text(machine.memory)
    yield "free disk", f"{size_text(machine.disk)} in {Path.cwd()}"
    yield "extras", ", ".join(name for name, is_installed in machine.extras.items() if is_installed) or "none"


def _speeds(machine: Machine, products: Sequence[Product], rates: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    for size in dict.fromkeys(each.size for each in products):
        found = [f"{number_text(each.gflops)} in {each.dtype}" for each in products if each.size == size]
        yield f"GFLOP/s, {size}x{size}x{size}", f"{', '.join(found)} (one thread, time of its core)"
    threads = f"{machine.threads} thread{'s' * (machine.threads != 1)}"
    for algo, rate in rates.items():
        yield f"updates/s, {algo}", f"{number_text(rate)} (batch 256, {threads}, not compiled)"
