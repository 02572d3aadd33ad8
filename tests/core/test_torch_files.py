"""Files of torch.save are read without pickle: tensors and plain values as torch reads them, and nothing else."""

from __future__ import annotations

import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rl_training.core.errors import DatasetError
from rl_training.core.torch_files import read_tree


def read(path: Path) -> Any:
    return read_tree(path, DatasetError, what="file")


def forge(path: Path, program: bytes, *, compressed: bool = False, **storages: bytes) -> Path:
    """An archive as torch.save writes it, with another program."""
    kind = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", kind) as archive:
        archive.writestr("archive/data.pkl", program)
        archive.writestr("archive/byteorder", b"little")
        for name, content in storages.items():
            archive.writestr(f"archive/data/{name.removeprefix('storage_')}", content)
    return path


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def tensor(count: int, size: int, stride: int, key: str = "0", kind: str = "FloatStorage") -> bytes:
    """Instructions for a tensor of one dimension."""
    number = [b"J" + struct.pack("<i", each) for each in (count, 0, size, stride)]
    storage = b"(" + text("storage") + f"ctorch\n{kind}\n".encode() + text(key) + text("cpu") + number[0] + b"tQ"
    shape = number[2] + b"\x85" + number[3] + b"\x85"
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + number[1] + shape + b"\x89ccollections\nOrderedDict\n)RtR"
    )


BASE = torch.arange(24.0).reshape(4, 6)
TREES: dict[str, Any] = {
    "plain": {"a": [1, -1, 2**70, 1.5, True, None, "ö", (1, 2, 3, 4), {}], 3: {"x": ()}},
    "types": {str(dtype): torch.tensor([1, 0, 1]).to(dtype) for dtype in (torch.bool, torch.int8, torch.bfloat16)},
    "views": [BASE, BASE[1:3, ::2], BASE.t(), BASE[0, 0], torch.empty(0, 3), BASE[:1].expand(5, 6)],
    "state": nn.Linear(2, 3).state_dict(),
    "ordered": OrderedDict(a=nn.Parameter(torch.ones(2))),
    "bytes": {"text": b"\x00\xff"},
}


@pytest.mark.parametrize("name", TREES)
def test_a_tree_is_read_as_torch_reads_it(tmp_path: Path, name: str) -> None:
    def compare(ours: Any, theirs: Any) -> None:
        if isinstance(theirs, torch.Tensor):
            assert (ours.dtype, ours.shape, ours.stride()) == (theirs.dtype, theirs.shape, theirs.stride())
            assert torch.equal(ours, theirs)
        elif isinstance(theirs, dict):
            assert list(ours) == list(theirs)
            compare(list(ours.values()), list(theirs.values()))
        elif isinstance(theirs, (list, tuple)):
            assert type(ours) is type(theirs)
            for pair in zip(ours, theirs, strict=True):
                compare(*pair)
        else:
            assert (type(ours), ours) == (type(theirs), theirs)

    torch.save(TREES[name], tmp_path / "tree.pt")
    compare(read(tmp_path / "tree.pt"), torch.load(tmp_path / "tree.pt", weights_only=True))


def test_tensors_that_share_numbers_still_do(tmp_path: Path) -> None:
    torch.save([BASE, BASE[1]], tmp_path / "tree.pt")
    whole, part = read(tmp_path / "tree.pt")
    whole[1] = -1
    assert (part == -1).all()


