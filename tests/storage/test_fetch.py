"""Fetching: a run directory appears whole or not at all, and nothing is believed that a pointer says."""

from __future__ import annotations

import json
import shutil
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from uploads import FIRST, SECOND, fetched, pointer_of, push

from rl_training.config import TrainConfig
from rl_training.core.errors import CheckpointError, ConfigError, DamagedError
from rl_training.runtime import fetch_run, resume, train_or_resume
from rl_training.storage.trust import is_own_run, remember_run
from rl_training.storage.upload import Remote

pytest.importorskip("fsspec")


@pytest.fixture
def url() -> str:
    """A folder in memory that no other test has."""
    return f"memory://{uuid.uuid4().hex}"


def forge(url: str, **changes: Any) -> None:
    """Change the pointer of a run; None takes a key away."""
    remote = Remote(url)
    path = f"{remote.root}/latest.json"
    values = {**json.loads(remote.files.cat_file(path)), **changes}
    remote.files.pipe_file(path, json.dumps({key: each for key, each in values.items() if each is not None}).encode())


CODE = """
import gymnasium

if "FetchedCode-v0" not in gymnasium.registry:
    gymnasium.register("FetchedCode-v0", entry_point=gymnasium.spec("Pendulum-v1").entry_point, max_episode_steps=5)
"""
ENTRY = {"size": 3, "sha256": "0" * 64}


@pytest.mark.parametrize(
    "name",
    ["../a", "/etc/passwd", "checkpoints/../../a.pt", "replay/rows_1_2.pt/../../x", "evil.py", ".lock", "", "C:\\a"],
)
def test_a_pointer_that_names_other_files_is_refused(url: str, name: str, tmp_path: Path) -> None:
    push(f"{url}/a", FIRST, tmp_path / "files")
    entries = pointer_of(f"{url}/a").model_dump()["files"]
    forge(f"{url}/a", files={**entries, name: ENTRY})

    with pytest.raises(CheckpointError, match="names a file that no run has"):
        fetch_run(f"{url}/a", tmp_path / "out")

    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": 2}, "has the format 2, this version reads 1"),
        ({"format": None}, "is damaged: format is missing"),
        ({"files": {}}, r"is damaged: it names no config\.yaml"),
        ({"files": [1]}, "is damaged: files is wrong"),
        ({"files": {"config.yaml": {"size": -1, "sha256": "0" * 64}}}, r"files\.config\.yaml\.size is wrong"),
        ({"files": {"config.yaml": {"size": True, "sha256": "0" * 64}}}, r"files\.config\.yaml\.size is wrong"),
        ({"files": {"config.yaml": {"size": 3, "sha256": "../x"}}}, r"files\.config\.yaml\.sha256 is wrong"),
        ({"files": {"config.yaml": {"size": 3, "sha256": "0" * 64 + "\n"}}}, r"files\.config\.yaml\.sha256 is wrong"),
        ({"files": {"config.yaml": 3}}, r"files\.config\.yaml is wrong"),
        ({"step": "1"}, "step is wrong"),
        ({"run_id": 3}, "run_id is wrong"),
    ],
)
def test_a_forged_pointer_is_refused(url: str, changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    push(f"{url}/a", FIRST, tmp_path / "files")
    forge(f"{url}/a", **changes)

    with pytest.raises(CheckpointError, match=words):
        fetch_run(f"{url}/a", tmp_path / "out")

    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[1]", b"\xff", b"[" * 100_000], ids=["empty", "cut", "list", "bytes", "deep"]
)
def test_a_pointer_that_is_not_json_is_refused(url: str, data: bytes, tmp_path: Path) -> None:
    remote = Remote(f"{url}/a")
    remote.put("latest.json", data)

    with pytest.raises(DamagedError, match=r"latest\.json is damaged: it is wrong"):
        fetch_run(remote.url, tmp_path / "out")

    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("contents", "words"), [(b"other" * 100, "is damaged"), (b"first" * 101, "is damaged"), (None, "is missing")]
)
def test_an_object_that_is_not_what_was_uploaded_is_refused(
    url: str, contents: bytes | None, words: str, tmp_path: Path
) -> None:
    push(f"{url}/a", FIRST, tmp_path / "files")
    remote = Remote(f"{url}/a")
    path = f"{remote.root}/objects/{pointer_of(remote.url).files['checkpoints/latest.pt'].sha256}"
    remote.files.rm_file(path)
    if contents is not None:
        remote.files.pipe_file(path, contents)

    with pytest.raises(DamagedError, match=rf"the object of checkpoints/latest\.pt {words}"):
        fetch_run(remote.url, tmp_path / "out")

    assert not list((tmp_path / "out").iterdir())
    # The next upload puts it in place again, if its size tells that it is not whole.
    if contents is None or len(contents) != len(FIRST["checkpoints/latest.pt"]):
        push(remote.url, FIRST, tmp_path / "files")
        assert fetched(remote.url, tmp_path) == FIRST


def test_a_run_that_is_uploaded_while_it_is_fetched_is_fetched_again(
    url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    push(f"{url}/a", FIRST, tmp_path / "files")
    original, waiting = Remote.get_object, [SECOND]

    def replace_first(*values: Any, **named: Any) -> None:
        if waiting:
            push(f"{url}/a", waiting.pop(), tmp_path / "files")
        original(*values, **named)

    monkeypatch.setattr(Remote, "get_object", replace_first)

    assert fetched(f"{url}/a", tmp_path) == SECOND


def test_a_fetched_run_is_not_one_of_the_users_own(url: str, tmp_path: Path) -> None:
    push(f"{url}/a", FIRST, tmp_path / "files")
    for name in ("a", "b"):
        remember_run(tmp_path / "out" / name, {"env_id": "module:Env-v0"})
    assert is_own_run(tmp_path / "out" / "a")

    run = fetch_run(f"{url}/a", tmp_path / "out")

    assert not is_own_run(run)
    assert is_own_run(tmp_path / "out" / "b")


def test_a_url_names_no_code(tmp_path: Path) -> None:
    remember_run(tmp_path / "a", {"env_id": "Pendulum-v1", "upload_url": "s3://bucket/folder"})

    assert not is_own_run(tmp_path / "a")


def test_the_same_command_trusts_the_code_that_it_names_itself(
    url: str, tiny_config: Callable[..., TrainConfig], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "fetched_code.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = tiny_config("bc", f"upload_url={url}", "run_name=a", "env_id=fetched_code:FetchedCode-v0")
    shutil.rmtree(train_or_resume(config).run_dir)
    # As on another machine, where nothing of it is known.
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delitem(sys.modules, "fetched_code")

    with pytest.raises(ConfigError, match="is not one of your own runs: nothing was imported"):
        resume(fetch_run(f"{url}/a", tmp_path / "out"))
    result = train_or_resume(config)

    assert result.run_dir == Path(config.output_dir, "a")
    assert is_own_run(result.run_dir)
    assert not is_own_run(tmp_path / "out" / "a")
