"""What a machine offers to training: cores, instructions, a compiler, the build of torch, memory, disk, extras."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from rl_training.memory import free_memory
from rl_training.runtime.cores import Cores, read_cores
from rl_training.runtime.performance import find_compiler, missing_for_compiling

PROBE_SECONDS = 20.0
"""How long a compiler may take for a few headers."""

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
"""The extras of the package that users install: the modules that each brings, and what they are for."""


@dataclass(frozen=True)
class Compiler:
    """The C++ compiler that compiled runs would use."""

    path: str | None
    version: str | None
    obstacle: str | None
    """Why runs cannot be compiled; None where nothing is known that keeps them from it."""


@dataclass(frozen=True)
class TorchBuild:
    """What torch is made of."""

    version: str
    blas: str | None
    onednn: str | None
    cuda: str | None
    """The version of CUDA that it was built for."""
    kernels: str
    """The instructions that its own kernels use here, such as AVX512."""


@dataclass(frozen=True)
class Machine:
    """What a machine offers to training."""

    cores: Cores
    torch_threads: int
    """Threads that torch would use by itself."""
    omp_num_threads: str | None
    instructions: dict[str, bool | None]
    """Sets of instructions that matter; None where this version of torch does not say."""
    compiler: Compiler
    torch: TorchBuild
    accelerators: tuple[str, ...]
    has_nvidia_driver: bool
    memory: int | None
    """Bytes that can be taken."""
    disk: int
    """Bytes that are free in the folder that was asked about."""
    extras: dict[str, bool]

    @property
    def threads(self) -> int:
        """Threads that a run uses."""
        return min(self.torch_threads, self.cores.available)


def examine(folder: Path) -> Machine:
    """Look at this machine, and at the disk of this folder; nothing is written."""
    return Machine(
        cores=read_cores(),
        torch_threads=torch.get_num_threads(),
        omp_num_threads=os.environ.get("OMP_NUM_THREADS"),
        instructions=_instructions(),
        compiler=_compiler(),
        torch=_torch_build(),
        accelerators=tuple(_accelerators()),
        has_nvidia_driver=shutil.which("nvidia-smi") is not None,
        memory=free_memory(),
        disk=shutil.disk_usage(folder).free,
        extras={name: all(map(_is_installed, modules)) for name, (modules, _) in EXTRAS.items()},
    )


def _instructions() -> dict[str, bool | None]:
    """What torch itself detects."""
    return {
        "AVX2": _asked(torch.cpu, "_is_avx2_supported"),
        "AVX-512": _asked(torch.cpu, "_is_avx512_supported"),
        "AVX-512 BF16": _asked(torch.cpu, "_is_avx512_bf16_supported"),
        "AMX": _asked(torch.cpu, "_is_amx_tile_supported"),
        "bfloat16 in oneDNN": _asked(torch.ops.mkldnn, "_is_mkldnn_bf16_supported"),
    }


def _asked(module: Any, name: str) -> bool | None:
    """What a function answers that not every version and build of torch has; None where it is missing."""
    try:
        return bool(getattr(module, name)())
    except (AttributeError, RuntimeError):
        return None


def _compiler() -> Compiler:
    path = find_compiler()
    lack = missing_for_compiling()
    if path is None:
        return Compiler(None, None, lack)
    version = _run(path, "--version")
    about = version.stdout.splitlines()[0] if version is not None and version.stdout else None
    return Compiler(path, about, lack or _trial(path))


def _trial(path: str) -> str | None:
    """Why the compiler does not take the headers that compiled code includes; nothing is written."""
    headers = ["cmath", "Python.h", *(["omp.h"] if sys.platform == "linux" else [])]
    source = "".join(f"#include <{name}>\n" for name in headers)
    options = ["-fopenmp"] if sys.platform == "linux" else []
    folder = sysconfig.get_paths()["include"]
    done = _run(path, "-x", "c++", "-fsyntax-only", *options, f"-I{folder}", "-", given=source)
    if done is not None and done.returncode == 0:
        return None
    reason = next((line for line in done.stderr.splitlines() if "error" in line), "") if done is not None else ""
    return f"the C++ compiler does not work{f' ({reason.strip()})' if reason else ''}"


def _run(*command: str, given: str = "") -> subprocess.CompletedProcess[str] | None:
    """What a program answers; None where it cannot be run, or takes too long."""
    try:
        return subprocess.run(  # noqa: S603 - the compiler that the user chose, without a shell
            command, input=given, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None


def _torch_build() -> TorchBuild:
    text = torch.__config__.show()
    blas = re.search(r"BLAS_INFO=(\w+)", text)
    onednn = re.search(r"(?:MKL-DNN|oneDNN) v([\w.]+)", text) if _asked(torch.backends.mkldnn, "is_available") else None
    kernels = torch.backends.cpu.get_cpu_capability()
    return TorchBuild(torch.__version__, blas and blas[1], onednn and onednn[1], torch.version.cuda, kernels)


def _accelerators() -> list[str]:
    found = []
    if torch.cuda.is_available():
        found = [f"cuda:{number} {torch.cuda.get_device_name(number)}" for number in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        found.append("mps")
    return found


def _is_installed(module: str) -> bool:
    return find_spec(module) is not None
