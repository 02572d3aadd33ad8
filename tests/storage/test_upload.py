"""Uploads: objects before the pointer, nothing lost by a kill, nothing believed that comes from elsewhere."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sys
import threading
import uuid
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from small_runs import differences
from uploads import FIRST, SECOND, fetched, files_of, pointer_of, push, write_files

from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError, MissingExtraError, UserError
from rl_training.runtime import Callback, TrainerState, fetch_run, resume, train
from rl_training.storage.checkpoint import load_checkpoint
from rl_training.storage.run_directory import UPLOADS, RunDirectory
from rl_training.storage.upload import Pusher, Remote, Uploader, check_upload

fsspec = pytest.importorskip("fsspec")
MemoryFiles = fsspec.get_filesystem_class("memory")
MUTATING = ("put_file", "pipe_file", "rm_file")


class KilledError(BaseException):
    """Stands for the end of a process: nothing in the code under test answers it."""


class Operations:
    """Counts what is done to a file system in memory, and ends the process at one of these operations."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[str, str]] = []
        self.kill: tuple[int, str] | None = None
        for name in MUTATING:
            patch.setattr(MemoryFiles, name, self._watched(name, getattr(MemoryFiles, name)))

    def _watched(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(files: Any, *values: Any, **named: Any) -> Any:
            number = len(self.seen)
            self.seen.append((name, values[1] if name == "put_file" else values[0]))
            self._die_at(number, "before")
            if self.kill == (number, "middle") and name == "put_file":
                files.store.pop(values[1], None)
                files.open(values[1], "wb").write(Path(values[0]).read_bytes()[:3])
                raise KilledError
            original(files, *values, **named)
            self._die_at(number, "after")

        return call

    def _die_at(self, number: int, moment: str) -> None:
        if self.kill == (number, moment):
            raise KilledError

    def restart(self, kill: tuple[int, str] | None = None) -> None:
        self.seen, self.kill = [], kill


@pytest.fixture
def operations(monkeypatch: pytest.MonkeyPatch) -> Operations:
    return Operations(monkeypatch)


def test_objects_come_before_the_pointer_and_deletions_after_it(
    url: str, operations: Operations, tmp_path: Path
) -> None:
    pusher = push(url, FIRST, tmp_path / "files")
    first = operations.seen
    operations.restart()
    push(url, SECOND, tmp_path / "files", pusher=pusher, step=20)

    assert [name for name, _ in first] == ["put_file"] * len(FIRST) + ["pipe_file"]
    # Equal files are one object, and what is there is not uploaded again.
    assert [name for name, _ in operations.seen] == ["put_file"] * 3 + ["pipe_file"] + ["rm_file"] * 2
    assert operations.seen[3][1].endswith("/latest.json")
    deleted = {path for name, path in operations.seen if name == "rm_file"}
    assert deleted < {path for name, path in first if name == "put_file"}
    assert len({path for name, path in [*first, *operations.seen] if name == "put_file"}) == len(FIRST) + 3


def test_a_kill_between_any_two_operations_leaves_a_run_that_is_whole(
    url: str, operations: Operations, tmp_path: Path
) -> None:
    push(f"{url}/counted", FIRST, tmp_path / "files")
    operations.restart()
    push(f"{url}/counted", SECOND, tmp_path / "files")
    count, ended = len(operations.seen), []
    for number in range(count):
        for moment in ("before", "middle", "after"):
            place = f"{url}/{moment}{number}"
            operations.restart()
            push(place, FIRST, tmp_path / "files")
            operations.restart((number, moment))
            try:
                push(place, SECOND, tmp_path / "files")
            except KilledError:
                ended.append(number)
            operations.restart()
            found = fetched(place, tmp_path)
            assert found in (FIRST, SECOND)
            # The next process brings everything in order.
            push(place, SECOND, tmp_path / "files")
            assert fetched(place, tmp_path) == SECOND
            assert set(Remote(place).sizes()) == {entry.sha256 for entry in pointer_of(place).files.values()}
    assert set(ended) == set(range(count))


OS_OPERATIONS = ("open", "fsync", "replace", "unlink", "remove", "mkdir")


@pytest.mark.skipif(sys.platform != "linux", reason="it forks")
def test_a_process_killed_at_any_operation_on_a_shared_folder_leaves_a_run_that_is_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # It takes time, and only a crash of the machine would tell the difference.
    monkeypatch.setattr(os, "fsync", lambda _: None)
    number, killed, states = 0, 0, set()
    while killed == number:
        place = tmp_path / "shared" / str(number) / "run"
        push(place.as_uri(), FIRST, tmp_path / "files")
        if (child := os.fork()) == 0:
            _die_at(number)
            push(place.as_uri(), SECOND, tmp_path / "files")
            os._exit(0)
        killed += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        found = fetched(place.as_uri(), tmp_path)
        assert found in (FIRST, SECOND)
        states.add(len(found))
        push(place.as_uri(), SECOND, tmp_path / "files")
        assert fetched(place.as_uri(), tmp_path) == SECOND
        assert len(list((place / "objects").iterdir())) == len(SECOND) - 1
        number += 1
    assert number > 20
    assert states == {len(FIRST), len(SECOND)}


def _die_at(number: int) -> None:
    """Kill this process at an operation of the operating system."""
    left = [number]

    def watched(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*values: Any, **named: Any) -> Any:
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return original(*values, **named)

        return call

    for name in OS_OPERATIONS:
        setattr(os, name, watched(getattr(os, name)))


def test_runs_keep_the_layout_at_the_url_that_they_were_uploaded_with(url: str, tmp_path: Path) -> None:
    pusher, remote = push(url, FIRST, tmp_path / "files", step=20), Remote(url)
    files = {name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in FIRST.items()}

    expected = {"format": 1, "run_id": "run", "step": 20, "writer": pusher.writer, "files": files}
    assert json.loads(remote.files.cat_file(f"{remote.root}/latest.json")) == expected
    for name, entry in files.items():
        assert remote.files.cat_file(f"{remote.root}/objects/{entry['sha256']}") == FIRST[name]


def test_another_process_that_continues_the_run_is_left_alone(url: str, tmp_path: Path) -> None:
    ours = push(url, FIRST, tmp_path / "files")
    push(url, SECOND, tmp_path / "files")

    with pytest.raises(UserError, match="another process continues this run"):
        push(url, FIRST, tmp_path / "files", pusher=ours)
    with pytest.raises(UserError, match="holds another run of this name"):
        push(url, FIRST, tmp_path / "files", pusher=Pusher("other"))

    assert fetched(url, tmp_path) == SECOND


def test_a_run_without_its_files_replaces_nothing(url: str, tmp_path: Path) -> None:
    pusher = push(url, FIRST, tmp_path / "files")

    with pytest.raises(UserError, match=r"the run has no config\.yaml"):
        push(url, {}, tmp_path / "files", pusher=pusher)

    assert fetched(url, tmp_path) == FIRST


@pytest.fixture
def url() -> str:
    """A folder in memory that no other test has."""
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A run directory without a run."""
    return RunDirectory(write_files(FIRST, tmp_path / "runs" / "a"))


class Gate:
    """Lets uploads begin, and continue one by one."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.begun, self.open = threading.Semaphore(0), threading.Semaphore(0)
        self.steps: list[int] = []
        original = Pusher.push

        def wait(pusher: Pusher, remote: Remote, folder: Path, step: int) -> None:
            self.steps.append(step)
            self.begun.release()
            self.open.acquire()
            original(pusher, remote, folder, step)

        patch.setattr(Pusher, "push", wait)


def test_the_newest_checkpoint_waits_and_those_between_are_skipped(
    url: str, run: RunDirectory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gate, uploader = Gate(monkeypatch), Uploader(run, url)
    uploader.offer(0)
    gate.begun.acquire()
    # What belongs to the first checkpoint is replaced, deleted and appended to while it is uploaded.
    (run.path / "checkpoints" / "new").write_bytes(b"x")
    (run.path / "checkpoints" / "new").replace(run.path / "checkpoints" / "latest.pt")
    (run.path / "replay" / "rows_0000000000_0000000010.pt").unlink()
    with (run.path / "metrics.jsonl").open("ab") as file:
        file.write(b"2\n")
    for step in (10, 20, 30):
        uploader.offer(step)
    assert {path.name for path in (run.path / UPLOADS).iterdir()} == {"1", "4"}
    gate.open.release()
    gate.begun.acquire()

    assert fetched(f"{url}/a", tmp_path) == FIRST
    for _ in range(2):
        gate.open.release()
    uploader.close()

    assert gate.steps == [0, 30, 30]
    assert fetched(f"{url}/a", tmp_path) == files_of(run.path)
    assert not (run.path / UPLOADS).exists()


def test_a_run_that_was_killed_in_an_upload_drops_its_links(run: RunDirectory) -> None:
    write_files(FIRST, run.path / UPLOADS / "1")

    RunDirectory.take(run.path).close()

    assert not (run.path / UPLOADS).exists()


def test_uploads_that_fail_warn_once_and_the_run_ends_well(
    url: str, tiny_config: Callable[..., TrainConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(MemoryFiles, "put_file", fail)
    monkeypatch.setattr(Uploader, "offer", _and_wait(Uploader.offer))
    with pytest.warns(UserWarning, match="no route to host") as caught:
        result = train(tiny_config("bc", f"upload_url={url}", "total_timesteps=40", "run_name=a"))

    assert [str(each.message) for each in caught] == [
        f"{url}/a is not up to date: no route to host; the next checkpoint is tried again",
        f"the last state of the run is not at {url}/a: no route to host; it is in {result.run_dir}",
    ]
    assert (result.run_dir / "result.json").is_file()
    assert Remote(f"{url}/a").pointer() is None


def _and_wait(offer: Callable[..., None]) -> Callable[..., None]:
    """Offer a checkpoint and wait until it was tried, so that none is skipped."""

    def call(uploader: Uploader, *values: Any, **named: Any) -> None:
        offer(uploader, *values, **named)
        while not uploader.waiting.empty() or any((uploader.run.path / UPLOADS).iterdir()):
            threading.Event().wait(0.005)

    return call


def test_an_upload_that_fails_is_made_up_for_by_the_next(
    url: str, tiny_config: Callable[..., TrainConfig], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    original, failures = MemoryFiles.put_file, [OSError("no route to host")]

    def fail_once(*values: Any, **named: Any) -> None:
        if failures:
            raise failures.pop()
        original(*values, **named)

    monkeypatch.setattr(MemoryFiles, "put_file", fail_once)
    monkeypatch.setattr(Uploader, "offer", _and_wait(Uploader.offer))
    with pytest.warns(UserWarning, match="is not up to date: no route to host") as caught:
        result = train(tiny_config("bc", f"upload_url={url}", "total_timesteps=40", "run_name=a"))

    assert len(caught) == 1
    there = fetched(f"{url}/a", tmp_path)
    ours = files_of(result.run_dir)
    assert {name: ours[name] for name in there} == there
    assert {"result.json", "checkpoints/best.pt", "policies/step_000000040.pt"} <= there.keys()


class Stop(Callback):
    def on_update_end(self, state: TrainerState, metrics: Mapping[str, float]) -> None:
        state.interrupt("interrupted")


def test_an_interrupted_run_waits_for_its_last_upload_and_continues_elsewhere(
    url: str, tiny_config: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    straight = train(tiny_config("sac", "run_name=straight"))
    stopped = train(tiny_config("sac", f"upload_url={url}", "run_name=a"), callbacks=[Stop()])
    shutil.rmtree(stopped.run_dir)

    run = fetch_run(f"{url}/a", tmp_path / "elsewhere")
    assert json.loads((run / "result.json").read_text())["interrupted"]
    result = resume(run)

    ours, theirs = (load_checkpoint(each.run_dir / "checkpoints" / "latest.pt") for each in (result, straight))
    for part in ("algorithm", "source", "collector", "replay", "random"):
        assert not differences(ours[part], theirs[part]), part
    assert pointer_of(f"{url}/a").step == 20


def test_another_url_does_not_reopen_a_run_that_has_stopped_itself(
    url: str, tiny_config: Callable[..., TrainConfig]
) -> None:
    class End(Callback):
        def on_update_end(self, state: TrainerState, metrics: Mapping[str, float]) -> None:
            state.request_stop("enough")

    run = train(tiny_config("bc", "total_timesteps=100"), callbacks=[End()]).run_dir
    result = resume(run, upload_url=url)

    tree = load_checkpoint(run / "checkpoints" / "latest.pt")
    assert result.stop_reason == "enough"
    assert (tree["trainer"]["state"]["update_count"], tree["trainer"]["branches"]) == (10, [])
    assert tree["config"]["upload_url"] == url
    assert pointer_of(f"{url}/{run.name}").step == 10


pytest.importorskip("fsspec")


@pytest.mark.parametrize("url", ["bucket/folder", "s3:bucket", "s3://", "file:///"])
def test_an_upload_url_must_be_a_url(url: str) -> None:
    with pytest.raises(ConfigError, match="upload_url must be a URL such as s3://bucket/folder"):
        TrainConfig(algo="bc", upload_url=url)


def test_a_url_with_a_password_is_refused_without_repeating_it() -> None:
    with pytest.raises(ConfigError, match="must not hold a password") as caught:
        TrainConfig(algo="bc", upload_url="sftp://me:secret@host/folder")

    assert "secret" not in str(caught.value)


def test_a_missing_library_is_named_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"class": "lost_library.LostFiles", "err": "Install lost_library"}
    monkeypatch.setitem(sys.modules["fsspec.registry"].known_implementations, "lost", known)

    with pytest.raises(MissingExtraError, match=r"lost://a needs the package 'lost_library'.*\[upload\]' lost_library"):
        Remote("lost://a")


def test_without_fsspec_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)

    with pytest.raises(
        MissingExtraError, match=r"needs the package 'fsspec'; install it with: .*rl-training\[upload\]"
    ):
        check_upload(TrainConfig(algo="bc", upload_url="s3://bucket/folder"))


def test_the_place_is_tried_out_and_left_as_it_was(tmp_path: Path) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for place in (f"{url}/folder", (tmp_path / "shared").as_uri()):
            check_upload(TrainConfig(algo="bc", upload_url=place))

    assert not Remote(f"{url}/folder").files.find(Remote(f"{url}/folder").root)
    assert not list((tmp_path / "shared").iterdir())
