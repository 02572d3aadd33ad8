"""Copies of runs at a URL: complete checkpoints are uploaded beside training, and fetched to resume elsewhere.

Each file of a run is an object, named by the SHA-256 of its contents: an object never changes, equal files are one
object, and a fetched file can be verified. The pointer maps files to objects. It is written last, in one piece, so that
the run can be fetched from it at any moment. Credentials are those that the library for the URL finds by itself; none
pass through here.
"""

from __future__ import annotations

import hashlib
import os
import queue
import re
import shutil
import threading
import uuid
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import BaseModel, Field, NonNegativeInt, ValidationError

from rl_training.config import TrainConfig, has_scheme, is_run_name
from rl_training.core.errors import (
    CheckpointError,
    ConfigError,
    DamagedError,
    MissingExtraError,
    UserError,
    import_extra,
    nearest,
)
from rl_training.core.files import atomic_write, link_or_copy
from rl_training.core.user_code import resume_command
from rl_training.storage.checkpoint import first_mistake
from rl_training.storage.metrics import METRICS
from rl_training.storage.run_directory import UPLOADS, RunDirectory, claim, making_draft
from rl_training.storage.trust import forget_run

POINTER = "latest.json"
OBJECTS = "objects"
MOST_POINTER = 16 << 20
"""Bytes of a pointer; 100,000 files take less."""
CHUNK = 1 << 20
NAMES = re.compile(
    r"config\.yaml|metadata\.json|metrics\.jsonl|result\.json|policies/step_[0-9]{1,20}\.pt|"
    r"checkpoints/(latest\.pt|best\.pt|(?P<numbered>(update|step)_[0-9]{1,20}\.pt))|"
    r"replay/rows_[0-9]{1,20}_[0-9]{1,20}\.pt"
)
"""The files of a run that are uploaded. A pointer that names any other is refused: it may be forged."""
FOLDERS = ("*", "checkpoints/*", "policies/*", "replay/*")
NEEDED = ("config.yaml", "metadata.json", "checkpoints/latest.pt")
ATTEMPTS = 5
"""How often a run is fetched that is being uploaded meanwhile: objects of an older checkpoint may be deleted."""


class Entry(BaseModel, strict=True, frozen=True):
    """A file of a run: its size, and the SHA-256 of its contents, which is the name of its object."""

    size: NonNegativeInt
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Pointer(BaseModel, strict=True, frozen=True):
    """The objects of the files of a run, at one of its checkpoints."""

    format: Literal[1]
    run_id: str | None
    step: NonNegativeInt
    writer: str
    """The process that wrote it."""
    files: dict[str, Entry]

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Pointer:
        """Read a pointer, which may be forged; `where` names it in an error."""
        try:
            pointer = cls.model_validate_json(data)
        except ValidationError as error:
            if (first := error.errors()[0])["type"] == "literal_error":
                raise CheckpointError(f"{where} has the format {first['input']!r}, this version reads 1") from None
            raise DamagedError(f"{where} is damaged: {first_mistake(error)}") from None
        for name in pointer.files:
            if not NAMES.fullmatch(name):
                raise CheckpointError(f"{where} names a file that no run has, {name!r}: nothing was fetched")
        if missing := [name for name in NEEDED if name not in pointer.files]:
            raise DamagedError(f"{where} is damaged: it names no {missing[0]}")
        return pointer


