"""What a machine lacks for training, and what can be done about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rl_training.files import size_text
from rl_training.runtime.machine import EXTRAS, Machine
from rl_training.runtime.machine_speed import SMALL, Product

BUSY = 0.8
"""The share of the time below which a process that computes has too little of its core for its speed to count."""
FASTER = 1.2
"""From how many times the speed on, another precision is worth trying."""
LITTLE_MEMORY, LITTLE_DISK = 2 * 10**9, 10**9
"""Bytes below which a run may not fit: torch itself takes a quarter of the former."""

COMPILED = "compiled updates were 1.1 to 1.4 times as fast where it was measured, depending on the algorithm"


@dataclass(frozen=True)
class Advice:
    """Something that is missing or unused, and what to do."""

    what: str
    how: str


def advise(machine: Machine, products: Sequence[Product]) -> list[Advice]:
    """Everything that could be better, what costs most speed first."""
    return [*_of_cores(machine), *_of_speed(machine, products), *_of_room(machine), *_of_extras(machine)]


def _of_cores(machine: Machine) -> Iterator[Advice]:
    cores = machine.cores
    if cores.quota is not None and cores.quota < cores.affinity:
        what = (
            f"a quota of the control group allows {cores.quota:g} of {cores.affinity} cores; runs use {machine.threads}"
        )
        yield Advice(what, "raise it, such as docker run --cpus or resources.limits.cpu of Kubernetes")
    if cores.affinity < cores.machine:
        what = f"the affinity mask allows {cores.affinity} of {cores.machine} cores"
        yield Advice(what, "widen it if that is not meant: taskset, docker run --cpuset-cpus, or the job's cores")
    if machine.torch_threads > cores.available:
        said = machine.omp_num_threads
        name = f"OMP_NUM_THREADS={said}" if said else f"torch's own choice of {machine.torch_threads} threads"
        what = f"{name} is more than the {cores.available} cores that may be used; runs use {machine.threads} threads"
        yield Advice(what, f"set OMP_NUM_THREADS={cores.available}, so that other programs are not slowed down either")


def _of_speed(machine: Machine, products: Sequence[Product]) -> Iterator[Advice]:
    if (obstacle := machine.compiler.obstacle) is not None:
        yield Advice(f"runs cannot be compiled: {obstacle}", f"{_compiler_advice(machine)}; {COMPILED}")
    if machine.has_nvidia_driver and machine.torch.cuda is None:
        what = "there is an NVIDIA driver, and torch is built without CUDA"
        yield Advice(what, "install torch with CUDA, as pip install torch does by default on Linux")
    share = min((each.core_share for each in products), default=1.0)
    if share < BUSY:
        what = f"other programs, or a quota, took {1 - share:.0%} of the core while speed was measured"
        yield Advice(what, "measure again when the machine is idle: it is faster than it seems here")
    found = {each.dtype: each.gflops for each in products if each.size == SMALL}
    gain = found.get("bfloat16", 0.0) / found.get("float32", 1.0)
    if any(machine.instructions.get(name) for name in ("AVX-512 BF16", "AMX")) and gain >= FASTER:
        what = f"the processor has bfloat16 instructions, with which small products are {gain:.1f} times as fast"
        yield Advice(what, "precision: bfloat16 uses them; compare what is learned with a run in float32")


def _compiler_advice(machine: Machine) -> str:
    if machine.compiler.path is None:
        return "install g++, such as with apt install g++, or name a compiler in CXX"
    if "cannot compile a gradient" in str(machine.compiler.obstacle):
        return "install torch 2.13 or newer"
    return "install what it lacks, such as with apt install g++ python3-dev, or name another compiler in CXX"


def _of_room(machine: Machine) -> Iterator[Advice]:
    if machine.memory is not None and machine.memory < LITTLE_MEMORY:
        what = f"{size_text(machine.memory)} of memory are free"
        yield Advice(what, "a run takes about half a gigabyte beside its data; data in the mapped form stays on disk")
    if machine.disk < LITTLE_DISK:
        yield Advice(f"{size_text(machine.disk)} are free on disk here", "make room, or choose another output_dir")


def _of_extras(machine: Machine) -> Iterator[Advice]:
    for name, is_installed in machine.extras.items():
        if not is_installed:
            how = f"pip install 'rl-training[{name}]' if you need {EXTRAS[name][1]}"
            yield Advice(f"the extra {name} is not installed", how)
