"""Checkpoints: whole or refused, and never half written."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_training.config import TrainConfig
from rl_training.core.errors import CheckpointError
from rl_training.runtime import train
from rl_training.storage.checkpoint import link_checkpoint, load_checkpoint, save_checkpoint

WEIGHTS = torch.linspace(0.1, 0.9, 64)


def _tree(**extra: Any) -> dict[str, Any]:
    return {"config": {"algo": "bc"}, "algorithm": {"weight": WEIGHTS.clone()}, **extra}


def _error(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(path)
    return str(caught.value)


class _Trap:
    """Code that would run if a file were unpickled without care."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return (os.mkdir, ("sprung",))


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor(3.0),
        torch.zeros(0, 3),
        torch.tensor([True, False]),
        torch.arange(6).reshape(2, 3).T,
        torch.ones(3, dtype=torch.bfloat16),
        torch.get_rng_state(),
        [1, 2.5, "text", None, True],
        {"nested": {"best": float("-inf"), "list": [[], {}]}},
    ],
    ids=["scalar", "empty", "flags", "transposed", "bfloat16", "generator", "values", "nested"],
)
def test_what_is_saved_is_what_is_loaded(tmp_path: Path, value: Any) -> None:
    save_checkpoint(tmp_path / "a.pt", _tree(extra=value))

    loaded = load_checkpoint(tmp_path / "a.pt")

    assert loaded["format"] == 2
    torch.testing.assert_close(loaded["algorithm"]["weight"], WEIGHTS, rtol=0, atol=0)
    if isinstance(value, torch.Tensor):
        torch.testing.assert_close(loaded["extra"], value, rtol=0, atol=0)
    else:
        assert loaded["extra"] == value


def test_the_checkpoint_of_a_run_loads_without_unpickling_code(tiny_config: Callable[..., TrainConfig]) -> None:
    result = train(tiny_config("td3_bc"))

    for path in sorted((result.run_dir / "checkpoints").iterdir()):
        assert torch.load(path, weights_only=True)["config"]["algo"] == "td3_bc"


def test_a_flipped_bit_in_a_tensor_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    save_checkpoint(path, _tree())
    contents = bytearray(path.read_bytes())
    place = contents.find(WEIGHTS.numpy().tobytes())
    assert place > 0
    contents[place + 17] ^= 1
    path.write_bytes(contents)

    # PyTorch itself reads the file as if nothing had happened.
    assert not torch.equal(torch.load(path, weights_only=True)["algorithm"]["weight"], WEIGHTS)
    assert _error(path) == f"{path} is damaged: its contents do not match its checksum"


@pytest.mark.parametrize(
    "change",
    [
        {"config": {"algo": "td3_bc"}},
        {"algorithm": {"weight": WEIGHTS.double()}},
        {"algorithm": {"weight": WEIGHTS.reshape(8, 8)}},
        {"algorithm": {"bias": WEIGHTS}},
        {"extra": 1},
        {"checksum": None},
    ],
    ids=["text", "type", "shape", "name", "addition", "no checksum"],
)
def test_any_change_of_the_contents_is_noticed(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "a.pt"
    save_checkpoint(path, _tree())
    torch.save(torch.load(path, weights_only=True) | change, path)

    assert "is damaged" in _error(path)


def test_the_checksum_does_not_depend_on_the_order_of_keys(tmp_path: Path) -> None:
    for name, tree in {"a": _tree(), "b": dict(reversed(_tree().items()))}.items():
        save_checkpoint(tmp_path / f"{name}.pt", tree)

    checksums = {torch.load(tmp_path / f"{name}.pt", weights_only=True)["checksum"] for name in "ab"}
    assert len(checksums) == 1


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    save_checkpoint(path, _tree())
    path.write_bytes(path.read_bytes()[:-100])

    assert _error(path).startswith(f"{path} is not a readable checkpoint (")


@pytest.mark.parametrize("failing", ["save", "fsync", "replace"])
def test_a_failure_while_writing_leaves_the_checkpoint_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    path = tmp_path / "a.pt"
    save_checkpoint(path, _tree(number=1))

    def save_half(tree: Any, file: io.BufferedWriter) -> None:
        file.write(b"half of a file")
        raise OSError("no space left on device")

    def fail(*_: object) -> None:
        raise OSError("no space left on device")

    broken: dict[str, tuple[Any, Callable[..., None]]] = {
        "save": (torch, save_half),
        "fsync": (os, fail),
        "replace": (Path, fail),
    }
    with monkeypatch.context() as patch:
        home, function = broken[failing]
        patch.setattr(home, failing, function)
        with pytest.raises(OSError, match="no space left"):
            save_checkpoint(path, _tree(number=2))

    assert load_checkpoint(path)["number"] == 1
    save_checkpoint(path, _tree(number=3))
    assert load_checkpoint(path)["number"] == 3
    assert [item.name for item in tmp_path.iterdir()] == ["a.pt"]


@pytest.mark.parametrize("can_link", [True, False], ids=["hard link", "copy"])
def test_a_second_name_takes_the_place_of_the_file_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_link: bool
) -> None:
    if not can_link:

        def refuse(*_: object) -> None:
            raise OSError("this file system has no links")

        monkeypatch.setattr(os, "link", refuse)
    for number in (1, 2):
        path = tmp_path / f"update_{number}.pt"
        save_checkpoint(path, _tree(number=number))
        link_checkpoint(path, "latest.pt")

        assert load_checkpoint(tmp_path / "latest.pt")["number"] == number
    assert load_checkpoint(tmp_path / "update_1.pt")["number"] == 1
    assert (tmp_path / "latest.pt").samefile(path) is can_link
    assert sorted(item.name for item in tmp_path.iterdir()) == ["latest.pt", "update_1.pt", "update_2.pt"]


def test_a_link_left_over_from_a_crash_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "update_1.pt"
    save_checkpoint(path, _tree(number=1))
    (tmp_path / ".latest.pt.tmp").write_bytes(b"left over")

    link_checkpoint(path, "latest.pt")

    assert load_checkpoint(tmp_path / "latest.pt")["number"] == 1


def test_a_missing_checkpoint_is_named(tmp_path: Path) -> None:
    assert _error(tmp_path / "a.pt") == f"checkpoint {str(tmp_path / 'a.pt')!r} does not exist"


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        ([1, 2], "is not a checkpoint of rl_training"),
        ({"model": WEIGHTS}, "is not a checkpoint of rl_training"),
        ({"algorithm": {}, "config": {}}, "is not a checkpoint of rl_training"),
        (
            {"format": 3},
            "was written by a newer version (checkpoint format 3; this one reads up to 2): update rl-training",
        ),
    ],
)
def test_a_file_of_another_kind_is_refused_by_name(tmp_path: Path, contents: Any, words: str) -> None:
    path = tmp_path / "foreign.pt"
    torch.save(contents, path)

    assert _error(path) == f"{path} {words}"


@pytest.mark.parametrize("contents", [b"", b"hello", pickle.dumps([1], protocol=2)], ids=["empty", "text", "pickle"])
def test_a_file_that_pytorch_cannot_read_is_refused_in_one_line(tmp_path: Path, contents: bytes) -> None:
    path = tmp_path / "foreign.pt"
    path.write_bytes(contents)

    message = _error(path)

    assert message.startswith(f"{path} is not a readable checkpoint (")
    assert "\n" not in message


def test_code_in_a_foreign_file_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "trap.pt"
    torch.save({"algorithm": _Trap(), "config": {}, "format": 1}, path)

    assert "is not a readable checkpoint" in _error(path)
    assert not (tmp_path / "sprung").exists()
