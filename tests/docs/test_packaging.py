"""What is in the wheel. `make slow` builds it; `make test` reads what decides on it."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
SOURCES = CHECKOUT / "src" / "rl_training"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The package built without a network, from a copy of the checkout: building leaves files beside the sources."""
    pytest.importorskip("setuptools", minversion="77")
    copy, output = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(CHECKOUT / name, copy)
    shutil.copytree(CHECKOUT / "src", copy / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    options = ["--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", str(output)]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, str(copy)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (path,) = output.glob("*.whl")
    return zipfile.ZipFile(path)


def _text(wheel: zipfile.ZipFile, ending: str) -> str:
    (name,) = [name for name in wheel.namelist() if name.endswith(f".dist-info/{ending}")]
    return wheel.read(name).decode()


def test_files_beside_the_modules_are_named_as_data_and_the_command_is_there() -> None:
    project = pytest.importorskip("tomllib").loads((CHECKOUT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["rl_training"]
    others = {path for path in SOURCES.rglob("*.*") if path.is_file() and path.suffix not in (".py", ".pyc", ".so")}
    assert others == {path for pattern in patterns for path in SOURCES.glob(pattern)} - {*SOURCES.rglob("*.py")}
    module, function = project["project"]["scripts"]["rl-training"].split(":")
    assert callable(getattr(importlib.import_module(module), function))
    assert project["project"]["license"] == "MIT"


@pytest.mark.slow
def test_the_wheel_holds_every_module_the_configs_and_the_marker_of_types(wheel: zipfile.ZipFile) -> None:
    kinds = ("*.py", "*.pyi", "*.h", "*.yaml", "*.json", "*.html", "*.css", "*.mplstyle", "py.typed")
    expected = {path.relative_to(SOURCES.parent).as_posix() for kind in kinds for path in SOURCES.rglob(kind)}

    found = {name for name in wheel.namelist() if ".dist-info/" not in name}

    assert found == expected
    assert {"rl_training/py.typed", "rl_training/assets/configs/td3_bc/pendulum.yaml"} <= found


@pytest.mark.slow
def test_the_wheel_installs_the_command_and_carries_its_licence(wheel: zipfile.ZipFile) -> None:
    assert "rl-training = rl_training.cli:main" in _text(wheel, "entry_points.txt")
    assert "License-Expression: MIT" in _text(wheel, "METADATA")
    assert _text(wheel, "licenses/LICENSE") == (CHECKOUT / "LICENSE").read_text()


@pytest.mark.slow
def test_the_package_in_the_wheel_finds_its_configs(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    script = (
        "import json, rl_training\n"
        "from rl_training.config import load_config, packaged_configs\n"
        "configs = {name: load_config(name).algo for name in packaged_configs()}\n"
        "print(json.dumps([rl_training.__file__, configs]))\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    place, configs = json.loads(done.stdout)
    assert place == str(tmp_path / "rl_training" / "__init__.py")
    folders = {path.relative_to(SOURCES / "assets" / "configs") for path in SOURCES.glob("assets/configs/*/*.yaml")}
    assert configs == {path.with_suffix("").as_posix(): path.parent.name for path in folders}
