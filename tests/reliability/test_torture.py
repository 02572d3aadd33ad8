"""Runs that are killed at what they do to files, or whose disk fails: parts of `make torture` and `make faults`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HARNESS = Path(__file__).parents[1] / "endurance" / "torture.py"

forks = pytest.mark.skipif(sys.platform != "linux", reason="it forks, and reads /proc")


def torture(*options: str, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(HARNESS), *options, "--out", str(out)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@forks
def test_runs_killed_at_operations_on_their_files_end_as_if_they_had_not_been(tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"

    answer = torture("--cases", "bc,sac", "--kills", "18", "--random", "0", "--double", "2", out=out)

    assert answer.returncode == 0, answer.stdout + answer.stderr
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert sum(row["killed"] for row in rows) >= 40
    assert {row["moment"] for row in rows} == {"before", "middle", "after"}
    assert not [row for row in rows if row["lost"] or row["different"] or row["left"]]
    # What is in the file is not done again.
    again = torture("--cases", "bc", "--kills", "18", "--random", "0", "--double", "2", out=out)
    assert again.stdout.splitlines()[0] == answer.stdout.splitlines()[0]
    assert len(out.read_text().splitlines()) == len(rows) == 40


FAULTS = Path(__file__).parents[1] / "endurance" / "faults.py"


@pytest.mark.skipif(sys.platform != "linux", reason="it forks, and uses LD_PRELOAD")
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler (cc)")
def test_a_run_whose_disk_fails_continues_or_ends_with_a_sentence() -> None:
    command = [sys.executable, str(FAULTS), "--cases", "bc,sac", "--every", "67"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "'one sentence'" in answer.stdout
    assert "wrong" not in answer.stdout
