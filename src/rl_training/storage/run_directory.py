"""The directory of a run: names, metadata, metrics, drafts."""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import shutil
import sys
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError, StorageError
from rl_training.core.files import atomic_write, is_full, write_json, write_text, writing
from rl_training.core.user_code import resume_command
from rl_training.storage.lock import RunLock, is_locked, is_signed
from rl_training.storage.metrics import METRICS, MetricLine, describe_damage, encode_row, read_lines
from rl_training.storage.sinks import REMOTE, About, Ending, Sink, TensorBoardSink, numbers

SINKS = "sinks.json"

UPLOADS = ".upload"
"""The folder in a run directory that holds files which are being uploaded."""

CHECKPOINTS = "checkpoints"
"""The folder that every run directory has."""

DRAFT = re.compile(r"\..+\.\d+\.\d+")
"""The hidden name of a run directory that is being made."""

OLD_DRAFT = 60.0
"""Seconds; to make one takes far less."""


def run_of(checkpoint: str | Path) -> Path:
    """The run directory that a checkpoint or a policy file lies in; links are not followed."""
    return Path(checkpoint).parent.parent


class RunDirectory:
    """One run's folder: config.yaml, metadata.json, metrics.jsonl, checkpoints/, result.json, TensorBoard events."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.run_id: str | None = read_json(path / "metadata.json").get("run_id")
        """The identity of this run; runs of earlier versions have none until they are resumed."""
        self._metrics_path = path / METRICS
        self._sinks: list[Sink] = [TensorBoardSink(path / "tensorboard")]
        self._lock: RunLock | None = None

    @classmethod
    def take(cls, path: Path) -> RunDirectory:
        """The locked directory of a run to be resumed; no other process can take it until it is closed."""
        try:
            lock = RunLock(path)
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
        # Read under the lock.
        run = cls(path)
        run._lock = lock
        run._drop_temporary_files()
        return run

    def _drop_temporary_files(self) -> None:
        """Delete temporary files that a kill left; only the process with the lock writes them."""
        names = ("config.yaml", "metadata.json", METRICS, "result.json", SINKS)
        left = [self.path / f".{name}.tmp" for name in names]
        for folder in ("checkpoints", "policies", "replay"):
            left += (self.path / folder).glob(".*.tmp")
        for path in left:
            path.unlink(missing_ok=True)
        shutil.rmtree(self.path / UPLOADS, ignore_errors=True)

    @property
    def identity(self) -> dict[str, str | None]:
        """The run as checkpoints and files of rows name it."""
        return {"id": self.run_id, "name": self.path.name}

    def check_place(self) -> None:
        """Refuse to write if the directory was moved, deleted or replaced."""
        if self._lock is None or self._lock.is_in_place():
            return
        if (moved := self._lock.moved_to()) is None:
            raise StorageError(f"{self.path} was deleted while the run was under way: nothing more can be saved there")
        advice = f"resume with: {resume_command(str(moved))}"
        raise StorageError(f"{self.path} was moved to {moved} while the run was under way; {advice}")

    def identify(self, run_id: str | None) -> None:
        """Adopt the identity of the checkpoint, or a new one, if the run has none."""
        if self.run_id is None:
            self.run_id = run_id or new_id()
            about, path = read_json(self.path / "metadata.json"), self.path / "metadata.json"
            # A file that cannot be read is left for the user to look at.
            if about or not path.exists():
                write_json(path, {**about, "run_id": self.run_id})

    @classmethod
    def create(cls, config: TrainConfig, *, subject: str, metadata: Mapping[str, Any]) -> RunDirectory:
        """Make a new directory, which appears under its name only when it is complete."""
        refuse_taken(config)
        parent, text = Path(config.output_dir), config.to_yaml()
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        # Some file systems refuse characters that names of environments may have, such as ':'.
        subject = re.sub(r"[^a-zA-Z0-9_.+-]", "-", subject)
        name = config.run_name or f"{config.algo}__{subject}__seed{config.seed}__{stamp}"
        try:
            with making_draft(parent / name) as (draft, lock):
                (draft / "config.yaml").write_text(text, encoding="utf-8")
                about = {"run_id": new_id(), **describe_machine(), "subject": subject, **metadata}
                write_json(draft / "metadata.json", about)
                run = cls(claim(draft, name, numbered=config.run_name is None))
                run._lock, lock.folder = lock, run.path
                return run
        except OSError as error:
            refuse_taken(config)
            if is_full(error):
                raise StorageError(f"output_dir {str(parent)!r} cannot be written: the disk is full") from None
            raise ConfigError(f"output_dir {str(parent)!r} cannot be written: {error.strerror}") from None

    def write_config(self, config: TrainConfig) -> None:
        """Replace the run's configuration if it is another, as that of a resumed run with other options is."""
        path, text = self.path / "config.yaml", config.to_yaml()
        if path.read_bytes() != text.encode():
            write_text(path, text)

    def open_sinks(self, config: TrainConfig) -> None:
        """Open the sinks that the options name; a resumed run is resumed there too."""
        known = read_json(self.path / SINKS)
        about = About(str(self.run_id), self.path, config.to_plain(), ids=dict(known))
        for name in dict.fromkeys(config.sinks):
            sink = REMOTE[name]()
            self._sinks.append(sink)
            sink.attempt(sink.start, about)
        if about.ids != known:
            write_json(self.path / SINKS, about.ids)

    def write_metrics(self, kind: str, metrics: Mapping[str, Any]) -> None:
        """Append one row; metrics that are numbers go to the sinks too."""
        self.check_place()
        _append(self._metrics_path, encode_row(kind, metrics, self.run_id))
        for sink in self._sinks:
            sink.attempt(_send, sink, kind, metrics)

    def rewind_metrics(self, global_step: int, lasting: Sequence[Mapping[str, Any]] = ()) -> None:
        """Drop rows written after a checkpoint, which a resumed run writes again.

        `lasting` rows stay, or are added if a crash came before they were written. Damaged lines go to a file of their
        own, but for a last line that is torn.
        """
        lines = self.read_lines()
        lines = [line if _has_step(line) else line._replace(row=None, problem="has no global_step") for line in lines]
        bad = b"".join(line.text for line in lines if line.row is None and line.text.endswith(b"\n"))
        if damage := describe_damage(self._metrics_path, lines):
            warnings.warn(f"{damage}: set aside{', in metrics.damaged' if bad else ''}", stacklevel=2)
        if bad:
            _append(self.path / "metrics.damaged", bad)
        rows = [line.row for line in lines]
        kept = [
            line.text
            for line in lines
            if line.row is not None and (line.row["global_step"] <= global_step or line.row in lasting)
        ]
        missing = [encode_row(row["kind"], row, self.run_id) for row in lasting if row not in rows]
        if missing or len(kept) < len(lines):
            kept += missing
            with atomic_write(self._metrics_path, needs=sum(map(len, kept))) as temporary:
                temporary.write_bytes(b"".join(kept))

    def set_metrics_aside(self) -> None:
        """Keep the rows of a run that starts over, since all its checkpoints are gone, under another name."""
        if self._metrics_path.is_file() and self._metrics_path.stat().st_size:
            old = self.path / "metrics.old.jsonl"
            self._metrics_path.replace(old)
            warnings.warn(f"{self.checkpoints} is empty: the run starts over; its metrics are in {old}", stacklevel=3)

    def read_lines(self) -> list[MetricLine]:
        """The lines of the metrics, which must be of this run."""
        return read_lines(self._metrics_path, self.run_id)

    def close(self) -> None:
        """Close the sinks and release the lock."""
        sinks, self._sinks = self._sinks, []
        try:
            for sink in sinks:
                # An error that ends the run says more than one that follows from it here.
                sink.attempt(sink.finish, self._ending(), warns=sys.exc_info()[1] is None)
        finally:
            if self._lock is not None:
                self._lock.release()

    def _ending(self) -> Ending:
        """The end of the run, read from its result, which is the last file that it writes."""
        result = read_json(self.path / "result.json")
        if result.get("interrupted") or isinstance(sys.exc_info()[1], KeyboardInterrupt):
            return "interrupted"
        return "finished" if result else "failed"