DEEP = b"\x80\x02" + b"]" * 100 + b"a" * 99 + b"."
LAUGHS = b"\x80\x02(]q\x00" + b"".join(b"h%ch%c\x86q%c" % (k, k, k + 1) for k in range(40)) + b"t."
ENDLESS = b"\x80\x02]q\x00h\x00a."
HOSTILE: dict[str, tuple[bytes, str]] = {
    "a function": (b"\x80\x02cos\nsystem\n" + text("true") + b"\x85R.", "code or objects (os.system)"),
    "a name": (b"\x80\x02cos\nsystem\n.", "holds code or objects"),
    "an instruction": (b"\x80\x02cos\nsystem\n)\x81.", "holds objects (instruction NEWOBJ)"),
    "a byte array that claims": (b"\x80\x02c__builtin__\nbytearray\nJ\xff\xff\xff\x7f\x85R.", "__builtin__.bytearray"),
    "a tree that is too deep": (DEEP, "more than 64 lists or mappings lie inside each other"),
    "a tree of 2^40 values": (LAUGHS, "repeats parts of itself more often than it is long"),
    "a tree without an end": (ENDLESS, "lie inside each other"),
    "a storage that claims": (b"\x80\x02" + tensor(10**9, 1, 1) + b".", "claims 1000000000 numbers"),
    "a tensor beyond its storage": (b"\x80\x02" + tensor(4, 5, 1) + b".", "lies outside of its 4 numbers"),
    "a negative stride": (b"\x80\x02" + tensor(4, 2, -1) + b".", "impossible shape"),
    "a missing storage": (b"\x80\x02" + tensor(4, 4, 1, "9") + b".", "claims 4 numbers, 16 bytes, but holds 0"),
    "an unknown storage": (b"\x80\x02" + tensor(4, 4, 1, kind="Evil") + b".", "numbers of an unknown kind"),
    "booleans that are none": (b"\x80\x02" + tensor(16, 16, 1, kind="BoolStorage") + b".", "neither true nor false"),
    "a list as a key": (b"\x80\x02}]K\x01s.", "a key that is neither text nor a number"),
    "an empty stack": (b"\x80\x02s.", "is not a readable file"),
    "nothing": (b"", "is not a readable file"),
    "a memo that is not there": (b"\x80\x02h\x07.", "is not a readable file"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_forged_program_is_refused(tmp_path: Path, kind: str) -> None:
    program, message = HOSTILE[kind]
    path = forge(tmp_path / "log.pt", program, storage_0=b"\x03" * 16)
    with pytest.raises(DatasetError) as caught:
        read(path)
    assert message in str(caught.value)
    assert "weights_only" not in str(caught.value)


def test_a_tensor_that_repeats_its_numbers_may_not_be_far_larger_than_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = forge(tmp_path / "log.pt", b"\x80\x02" + tensor(4, 1 << 28, 0) + b".", storage_0=bytes(16))
    with pytest.raises(
        DatasetError, match=r"claims 1.0 GiB of arrays in a file of .* allow it with RL_TRAINING_MAX_RE"
    ):
        read(path)
    monkeypatch.setenv("RL_TRAINING_MAX_READ", "1GiB")
    assert len(read(path)) == 1 << 28
    monkeypatch.setenv("RL_TRAINING_MAX_READ", "0.5G")
    with pytest.raises(DatasetError, match=r"RL_TRAINING_MAX_READ allows 0.5 GiB"):
        read(path)


def test_compressed_members_are_refused_before_they_are_unpacked(tmp_path: Path) -> None:
    path = forge(tmp_path / "log.pt", b"\x80\x02N.", compressed=True, storage_0=bytes(1 << 20))
    with pytest.raises(DatasetError, match="its members are compressed"):
        read(path)


def test_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save({"a": BASE}, tmp_path / "tree.pt")

    def refuse(*_: object, **__: object) -> None:
        pytest.fail("pickle was used")

    names: list[tuple[Any, str]] = [(pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load")]
    for module, name in names:
        monkeypatch.setattr(module, name, refuse)
    assert torch.equal(read(tmp_path / "tree.pt")["a"], BASE)


def flips(content: bytes, step: int) -> list[tuple[int, bytes]]:
    return [
        (place, content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        for place in range(0, len(content), step)
    ]


def unharmed_or_refused(path: Path, content: bytes, load: Callable[[Path], Any], step: int) -> int:
    """How many flipped bits were noticed; those that were not must do no harm."""
    path.write_bytes(content)
    expected, noticed = load(path), 0
    for place, changed in flips(content, step):
        path.write_bytes(changed)
        try:
            found = load(path)
        except DatasetError:
            noticed += 1
        else:
            assert found == expected, place
    return noticed


def test_a_flipped_bit_is_noticed_or_does_no_harm(tmp_path: Path) -> None:
    torch.save({"a": BASE, "b": [1, "text"]}, tmp_path / "tree.pt")
    content = (tmp_path / "tree.pt").read_bytes()

    def load(path: Path) -> Any:
        tree = read(path)
        return tree["a"].tolist(), tree["b"]

    assert unharmed_or_refused(tmp_path / "copy.pt", content, load, step=7) > 50
