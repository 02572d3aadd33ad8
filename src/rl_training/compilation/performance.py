"""The machine's settings, made once at the start of a run: threads, allocator, compiler."""

from __future__ import annotations

import ctypes
import os
import platform
import shlex
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Literal

import torch

from rl_training.compilation.graphs import use_private_folder
from rl_training.core.cores import available_cores
from rl_training.core.errors import ConfigError
from rl_training.models.precision import Precision

CompileOption = Literal["auto", "always", "never"]

EARNED_AFTER = 20_000
"""Updates from which compiling pays: it takes about 20 s and saves 1 to 3 ms per update."""

EAGER_UPDATES = 2_000
"""Eager updates with which a run that earns compilation begins, while its graphs are compiled beside it.

They are at most a tenth of the run, and cost a few seconds more than compiled ones: about as long as a start with known
graphs would wait for them."""


def configure_machine(threads: int | None = None) -> None:
    """Set the number of threads, and keep the allocator from returning buffers to the system."""
    set_threads(threads)
    keep_buffers()


def set_threads(threads: int | None = None) -> None:
    """Compute with this number of threads.

    Without one, torch's own is kept, unless this process may use fewer cores: torch knows nothing of quotas, and takes
    OMP_NUM_THREADS at its word.
    """
    if threads is not None or torch.get_num_threads() > available_cores():
        torch.set_num_threads(threads or available_cores())


def keep_buffers() -> None:
    """Keep the allocator from returning buffers to the system, from when data has been read on.

    glibc maps every buffer above 128 KiB anew; an activation of 256 x 256 is 256 KiB, and page faults cost 20 %. Before
    that, what reading data leaves behind should be returned.
    """
    if sys.platform != "linux":
        return
    m_trim_threshold, m_mmap_threshold = -1, -3
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(m_mmap_threshold, 1 << 30)
        mallopt(m_trim_threshold, 1 << 30)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread: small networks gain nothing from more, and lose much where others use the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def compiled_from(option: CompileOption, updates: int) -> int | None:
    """The number of the first compiled update in a run of `updates` updates; None if none is compiled.

    It depends on options alone, never on how long something takes: equal seeds give equal results on any machine.
    Warns where a run that earns compilation cannot have it. Whether the compiler works is found out when it is used.
    """
    if option == "always":
        if (obstacle := _obstacle()) is not None:
            raise ConfigError(f"compile: always is not possible: {obstacle}; set compile: never or auto")
        return 0 if can_compile(True) else None
    if option == "never" or updates < EARNED_AFTER:
        return None
    if (missing := missing_for_compiling()) is not None:
        warnings.warn(f"training without compilation, which is slower: {missing}", stacklevel=2)
        return None
    return EAGER_UPDATES


def can_compile(wanted: bool) -> bool:
    """Whether what is wanted is possible; says so where it is not, or not well."""
    if not wanted:
        return False
    obstacle = _obstacle()
    if obstacle is not None:
        warnings.warn(f"training without compilation, which is slower: {obstacle}", stacklevel=2)
        return False
    if torch.backends.cpu.get_cpu_capability() != "DEFAULT" and not _finds_vector_instructions():
        # If the compiler's own test program fails once, its cache remembers slow code for good.
        from torch._inductor.runtime.cache_dir_utils import cache_dir

        advice = f"delete {cache_dir()} and start again"
        warnings.warn(f"compiled updates will be slow, no vector instructions were found; {advice}", stacklevel=2)
    return True


def _finds_vector_instructions() -> bool:
    """Whether the compiler can use what the processor has; it finds out by compiling a small program."""
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    return bool(pick_vec_isa())


def _obstacle() -> str | None:
    """Why nothing can be compiled."""
    if (lack := missing_for_compiling()) is not None:
        return lack
    try:
        use_private_folder()
    except ConfigError as error:
        return str(error)
    try:
        _finds_vector_instructions()
    except Exception as error:
        return f"the C++ compiler does not work ({str(error).splitlines()[0]})"
    return None


def missing_for_compiling() -> str | None:
    """What compiling needs and is not there; whether the compiler works takes seconds to find out, and is not tried."""
    if find_compiler() is None:
        return f"no C++ compiler found (looked for {', '.join(_compilers())})"
    traces_gradients = hasattr(torch._dynamo.config, "trace_autograd_ops")
    if not (traces_gradients and find_spec("torch._dynamo.aot_compile")):
        return f"torch {torch.__version__} cannot compile a gradient; 2.13 can"
    return None


def find_compiler() -> str | None:
    """The path of the C++ compiler that compiled runs use."""
    return next(filter(None, map(shutil.which, _compilers())), None)


def _compilers() -> list[str]:
    return shlex.split(os.environ["CXX"])[:1] if "CXX" in os.environ else ["g++", "clang++"]


def default_device(name: str) -> torch.device:
    """The device that a config's word stands for."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not available[name.split(":")[0]]:
        raise ConfigError(f"device {name!r} is not available on this machine")
    return torch.device(name)


def check_precision(precision: Precision, device: torch.device) -> None:
    """Refuse products in bfloat16 where they would be emulated, which is many times slower than float32."""
    if precision == "bfloat16" and not has_bfloat16(device):
        where = "this processor" if device.type == "cpu" else f"the device {device}"
        raise ConfigError(f"precision: bfloat16 is not possible: {where} has no instructions for it; set float32")


def has_bfloat16(device: torch.device) -> bool:
    """Whether a device multiplies numbers in bfloat16 by instructions of its own."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type != "cpu":
        return False
    if platform.machine() in ("aarch64", "arm64"):
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name)() for name in names if hasattr(torch.cpu, name))
