"""Where compiled graphs are kept: who may write there, and what a killed linker leaves."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._filelock import FileLock

from rl_training.compilation.graphs import FOLDER, use_private_folder
from rl_training.core.errors import ConfigError

posix = pytest.mark.skipif(os.name != "posix", reason="owners and modes are POSIX")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(FOLDER, str(tmp_path / "graphs"))
    return tmp_path / "graphs"


@posix
def test_a_new_folder_is_the_users_alone(folder: Path) -> None:
    use_private_folder()

    assert os.environ[FOLDER] == str(folder)
    assert folder.stat().st_mode & 0o777 == 0o700


@posix
@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_folder_that_others_can_write_to_is_not_used(folder: Path, mode: int) -> None:
    folder.mkdir()
    folder.chmod(mode)

    use_private_folder()

    assert os.environ[FOLDER] == f"{folder}_private"
    assert Path(f"{folder}_private").stat().st_mode & 0o777 == 0o700


@posix
def test_a_folder_of_another_user_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    me = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)

    with pytest.raises(ConfigError, match=f"other users can write to .*{folder}; name another in {FOLDER}"):
        use_private_folder()


@posix
def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(FOLDER, str(tmp_path / "file" / "graphs"))

    with pytest.raises(ConfigError, match=r"folder of compiled graphs .*/file/graphs cannot be made: Not a directory"):
        use_private_folder()


@posix
@pytest.mark.skipif(sys.platform != "linux", reason="libraries are ELF files on Linux")
def test_half_a_library_is_deleted_unless_somebody_is_writing_it(folder: Path) -> None:
    (folder / "ab").mkdir(parents=True, mode=0o700)
    folder.chmod(0o700)
    (folder / "locks").mkdir()
    whole, half, empty, in_the_making = (folder / "ab" / f"{name}.so" for name in ("whole", "half", "empty", "made"))
    for library in (whole, half, in_the_making):
        shutil.copy(torch._C.__file__, library)
    for library in (half, in_the_making):
        os.truncate(library, library.stat().st_size // 2)
    empty.touch()

    with FileLock(str(folder / "locks" / "made.lock")):
        use_private_folder()

    assert sorted((folder / "ab").iterdir()) == [in_the_making, whole]


START = """
import json, sys, torch
from torch._dynamo.utils import counters
from rl_training.algorithms import ALGORITHMS
from rl_training.core.spaces import BoxActions, SpaceSpec

torch.set_num_threads(1)
digests = []
for seed in map(int, sys.argv[1:]):
    torch.manual_seed(seed)
    cls = ALGORITHMS["td3_bc"]
    algorithm = cls.build(SpaceSpec.vector(4, BoxActions((-1.0,), (1.0,))), cls.hyper_class(hidden_sizes=(16, 16)))
    algorithm.compile_steps()
    for _ in range(4):
        shapes = {"obs": (8, 4), "actions": (8, 1), "rewards": (8,), "next_obs": (8, 4), "dones": (8,)}
        algorithm.update({name: torch.rand(shape) for name, shape in shapes.items()})
    digests.append(sum(value.double().sum().item() for value in algorithm.parameters()))
found = counters["aot_autograd"]
print(json.dumps([digests, found["autograd_cache_hit"], found["autograd_cache_miss"]]))
"""


def _start(folder: Path, *seeds: int) -> Any:
    command = [sys.executable, "-c", START, *map(str, seeds)]
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(folder)}
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    return json.loads(output.splitlines()[-1])


@pytest.mark.slow
def test_a_second_start_reads_the_graphs_of_the_first_and_learns_the_same(tmp_path: Path) -> None:
    (first, _), hits, misses = _start(tmp_path / "graphs", 0, 1)
    # The second run in one process reads what the first has compiled.
    assert (hits, misses) == (2, 2)

    assert _start(tmp_path / "graphs", 0) == [[first], 2, 0]
    for library in (tmp_path / "graphs").glob("*/*.main.so"):
        os.truncate(library, library.stat().st_size // 2)
    assert _start(tmp_path / "graphs", 0) == [[first], 2, 0]
