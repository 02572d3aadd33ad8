"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path

import pytest

from rl_training.core.errors import StorageError
from rl_training.core.files import atomic_write, write_json, write_text, writing


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "one")
    with atomic_write(path) as temporary:
        temporary.write_text("two")
        assert path.read_text() == "one"

    assert path.read_text() == "two"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "one")
    with pytest.raises(TypeError), atomic_write(path) as temporary, temporary.open("wb") as file:
        file.writelines([b"half of", "a file"])  # type: ignore[list-item]

    assert path.read_text() == "one"
    assert list(tmp_path.iterdir()) == [path]


def test_json_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_json(path, {"a": 1})

    with pytest.raises(TypeError):
        write_json(path, {"a": object()})

    assert json.loads(path.read_text()) == {"a": 1}
    assert [item.name for item in tmp_path.iterdir()] == ["result.json"]


def test_file_and_folder_are_on_disk_around_the_renaming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def note_sync(descriptor: int) -> None:
        events.append("sync folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "sync file")
        fsync(descriptor)

    def note_replace(self: Path, target: Path) -> Path:
        events.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "replace", note_replace)
    write_text(tmp_path / "a.txt", "one")

    assert events == ["sync file", "rename", *(["sync folder"] if os.name == "posix" else [])]


def test_a_link_that_a_crash_left_behind_is_not_written_through(tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("other")
    os.link(other, tmp_path / ".a.txt.tmp")

    write_text(tmp_path / "a.txt", "one")

    assert other.read_text() == "other"


def test_a_write_that_fails_inside_torch_is_one_sentence(tmp_path: Path) -> None:
    def save() -> None:
        try:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        finally:
            raise RuntimeError("unexpected pos 64 vs 0")

    with pytest.raises(StorageError, match=r"state.pt cannot be written: Input/output error"):  # noqa: SIM117
        with writing(tmp_path / "state.pt"):
            save()
