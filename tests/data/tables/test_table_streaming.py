"""Tables that are converted piece by piece: the same dataset as if they were read whole, and the same words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.core.errors import DatasetError
from rl_training.data import TransitionDataset, load_transition_dataset, mapped_columns
from rl_training.data.convert import convert
from rl_training.data.tables import files as table_files

pa = pytest.importorskip("pyarrow")
csv = pytest.importorskip("pyarrow.csv")
parquet = pytest.importorskip("pyarrow.parquet")

COLUMNS: dict[str, Any] = {
    "obs": ["x_*", "mode"],
    "one_hot": ["mode"],
    "actions": ["valve"],
    "reward": "-abs(x_1) + power",
    "episode": "run",
    "step": "t",
    "terminated": "alarm",
}


@pytest.fixture(params=[3, 1 << 16])
def small_pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of a few rows, and of all of them."""
    monkeypatch.setattr(mapped_columns.chunks, "__defaults__", (request.param,))
    monkeypatch.setattr(table_files, "_ROWS", request.param)
    monkeypatch.setattr(table_files, "_BLOCK", 200 if request.param == 3 else 1 << 24)


def _log(*, shuffled: bool = False, holes: bool = False) -> Any:
    rng = np.random.default_rng(0)
    lengths = [7, 1, 12, 5]
    rows = sum(lengths)
    last = np.cumsum(lengths) - 1
    table: dict[str, Any] = {
        "run": np.repeat(["c", "a", "d", "b"], lengths),
        "t": np.concatenate([np.arange(length) for length in lengths]),
        # Looks like integers until the last row.
        "x_1": [*range(rows - 1), 0.5],
        "x_2": rng.normal(size=rows).astype(np.float32).tolist(),
        "mode": rng.choice(["auto", "manual"], rows).tolist(),
        "valve": [*["open"] * (rows - 1), "closed"],
        "power": rng.normal(size=rows),
        "alarm": [int(row == last[2]) for row in range(rows)],
    }
    if holes:
        table["x_2"][9] = table["mode"][9] = table["x_2"][22] = None
    found = pa.table(table)
    return found.take(rng.permutation(rows)) if shuffled else found


def _write(folder: Path, kind: str, table: Any) -> str:
    """The table as files of its kind, of which the second begins in the middle of an episode."""
    if kind == "one csv":
        csv.write_csv(table, folder / "log.csv")
        return str(folder / "log.csv")
    if kind == "one parquet":
        parquet.write_table(table, folder / "log.parquet")
        return str(folder / "log.parquet")
    shards = folder / "logs"
    shards.mkdir()
    for number, part in enumerate((table.slice(0, 11), table.slice(11))):
        if kind == "csv":
            csv.write_csv(part, shards / f"part_{number}.csv")
        else:
            parquet.write_table(part, shards / f"part_{number}.parquet")
    return str(shards)


def _check_same(one: TransitionDataset, other: TransitionDataset) -> None:
    assert one.fields.keys() == other.fields.keys()
    assert one.fingerprint() == other.fingerprint()
    for name in ("truncations", "next_action_mask", "tail_rewards"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=0, atol=0, equal_nan=True)
    assert (one.num_dropped, one.notes, one.columns) == (other.num_dropped, other.notes, other.columns)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("kind", ["one csv", "csv", "one parquet", "parquet"])
