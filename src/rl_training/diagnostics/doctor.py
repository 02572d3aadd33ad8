"""The command `doctor`: facts about the machine, its speed, and advice."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import Any

import torch

from rl_training.algorithms import ALGORITHMS
from rl_training.compilation import find_compiler, has_bfloat16, missing_for_compiling
from rl_training.core.machine import Cores, free_memory, read_cores
from rl_training.core.spaces import BoxActions, SpaceSpec
from rl_training.core.text import size_text
from rl_training.data import TransitionDataset, source_for
from rl_training.models import Precision

PROBE_SECONDS = 20.0
"""How long a compiler may take for a few headers."""
SHARE_SECONDS, UPDATE_SECONDS = 0.4, 1.0
"""How long the share of a core, and the updates of each algorithm, are measured."""
BUSY = 0.8
"""The share of a core below which measured speeds are too low."""
FASTER = 1.2
"""Relative speed from which another precision is worth trying."""
LITTLE_MEMORY, LITTLE_DISK = 2 * 10**9, 10**9
"""Bytes of memory and disk below which a run may not fit: torch itself takes a quarter of the former."""

ALGOS = ("td3_bc", "iql", "sac")
ROUNDED = "td3_bc in bfloat16"
OBS_DIM, ACTION_DIM = 17, 6
"""Those of HalfCheetah."""
ROWS, EPISODE, BATCH, WARM_UP = 20_000, 1000, 256, 5

EXTRAS: dict[str, tuple[tuple[str, ...], str]] = {
    "arrow": (("pyarrow",), "tables: CSV and parquet files"),
    "box2d": (("Box2D",), "Gymnasium's Box2D tasks, such as LunarLander"),
    "export": (("onnx", "onnxruntime", "onnxscript"), "export of policies as ONNX files"),
    "hdf5": (("h5py",), "HDF5 files of D4RL and d3rlpy"),
    "minari": (("minari", "h5py"), "Minari datasets"),
    "mlflow": (("mlflow",), "metrics in MLflow (sinks: [mlflow])"),
    "mujoco": (("mujoco",), "MuJoCo tasks, such as HalfCheetah"),
    "plot": (("matplotlib",), "pictures of report and data inspect"),
    "ray": (("ray",), "sweeps on a Ray cluster (--ray)"),
    "robotics": (("gymnasium_robotics",), "goal tasks, such as FetchReach"),
    "tensorboard": (("tensorboard",), "metrics in TensorBoard"),
    "tune": (("optuna", "matplotlib"), "search for options (tune)"),
    "upload": (("fsspec",), "copies of runs elsewhere (upload_url, fetch)"),
    "video": (("imageio_ffmpeg", "pygame"), "videos and windows (record, play)"),
    "wandb": (("wandb",), "metrics in W&B (sinks: [wandb])"),
}
"""Optional extras of the package: the modules that each brings, and their purpose."""


@dataclass(frozen=True)
class Compiler:
    """The C++ compiler for compiled runs."""

    path: str | None
    version: str | None
    obstacle: str | None
    """The reason why runs cannot be compiled; None if none is known."""


@dataclass(frozen=True)
class Machine:
    """Resources of a machine for training."""

    cores: Cores
    threads: int
    """Threads of a run."""
    torch_threads: int
    """Threads that torch uses by default."""
    omp_num_threads: str | None
    instructions: dict[str, bool | None]
    """Relevant instruction sets; None if this version of torch does not tell."""
    compiler: Compiler
    torch: dict[str, str | None]
    """The version of torch, its libraries, and the instructions that its kernels use here."""
    accelerators: tuple[str, ...]
    has_nvidia_driver: bool
    memory: int | None
    """Available bytes."""
    disk: int
    """Free bytes in the given folder."""
    extras: dict[str, bool]


@dataclass(frozen=True)
class MachineSpeed:
    """Measured speed of a machine."""

    core_share: float
    """Share of time in which a busy process has its core; below 1 if others use it, or a quota is used up."""
    updates_per_second: dict[str, float]


@dataclass(frozen=True)
class Advice:
    """Something missing or unused, and the remedy."""

    what: str
    how: str


def examine(folder: Path) -> Machine:
    """Examine this machine, and the disk of this folder, without writing anything."""
    cores, torch_threads = read_cores(), torch.get_num_threads()
    gpus = (f"cuda:{number} {torch.cuda.get_device_name(number)}" for number in range(torch.cuda.device_count()))
    return Machine(
        cores=cores,
        threads=min(torch_threads, cores.available),
        torch_threads=torch_threads,
        omp_num_threads=os.environ.get("OMP_NUM_THREADS"),
        instructions={
            "AVX2": _ask(torch.cpu, "_is_avx2_supported"),
            "AVX-512": _ask(torch.cpu, "_is_avx512_supported"),
            "AVX-512 BF16": _ask(torch.cpu, "_is_avx512_bf16_supported"),
            "AMX": _ask(torch.cpu, "_is_amx_tile_supported"),
            "bfloat16 in oneDNN": _ask(torch.ops.mkldnn, "_is_mkldnn_bf16_supported"),
        },
        compiler=_find_compiler(),
        torch=_torch_build(),
        accelerators=(*gpus, *(["mps"] if torch.backends.mps.is_available() else [])),
        has_nvidia_driver=shutil.which("nvidia-smi") is not None,
        memory=free_memory(),
        disk=shutil.disk_usage(folder).free,
        extras={name: all(map(find_spec, modules)) for name, (modules, _) in EXTRAS.items()},
    )


def _ask(module: Any, name: str) -> bool | None:
    """The result of a function that not every build of torch has; None if it is missing."""
    try:
        return bool(getattr(module, name)())
    except (AttributeError, RuntimeError):
        return None


def _torch_build() -> dict[str, str | None]:
    text = torch.__config__.show()
    blas = re.search(r"BLAS_INFO=(\w+)", text)
    onednn = re.search(r"(?:MKL-DNN|oneDNN) v([\w.]+)", text) if _ask(torch.backends.mkldnn, "is_available") else None
    return {
        "version": torch.__version__,
        "blas": blas and blas[1],
        "onednn": onednn and onednn[1],
        "cuda": torch.version.cuda,
        "kernels": torch.backends.cpu.get_cpu_capability(),
    }


def _find_compiler() -> Compiler:
    path, lack = find_compiler(), missing_for_compiling()
    if path is None:
        return Compiler(None, None, lack)
    status, about = _run(path, "--version")
    return Compiler(path, about.partition("\n")[0] if status == 0 else None, lack or _try_headers(path))


def _try_headers(path: str) -> str | None:
    """The reason why the compiler fails on headers that compiled code includes; None if it works."""
    is_linux = sys.platform == "linux"
    source = "".join(f"#include <{name}>\n" for name in ["cmath", "Python.h", *(["omp.h"] if is_linux else [])])
    options = [*(["-fopenmp"] if is_linux else []), f"-I{sysconfig.get_paths()['include']}"]
    status, output = _run(path, "-x", "c++", "-fsyntax-only", *options, "-", given=source)
    reason = next((f" ({line.strip()})" for line in output.splitlines() if "error" in line), "")
    return None if status == 0 else f"the C++ compiler does not work{reason}"


def _run(*command: str, given: str = "") -> tuple[int | None, str]:
    """Status and output of a program; no status if it cannot be run, or takes too long."""
    try:
        done = subprocess.run(  # noqa: S603 - the compiler that the user chose, without a shell
            command, input=given, stdout=PIPE, stderr=STDOUT, text=True, timeout=PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None, ""
    return done.returncode, done.stdout


def measure_speed(show: Callable[[str], None]) -> MachineSpeed:
    """Measure updates of a few algorithms; `show` gets a line about each."""
    share, rates = _core_share(), dict[str, float]()
    for name in (*ALGOS, ROUNDED) if has_bfloat16(torch.device("cpu")) else ALGOS:
        show(f"measuring updates of {name}")
        rates[name] = _updates_per_second(ALGOS[0], "bfloat16") if name == ROUNDED else _updates_per_second(name)
    return MachineSpeed(share, rates)


def _core_share() -> float:
    worked, start = time.process_time(), time.perf_counter()
    while (passed := time.perf_counter() - start) < SHARE_SECONDS:
        pass
    return min((time.process_time() - worked) / passed, 1.0)


def _updates_per_second(algo: str, precision: Precision = "float32") -> float:
    """Updates, sampling included, at default sizes, on random rows of HalfCheetah's size; not compiled."""
    rows = {
        "observations": torch.randn(ROWS, OBS_DIM),
        "actions": torch.rand(ROWS, ACTION_DIM) * 2 - 1,
        "rewards": torch.randn(ROWS),
        "terminals": torch.zeros(ROWS, dtype=torch.bool),
        "timeouts": torch.arange(1, ROWS + 1) % EPISODE == 0,
    }
    cls, action = ALGORITHMS[algo], BoxActions((-1.0,) * ACTION_DIM, (1.0,) * ACTION_DIM)
    algorithm = cls.build(SpaceSpec.vector(OBS_DIM, action), cls.hyper_class(precision=precision))
    source, _ = source_for(algorithm, TransitionDataset.from_dict(rows))
    for _ in range(WARM_UP):
        algorithm.update(source.sample(BATCH))
    count, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < UPDATE_SECONDS or count == 0:
        algorithm.update(source.sample(BATCH))
        count += 1
    return count / passed


