"""Files of `torch.save`, read without pickle: tensors and plain values, nothing else, and never more than they hold.

`torch.save` writes a zip archive: a program of pickle's small machine, which builds the tree, and one member per
storage of numbers. `Program` runs the few instructions that a tree of tensors and plain values needs. It imports
nothing and calls nothing that the file names. The archive's own checksums are looked at.
"""

from __future__ import annotations

import math
import pickletools
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rl_training.core.errors import UserError
from rl_training.core.machine import check_memory

DEEPEST = 64
"""Containers inside each other."""
MOST_PROGRAM = 1 << 30
"""Bytes of the program that builds a tree: those of a million episodes."""
SHARED = 1 << 16
"""Values that may stand in a tree more often than its program is long: parts of it may be shared."""
STORAGES = {
    "Double": torch.float64,
    "Float": torch.float32,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Long": torch.int64,
    "Int": torch.int32,
    "Short": torch.int16,
    "Char": torch.int8,
    "Byte": torch.uint8,
    "Bool": torch.bool,
    "ComplexFloat": torch.complex64,
    "ComplexDouble": torch.complex128,
}
"""Names of torch's storages, without the ending, and the types of their numbers."""
PLAIN = (str, bytes, int, float, type(None))
PIECE = 1 << 24
"""Bytes read at a time."""
BAD_CHECKSUM = "Bad CRC-32"
"""The beginning of the message when a member of an archive does not match its checksum."""
BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    ValueError,
    NotImplementedError,
    RuntimeError,
    LookupError,
    struct.error,
    MemoryError,
)
"""Errors that a damaged archive may raise."""


class ForbiddenError(Exception):
    """A file that holds something else than tensors and plain values, or more than it should."""


def read_tree(
    path: Path, error_class: type[UserError], *, what: str, hint: str = "", damage_class: type[UserError] | None = None
) -> Any:
    """The tree of tensors and plain values in a file; `what` it should be, and a `hint` on large data, are for errors.

    Code and objects in the file are refused, never run. A file that is not what was written is a `damage_class`, since
    nothing may be concluded about a file from a machine that is too small for it.
    """
    damage_class = damage_class or error_class
    try:
        with zipfile.ZipFile(path) as archive:
            tree = Program(_Storages(path, archive)).run()
        needed = _measure(tree, limit=SHARED + path.stat().st_size)
    except OSError as error:
        raise error_class(f"{path} cannot be read ({error.strerror or error})") from None
    except (ForbiddenError, *BROKEN) as error:
        if str(error).startswith(BAD_CHECKSUM):
            raise damage_class(f"{path} is damaged: its contents do not match its checksum") from None
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise damage_class(f"{path} is not a readable {what} ({reason})") from None
    check_memory(path, needed, error=error_class, hint=hint)
    return tree


def _measure(tree: Any, limit: int) -> int:
    """Bytes of all tensors in a tree, which may have as many values as the limit says.

    A small program can build a tree that is endless or has 2^100 parts, if some of them are shared.
    """
    size, count, waiting = 0, 0, [(tree, 0)]
    while waiting:
        value, depth = waiting.pop()
        count += 1
        if count > limit:
            raise ForbiddenError("it repeats parts of itself more often than it is long")
        if isinstance(value, Tensor):
            size += value.nbytes
        elif isinstance(value, (dict, list, tuple)):
            if depth == DEEPEST:
                raise ForbiddenError(f"more than {DEEPEST} lists or mappings lie inside each other")
            parts = [*value, *value.values()] if isinstance(value, dict) else value
            waiting += [(part, depth + 1) for part in parts]
        elif not isinstance(value, PLAIN):
            raise ForbiddenError("it holds code or objects, expected tensors and plain values")
    return size


