"""Files that lie, loop or never end: one clear message, status 2, little memory, and nothing in them is run."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from command_line import Answer
from conftest import transitions

from rl_training import cli

HUGE = 10**12
"""Elements that a header claims."""
MORE_MEMORY = 1 << 30
"""Bytes of address space that a command may take beside what this process has."""
PATIENCE = 300
"""Seconds after which a command hangs."""
COLUMNS = ("--obs-columns", "x_*", "--action-columns", "a", "--reward-column", "r", "--episode-column", "run")


class Trap:
    """An object that leaves a file behind when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.marker,)


def run_bounded(folder: Path, *arguments: str | Path) -> Answer:
    """The command in a copy of this process that may take little more memory and time."""
    out, err = folder / "stdout.txt", folder / "stderr.txt"
    child = os.fork()
    if child == 0:
        for stream, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + MORE_MEMORY, resource.RLIM_INFINITY))
        sys.argv = ["rl-training", *map(str, arguments)]
        try:
            cli.main()
        except SystemExit as end:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(end.code if isinstance(end.code, int) else 0)
        except BaseException as error:
            print(f"Traceback: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(99)
    deadline = time.monotonic() + PATIENCE
    while os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.02)
    status = os.waitpid(child, 0)[1]
    code = os.waitstatus_to_exitcode(status)
    return Answer(code, out.read_text(), err.read_text())


def claiming_npz(path: Path) -> None:
    header: Any = {"descr": "<f4", "fortran_order": False, "shape": (HUGE, 1)}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("observations", "actions", "rewards", "terminals"):
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array_header_1_0(file, header)
                file.write(bytes(1000))


def zip_bomb(path: Path) -> None:
    """A few megabytes that really are two gigabytes of zeros."""
    rows = 1 << 29
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in ("observations", "actions", "rewards", "terminals"):
            count = rows if name == "observations" else 1
            header: Any = {"descr": "<f4", "fortran_order": False, "shape": (count, 1)}
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array_header_1_0(file, header)
                for start in range(0, 4 * count, 1 << 24):
                    file.write(bytes(min(1 << 24, 4 * count - start)))


def npz(path: Path, **changes: Any) -> None:
    np.savez(path, **{**transitions(), **changes})


def hdf5(path: Path, change: Callable[[h5py.File], None]) -> None:
    with h5py.File(path, "w") as file:
        for name, array in transitions().items():
            file[name] = array
        change(file)


def claiming_hdf5(file: h5py.File) -> None:
    del file["observations"]
    # Chunks that are never written take no room.
    file.create_dataset("observations", shape=(HUGE, 1), chunks=(1024, 1), dtype="f4")


def external_link(file: h5py.File) -> None:
    del file["observations"]
    file["observations"] = h5py.ExternalLink("elsewhere.h5", "/observations")


def external_numbers(file: h5py.File) -> None:
    del file["observations"]
    file.create_dataset("observations", shape=(60, 3), dtype="f4", external=[("/dev/zero", 0, 720)])


def soft_link_loop(file: h5py.File) -> None:
    del file["observations"]
    file["observations"] = h5py.SoftLink("/other")
    file["other"] = h5py.SoftLink("/observations")


def group_loop(file: h5py.File) -> None:
    del file["observations"]
    file.create_group("observations")["inside"] = file["/"]


def claiming_pt(path: Path) -> None:
    torch.save({name: torch.zeros(1, 1).expand(HUGE, 1) for name in ("obs", "actions")}, path)


def claiming_episodes(path: Path) -> None:
    steps = {"observations": torch.zeros(1, 1).expand(HUGE + 1, 1), "actions": torch.zeros(1, 1).expand(HUGE, 1)}
    torch.save([{**steps, "rewards": torch.zeros(1).expand(HUGE)}], path)


def claiming_mapped(path: Path) -> None:
    path.mkdir()
    names = ("obs", "actions", "rewards", "next_obs", "dones", "truncations")
    columns = {}
    for name in names:
        (path / f"{name}.bin").write_bytes(bytes(1000))
        columns[name] = {"file": f"{name}.bin", "dtype": "float32", "shape": [1], "size": 1000, "mtime_ns": 0}
    index = {"version": 2, "rows": HUGE, "num_dropped": 0, "notes": [], "fingerprint": "0", "columns": columns}
    (path / "index.json").write_text(json.dumps(index))


def truncated_parquet(path: Path) -> None:
    pq.write_table(pa.table({"x_0": np.zeros(5000), "a": np.zeros(5000)}), path)
    path.write_bytes(path.read_bytes()[:-2000])


def repeating_parquet(path: Path) -> None:
    """A few kilobytes that really are fifty million equal numbers."""
    schema = pa.schema([("x_0", pa.float64()), ("a", pa.float64()), ("r", pa.float64()), ("run", pa.int64())])
    part = pa.table({field.name: np.zeros(1 << 22, dtype=field.type.to_pandas_dtype()) for field in schema})
    with pq.ParquetWriter(path, schema) as writer:
        for _ in range(3):
            writer.write_table(part, row_group_size=1 << 22)


def text_cell(path: Path) -> None:
    rows = [f"{run},{step / 10},{step},1" for run in range(3) for step in range(20)]
    rows[17] = "0,broken,17,1"
    path.write_text("\n".join(["run,x_0,a,r", *rows]))


