"""An uploaded run at a URL: objects that are named by their contents, and a pointer that says which files they are.

The pointer is written last, in one piece. Objects that it names are whole, so that a run can be made again from it at
any moment. Credentials are those that the library for the URL finds by itself; none pass through here.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeGuard

from rl_training.config import has_scheme
from rl_training.files import atomic_write
from rl_training.types import (
    CheckpointError,
    ConfigError,
    DamagedError,
    MissingExtraError,
    UserError,
    import_extra,
    nearest,
)

POINTER = "latest.json"
OBJECTS = "objects"
FORMAT = 1
MOST_POINTER = 16 << 20
"""Bytes of a pointer; 100,000 files take less."""
CHUNK = 1 << 20
NAMES = re.compile(
    r"config\.yaml|metadata\.json|metrics\.jsonl|result\.json|checkpoints/(latest|best|(update|step)_[0-9]{1,20})\.pt|"
    r"policies/step_[0-9]{1,20}\.pt|replay/rows_[0-9]{1,20}_[0-9]{1,20}\.pt"
)
"""The files of a run that are uploaded. A pointer that names any other is refused: it may come from anyone."""
NEEDED = ("config.yaml", "metadata.json", "checkpoints/latest.pt")
DIGEST = re.compile(r"[0-9a-f]{64}")


class Entry(NamedTuple):
    """What a file holds: its size, and the SHA-256 of its contents, under which its object is found."""

    size: int
    digest: str


@dataclass(frozen=True)
class Pointer:
    """Which objects are the files of a run, at one of its checkpoints."""

    run_id: str | None
    step: int
    writer: str
    """What tells the process that wrote it from others."""
    files: dict[str, Entry]

    def to_bytes(self) -> bytes:
        """The pointer as JSON."""
        files = {name: {"size": entry.size, "sha256": entry.digest} for name, entry in self.files.items()}
        about = {"format": FORMAT, "run_id": self.run_id, "step": self.step, "writer": self.writer}
        return f"{json.dumps({**about, 'files': files}, indent=1)}\n".encode()

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Pointer:
        """Read a pointer, from wherever it comes; `where` names it in an error."""
        try:
            values = json.loads(data)
        except (ValueError, RecursionError):
            raise DamagedError(f"{where} is damaged: it is not JSON") from None
        if not (isinstance(values, dict) and "format" in values):
            raise DamagedError(f"{where} is not what rl_training writes")
        if values["format"] != FORMAT:
            raise CheckpointError(f"{where} has the format {values['format']!r}, this version reads {FORMAT}")
        files = {name: _entry(name, each, where) for name, each in _mapping(values.get("files")).items()}
        if missing := [name for name in NEEDED if name not in files]:
            raise DamagedError(f"{where} is damaged: it names no {missing[0]}")
        run_id, step, writer = (values.get(name) for name in ("run_id", "step", "writer"))
        if not (isinstance(run_id, str | None) and _is_count(step) and isinstance(writer, str)):
            raise DamagedError(f"{where} is damaged: it does not say which run it is of")
        return cls(run_id, step, writer, files)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _entry(name: str, value: Any, where: str) -> Entry:
    """What a pointer says about a file; names that no run has, such as `../x`, are refused."""
    if not NAMES.fullmatch(name):
        raise CheckpointError(f"{where} names a file that no run has, {name!r}: nothing was fetched")
    size, digest = _mapping(value).get("size"), _mapping(value).get("sha256")
    if not (_is_count(size) and isinstance(digest, str) and DIGEST.fullmatch(digest)):
        raise DamagedError(f"{where} is damaged: it does not say what {name} holds")
    return Entry(size, digest)


class Remote:
    """A folder at a URL."""

    def __init__(self, url: str) -> None:
        """Find the file system for a URL; one that is not known, or whose library is missing, is refused."""
        if not has_scheme(url):
            raise ConfigError(f"expected a URL such as s3://bucket/folder, got {url!r}")
        self.url = url.rstrip("/")
        self.files, self.root = _file_system(self.url)
        names = [self.files.protocol] if isinstance(self.files.protocol, str) else self.files.protocol
        self.is_local = "file" in names

    def below(self, name: str) -> Remote:
        """A folder in this one."""
        return Remote(f"{self.url}/{name}")

    def pointer(self) -> Pointer | None:
        """The pointer of the run that is here; None if there is none."""
        try:
            data: bytes = self.files.cat_file(self._at(POINTER), start=0, end=MOST_POINTER)
        except FileNotFoundError:
            return None
        return Pointer.from_bytes(data, f"{self.url}/{POINTER}")

    def sizes(self) -> dict[str, int]:
        """The objects that are here, whole or not, by name, with their sizes."""
        # Others may have written here since the last look.
        self.files.invalidate_cache()
        found = self.files.find(self._at(OBJECTS), detail=True)
        return {PurePosixPath(path).name: int(about["size"]) for path, about in found.items()}

    def put_object(self, source: Path, entry: Entry) -> None:
        """Write a file as an object."""
        path = self._at(f"{OBJECTS}/{entry.digest}")
        if self.is_local:
            with self._made(path) as temporary:
                shutil.copyfile(source, temporary)
        else:
            self.files.put_file(str(source), path)

    def put_pointer(self, pointer: Pointer) -> None:
        """Replace the pointer, in one piece."""
        self._put(POINTER, pointer.to_bytes())

    def delete_object(self, name: str) -> None:
        """Delete an object."""
        self.files.rm_file(self._at(f"{OBJECTS}/{name}"))

    def try_out(self) -> None:
        """Write something small and delete it."""
        name = f".rl-training-{uuid.uuid4().hex}"
        self._put(name, b"may be deleted\n")
        self.files.rm_file(self._at(name))

    def get_object(self, entry: Entry, path: Path, *, what: str) -> None:
        """Read an object into a file and make sure that it is what was written; no more of it than is expected."""
        digest, left = hashlib.sha256(), entry.size
        try:
            with (
                self.files.open(self._at(f"{OBJECTS}/{entry.digest}"), "rb") as source,
                atomic_write(path, needs=entry.size) as temporary,
                temporary.open("wb") as target,
            ):
                while chunk := source.read(min(CHUNK, left + 1)):
                    left -= len(chunk)
                    if left < 0:
                        break
                    digest.update(chunk)
                    target.write(chunk)
        except FileNotFoundError:
            raise DamagedError(f"{self.url}: the object of {what} is missing") from None
        if left or digest.hexdigest() != entry.digest:
            raise DamagedError(f"{self.url}: the object of {what} is damaged: it is not what was uploaded")

    def _put(self, name: str, data: bytes) -> None:
        if self.is_local:
            with self._made(self._at(name)) as temporary:
                temporary.write_bytes(data)
        else:
            self.files.pipe_file(self._at(name), data)

    @contextmanager
    def _made(self, path: str) -> Iterator[Path]:
        """A file in a folder of the machine, where it appears at one stroke as objects do elsewhere."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(Path(path)) as temporary:
            yield temporary

    def _at(self, name: str) -> str:
        return f"{self.root}/{name}"


