"""Files of a run that is no run, uploaded and fetched."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

from rl_training.runtime import fetch_run
from rl_training.storage.upload import Pointer, Pusher, Remote

Files = dict[str, bytes]
FIRST: Files = {
    "config.yaml": b"algo: bc\n",
    "metadata.json": b"{}",
    "metrics.jsonl": b"1\n",
    "checkpoints/latest.pt": b"first" * 100,
    "replay/rows_0000000000_0000000010.pt": b"rows",
}
SECOND: Files = {
    **FIRST,
    "metrics.jsonl": b"1\n2\n",
    "checkpoints/latest.pt": b"second" * 100,
    "checkpoints/best.pt": b"second" * 100,
    "replay/rows_0000000010_0000000020.pt": b"more rows",
}


def write_files(files: Files, folder: Path) -> Path:
    """A folder with these files and no others."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, contents in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(contents)
    return folder


def push(url: str, files: Files, folder: Path, *, pusher: Pusher | None = None, step: int = 0) -> Pusher:
    pusher = pusher or Pusher("run")
    pusher.push(Remote(url), write_files(files, folder), step)
    return pusher


def files_of(run: Path) -> Files:
    return {path.relative_to(run).as_posix(): path.read_bytes() for path in run.rglob("*") if path.is_file()}


def fetched(url: str, folder: Path) -> Files:
    return files_of(fetch_run(url, folder / uuid.uuid4().hex))


def pointer_of(url: str) -> Pointer:
    pointer = Remote(url).pointer()
    assert pointer is not None
    return pointer