class _Storages:
    """The members of an archive: the program, and the numbers that it refers to."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self._archive, self._read = archive, dict[str, Tensor]()
        infos = archive.infolist()
        if any(info.compress_type != zipfile.ZIP_STORED for info in infos):
            raise ForbiddenError("its members are compressed, which torch.save never does")
        if sum(info.file_size for info in infos) > path.stat().st_size:
            raise ForbiddenError("its members claim to be larger than the file")
        programs = [info.filename for info in infos if info.filename.endswith("/data.pkl")]
        if len(programs) != 1:
            raise ForbiddenError("it is no archive of torch.save; files of torch before 1.6 must be saved again")
        self.folder = programs[0].removesuffix("data.pkl")
        self._sizes = {info.filename: info.file_size for info in infos}
        byteorder = f"{self.folder}byteorder"
        if byteorder in self._sizes and archive.read(byteorder) != b"little":
            raise ForbiddenError("its numbers are in the byte order of another kind of machine")

    def program(self) -> bytes:
        """The instructions that build the tree."""
        name = f"{self.folder}data.pkl"
        if self._sizes[name] > MOST_PROGRAM:
            raise ForbiddenError(f"its description is of {self._sizes[name]} bytes, expected at most {MOST_PROGRAM}")
        return self._archive.read(name)

    def numbers(self, key: str, dtype: torch.dtype, count: int) -> Tensor:
        """The numbers of one storage (count,), which the archive must hold exactly."""
        name, expected = f"{self.folder}data/{key}", count * dtype.itemsize
        held = self._sizes.get(name)
        if held != expected:
            raise ForbiddenError(f"it claims {count} numbers, {expected} bytes, but holds {held or 0}")
        found = self._read.get(key)
        if found is None:
            found = self._read[key] = self._bytes(name)
        if dtype == torch.bool and bool((found > 1).any()):
            raise ForbiddenError("it has booleans that are neither true nor false")
        return found.view(dtype)

    def _bytes(self, name: str) -> Tensor:
        # In memory of torch's own, whose alignment decides about the last bit of some products.
        content = torch.empty(self._sizes[name], dtype=torch.uint8)
        room, start = content.numpy().data, 0
        with self._archive.open(name) as file:
            while piece := file.read(PIECE):
                room[start : start + len(piece)] = piece
                start += len(piece)
        if start != len(content):
            raise ForbiddenError("it is cut short")
        return content


class _Name:
    """A name in a file, with its module; nothing is imported."""

    def __init__(self, text: str) -> None:
        self.text = text


class Program:
    """The instructions of one file, a stack and a memory."""

    def __init__(self, storages: _Storages) -> None:
        self._storages = storages
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memory: dict[int, Any] = {}

    def run(self) -> Any:
        """The tree that the program builds."""
        for code, argument, _ in pickletools.genops(self._storages.program()):
            name = code.name
            if name in _CONSTANTS:
                self._stack.append(_CONSTANTS[name])
            elif name in _LITERALS:
                self._stack.append(argument)
            elif name == "STOP":
                break
            elif name not in _SILENT:
                self._step(name, argument)
        if len(self._stack) != 1:
            raise ForbiddenError("it builds no tree")
        return self._stack[0]

    def _step(self, name: str, argument: Any) -> None:
        if name in ("BINPUT", "LONG_BINPUT"):
            self._memory[argument] = self._stack[-1]
        elif name == "MEMOIZE":
            self._memory[len(self._memory)] = self._stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            self._stack.append(self._memory[argument])
        elif name == "GLOBAL":
            self._stack.append(_Name(argument))
        elif name in _STEPS:
            _STEPS[name](self)
        else:
            raise ForbiddenError(f"it holds objects (instruction {name}), expected tensors and plain values")

    def push(self, value: Any) -> None:
        """Put a value on the stack."""
        self._stack.append(value)

    def mark(self) -> None:
        """Remember the length of the stack."""
        self._marks.append(len(self._stack))

    def pop(self, count: int | None = None) -> list[Any]:
        """Take the last values from the stack: so many, or all since the last mark."""
        start = self._marks.pop() if count is None else len(self._stack) - count
        if start < 0:
            raise ForbiddenError("it takes values from an empty stack")
        found = self._stack[start:]
        del self._stack[start:]
        return found

    def extend(self, values: list[Any]) -> None:
        """Add values to the list on the stack."""
        self._container(list).extend(values)

    def update(self, values: list[Any]) -> None:
        """Set keys of the mapping on the stack, given as key, value, key, value."""
        for key, value in zip(values[::2], values[1::2], strict=True):
            parts = key if isinstance(key, tuple) else (key,)
            if not all(isinstance(part, (str, int, float, bool, type(None))) for part in parts):
                raise ForbiddenError("a mapping has a key that is neither text nor a number")
            self._container(dict)[key] = value

    def _container(self, kind: type[Any]) -> Any:
        if not isinstance(self._stack[-1], kind):
            raise ForbiddenError(f"a value is added to something that is no {kind.__name__}")
        return self._stack[-1]

    def build(self) -> None:
        """Drop what an object would be built from."""
        # Attributes of a state dict, such as versions of modules.
        self._stack.pop()
        self._container(dict)

    def storage(self) -> None:
        """Replace a reference to numbers by the numbers."""
        match self._stack.pop():
            case ("storage", _Name(text=kind), str(key), str(), int(count)) if count >= 0:
                dtype = STORAGES.get(kind.removeprefix("torch ").removesuffix("Storage"))
                if dtype is None or not kind.startswith("torch "):
                    raise ForbiddenError(f"it has numbers of an unknown kind ({kind})")
                self._stack.append(self._storages.numbers(key, dtype, count))
            case _:
                raise ForbiddenError("it refers to numbers in a way that torch.save does not")

    def reduce(self) -> None:
        """Replace a function and its arguments by the value, for the few functions that torch.save names."""
        arguments, called = self._stack.pop(), self._stack.pop()
        name = called.text if isinstance(called, _Name) else type(called).__name__
        match name, arguments:
            case ("collections OrderedDict", ()):
                self._stack.append({})
            case ("torch._utils _rebuild_tensor_v2", (Tensor() as numbers, int(offset), size, stride, *_)):
                self._stack.append(_strided(numbers, offset, size, stride))
            case ("torch._utils _rebuild_parameter", (Tensor() as value, *_)):
                self._stack.append(value)
            case ("torch Size", (tuple() as size,)):
                self._stack.append(size)
            case ("_codecs encode", (str(text), "latin1")):
                self._stack.append(text.encode("latin1"))
            case _:
                called = name.replace(" ", ".")
                raise ForbiddenError(f"it holds code or objects ({called}), which are never run; expected tensors")


def _strided(numbers: Tensor, offset: int, size: Any, stride: Any) -> Tensor:
    """A view of a storage, which must lie inside it."""
    counts = [*size, *stride] if isinstance(size, tuple) and isinstance(stride, tuple) else [-1]
    if not all(type(each) is int and 0 <= each < 2**48 for each in (offset, *counts)) or len(size) != len(stride):
        raise ForbiddenError("a tensor has an impossible shape")
    last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    if math.prod(size) >= 2**62 or (math.prod(size) and last >= len(numbers)):
        raise ForbiddenError(f"a tensor of shape {list(size)} lies outside of its {len(numbers)} numbers")
    return torch.as_strided(numbers, size, stride, offset)


_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_LITERALS = {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE"}
_SILENT = {"PROTO", "FRAME"}
_STEPS: dict[str, Callable[[Program], None]] = {
    "MARK": Program.mark,
    "EMPTY_LIST": lambda program: program.push([]),
    "EMPTY_DICT": lambda program: program.push({}),
    "TUPLE": lambda program: program.push(tuple(program.pop())),
    "TUPLE1": lambda program: program.push(tuple(program.pop(1))),
    "TUPLE2": lambda program: program.push(tuple(program.pop(2))),
    "TUPLE3": lambda program: program.push(tuple(program.pop(3))),
    "APPEND": lambda program: program.extend(program.pop(1)),
    "APPENDS": lambda program: program.extend(program.pop()),
    "SETITEM": lambda program: program.update(program.pop(2)),
    "SETITEMS": lambda program: program.update(program.pop()),
    "BUILD": Program.build,
    "BINPERSID": Program.storage,
    "REDUCE": Program.reduce,
}
