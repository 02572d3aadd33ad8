"""Operations on the files of a run that fail: a part of `make faults`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HARNESS = Path(__file__).parents[1] / "endurance" / "faults.py"


@pytest.mark.skipif(sys.platform != "linux", reason="it forks, and uses LD_PRELOAD")
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler (cc)")
def test_a_run_whose_disk_fails_goes_on_or_ends_with_a_sentence() -> None:
    command = [sys.executable, str(HARNESS), "--cases", "bc,sac", "--every", "67"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "'one sentence'" in answer.stdout
    assert "wrong" not in answer.stdout
