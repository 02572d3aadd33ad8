"""A copy of a run elsewhere: each complete checkpoint is uploaded beside training, objects first, the pointer last."""

from __future__ import annotations

import shutil
import threading
import uuid
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rl_training.config import TrainConfig
from rl_training.files import link_or_copy
from rl_training.runtime.artifacts import UPLOADS, RunDirectory
from rl_training.runtime.remote import NAMES, NEEDED, Entry, Pointer, Remote, digest_of, reason_of, refused
from rl_training.types import ConfigError, UserError

if TYPE_CHECKING:
    from rl_training.runtime.trainer import Session

SINGLE = (
    "config.yaml",
    "metadata.json",
    "metrics.jsonl",
    "result.json",
    "checkpoints/latest.pt",
    "checkpoints/best.pt",
)
FOLDERS = ("policies", "replay")
APPENDED = "metrics.jsonl"
"""The file that grows: a link to it would grow too."""


class Snapshot(NamedTuple):
    """The files of a run at a checkpoint, kept for an upload under other names."""

    folder: Path
    step: int

    def files(self) -> dict[str, Path]:
        """The files by their names in the run directory."""
        found = sorted(path for path in self.folder.rglob("*") if path.is_file())
        return {path.relative_to(self.folder).as_posix(): path for path in found}


def check_upload(config: TrainConfig, run: RunDirectory | None = None) -> None:
    """Refuse an `upload_url` that cannot be written, or where another run has the name of this one.

    `run` is the directory of a run that goes on; a run that begins has none yet.
    """
    if config.upload_url is None:
        return
    remote, name = Remote(config.upload_url), config.run_name if run is None else run.path.name
    with refused(f"upload_url {remote.url}", "written"):
        remote.try_out()
        found = None if name is None else remote.below(name).pointer()
    if found is None:
        return
    if run is None:
        advice = "--resume auto fetches it and goes on with it; or choose another run_name"
        raise ConfigError(f"there is a run {name!r} at {remote.url} already: {advice}")
    if run.run_id not in (None, found.run_id):
        raise ConfigError(f"{remote.url}/{name} holds another run of this name: choose another upload_url")


def begin_uploads(config: TrainConfig, run: RunDirectory, resources: ExitStack) -> Uploader | None:
    """What uploads the checkpoints of a run, if that is asked for; it is closed with the run, before its directory."""
    if config.upload_url is None:
        return None
    uploader = Uploader(run, config.upload_url)
    resources.callback(uploader.close)
    return uploader


def upload(session: Session) -> None:
    """Upload the latest checkpoint of a run, if that is asked for; the run does not wait for it."""
    if session.uploader is not None:
        session.uploader.offer(session.state.global_step, good=session.guards.good)


