"""Runs that are uploaded to an S3-compatible server, killed in the middle of that, and gone on with elsewhere."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from command_line import TINY, Command, call_main
from small_runs import SMALL, differences

from rl_training.core import user_code as importing
from rl_training.storage.checkpoint import load_checkpoint

pytest.importorskip("s3fs")
moto = pytest.importorskip("moto.server")

SAC = ("sac/pendulum", *SMALL, "total_timesteps=300", "algo_kwargs.eval_interval=100", "run_name=swing")
LARGE = 20_000
"""Bytes; of the objects of such a run, only checkpoints have more."""
KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    # Modules that other tests of this process have imported would be part of what commands print.
    monkeypatch.setattr(importing, "IMPORTED", [])
    return partial(call_main, monkeypatch, capsys)


class Bucket:
    """A bucket on a server, looked at past the package."""

    def __init__(self, port: int) -> None:
        import boto3

        self.port = port
        self.client = boto3.client("s3")
        self.client.create_bucket(Bucket="bucket")

    def names(self) -> set[str]:
        return {each["Key"] for each in self.client.list_objects_v2(Bucket="bucket").get("Contents", ())}

    def pointer(self) -> dict[str, Any]:
        body = self.client.get_object(Bucket="bucket", Key="sweep/swing/latest.json")["Body"]
        found: dict[str, Any] = json.load(body)
        return found


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """A bucket on a server of this test, which this process and those that it starts find by the environment."""
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}.items():
        monkeypatch.setenv(name, value)
    _forget_servers()
    yield Bucket(port)
    # The servers of a process share what they hold.
    urlopen(Request(f"http://127.0.0.1:{port}/moto-api/reset", method="POST")).close()
    server.stop()
    _forget_servers()


def _forget_servers() -> None:
    """Connections are kept by URL, and the server of another test has the same one."""
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()


class Throttle:
    """A proxy that passes everything on until it has seen the pointer of a run that has begun to learn.

    Then it holds a large object in the middle.
    """

    POINTER = re.compile(rb'"step": [1-9]')

    LENGTH = re.compile(rb"x-amz-decoded-content-length: (\d+)|content-length: (\d+)", re.IGNORECASE)

    def __init__(self, port: int) -> None:
        self.behind, self.has_pointer, self.held = port, False, threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.connections: list[socket.socket] = [self.listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client = self.listener.accept()[0]
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self.behind))
            self.connections += [client, server]
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(4096):
                self.has_pointer |= self.POINTER.search(data) is not None
                if self.has_pointer and self._is_large(data):
                    # The head of the request and a part of the object have arrived, the rest never does.
                    target.sendall(data)
                    target.sendall(source.recv(4096))
                    self.held.set()
                    return
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def _is_large(self, data: bytes) -> bool:
        lengths = [int(first or second) for first, second in self.LENGTH.findall(data)]
        return data.startswith(b"PUT ") and b"/objects/" in data and max(lengths, default=0) > LARGE

    def close(self) -> None:
        for each in self.connections:
            each.close()


@pytest.fixture
def throttle(bucket: Bucket) -> Iterator[Throttle]:
    proxy = Throttle(bucket.port)
    yield proxy
    proxy.close()


def _learned(run: Path) -> dict[str, Any]:
    """The final state of a run, without what names the run and its place."""
    tree = load_checkpoint(run / "checkpoints" / "latest.pt")
    return {name: value for name, value in tree.items() if name not in ("run", "config")}


def _start(output: Path, throttle: Throttle) -> subprocess.Popen[str]:
    """A run that reaches the server through the proxy."""
    url = "upload_url=s3://bucket/sweep"
    arguments = [sys.executable, "-m", "rl_training", "train", "--quiet", *SAC, url, "--out", str(output)]
    environment = {name: value for name, value in os.environ.items() if name != "AWS_ENDPOINT_URL"}
    environment["FSSPEC_S3_ENDPOINT_URL"] = f"http://127.0.0.1:{throttle.port}"
    return subprocess.Popen(arguments, env=environment, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_run_killed_in_the_middle_of_an_upload_continues_elsewhere_to_the_same_bits(
    bucket: Bucket, throttle: Throttle, command: Command, tmp_path: Path
) -> None:
    straight = command("train", "--quiet", *SAC, "--out", tmp_path / "straight")
    with _start(tmp_path / "node", throttle) as process:
        held = throttle.held.wait(timeout=120)
        before, names = bucket.pointer(), bucket.names()
        is_alive = process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert (straight.code, held, is_alive, process.returncode) == (0, True, True, -signal.SIGKILL)
    # A checkpoint was under way: the node has it on its disk, the pointer does not name it, its object is not there.
    assert (
        load_checkpoint(tmp_path / "node" / "swing" / "checkpoints" / "latest.pt")["trainer"]["state"]["global_step"]
        > before["step"]
    )
    assert (tmp_path / "node" / "swing" / ".upload").is_dir()
    assert (bucket.pointer(), bucket.names()) == (before, names)
    shutil.rmtree(tmp_path / "node")

    fetched = command("fetch", "s3://bucket/sweep/swing", "--out", tmp_path / "other")
    run = tmp_path / "other" / "swing"
    started_at = _learned(run)["trainer"]["state"]["global_step"]
    resumed = command("resume", "--quiet", run)

    assert (fetched.code, fetched.out) == (0, f"{run}\nresume with: rl-training resume {run}\n")
    assert (started_at, resumed.code) == (before["step"], 0)
    assert 0 < started_at < 300
    assert not differences(_learned(run), _learned(tmp_path / "straight" / "swing"))
    # The rest was uploaded from here, and nothing else is left.
    objects = {f"sweep/swing/objects/{each['sha256']}" for each in bucket.pointer()["files"].values()}
    assert bucket.pointer()["step"] == 300
    assert bucket.names() == {*objects, "sweep/swing/latest.json"}


def test_the_same_command_on_another_machine_continues_the_run(
    bucket: Bucket, command: Command, tmp_path: Path
) -> None:
    arguments = ["train", "--quiet", *SAC, "--resume", "auto"]
    straight = command("train", "--quiet", *SAC, "total_timesteps=120", "--out", tmp_path / "straight")
    arguments.append("upload_url=s3://bucket/sweep")
    here = command(*arguments, "total_timesteps=80", "--out", tmp_path / "a")
    there = command(*arguments, "total_timesteps=120", "--out", tmp_path / "b")

    assert (straight.code, here.code, there.code) == (0, 0, 0)
    ours, theirs = (_learned(tmp_path / name / "swing") for name in ("b", "straight"))
    assert not differences(ours["algorithm"], theirs["algorithm"])
    assert ours["trainer"]["branches"] == [80]
    assert bucket.pointer()["step"] == 120


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s4://bucket/x", "s4://bucket/x: no library knows the protocol 's4'"),
        ("s3://no-bucket/x", "upload_url s3://no-bucket/x cannot be written: The specified bucket does not exist"),
        ("file:///proc/x", "upload_url file:///proc/x cannot be written: "),
        ("bucket/x", "upload_url must be a URL such as s3://bucket/folder, got 'bucket/x'"),
    ],
)
def test_a_url_that_cannot_be_written_is_refused_before_anything_is(
    url: str, words: str, bucket: Bucket, command: Command, tmp_path: Path
) -> None:
    answer = command("train", "bc/pendulum", *TINY, f"upload_url={url}", "--out", tmp_path / "runs")

    assert (answer.code, answer.out) == (2, "")
    assert words in answer.err
    assert "Traceback" not in answer.err
    assert not (tmp_path / "runs").exists()


def test_mistakes_in_fetching_are_answered_in_a_sentence(bucket: Bucket, command: Command, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    for url, words in {
        "s3://bucket/none": "s3://bucket/none holds no uploaded run: there is no latest.json",
        "s3://bucket/taken": f"there is {tmp_path / 'taken'} already: resume it",
        "s4://bucket/a": "no library knows the protocol 's4'",
        "bucket/a": "expected a URL such as s3://bucket/folder, got 'bucket/a'",
        "s3://bucket/..": "does not end with the name of a run",
    }.items():
        answer = command("fetch", url, "--out", tmp_path)

        assert (answer.code, answer.out) == (2, "")
        assert words in answer.err
        assert len(answer.err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_a_name_that_is_taken_at_the_url_is_refused(bucket: Bucket, command: Command, tmp_path: Path) -> None:
    arguments = ("train", "bc/pendulum", *TINY, "upload_url=s3://bucket/x", "run_name=a", "--quiet")
    first, second = (command(*arguments, "--out", tmp_path / name) for name in ("one", "two"))
    shutil.move(tmp_path / "one" / "a", tmp_path / "a")
    other = command(*arguments[:-2], "upload_url=null", "run_name=a", "--quiet", "--out", tmp_path / "two")
    resumed = command("resume", tmp_path / "two" / "a", "upload_url=s3://bucket/x")

    assert (first.code, second.code, other.code, resumed.code) == (0, 2, 0, 2)
    assert "there is a run 'a' at s3://bucket/x already: --resume auto fetches and continues it" in second.err
    assert "s3://bucket/x/a holds another run of this name: choose another upload_url" in resumed.err