def many_columns(path: Path) -> None:
    names = [f"y_{k}" for k in range(10_000)]
    path.write_text("\n".join([",".join(["run", "a", "r", *names]), *[",".join(["1"] * 10_003)] * 3]))


def link_loop(path: Path) -> None:
    other = path.with_name(f"other{path.suffix}")
    other.symlink_to(path)
    path.symlink_to(other)


HOSTILE: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "npz that claims": ("log.npz", claiming_npz, "claims shape (1000000000000, 1)"),
    "npz that is a bomb": ("log.npz", zip_bomb, "holds 2.0 GiB of arrays"),
    "npz that is empty": ("log.npz", Path.touch, "is not a readable .npz file"),
    "npz that is a folder": ("log.npz", Path.mkdir, "is a folder, expected a file"),
    "npz that is a pipe": ("log.npz", os.mkfifo, "is neither a file nor a folder"),
    "npz that links to itself": ("log.npz", link_loop, "is a link that leads nowhere"),
    "npy": ("log.npy", Path.touch, "has none of the endings"),
    "hdf5 that claims": ("log.hdf5", lambda path: hdf5(path, claiming_hdf5), "GiB of arrays"),
    "hdf5 with an external link": ("log.hdf5", lambda path: hdf5(path, external_link), "is a link to another file"),
    "hdf5 with numbers elsewhere": ("log.hdf5", lambda path: hdf5(path, external_numbers), "in another file"),
    "hdf5 with a loop of links": ("log.hdf5", lambda path: hdf5(path, soft_link_loop), "'obs' is missing"),
    "hdf5 with a loop of groups": ("log.hdf5", lambda path: hdf5(path, group_loop), "'obs' is missing"),
    "hdf5 that is empty": ("log.hdf5", Path.touch, "is not a readable HDF5 file"),
    "hdf5 that is a pipe": ("log.hdf5", os.mkfifo, "is neither a file nor a folder"),
    "pt that claims": ("log.pt", claiming_pt, "GiB of arrays"),
    "pt that claims episodes": ("log.pt", claiming_episodes, "GiB of arrays"),
    "pt that is empty": ("log.pt", Path.touch, "is not a readable .pt file"),
    "mapped that claims": ("log.rlt", claiming_mapped, "1000 bytes, expected 4000000000000"),
    "mapped that is empty": ("log.rlt", Path.mkdir, "has no index.json"),
    "parquet that is cut": ("log.parquet", truncated_parquet, "it may be truncated"),
    "parquet that repeats": ("log.parquet", repeating_parquet, "GiB of arrays"),
    "parquet that is empty": ("log.parquet", Path.touch, "it may be truncated"),
    "parquet that is a pipe": ("log.parquet", os.mkfifo, "is neither a file nor a folder"),
    "csv with text": ("log.csv", text_cell, "column 'x_0' must hold numbers, got 'broken' in row 18"),
    "csv with many columns": ("log.csv", many_columns, "'x_*'"),
    "csv that is empty": ("log.csv", Path.touch, "log.csv"),
    "csv that is a pipe": ("log.csv", os.mkfifo, "is neither a file nor a folder"),
    "csv that links to itself": ("log.csv", link_loop, "is a link that leads nowhere"),
}


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of memory is Linux's")
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_is_one_message_in_little_memory(tmp_path: Path, kind: str) -> None:
    name, make, message = HOSTILE[kind]
    make(tmp_path / name)
    columns = COLUMNS if name.endswith((".csv", ".parquet")) else ()
    answer = run_bounded(tmp_path, "data", "audit", tmp_path / name, *columns)
    assert (answer.code, answer.out) == (2, ""), answer.err
    assert answer.err.startswith("error: ")
    assert message in answer.err
    assert answer.err.count("\n") == 1
    assert len(answer.err) < 1000


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of memory is Linux's")
@pytest.mark.parametrize("name", ["log.pt", "log.npz"])
def test_code_in_a_file_is_not_run(tmp_path: Path, name: str) -> None:
    marker = tmp_path / "ran"
    if name == "log.pt":
        torch.save({"rewards": Trap(marker)}, tmp_path / name)
    else:
        npz(tmp_path / name, rewards=np.array([Trap(marker)], dtype=object))
    for words in (("data", "audit"), ("train", "bc", "--out", tmp_path / "runs", "--data")):
        answer = run_bounded(tmp_path, *words, tmp_path / name)
        assert (answer.code, answer.err.count("\n")) == (2, 1), answer.err
    assert not marker.exists()
    assert not (tmp_path / "runs").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of memory is Linux's")
def test_ten_thousand_columns_are_audited_in_little_memory(tmp_path: Path) -> None:
    rows = 500
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(rows, 10_000)).astype(np.float32)
    arrays: dict[str, Any] = {
        "observations": obs,
        "actions": rng.uniform(-1, 1, (rows, 1)),
        "rewards": rng.normal(size=rows),
    }
    np.savez(tmp_path / "log.npz", **arrays, terminals=np.zeros(rows), timeouts=np.arange(1, rows + 1) % 50 == 0)
    answer = run_bounded(tmp_path, "data", "audit", tmp_path / "log.npz", "--json")
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["verdict"] == "warn"
