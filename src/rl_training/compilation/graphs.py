"""Compiled gradients: their requirements, when they pay, and where they are kept."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import struct
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import Any, Literal

import torch

from rl_training.compilation import kernels
from rl_training.core.batches import Batch
from rl_training.core.errors import ConfigError
from rl_training.models import Precision

FOLDER = "TORCHINDUCTOR_CACHE_DIR"
"""The environment variable that names the folder of compiled graphs."""


class CompiledGradient:
    """A gradient function that is compiled for each shape of batch it meets, once.

    The graph belongs to one algorithm, whose parts never change, and is chosen here by the shapes that come in. So it
    is called directly: finding it through torch.compile, which checks every part on every call, took 6 % of an update.
    """

    def __init__(self, function: Callable[..., Any], *arguments: Any, name: str, backend: str) -> None:
        self.arguments = arguments
        self.graphs: dict[Any, Callable[..., Any]] = {}
        # Read when a graph is traced: lets it contain torch.autograd.grad.
        torch._dynamo.config.trace_autograd_ops = True
        self.compiler: Any = torch.compile(
            _with_own_code(function, name),
            fullgraph=True,
            dynamic=False,
            backend=_to_machine_code if backend == "inductor" else backend,
            options={"guard_filter_fn": torch.compiler.keep_tensor_guards_unsafe},
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as an empty object.

        torch.compile pickles the whole algorithm, and compiled graphs cannot be pickled.
        """
        return object, ()

    def __call__(self, batch: Batch) -> Any:
        """The function's value for its arguments and a batch."""
        return self.graph_for(batch)(*self.arguments, batch)

    def graph_for(self, batch: Batch) -> Callable[..., Any]:
        """The graph for batches of this shape, compiled if there is none yet."""
        key = tuple((name, value.shape, value.dtype) for name, value in batch.items())
        graph = self.graphs.get(key)
        if graph is None:
            graph = self.graphs[key] = self.compiler.aot_compile(((*self.arguments, batch), {}))
            graph.disable_guard_check()
        return graph


def use_private_folder() -> None:
    """Keep compiled graphs where no other user can write, for they are run when they are read.

    The folder is torch's. If others can write there, it is one beside it.
    """
    if FOLDER not in os.environ:
        from torch._inductor.runtime.cache_dir_utils import cache_dir

        cache_dir()  # makes it and sets the variable
    named = Path(os.environ[FOLDER]).absolute()
    for folder in (named, named.with_name(f"{named.name}_private")):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"the folder of compiled graphs {folder} cannot be made: {error.strerror}") from None
        if _is_private(folder):
            os.environ[FOLDER] = str(folder)
            if sys.platform == "linux":
                _remove_cut_libraries(folder)
            return
    raise ConfigError(f"other users can write to the folder of compiled graphs, {named}; name another in {FOLDER}")


def _is_private(folder: Path) -> bool:
    if os.name != "posix":
        return True
    owners = {folder.lstat().st_uid, folder.stat().st_uid}
    return owners == {os.getuid()} and not folder.stat().st_mode & 0o022


def _remove_cut_libraries(folder: Path) -> None:
    """Delete half-written libraries that a killed linker left: loading one ends the process without a message."""
    from torch.utils._filelock import FileLock

    for library in folder.glob("*/*.so"):
        lock = folder / "locks" / f"{library.name.partition('.')[0]}.lock"
        with suppress(OSError), FileLock(str(lock)).acquire(timeout=0):
            # Under the lock, no other process is about to finish it.
            if _is_cut(library):
                library.unlink()


def _is_cut(library: Path) -> bool:
    """Whether a library lacks its end, where ELF files have the table of their sections."""
    with library.open("rb") as file:
        head = file.read(64)
    if len(head) < 64 or not head.startswith(b"\x7fELF"):
        return True
    if head[4:6] != b"\x02\x01":  # not of 64 bits, or not little-endian
        return False
    begin, size, count = (*struct.unpack_from("<Q", head, 40), *struct.unpack_from("<HH", head, 58))
    end: int = begin + size * count
    return library.stat().st_size < end


def _to_machine_code(graph: Any, inputs: Any) -> Any:
    """Compile a traced graph, or read what an earlier start has compiled of an equal one."""
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    use_private_folder()
    # A random name, which torch makes part of the key by which it finds the graph again.
    graph._backend_id = None
    options = {
        # Noise from torch's own generator, so that a compiled run draws what an eager one draws.
        "fallback_random": True,
        # Kernels called from C++ instead of Python: 5 % of an update.
        "cpp_wrapper": True,
        **kernels.compiler_options(),
    }
    # torch's key has its version, the graph, shapes, types and threads, but not the processor's vector instructions.
    settings: Any = torch.compiler.config
    with settings.patch(cache_key_tag=str(pick_vec_isa())), kernels.decompositions(graph.graph):
        return compile_fx(graph, inputs, config_patches=options)


def _with_own_code(function: Any, name: str) -> Any:
    """A copy of a function with a code object of its own.

    torch.compile has a bounded cache per code object, and would refuse shared code after a few runs in one process.
    """
    return FunctionType(function.__code__.replace(co_name=name), function.__globals__, name)


CompileOption = Literal["auto", "always", "never"]

EARNED_AFTER = 20_000
"""Updates from which compiling pays: it takes about 20 s and saves 1 to 3 ms per update."""

EAGER_UPDATES = 2_000
"""Eager updates with which a run that earns compilation begins, while its graphs are compiled beside it.

They are at most a tenth of the run, and cost a few seconds more than compiled ones: about as long as a start with known
graphs would wait for them."""


def compiled_from(option: CompileOption, updates: int) -> int | None:
    """The number of the first compiled update in a run of `updates` updates; None if none is compiled.

    It depends on options alone, never on how long something takes: equal seeds give equal results on any machine.
    Warns where a run that earns compilation cannot have it. A compiler that does not work shows when it is used.
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
    """Whether compilation is wanted and possible; warns where it is not possible, or not fast."""
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
    """Whether the compiler can use the processor's vector instructions; it compiles a small program to find out."""
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    return bool(pick_vec_isa())


def _obstacle() -> str | None:
    """The reason why nothing can be compiled; None if there is none."""
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
    """The first missing requirement of compilation; trying the compiler would take seconds, and is left out."""
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