class Uploader:
    """Uploads checkpoints of a run in a thread of its own, one at a time.

    While one is under way, only the newest waits for its turn. What fails is said once, and the next checkpoint is
    tried again: no upload ends a run.
    """

    def __init__(self, run: RunDirectory, url: str) -> None:
        self.run, self.url = run, f"{url.rstrip('/')}/{run.path.name}"
        self.pusher = Pusher(run.run_id)
        self.offered = 0
        self.last: tuple[int, str | None] | None = None
        """Timestep of the newest checkpoint that was offered, and the one that guards may go back to."""
        self.waiting: Snapshot | None = None
        self.failure: str | None = None
        """Why the last upload failed; None if it did not."""
        self.has_warned = self.is_closed = False
        self.changed = threading.Condition()
        self.thread: threading.Thread | None = None

    def offer(self, step: int, *, good: str | None = None) -> None:
        """Upload the checkpoint that has just been written, in place of one that still waits.

        `good` is the name of the checkpoint that guards may go back to.
        """
        with self.changed:
            failure = self.failure
        # From here and not from the thread, whose warnings nobody could turn into errors.
        if failure is not None and not self.has_warned:
            warnings.warn(f"{self.url} is not up to date: {failure}; the next checkpoint is tried again", stacklevel=3)
        self.has_warned = failure is not None
        self.last = step, good
        self._begin()

    def close(self) -> None:
        """Upload how the run has ended, wait for it, and say if it is not there."""
        if self.last is None:
            return
        self._begin()
        with self.changed:
            self.is_closed = True
            self.changed.notify()
        if self.thread is not None:
            self.thread.join()
        shutil.rmtree(self.run.path / UPLOADS, ignore_errors=True)
        if self.failure is not None:
            warnings.warn(
                f"the last state of the run is not at {self.url}: {self.failure}; it is in {self.run.path}",
                stacklevel=2,
            )

    def _begin(self) -> None:
        """Keep the files as they are for the thread, which is started if there is none."""
        try:
            snapshot = self._take()
        except OSError as error:
            with self.changed:
                self.failure = reason_of(error)
            return
        with self.changed:
            skipped, self.waiting = self.waiting, snapshot
            self.changed.notify()
        if skipped is not None:
            shutil.rmtree(skipped.folder, ignore_errors=True)
        if self.thread is None:
            # A second Ctrl-C ends the program: it does not wait for the thread.
            self.thread = threading.Thread(target=self._work, name="upload", daemon=True)
            self.thread.start()

    def _take(self) -> Snapshot:
        """Links to the files that a run elsewhere needs to go on, and to the policies that it has left so far."""
        # Where the directory was, another may be.
        self.run.check_place()
        step, good = self.last or (0, None)
        self.offered += 1
        folder = self.run.path / UPLOADS / str(self.offered)
        try:
            for name in self._names(good):
                existing, kept = self.run.path / name, folder / name
                kept.parent.mkdir(parents=True, exist_ok=True)
                if name == APPENDED:
                    shutil.copyfile(existing, kept)
                else:
                    link_or_copy(existing, kept)
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return Snapshot(folder, step)

    def _names(self, good: str | None) -> Iterator[str]:
        single = SINGLE if good is None else (*SINGLE, f"checkpoints/{good}")
        yield from (name for name in single if (self.run.path / name).is_file())
        for folder in FOLDERS:
            found = (f"{folder}/{path.name}" for path in (self.run.path / folder).glob("*.pt"))
            yield from filter(NAMES.fullmatch, found)

    def _work(self) -> None:
        while (snapshot := self._next()) is not None:
            failure = None
            try:
                self.pusher.push(Remote(self.url), snapshot)
            except Exception as error:
                failure = str(error) if isinstance(error, UserError) else reason_of(error)
            shutil.rmtree(snapshot.folder, ignore_errors=True)
            with self.changed:
                self.failure = failure

    def _next(self) -> Snapshot | None:
        """Wait for a checkpoint, or for the end."""
        with self.changed:
            self.changed.wait_for(lambda: self.waiting is not None or self.is_closed)
            snapshot, self.waiting = self.waiting, None
            return snapshot


class Pusher:
    """Brings checkpoints of one run to a folder at a URL, one after the other."""

    def __init__(self, run_id: str | None) -> None:
        self.run_id, self.writer = run_id, uuid.uuid4().hex
        self.found: list[Pointer | None] = []
        """The pointer that was there before the first upload, once it has been looked for."""
        self.digests: dict[tuple[int, int, int], str] = {}
        """Digests by inode, size and time of the last change: most files never change, and are read once."""

    def push(self, remote: Remote, snapshot: Snapshot) -> None:
        """Upload what is not there yet, then the pointer, and then delete objects that no pointer names any more."""
        current = remote.pointer()
        self._refuse_others(remote, current)
        there, files = remote.sizes(), snapshot.files()
        entries = self._entries(files)
        if missing := [name for name in NEEDED if name not in entries]:
            raise UserError(f"the run has no {missing[0]}")
        # A kill may have left objects that are not whole. The pointer names none of them.
        trusted = set() if current is None else set(current.files.values())
        whole = {entry for entry in trusted if there.get(entry.digest) == entry.size}
        for name, entry in entries.items():
            if entry not in whole:
                remote.put_object(files[name], entry)
                whole.add(entry)
        remote.put_pointer(Pointer(self.run_id, snapshot.step, self.writer, entries))
        needed = {entry.digest for entry in entries.values()}
        for name in there.keys() - needed:
            # What cannot be deleted now is found again by the next upload.
            with suppress(Exception):
                remote.delete_object(name)

    def _refuse_others(self, remote: Remote, current: Pointer | None) -> None:
        """Refuse to replace a pointer that another process has written since this one looked first."""
        if not self.found:
            self.found.append(current)
        if current is None or current.writer == self.writer:
            return
        if current.run_id != self.run_id:
            raise UserError(f"{remote.url} holds another run of this name")
        if current != self.found[0]:
            raise UserError("another process goes on with this run, and uploads it")

    def _entries(self, files: dict[str, Path]) -> dict[str, Entry]:
        entries: dict[str, Entry] = {}
        digests: dict[tuple[int, int, int], str] = {}
        for name, path in files.items():
            about = path.stat()
            key = about.st_ino, about.st_size, about.st_mtime_ns
            digests[key] = self.digests.get(key) or digests.get(key) or digest_of(path)
            entries[name] = Entry(about.st_size, digests[key])
        self.digests = digests
        return entries