def _file_system(url: str) -> tuple[Any, str]:
    """What fsspec has for a URL, and the path there."""
    fsspec = import_extra("fsspec", "upload", url)
    protocol = url.partition("://")[0]
    try:
        fsspec.get_filesystem_class(protocol)
    except ValueError:
        hint = nearest(protocol, fsspec.available_protocols()) or "; see fsspec.available_protocols()"
        raise ConfigError(f"{url}: no library knows the protocol {protocol!r}{hint}") from None
    except ImportError as error:
        known = import_module("fsspec.registry").known_implementations[protocol]["class"].partition(".")[0]
        if known == "fsspec":
            raise ConfigError(f"{url}: {error}") from None
        raise MissingExtraError(known, "upload", url, beside=known) from None
    with refused(url, "used"):
        files, root = fsspec.core.url_to_fs(url)
    return files, str(root).rstrip("/")


@contextmanager
def refused(url: str, how: str) -> Iterator[None]:
    """Say in one sentence that a URL cannot be read or written, whatever its library raises."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise ConfigError(f"{url} cannot be {how}: {reason_of(error)}") from None


def reason_of(error: Exception) -> str:
    """Why something failed, in a line."""
    text = (error.strerror if isinstance(error, OSError) else None) or str(error).strip() or type(error).__name__
    return text.splitlines()[0]


def digest_of(path: Path) -> str:
    """The SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