class Remote:
    """A folder at a URL."""

    def __init__(self, url: str) -> None:
        """Find the file system for a URL; one that is not known, or whose library is missing, is refused."""
        if not has_scheme(url):
            raise ConfigError(f"expected a URL such as s3://bucket/folder, got {url!r}")
        self.url = url.rstrip("/")
        fsspec, protocol = import_extra("fsspec", "upload", self.url), self.url.partition("://")[0]
        if protocol not in fsspec.available_protocols():
            hint = nearest(protocol, fsspec.available_protocols()) or "; see fsspec.available_protocols()"
            raise ConfigError(f"{self.url}: no library knows the protocol {protocol!r}{hint}")
        with refused(self.url, "used"):
            try:
                self.files, root = fsspec.core.url_to_fs(self.url)
            except ImportError:
                package = import_module("fsspec.registry").known_implementations[protocol]["class"].partition(".")[0]
                if package == "fsspec":
                    raise
                raise MissingExtraError(package, "upload", self.url, beside=package) from None
        self.root, self.is_local = str(root).rstrip("/"), self.url.startswith(("file:", "local:"))

    def pointer(self) -> Pointer | None:
        """The pointer of the run that is here; None if there is none."""
        try:
            data: bytes = self.files.cat_file(self._at(POINTER), start=0, end=MOST_POINTER)
        except FileNotFoundError:
            return None
        return Pointer.from_bytes(data, f"{self.url}/{POINTER}")

    def sizes(self) -> dict[str, int]:
        """The sizes of the objects that are here, complete or not, by name."""
        # Others may have written here since the last look.
        self.files.invalidate_cache()
        found = self.files.find(self._at(OBJECTS), detail=True).items()
        return {PurePosixPath(path).name: int(about["size"]) for path, about in found}

    def put(self, name: str, content: Path | bytes) -> None:
        """Write a file, or bytes, under a name."""
        path = self._at(name)
        if self.is_local:
            # Elsewhere an object appears in one piece; in a folder of the machine it would not by itself.
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(Path(path)) as temporary:
                if isinstance(content, bytes):
                    temporary.write_bytes(content)
                else:
                    shutil.copyfile(content, temporary)
        elif isinstance(content, bytes):
            self.files.pipe_file(path, content)
        else:
            self.files.put_file(str(content), path)

    def delete(self, name: str) -> None:
        """Delete the file of this name."""
        self.files.rm_file(self._at(name))

    def get_object(self, entry: Entry, path: Path, *, what: str) -> None:
        """Read an object into a file and verify its size and checksum."""
        # One byte more than expected shows that an object is too long.
        digest, left = hashlib.sha256(), entry.size + 1
        try:
            with (
                self.files.open(self._at(f"{OBJECTS}/{entry.sha256}"), "rb") as source,
                atomic_write(path, needs=entry.size) as temporary,
                temporary.open("wb") as target,
            ):
                while chunk := source.read(min(CHUNK, left)):
                    left -= len(chunk)
                    digest.update(chunk)
                    target.write(chunk)
        except FileNotFoundError:
            raise DamagedError(f"{self.url}: the object of {what} is missing") from None
        if digest.hexdigest() != entry.sha256:
            raise DamagedError(f"{self.url}: the object of {what} is damaged: it is not what was uploaded")

    def _at(self, name: str) -> str:
        return f"{self.root}/{name}"


@contextmanager
def refused(url: str, how: str) -> Iterator[None]:
    """Turn any error of a library into one sentence about a URL that cannot be read or written."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise ConfigError(f"{url} cannot be {how}: {reason_of(error)}") from None


def reason_of(error: Exception) -> str:
    """The reason of an error, in a line."""
    text = (error.strerror if isinstance(error, OSError) else None) or str(error).strip() or type(error).__name__
    return text.splitlines()[0]


def fetch_run(url: str, out: str | Path = "runs") -> Path:
    """Make the directory of an uploaded run in a folder; it appears whole, or not at all.

    Every file is compared with its checksum. The run is not one of your own until you resume it: code that it names is
    imported only with consent.
    """
    remote = Remote(url)
    path = Path(out, remote.url.rpartition("/")[2])
    if not is_run_name(path.name):
        raise ConfigError(f"{url} does not end with the name of a run")
    if os.path.lexists(path):
        raise ConfigError(f"there is {path} already: resume it ({resume_command(path)}), or choose another folder")
    with refused(url, "read"):
        pointer = remote.pointer()
        for _ in range(ATTEMPTS):
            if pointer is None:
                raise CheckpointError(f"{url} holds no uploaded run: there is no {POINTER}")
            try:
                return _fetch(remote, pointer, path)
            except DamagedError:
                before, pointer = pointer, remote.pointer()
                if pointer == before:
                    raise
    raise CheckpointError(f"{url} changes faster than it can be fetched: try again")


def fetch_if_missing(config: TrainConfig) -> Path | None:
    """Fetch the run of a config's name from its `upload_url`, if it is not in `output_dir`; None if it is not there."""
    if config.upload_url is None or config.run_name is None or Path(config.output_dir, config.run_name).exists():
        return None
    remote = Remote(f"{config.upload_url}/{config.run_name}")
    with refused(remote.url, "read"):
        is_there = remote.pointer() is not None
    return fetch_run(remote.url, config.output_dir) if is_there else None


