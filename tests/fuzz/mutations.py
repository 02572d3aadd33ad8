"""How files are broken: single bytes, whole parts, and values in trees whose checksums are then made right again."""

from __future__ import annotations

import copy
import io
import json
import random
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rl_training.core.errors import DatasetError
from rl_training.core.torch_files import read_tree

NUMBERS = (0, 1, -1, 2**31 - 1, 2**31, 2**63 - 1, 2**64, 10**12, -(10**12), 0.5, float("nan"), float("inf"), 1e308)
VALUES: tuple[Any, ...] = (*NUMBERS, None, True, "", "text", "²", "\x00", [], {}, [[]], {"a": 1}, "a:b", "x" * 10_000)
TEXTS = (
    b"",
    b"\x00",
    b"\xff" * 8,
    b"1e999",
    b"-1",
    b"999999999999",
    b"nan",
    b"{",
    b"]",
    b"'",
    b'"',
    b"\n",
    b",",
    b"\xc3\x28",
)
Mutation = Callable[[bytes, random.Random], bytes]


def flip(content: bytes, rng: random.Random) -> bytes:
    """A few bits."""
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def overwrite(content: bytes, rng: random.Random) -> bytes:
    """Bytes that often break something."""
    place, size = rng.randrange(len(content)), rng.choice((1, 2, 4, 8))
    value = rng.choice((0, 2 ** (8 * size) - 1, 2 ** (8 * size - 1), rng.getrandbits(8 * size)))
    return content[:place] + value.to_bytes(size, "little") + content[place + size :]


def insert_text(content: bytes, rng: random.Random) -> bytes:
    """Text that means something in some format."""
    place = rng.randrange(len(content) + 1)
    return content[:place] + rng.choice(TEXTS) + content[place + rng.choice((0, 0, 1, 4)) :]


def cut(content: bytes, rng: random.Random) -> bytes:
    """The end, or a part in the middle, is gone."""
    start = rng.randrange(len(content))
    stop = rng.choice((len(content), min(start + rng.randrange(1, 64), len(content))))
    return content[:start] + content[stop:]


def double(content: bytes, rng: random.Random) -> bytes:
    """A part stands twice."""
    start = rng.randrange(len(content))
    stop = start + rng.randrange(1, 256)
    return content[:stop] + content[start:stop] + content[stop:]


BYTES: tuple[Mutation, ...] = (flip, overwrite, insert_text, cut, double)


def in_member(content: bytes, rng: random.Random) -> bytes:
    """Break a member of an archive, or its name, and make the checksums right again."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {info.filename: (archive.read(info), info.compress_type) for info in archive.infolist()}
    chosen = rng.choice(list(members))
    data, kind = members.pop(chosen)
    action = rng.choice(("break", "break", "break", "head", "drop", "rename", "compress"))
    name = insert_text(chosen.encode(), rng).decode("utf-8", "replace") if action == "rename" else chosen
    if action == "compress":
        kind = rng.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA, zipfile.ZIP_STORED))
    if action == "break" and data:
        data = rng.choice(BYTES)(data, rng)
    if action == "head" and data:
        data = rng.choice(BYTES)(data[:128], rng) + data[128:]
    if action != "drop":
        members[name] = data, kind
    file = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w") as archive:
        warnings.simplefilter("ignore")
        for name, (data, kind) in members.items():
            archive.writestr(zipfile.ZipInfo(name), data, compress_type=kind)
    return file.getvalue()


def in_tree(tree: Any, rng: random.Random) -> Any:
    """Break one value somewhere in a tree: replaced, gone, renamed, or standing twice."""
    if not isinstance(tree, (dict, list)):
        return rng.choice(VALUES)
    places: list[tuple[Any, Any]] = []
    waiting = [tree]
    while waiting:
        part = waiting.pop()
        keys = list(part) if isinstance(part, dict) else list(range(len(part)))
        for key in keys:
            places.append((part, key))
            if isinstance(part[key], (dict, list)):
                waiting.append(part[key])
    if not places:
        return rng.choice(VALUES)
    part, key = rng.choice(places)
    action = rng.choice(("replace", "replace", "drop", "rename", "swap"))
    if action == "drop":
        del part[key]
    elif action == "rename" and isinstance(part, dict):
        part[rng.choice((5, f"{key}s", "a:b", "", "obs"))] = part.pop(key)
    elif action == "swap":
        other, place = rng.choice(places)
        value = copy.deepcopy(other[place])
        part[key] = value if rng.random() < 0.9 else [value] * 3
    else:
        part[key] = _tensor(part[key], rng) if isinstance(part[key], torch.Tensor) else rng.choice(VALUES)
    return tree


def _tensor(value: torch.Tensor, rng: random.Random) -> Any:
    """Another tensor, or none."""
    dtype = rng.choice((torch.float64, torch.int64, torch.bool, torch.bfloat16, torch.complex64, torch.uint8))
    forms: tuple[Callable[[], Any], ...] = (
        lambda: value.to(dtype),
        lambda: value[:0] if value.ndim else value,
        lambda: value.reshape(-1),
        lambda: value[None],
        lambda: torch.zeros(1).expand(rng.choice((7, 10**6, 10**12))),
        lambda: (
            torch.full_like(value, rng.choice((float("nan"), float("inf"), 0))) if value.is_floating_point() else value
        ),
        value.tolist,
        lambda: rng.choice(VALUES),
    )
    return rng.choice(forms)()


def in_pt(content: bytes, rng: random.Random, *, folder: Path, sign: Callable[[Any], None]) -> bytes:
    """Break a value in the tree of a .pt file and give it the checksum that it needs."""
    path = folder / "tree.pt"
    path.write_bytes(content)
    tree = in_tree(read_tree(path, DatasetError, what="file"), rng)
    if isinstance(tree, dict):
        sign(tree)
    file = io.BytesIO()
    torch.save(tree, file)
    return file.getvalue()


def in_json(content: bytes, rng: random.Random) -> bytes:
    """Break a value in a JSON text, or in one line of several."""
    lines = content.decode().splitlines()
    try:
        tree = json.loads(content)
    except ValueError:
        number = rng.randrange(len(lines))
        lines[number] = json.dumps(in_tree(json.loads(lines[number]), rng))
        return ("\n".join(lines) + "\n").encode()
    changed = in_tree(tree, rng)
    if isinstance(changed, dict):
        changed.pop("checksum", None)
    return json.dumps(changed).encode()