@pytest.mark.parametrize("log", [{}, {"shuffled": True}, {"holes": True}, {"shuffled": True, "holes": True}])
@pytest.mark.parametrize("changes", [{}, {"missing": "drop_episode"}, {"missing": "forward_fill"}, {"reward": None}])
def test_a_table_in_pieces_is_what_reading_it_whole_gives(
    kind: str, log: dict[str, bool], changes: dict[str, Any], tmp_path: Path
) -> None:
    path, columns = _write(tmp_path, kind, _log(**log)), {**COLUMNS, **changes}
    out = str(tmp_path / "log.rlt")
    if log.get("holes") and "missing" not in changes:
        with pytest.raises(DatasetError, match="3 cells are empty") as refusal:
            load_transition_dataset(path, dataset_columns=columns)
        with pytest.raises(DatasetError) as other:
            convert(path, out, columns=columns)
        assert str(other.value) == str(refusal.value)
    else:
        whole = load_transition_dataset(path, dataset_columns=columns)
        convert(path, out, columns=columns)
        _check_same(whole, load_transition_dataset(out))
        assert whole.has_rewards == (columns["reward"] is not None)
    assert {item.name for item in tmp_path.iterdir()} <= {"log.csv", "log.parquet", "logs", "log.rlt"}


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("columns", [{"episodes": "one"}, {"episodes": "flags"}, {"episodes": "each_row"}])
def test_episodes_without_a_column_are_the_same_in_pieces(columns: dict[str, Any], tmp_path: Path) -> None:
    path = _write(tmp_path, "parquet", _log())
    named = {"obs": ["x_*"], "actions": ["power"], "reward": "x_2", **columns}
    if columns["episodes"] == "flags":
        named["truncated"] = "alarm"
    if columns["episodes"] == "each_row":
        named |= {"obs": ["x_1", "x_2"], "next_obs": ["x_1", "x_2"]}
    convert(path, str(tmp_path / "log.rlt"), columns=named)
    _check_same(load_transition_dataset(path, dataset_columns=named), load_transition_dataset(tmp_path / "log.rlt"))


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("kind", ["one csv", "csv", "one parquet", "parquet"])
@pytest.mark.parametrize(
    ("cell", "changes"),
    [
        (("x_1", 24, "hot"), {"obs": ["x_1", "x_2"], "one_hot": []}),
        (("t", 14, 99), {}),
        (("t", 14, 5), {}),
        (("alarm", 3, 1), {}),
        (("alarm", 3, 2), {}),
        (("run", 24, "c"), {"step": None}),
        (("x_2", 13, float("inf")), {}),
        (("mode", 22, "off"), {"one_hot": {"mode": ["auto", "manual"]}}),
    ],
)
def test_what_is_wrong_is_said_alike(
    kind: str, cell: tuple[str, int, Any], changes: dict[str, Any], tmp_path: Path
) -> None:
    table, (column, row, value) = _log(), cell
    cells = table.column(column).to_pylist()
    cells = list(map(str, cells)) if value == "hot" else cells
    cells[row] = value
    table = table.set_column(table.column_names.index(column), column, pa.array(cells))
    path, columns = _write(tmp_path, kind, table), {**COLUMNS, **changes}
    with pytest.raises(DatasetError) as whole:
        load_transition_dataset(path, dataset_columns=columns)
    with pytest.raises(DatasetError) as pieces:
        convert(path, str(tmp_path / "log.rlt"), columns=columns)
    assert str(pieces.value) == str(whole.value)
    assert "row" in str(whole.value)


def test_the_mapped_form_remembers_the_columns_of_its_table(tmp_path: Path) -> None:
    path = _write(tmp_path, "one csv", _log())
    convert(path, str(tmp_path / "log.rlt"), columns=COLUMNS)
    mapped = load_transition_dataset(tmp_path / "log.rlt")
    assert mapped.columns is not None
    assert mapped.columns.choices == ("closed", "open")
    with pytest.raises(DatasetError, match="was converted with other columns"):
        load_transition_dataset(tmp_path / "log.rlt", dataset_columns={**COLUMNS, "obs": ["x_1"], "one_hot": []})


MEASURE = """
import sys, threading, time
from rl_training.data.convert import convert

def memory():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))

def watch():
    while True:
        most.append(memory())
        time.sleep(0.002)

columns = {"obs": ["x_*"], "actions": ["u_*"], "reward": "r", "episode": "run", "step": "t"}
most = [memory()]
threading.Thread(target=watch, daemon=True).start()
convert(sys.argv[1], sys.argv[2], columns=columns)
print(max(most) - most[0])
"""
"""Prints the memory in MiB that a conversion took and that could not be given back to the system at once."""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_memory_does_not_grow_with_the_table(tmp_path: Path) -> None:
    """A few bytes per row are allowed; read whole, each would need hundreds."""
    rng = np.random.default_rng(0)

    def needed(shards: int) -> float:
        folder = tmp_path / f"{shards}"
        folder.mkdir()
        rows = 100_000
        for number in range(shards):
            columns: dict[str, Any] = {f"x_{k}": rng.normal(size=rows).astype(np.float32) for k in range(17)}
            columns |= {f"u_{k}": rng.normal(size=rows).astype(np.float32) for k in range(6)}
            columns |= {"r": rng.normal(size=rows), "run": np.arange(rows) // 1000 + 100 * number}
            parquet.write_table(pa.table({**columns, "t": np.arange(rows) % 1000}), folder / f"{number}.parquet")
        command = [sys.executable, "-c", MEASURE, str(folder), str(tmp_path / f"{shards}.rlt")]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    assert needed(6) - needed(2) < 400_000 * 30 / 2**20
