"""Is it still this design? Imports go one way, and what algorithms may not contain is not there."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from rl_training import algorithms
from rl_training.algorithms import ALGORITHMS

SOURCE = Path(__file__).parents[1] / "src" / "rl_training"
FILES = sorted(SOURCE.rglob("*.py"))

ORDER = (
    *("core", "config", "envs", "data", "models", "compilation", "algorithms", "acting", "storage", "diagnostics"),
    *("ope", "runtime", "policies", "selection", "reports", "experiment", "pipeline", "callbacks", "api", "cli"),
    *("__main__", "__init__"),
)
"""Districts in the order of imports: one may import those before it, never those behind it."""

AGAINST_THE_ORDER = {
    "diagnostics/guards.py": "rl_training.runtime.controls",
    "ope/policies.py": "rl_training.selection.evaluation_data",
    "ope/policy_value.py": "rl_training.selection.evaluation_data",
    "ope/weighted.py": "rl_training.selection.evaluation_data",
    "reports/sweep_folder.py": "rl_training.experiment.sweep",
    "runtime/__init__.py": "rl_training.policies",
    "runtime/assembly.py": "rl_training.selection.evaluation_data",
    "runtime/train.py": "rl_training.policies.saved",
    "storage/checkpoint_schema.py": "rl_training.diagnostics.guards",
}
"""Imports that still point the wrong way."""

THIRD_PARTY_HOMES = {
    "gymnasium": {"envs"},
    "fsspec": {"storage"},
    "h5py": {"data"},
    "minari": {"data"},
    "pyarrow": {"data"},
    "onnx": {"policies"},
    "onnxscript": {"policies"},
    "onnxruntime": {"policies", "assets"},
    "imageio_ffmpeg": {"acting"},
    "mlflow": {"storage"},
    "wandb": {"storage"},
    "matplotlib": {"reports"},
    "jinja2": {"core/text.py"},
    "yaml": {"config.py"},
    "typer": {"cli"},
    "rich": {"cli", "runtime/progress.py"},
    "ray": {"experiment/ray_pool.py"},
    "optuna": {"experiment"},
    "scipy": {"core/statistics.py"},
}
"""Third-party packages that are used in one place only."""

FORBIDDEN_CALLS = {"item", "cpu", "numpy", "tolist", "backward", "print"}
"""Under algorithms: what reads a number, or changes a parameter, outside the one gradient step."""


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""


def _package(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def _name(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_imports_follow_the_order_of_districts(path: Path) -> None:
    district = _package(path)
    if district == "assets":
        return
    for module in _imports(path):
        parts = module.split(".")
        if parts[0] != "rl_training" or len(parts) == 1:
            continue
        in_order = ORDER.index(parts[1]) <= ORDER.index(district)
        assert in_order or module.startswith(AGAINST_THE_ORDER.get(_name(path), "-")), f"{_name(path)} imports {module}"


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_third_party_packages_stay_in_their_places(path: Path) -> None:
    for module in _imports(path):
        homes = THIRD_PARTY_HOMES.get(module.split(".")[0])
        if homes is not None:
            assert _name(path) in homes or _package(path) in homes, f"{_name(path)} imports {module}"


@pytest.mark.parametrize("path", [path for path in FILES if path.parent.name in {"algorithms", "base"}], ids=_name)
def test_algorithms_contain_losses_only(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            assert name not in FORBIDDEN_CALLS, f"{_name(path)}:{node.lineno} calls {name}"
        if isinstance(node, ast.Attribute):
            assert node.attr != "grad" or ast.unparse(node) == "torch.autograd.grad", f"{_name(path)}:{node.lineno}"
    assert not any(module.startswith("torch.optim") for module in _imports(path))


def test_no_module_is_called_by_a_word_that_means_nothing() -> None:
    assert not {path.stem for path in FILES} & {"utils", "helpers", "common", "misc"}


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_every_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


MOST_LINES = 500
MOST_LINES_OF_AN_ALGORITHM = 220


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_files_stay_small(path: Path) -> None:
    is_algorithm = path.parent.name == "algorithms"
    most = MOST_LINES_OF_AN_ALGORITHM if is_algorithm else MOST_LINES
    assert len(path.read_text(encoding="utf-8").splitlines()) <= most


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_an_algorithm_is_a_variant_of_one_other_at_most(name: str) -> None:
    parents = [parent for parent in ALGORITHMS[name].__mro__[1:] if parent in ALGORITHMS.values()]
    assert len(parents) <= 1


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_the_loss_of_an_algorithm_says_what_it_is(name: str) -> None:
    assert inspect.getdoc(getattr(algorithms, f"{name}_loss"))
