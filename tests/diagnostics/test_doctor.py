"""What the command `doctor` finds out about a machine, measures on it, and advises."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rl_training.core.machine import Cores
from rl_training.diagnostics import doctor
from rl_training.diagnostics.doctor import (
    ALGOS,
    EXTRAS,
    Compiler,
    Machine,
    MachineSpeed,
    advise,
    examine,
    measure_speed,
)

CHECKOUT = Path(__file__).parents[2]

GOOD = Machine(
    cores=Cores(8, 8, None),
    threads=8,
    torch_threads=8,
    omp_num_threads=None,
    instructions={"AVX2": True, "AVX-512 BF16": False, "AMX": None},
    compiler=Compiler("/usr/bin/g++", "g++ 12", None),
    torch={"version": "2.13.0", "blas": "mkl", "onednn": "3.12.0", "cuda": None, "kernels": "AVX2"},
    accelerators=(),
    has_nvidia_driver=False,
    memory=16 * 10**9,
    disk=10**11,
    extras=dict.fromkeys(EXTRAS, True),
)
"""A machine that lacks nothing."""


def speed(gain: float | None = None, share: float = 1.0) -> MachineSpeed:
    """What was measured, with how many times the speed in bfloat16; None where that was not measured."""
    rates = dict.fromkeys(ALGOS, 50.0)
    return MachineSpeed(share, rates if gain is None else {**rates, "td3_bc in bfloat16": 50.0 * gain})


def broken(path: Path, text: str) -> Path:
    """A compiler that refuses everything with this message."""
    path.write_text(f'#!/bin/sh\necho "{text}" >&2\nexit 1\n')
    path.chmod(0o755)
    return path


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")


@pytest.mark.parametrize(
    ("found", "measured", "what", "how"),
    [
        (replace(GOOD, cores=Cores(8, 8, 1.5), threads=1), speed(), r"allows 1\.5 of 8 cores; runs use 1", "raise it"),
        (replace(GOOD, cores=Cores(8, 2, None), torch_threads=2), speed(), "mask allows 2 of 8", "taskset"),
        (
            replace(GOOD, torch_threads=12, omp_num_threads="12"),
            speed(),
            "OMP_NUM_THREADS=12 is more than the 8 cores .* runs use 8 threads",
            "set OMP_NUM_THREADS=8",
        ),
        (
            replace(GOOD, compiler=Compiler(None, None, "no C++ compiler found")),
            speed(),
            "cannot be compiled: no C",
            r"install g\+\+.* 1\.1 to 1\.4 times as fast",
        ),
        (
            replace(GOOD, compiler=Compiler("g++", "12", "torch 2.5.0 cannot compile a gradient; 2.13 can")),
            speed(),
            "torch 2.5.0 cannot compile",
            "install torch 2.13 or newer",
        ),
        (
            replace(GOOD, compiler=Compiler("g++", "12", "the C++ compiler does not work (no Python.h)")),
            speed(),
            "no Python.h",
            "python3-dev",
        ),
        (replace(GOOD, has_nvidia_driver=True), speed(), "built without CUDA", "install torch with CUDA"),
        (GOOD, speed(share=0.3), "took 70% of the core", "when the machine is idle"),
        (GOOD, speed(1.9), r"bfloat16 instructions: .* td3_bc with them are 1\.9 times", "precision: bfloat16"),
        (replace(GOOD, memory=10**9), speed(), "1 GB of memory", "mapped form"),
        (replace(GOOD, disk=10**8), speed(), "100 MB are free on disk", "make room"),
        (replace(GOOD, extras={"arrow": False}), speed(), "the extra arrow", r"pip install 'rl-training\[arrow\]'"),
    ],
)
def test_each_lack_is_named_with_what_to_do(found: Machine, measured: MachineSpeed, what: str, how: str) -> None:
    advice = advise(found, measured)
    matching = [each for each in advice if re.search(what, each.what)]

    assert len(matching) == 1, advice
    assert re.search(how, matching[0].how)


@pytest.mark.parametrize(
    ("found", "measured"),
    [
        (GOOD, speed()),
        (GOOD, speed(0.9)),
        (replace(GOOD, torch={**GOOD.torch, "cuda": "12.8"}, has_nvidia_driver=True), speed()),
        (replace(GOOD, threads=1, torch_threads=1, omp_num_threads="1", memory=None), speed()),
    ],
)
def test_nothing_is_advised_where_nothing_is_gained(found: Machine, measured: MachineSpeed) -> None:
    assert advise(found, measured) == []


def test_a_speed_that_was_measured_on_a_busy_machine_advises_nothing_else() -> None:
    (advice,) = advise(GOOD, speed(1.9, share=0.3))

    assert "other programs" in advice.what


def test_the_extras_are_those_of_the_package() -> None:
    text = (CHECKOUT / "pyproject.toml").read_text(encoding="utf-8")
    table = text.split("[project.optional-dependencies]")[1].split("[project.scripts]")[0]

    assert set(EXTRAS) == set(re.findall(r"^(\w+) = \[", table, flags=re.MULTILINE)) - {"dev", "docs", "peers"}


@pytest.mark.usefixtures("no_compiler")
def test_a_torch_that_does_not_know_its_instructions_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> bool:
        raise RuntimeError("built without it")

    monkeypatch.delattr(torch.cpu, "_is_amx_tile_supported", raising=False)
    monkeypatch.setattr(torch.cpu, "_is_avx2_supported", refuse, raising=False)

    found = examine(tmp_path)

    assert (found.instructions["AMX"], found.instructions["AVX2"]) == (None, None)
    assert found.compiler == Compiler(None, None, "no C++ compiler found (looked for no-such-compiler)")
    assert found.torch["version"] == torch.__version__


def test_a_compiler_without_headers_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = broken(tmp_path / "g++", "fatal error: Python.h: No such file or directory")
    monkeypatch.setenv("CXX", str(path))
    # It would let torch's compiler remember the broken one for the rest of this process.
    monkeypatch.setattr(doctor, "missing_for_compiling", lambda: None)

    compiler = examine(tmp_path).compiler

    assert compiler.path == str(path)
    assert compiler.obstacle == ("the C++ compiler does not work (fatal error: Python.h: No such file or directory)")


@pytest.mark.parametrize("has_bfloat16", [True, False])
def test_updates_are_measured_in_bfloat16_too_where_it_is_not_emulated(
    has_bfloat16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "SHARE_SECONDS", 0.01)
    monkeypatch.setattr(doctor, "UPDATE_SECONDS", 0.01)
    monkeypatch.setattr(doctor, "has_bfloat16", lambda device: has_bfloat16)
    shown: list[str] = []

    found = measure_speed(shown.append)

    names = [*ALGOS, *(["td3_bc in bfloat16"] if has_bfloat16 else [])]
    assert [*found.updates_per_second] == names
    assert shown == [f"measuring updates of {name}" for name in names]
    assert 0 < found.core_share <= 1
    assert min(found.updates_per_second.values()) > 0
