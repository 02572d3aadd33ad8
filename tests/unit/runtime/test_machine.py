"""What the command `doctor` finds out about a machine, measures on it, and advises."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rl_training.runtime import machine, machine_speed
from rl_training.runtime.cores import Cores
from rl_training.runtime.machine import EXTRAS, Compiler, Machine, TorchBuild, examine
from rl_training.runtime.machine_advice import advise
from rl_training.runtime.machine_speed import Product, measure_products, measure_updates

CHECKOUT = Path(__file__).parents[3]

GOOD = Machine(
    cores=Cores(8, 8, None),
    torch_threads=8,
    omp_num_threads=None,
    instructions={"AVX2": True, "AVX-512 BF16": False, "AMX": None},
    compiler=Compiler("/usr/bin/g++", "g++ 12", None),
    torch=TorchBuild("2.13.0", "mkl", "3.12.0", None, "AVX2"),
    accelerators=(),
    has_nvidia_driver=False,
    memory=16 * 10**9,
    disk=10**11,
    extras=dict.fromkeys(EXTRAS, True),
)
"""A machine that lacks nothing."""


def products(gain: float, share: float = 1.0) -> list[Product]:
    return [Product(256, "float32", 50.0, share), Product(256, "bfloat16", 50.0 * gain, share)]


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
        (replace(GOOD, cores=Cores(8, 8, 1.5)), products(1), r"allows 1\.5 of 8 cores; runs use 1", "raise it"),
        (replace(GOOD, cores=Cores(8, 2, None), torch_threads=2), products(1), "mask allows 2 of 8", "taskset"),
        (
            replace(GOOD, torch_threads=12, omp_num_threads="12"),
            products(1),
            "OMP_NUM_THREADS=12 is more than the 8 cores .* runs use 8 threads",
            "set OMP_NUM_THREADS=8",
        ),
        (
            replace(GOOD, compiler=Compiler(None, None, "no C++ compiler found")),
            products(1),
            "cannot be compiled: no C",
            r"install g\+\+.* 1\.1 to 1\.4 times as fast",
        ),
        (
            replace(GOOD, compiler=Compiler("g++", "12", "torch 2.5.0 cannot compile a gradient; 2.13 can")),
            products(1),
            "torch 2.5.0 cannot compile",
            "install torch 2.13 or newer",
        ),
        (
            replace(GOOD, compiler=Compiler("g++", "12", "the C++ compiler does not work (no Python.h)")),
            products(1),
            "no Python.h",
            "python3-dev",
        ),
        (replace(GOOD, has_nvidia_driver=True), products(1), "built without CUDA", "install torch with CUDA"),
        (GOOD, products(1, share=0.3), "took 70% of the core", "when the machine is idle"),
        (
            replace(GOOD, instructions={"AVX-512 BF16": True}),
            products(1.9),
            "bfloat16 instructions, .* 1.9 times",
            "precision: bfloat16",
        ),
        (replace(GOOD, memory=10**9), products(1), "1 GB of memory", "mapped form"),
        (replace(GOOD, disk=10**8), products(1), "100 MB are free on disk", "make room"),
        (replace(GOOD, extras={"arrow": False}), products(1), "the extra arrow", r"pip install 'rl-training\[arrow\]'"),
    ],
)
def test_each_lack_is_named_with_what_to_do(found: Machine, measured: list[Product], what: str, how: str) -> None:
    advice = advise(found, measured)
    matching = [each for each in advice if re.search(what, each.what)]

    assert len(matching) == 1, advice
    assert re.search(how, matching[0].how)


@pytest.mark.parametrize(
    ("found", "measured"),
    [
        (GOOD, products(2.0)),
        (replace(GOOD, instructions={"AVX-512 BF16": True}), products(0.9)),
        (replace(GOOD, torch=TorchBuild("2.13", "mkl", None, "12.8", "AVX2"), has_nvidia_driver=True), products(1)),
        (replace(GOOD, torch_threads=1, omp_num_threads="1", memory=None), ()),
    ],
)
def test_nothing_is_advised_where_nothing_is_gained(found: Machine, measured: Sequence[Product]) -> None:
    assert advise(found, measured) == []


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
    assert found.torch.version == torch.__version__


def test_a_compiler_without_headers_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = broken(tmp_path / "g++", "fatal error: Python.h: No such file or directory")
    monkeypatch.setenv("CXX", str(path))
    # It would let torch's compiler remember the broken one for the rest of this process.
    monkeypatch.setattr(machine, "missing_for_compiling", lambda: None)

    compiler = examine(tmp_path).compiler

    assert compiler.path == str(path)
    assert compiler.obstacle == ("the C++ compiler does not work (fatal error: Python.h: No such file or directory)")


def test_speed_is_measured_for_as_long_as_is_asked() -> None:
    found = measure_products(seconds=0.01)

    assert [(each.size, each.dtype) for each in found] == [
        (size, dtype) for size in (256, 1024) for dtype in ("float32", "bfloat16")
    ]
    assert all(each.gflops > 0 and math.isfinite(each.gflops) and 0 < each.core_share <= 1 for each in found)
    assert all(measure_updates(algo, seconds=0.01) > 0 for algo in machine_speed.ALGOS)