def refuse_taken(config: TrainConfig) -> None:
    """Refuse a `run_name` that another run has."""
    if config.run_name is not None and (taken := Path(config.output_dir, config.run_name)).exists():
        advice = f"--resume auto continues it, as does rl-training resume {taken}; or choose another run_name"
        raise ConfigError(f"there is a run {config.run_name!r} in {config.output_dir!r} already: {advice}")


@contextmanager
def making_draft(path: Path) -> Iterator[tuple[Path, RunLock]]:
    """A directory under a hidden name in which a run directory is made, with its lock; deleted if that fails."""
    drop_drafts(path.parent)
    draft = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    try:
        (draft / CHECKPOINTS).mkdir(parents=True)
        yield draft, RunLock(draft)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def claim(draft: Path, name: str, *, numbered: bool = True) -> Path:
    """Give a complete directory its name, or, if it may be `numbered`, a numbered one where another run has it."""
    path, number = draft.with_name(name), 1
    while True:
        try:
            # Renaming onto a directory that holds something fails, so two runs never share one.
            return draft.rename(path)
        except OSError:
            if not (numbered and path.exists()):
                raise
        number += 1
        path = draft.with_name(f"{name}-{number}")


def drop_drafts(parent: Path) -> None:
    """Delete directories that a kill left before they got their names.

    One of a live process is locked. It is not yet signed, and young, if the process is about to lock it.
    """
    for path in parent.glob(".*") if parent.is_dir() else ():
        # Another process may give it its name at any moment.
        with suppress(FileNotFoundError, NotADirectoryError):
            if DRAFT.fullmatch(path.name) and _is_left(path):
                _delete_draft(path)


