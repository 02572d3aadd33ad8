"""A few broken files of every format, always the same ones; `make fuzz` breaks many more."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from formats import FORMATS, make_files
from fuzzing import run_batch

CASES = 4
"""Broken files of each format."""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of memory is Linux's")
def test_broken_files_of_every_format_are_answered_with_an_error_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", "")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    make_files(tmp_path)
    assert run_batch([(kind, number) for kind in FORMATS for number in range(CASES)], tmp_path) == {}