def _fetch(remote: Remote, pointer: Pointer, path: Path) -> Path:
    """Fetch all files into a draft, which other processes leave alone, and give it its name."""
    with making_draft(path) as (draft, lock):
        for name, entry in pointer.files.items():
            (draft / name).parent.mkdir(exist_ok=True)
            remote.get_object(entry, draft / name, what=name)
        # Trust is by path, and a run that was here before may have been one of the user's own.
        forget_run(path)
        lock.folder = claim(draft, path.name, numbered=False)
        lock.release()
    return path


def check_upload(config: TrainConfig, run: RunDirectory | None = None) -> None:
    """Refuse an `upload_url` that cannot be written, or where another run has the name of this one.

    `run` is the directory of a run that is resumed; a new run has none yet.
    """
    if config.upload_url is None:
        return
    remote, name = Remote(config.upload_url), config.run_name if run is None else run.path.name
    with refused(f"upload_url {remote.url}", "written"):
        trial = f".rl-training-{uuid.uuid4().hex}"
        remote.put(trial, b"may be deleted\n")
        remote.delete(trial)
        found = None if name is None else Remote(f"{remote.url}/{name}").pointer()
    if found is None:
        return
    if run is None:
        advice = "--resume auto fetches and continues it; or choose another run_name"
        raise ConfigError(f"there is a run {name!r} at {remote.url} already: {advice}")
    if run.run_id not in (None, found.run_id):
        raise ConfigError(f"{remote.url}/{name} holds another run of this name: choose another upload_url")


def begin_uploads(config: TrainConfig, run: RunDirectory, resources: ExitStack) -> Uploader | None:
    """The uploader of a run, if `upload_url` is set; it is closed with the run, before its directory."""
    if config.upload_url is None:
        return None
    uploader = Uploader(run, config.upload_url)
    resources.callback(uploader.close)
    return uploader


class Uploader:
    """Uploads checkpoints of a run in a thread of its own, one at a time.

    While one is under way, only the newest waits for its turn. A failure is a warning, and the next checkpoint is
    tried again: no upload ends a run.
    """

    def __init__(self, run: RunDirectory, url: str) -> None:
        self.run, self.url = run, f"{url.rstrip('/')}/{run.path.name}"
        self.pusher = Pusher(run.run_id)
        self.offered, self.step = 0, 0
        self.good: str | None = None
        """The checkpoint for rollbacks."""
        self.waiting: queue.Queue[tuple[Path, int] | None] = queue.Queue()
        """At most one checkpoint: links to its files, and its timestep. None stands for the end."""
        self.failure: str | None = None
        """The reason why the last upload failed; None if it did not."""
        self.has_warned = False
        self.thread: threading.Thread | None = None

    def offer(self, step: int, *, good: str | None = None) -> None:
        """Upload the checkpoint that has just been written, in place of one that still waits.

        `good` is the name of the checkpoint for rollbacks.
        """
        failure = self.failure
        # From here and not from the thread, whose warnings could not be turned into errors.
        if failure is not None and not self.has_warned:
            warnings.warn(f"{self.url} is not up to date: {failure}; the next checkpoint is tried again", stacklevel=3)
        self.has_warned = failure is not None
        self.step, self.good = step, good
        self._begin()

    def close(self) -> None:
        """Upload the final state of the run, wait for it, and warn if that fails."""
        if self.offered == 0:
            return
        self._begin()
        self.waiting.put(None)
        if self.thread is not None:
            self.thread.join()
        shutil.rmtree(self.run.path / UPLOADS, ignore_errors=True)
        if self.failure is not None:
            text = f"the last state of the run is not at {self.url}: {self.failure}; it is in {self.run.path}"
            warnings.warn(text, stacklevel=2)

    def _begin(self) -> None:
        """Link the files as they are for the thread, which is started if there is none."""
        self.offered += 1
        folder = self.run.path / UPLOADS / str(self.offered)
        try:
            self._link_files(folder)
        except OSError as error:
            self.failure = reason_of(error)
            shutil.rmtree(folder, ignore_errors=True)
            return
        with suppress(queue.Empty):
            if (skipped := self.waiting.get_nowait()) is not None:
                shutil.rmtree(skipped[0], ignore_errors=True)
        self.waiting.put((folder, self.step))
        if self.thread is None:
            # A second Ctrl-C ends the program: it does not wait for the thread.
            self.thread = threading.Thread(target=self._work, name="upload", daemon=True)
            self.thread.start()

    def _link_files(self, folder: Path) -> None:
        """Link the files that are needed to resume the run elsewhere, and its policy files."""
        # Another directory may have taken its place.
        self.run.check_place()
        for existing in (path for pattern in FOLDERS for path in self.run.path.glob(pattern)):
            name = existing.relative_to(self.run.path).as_posix()
            if not (found := NAMES.fullmatch(name)) or found["numbered"] not in (None, self.good):
                continue
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            if name == METRICS:
                # It is appended to: a link to it would grow too.
                shutil.copyfile(existing, folder / name)
            else:
                link_or_copy(existing, folder / name)

    def _work(self) -> None:
        while (taken := self.waiting.get()) is not None:
            try:
                self.pusher.push(Remote(self.url), *taken)
                self.failure = None
            except Exception as error:
                self.failure = reason_of(error)
            shutil.rmtree(taken[0], ignore_errors=True)


