"""The command `doctor`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rl_training.cli.display.console import print_json, print_table, working
from rl_training.cli.display.options import JsonOption
from rl_training.core.text import number_text, plural, size_text

if TYPE_CHECKING:
    from rl_training.diagnostics import Machine, MachineSpeed


def doctor(as_json: JsonOption = False) -> None:
    """Describe this machine, measure its speed, and say what is missing; takes about ten seconds."""
    from rl_training.core.machine import configure_machine
    from rl_training.diagnostics import advise, examine, measure_speed

    with working(quiet=as_json) as show:
        show("looking at the machine")
        machine = examine(Path.cwd())
        configure_machine()
        speed = measure_speed(show)
    advice = advise(machine, speed)
    if as_json:
        cores = {**asdict(machine.cores), "available": machine.cores.available}
        print_json({**asdict(machine), "cores": cores, **asdict(speed), "advice": [asdict(each) for each in advice]})
        return
    print_table(("what", "found"), list(_rows(machine, speed)))
    print()
    if advice:
        print_table(("what could be better", "what to do"), [(each.what, each.how) for each in advice])
    else:
        print("nothing is missing")


def _rows(machine: Machine, speed: MachineSpeed) -> Iterator[tuple[str, str]]:
    cores, build, compiler = machine.cores, machine.torch, machine.compiler
    quota = "none" if cores.quota is None else f"{cores.quota:g} cores"
    yield "cores", f"{cores.available} (machine {cores.machine}, affinity mask {cores.affinity}, quota {quota})"
    named = "" if machine.omp_num_threads is None else f" (OMP_NUM_THREADS is {machine.omp_num_threads})"
    yield "threads of a run", f"{machine.threads}{named}"
    words = {True: "yes", False: "no", None: "not known"}
    yield "instructions", ", ".join(f"{name} {words[has]}" for name, has in machine.instructions.items())
    can = "runs can be compiled" if compiler.obstacle is None else "runs cannot be compiled"
    yield "C++ compiler", f"{compiler.version or compiler.path or 'none'}; {can}"
    names = {"BLAS": "blas", "oneDNN": "onednn", "CUDA": "cuda", "kernels": "kernels"}
    yield "torch", ", ".join([str(build["version"]), *(f"{name} {build[names[name]] or 'none'}" for name in names)])
    yield "accelerators", ", ".join(machine.accelerators) or "none"
    yield "free memory", "not known" if machine.memory is None else size_text(machine.memory)
    yield "free disk", f"{size_text(machine.disk)} in {Path.cwd()}"
    yield "extras", ", ".join(name for name, is_installed in machine.extras.items() if is_installed) or "none"
    threads = plural(machine.threads, "thread")
    for name, rate in speed.updates_per_second.items():
        yield f"updates/s, {name}", f"{number_text(rate)} (batch 256, {threads}, not compiled)"