def advise(machine: Machine, speed: MachineSpeed) -> list[Advice]:
    """Possible improvements, those of speed first."""
    return [*_advise_on_cores(machine), *_advise_on_speed(machine, speed), *_advise_on_room(machine)]


def _advise_on_cores(machine: Machine) -> Iterator[Advice]:
    cores, threads = machine.cores, machine.threads
    if cores.quota is not None and cores.quota < cores.affinity:
        what = f"a quota of the control group allows {cores.quota:g} of {cores.affinity} cores; runs use {threads}"
        yield Advice(what, "raise it, such as docker run --cpus or resources.limits.cpu of Kubernetes")
    if cores.affinity < cores.machine:
        what = f"the affinity mask allows {cores.affinity} of {cores.machine} cores"
        yield Advice(what, "widen it if that is not meant: taskset, docker run --cpuset-cpus, or the job's cores")
    if machine.torch_threads > cores.available:
        said = machine.omp_num_threads
        name = f"OMP_NUM_THREADS={said}" if said else f"torch's default of {machine.torch_threads} threads"
        what = f"{name} is more than the {cores.available} cores that may be used; runs use {threads} threads"
        yield Advice(what, f"set OMP_NUM_THREADS={cores.available}, so that other programs are not slowed down either")


def _advise_on_speed(machine: Machine, speed: MachineSpeed) -> Iterator[Advice]:
    rates = speed.updates_per_second
    if (obstacle := machine.compiler.obstacle) is not None:
        how = "install its missing parts, such as with apt install g++ python3-dev, or name another compiler in CXX"
        if machine.compiler.path is None:
            how = "install g++, such as with apt install g++, or name a compiler in CXX"
        elif "cannot compile a gradient" in obstacle:
            how = "install torch 2.13 or newer"
        gain = "compiled updates were 1.1 to 1.4 times as fast where it was measured, depending on the algorithm"
        yield Advice(f"runs cannot be compiled: {obstacle}", f"{how}; {gain}")
    if machine.has_nvidia_driver and machine.torch["cuda"] is None:
        what = "there is an NVIDIA driver, and torch is built without CUDA"
        yield Advice(what, "install torch with CUDA, as pip install torch does by default on Linux")
    if speed.core_share < BUSY:
        what = f"other programs, or a quota, took {1 - speed.core_share:.0%} of the core while speed was measured"
        yield Advice(what, "measure again when the machine is idle: it is faster than it seems here")
    elif (times := rates.get(ROUNDED, 0.0) / rates[ALGOS[0]]) >= FASTER:
        what = f"the processor has bfloat16 instructions: updates of {ALGOS[0]} with them are {times:.1f} times as fast"
        yield Advice(what, "precision: bfloat16 uses them; compare the learned policy with a run in float32")


def _advise_on_room(machine: Machine) -> Iterator[Advice]:
    if machine.memory is not None and machine.memory < LITTLE_MEMORY:
        what = f"{size_text(machine.memory)} of memory are free"
        yield Advice(what, "a run takes about half a gigabyte beside its data; data in the mapped form stays on disk")
    if machine.disk < LITTLE_DISK:
        yield Advice(f"{size_text(machine.disk)} are free on disk here", "make room, or choose another output_dir")
    for name, is_installed in machine.extras.items():
        if not is_installed:
            how = f"pip install 'rl-training[{name}]' if you need {EXTRAS[name][1]}"
            yield Advice(f"the extra {name} is not installed", how)
