"""The command `doctor`: a report that writes nothing, whatever is missing."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from command_line import Command, call_main

from rl_training.diagnostics import doctor


def test_the_command_reports_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CXX", "no-such-compiler")
    for name in ("SHARE_SECONDS", "UPDATE_SECONDS"):
        monkeypatch.setattr(doctor, name, 0.01)
    command: Command = partial(call_main, monkeypatch, capsys)

    code, text, _ = command("doctor")
    assert code == 0
    for words in ("affinity mask", "AVX2", "updates/s, td3_bc", "no C++ compiler found"):
        assert words in text

    code, text, _ = command("doctor", "--json")
    found = json.loads(text)
    assert code == 0
    assert found["cores"]["available"] >= found["threads"] >= 1
    assert set(found["updates_per_second"]) >= {"td3_bc", "iql", "sac"}
    assert found["compiler"]["obstacle"] == "no C++ compiler found (looked for no-such-compiler)"
    assert any(found["compiler"]["obstacle"] in each["what"] for each in found["advice"])
    assert list(tmp_path.iterdir()) == []