class Pusher:
    """Uploads checkpoints of one run to a folder at a URL, one after the other."""

    def __init__(self, run_id: str | None) -> None:
        self.run_id, self.writer = run_id, uuid.uuid4().hex
        self.has_looked = False
        self.found: Pointer | None = None
        """The pointer that was there before the first upload."""
        self.digests: dict[tuple[int, int, int], str] = {}
        """Checksums by inode, size and time of the last change: most files never change, and are read once."""

    def push(self, remote: Remote, folder: Path, step: int) -> None:
        """Upload missing objects, then the pointer, and then delete objects that the pointer does not name.

        `folder` has the files of the run as they were at the timestep `step`.
        """
        current = remote.pointer()
        self._refuse_others(remote, current)
        found = sorted(path for path in folder.rglob("*") if path.is_file())
        entries = {path.relative_to(folder).as_posix(): self._entry(path) for path in found}
        if missing := [name for name in NEEDED if name not in entries]:
            raise UserError(f"the run has no {missing[0]}")
        there = remote.sizes()
        # A kill may have left incomplete objects. The pointer names none of them.
        named = () if current is None else current.files.values()
        whole = {entry.sha256 for entry in named if there.get(entry.sha256) == entry.size}
        for name, entry in entries.items():
            if entry.sha256 not in whole:
                remote.put(f"{OBJECTS}/{entry.sha256}", folder / name)
                whole.add(entry.sha256)
        pointer = Pointer(format=1, run_id=self.run_id, step=step, writer=self.writer, files=entries)
        remote.put(POINTER, pointer.model_dump_json(indent=1).encode())
        for name in there.keys() - {entry.sha256 for entry in entries.values()}:
            # The next upload tries again to delete it.
            with suppress(Exception):
                remote.delete(f"{OBJECTS}/{name}")

    def _refuse_others(self, remote: Remote, current: Pointer | None) -> None:
        """Refuse to replace a pointer that another process has written since this one looked first."""
        if not self.has_looked:
            self.has_looked, self.found = True, current
        if current is None or current.writer == self.writer:
            return
        if current.run_id != self.run_id:
            raise UserError(f"{remote.url} holds another run of this name")
        if current != self.found:
            raise UserError("another process continues this run, and uploads it")

    def _entry(self, path: Path) -> Entry:
        about = path.stat()
        key = about.st_ino, about.st_size, about.st_mtime_ns
        if key not in self.digests:
            digest = hashlib.sha256()
            with path.open("rb") as file:
                while chunk := file.read(CHUNK):
                    digest.update(chunk)
            self.digests[key] = digest.hexdigest()
        return Entry(size=about.st_size, sha256=self.digests[key])