def _is_left(draft: Path) -> bool:
    """Whether a draft was left by a process that has ended."""
    if not (draft / CHECKPOINTS).is_dir() and any(draft.iterdir()):
        return False
    is_old = time.time() - draft.stat().st_mtime > OLD_DRAFT
    return (is_old or is_signed(draft)) and is_locked(draft) is False


def _delete_draft(draft: Path) -> None:
    """Delete a draft in an order that leaves it recognisable if a kill interrupts it."""
    with suppress(OSError):
        for path in draft.iterdir():
            if path.is_dir() and path.name != CHECKPOINTS:
                shutil.rmtree(path)
            elif path.name != CHECKPOINTS:
                path.unlink()
    shutil.rmtree(draft, ignore_errors=True)


def _send(sink: Sink, kind: str, metrics: Mapping[str, Any]) -> None:
    sink.send(numbers(kind, metrics), metrics["global_step"])


def _append(path: Path, text: bytes) -> None:
    """Add whole lines to a file: all of them, or none."""
    with writing(path, needs=len(text)), path.open("ab", buffering=0) as file:
        before = file.tell()
        try:
            if file.write(text) != len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            file.truncate(before)
            raise


def _has_step(line: MetricLine) -> bool:
    return line.row is None or isinstance(line.row.get("global_step"), (int, float))


def new_id() -> str:
    """A new identity; it draws nothing from the random numbers of training."""
    return uuid.uuid4().hex[:16]


def read_json(path: Path) -> dict[str, Any]:
    """The mapping in a JSON file; empty if there is no valid file."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def describe_machine() -> dict[str, Any]:
    """Versions, command and time, which are needed to reproduce the run."""
    packages = ("rl-training", "torch", "numpy", "gymnasium", "mujoco", "minari", "h5py")
    return {
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": sys.argv,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: found for name in packages if (found := package_version(name)) is not None},
    }


def package_version(package: str) -> str | None:
    """The version of a package that is installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """The rows of a run's metrics; damaged lines are named in a warning and left out."""
    lines = RunDirectory(run_dir).read_lines()
    if lines and not lines[-1].text.endswith(b"\n") and is_locked(run_dir):
        # It is being written.
        del lines[-1]
    if damage := describe_damage(run_dir / METRICS, lines):
        warnings.warn(f"{damage}: left out", stacklevel=2)
    return [line.row for line in lines if line.row is not None]
