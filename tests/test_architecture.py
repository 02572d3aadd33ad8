"""The rules of the house: the order of districts, their fronts, their budgets, and what has one place only."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from lines import code_lines

from rl_training import algorithms
from rl_training.algorithms import ALGORITHMS

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "rl_training"
FILES = sorted(SOURCE.rglob("*.py"))

ORDER = (
    *("core", "config", "envs", "data", "models", "compilation", "algorithms", "acting", "storage", "diagnostics"),
    *("ope", "runtime", "policies", "selection", "reports", "experiment", "pipeline", "callbacks", "api", "cli"),
    *("__main__", "__init__"),
)
"""Districts and single files in the order of imports: each may import those before it, never those behind it."""

AGAINST_THE_ORDER = {
    ("runtime/__init__.py", "rl_training.policies"),
    ("runtime/__init__.py", "rl_training.policies.export"),
}
"""`rl_training.runtime` offers `load_policy` and `export_policy`, which users were promised there."""

SUB_DISTRICTS = {
    *("data/files", "data/tables", "data/replay", "data/audit", "compilation/kernels", "algorithms/base"),
    *("policies/export", "reports/page", "cli/display"),
}

WITHOUT_SURFACE = {SOURCE / "core", SOURCE / "cli" / "display", SOURCE / "api"}
"""Folders without a list of names: `core` is a library, whose files are imported, the displays belong to the commands
alone, and `api` has a class for every algorithm that is registered."""

BUDGETS = {
    "acting": 620,
    "algorithms": 1850,
    "algorithms/base": 770,
    "api": 180,
    "assets/export": 170,
    "cli": 2070,
    "cli/display": 360,
    "compilation": 180,
    "compilation/kernels": 440,
    "core": 1590,
    "data": 1990,
    "data/audit": 1390,
    "data/files": 630,
    "data/replay": 720,
    "data/tables": 1300,
    "diagnostics": 670,
    "envs": 1150,
    "experiment": 1440,
    "models": 1380,
    "ope": 1380,
    "pipeline": 1120,
    "policies": 360,
    "policies/export": 620,
    "reports": 1240,
    "reports/page": 1550,
    "root": 290,
    "runtime": 2650,
    "selection": 1180,
    "storage": 1640,
}
"""Code lines that a folder may have, about a tenth above what it has. A new capability raises its budget on purpose.

The loops of compiled graphs are frozen: they get no room.
"""

MOST_FILES = 15
MOST_LINES = 500
MOST_LINES_OF_AN_ALGORITHM = 220
FEWEST_CODE_LINES = 40
SMALL = {"core/signals.py", "models/initializers.py", "models/mlp_bear.py", "callbacks.py", "__main__.py"}
"""Files that are complete in fewer lines, or whose import path is promised."""

PARTICIPLES = {"collecting", "compiling", "fine_tuning", "ranking", "rendering", "saving"}
"""The only file names that end with -ing: what a file does is named by a noun elsewhere."""

ONE_STEM = {"callbacks", "config", "discrete", "files", "rewards"}
"""File names that several districts may have: the folder completes the word."""

OFFERED_AGAIN = {
    "rl_training.runtime": "EvaluationResult Export Policy SavedPolicy collect evaluate evaluate_policy export_policy "
    "fetch_run load_policy normalized_score predict",
    "rl_training.experiment": "TrainConfig export_with_report plot_curves read_runs report_content summarize "
    "write_report",
}
"""Names of other districts that users were promised in these fronts."""

MODULES_OFFERED = {
    "rl_training.algorithms.base": {"losses"},
    "rl_training.ope": {"importance", "intervals", "weights"},
}
"""Modules that a front offers whole: libraries of formulas, which are read with the name of the module."""

THIRD_PARTY_HOMES = {
    "gymnasium": ("envs/", "data/files/minari.py"),
    "gymnasium_robotics": ("envs/factory.py",),
    "fsspec": ("storage/upload.py",),
    "h5py": ("data/files/hdf5.py",),
    "minari": ("data/files/minari.py",),
    "pyarrow": ("data/tables/",),
    "onnx": ("policies/export/graph.py",),
    "onnxruntime": ("policies/export/", "assets/export/"),
    "imageio_ffmpeg": ("acting/video.py",),
    "mlflow": ("storage/sinks.py",),
    "wandb": ("storage/sinks.py",),
    "matplotlib": ("reports/plots.py", "reports/data_plot.py", "reports/tune_plot.py"),
    "jinja2": ("core/text.py",),
    "yaml": ("config.py",),
    "typer": ("cli/",),
    "rich": ("cli/display/", "runtime/progress.py"),
    "ray": ("experiment/ray_pool.py",),
    "optuna": ("experiment/tune_spec.py",),
    "scipy": ("core/statistics.py",),
}
"""Third-party packages that are used in one place only: files, or folders with all that they hold."""

ONE_PLACE = {
    r"\.parent\.parent\b": "storage/",
    r"\b2\*\*[23]0\b|/ ?(60|3600)\b": "core/",
    r"write_text\([^,]*, json\.dumps": "core/files.py",
    r"np\.histogram\(": "core/statistics.py",
}
"""What only one place may do: derive the run of a checkpoint from its path, turn sizes and durations into text, write
JSON files, count values in bins."""

FORBIDDEN_CALLS = {"item", "cpu", "numpy", "tolist", "backward", "print"}
"""Under algorithms: what reads a number, or changes a parameter, outside the one gradient step."""

BANNED_WORDS = re.compile(
    r"\b(whoever|nobody|somebody|someone|anybody|its like|go on|goes on|going on|went on|choices)\b", re.IGNORECASE
)
SWEEP_WORDS = re.compile(r"^Cell|(^|_)(cells?|swept)(_|$)")
"""Names that a point of a sweep had."""
WORDS_LEFT = {
    "assets/page/behavior.html": 1,
    "cli/display/options.py": 3,
    "data/infer_spaces.py": 1,
    "data/offline_mixers.py": 1,
    "data/tables/arrow.py": 1,
    "data/tables/columns.py": 2,
    "data/tables/to_fields.py": 2,
    "docs/discrete_actions.md": 3,
    "docs/tables.md": 1,
    "policies/export/description.py": 1,
    "policies/novelty_check.py": 2,
    "reports/page/actions.py": 1,
    "runtime/run_data.py": 2,
    "selection/evaluation_data.py": 1,
}
"""Uses of these words that are left, by file: `choices` is an option of tables. The numbers may only shrink."""

MODULE = re.compile(r"rl_training(\.[a-z_]+)+")
"""A module in a string, as `import_module` takes it."""

FENCED = re.compile(r"^ *```python\n(.*?)^ *```", re.DOTALL | re.MULTILINE)

PROMISED_PATHS = {
    "config": "TrainConfig",
    "data.offline_dataset": "TransitionDataset sample_trajectory_windows",
    "data.dataset_loaders": "load_transition_dataset",
    "data.offline_mixers": "mix_transition_datasets",
    "envs.rewards": "RewardScaleWrapper RewardShiftWrapper RewardClipWrapper",
    "runtime.schedules": "ScheduleSpec resolve_schedule_value",
    "runtime.controls": "ControlOptions EarlyStoppingConfig",
    "runtime.callbacks": "Callback EarlyStoppingCallback",
    "runtime.trainer": "TrainerState TrainResult",
    "models.mlp_bcq": "BehaviorVAE MLPBCQModel",
    "models.mlp_bear": "MLPBEARModel",
    "experiment.registry": "AlgorithmSpec get_algorithm_spec",
    "experiment.manager": "ExperimentManager",
    "api.algorithms": "ManagedAlgorithm",
    **{f"algorithms.{name}": algorithm.__name__ for name, algorithm in ALGORITHMS.items()},
}
"""Import paths that stay, and names that are defined there."""


FILES_LEFT = {
    "acting": 3, "algorithms": 5, "benchmarks": 7, "cli": 11, "conftest": 1, "core": 3, "docs": 1, "endurance": 1,
    "fixtures": 1, "fuzz": 5, "ope": 1, "parity": 2, "pipeline": 1, "reliability": 4, "reports": 1, "runtime": 5,
    "selection": 2, "storage": 1, "support": 3,
}  # fmt: skip
"""Imports of files of other districts, by folder of programs and tests. The numbers may only shrink."""


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import of {node.module}"
            yield node.module or ""


@cache
def _offered(front: Path) -> list[str]:
    """Names in the literal `__all__` of a front."""
    for node in _tree(front).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name.value) for name in ast.walk(node.value) if isinstance(name, ast.Constant)]
    return []


def _own_imports(path: Path) -> Iterator[tuple[str, str]]:
    """Modules of the package that a file imports, or a front looks up, each with its district or single file."""
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.ImportFrom):
            folder = ROOT / "src" / (node.module or "").replace(".", "/")
            files = [
                alias.name
                for alias in node.names
                if ((folder / f"{alias.name}.py").exists() or (folder / alias.name).is_dir())
                and (folder == path.parent or alias.name not in _offered(folder / "__init__.py"))
            ]
            modules = [f"{node.module}.{name}" for name in files] or [node.module or ""]
        elif isinstance(node, ast.Constant) and path.name == "__init__.py" and MODULE.fullmatch(str(node.value)):
            modules = [str(node.value)]
        else:
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for module in modules:
            parts = module.split(".")
            if parts[0] == "rl_training" and len(parts) > 1:
                yield module, parts[1]


def _name(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def _district(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def _budget_of(path: Path) -> str:
    """The district or sub-district that a file's lines count for; the root has one for its single files."""
    folder = path.parent.relative_to(SOURCE).as_posix()
    return {".": "root"}.get(folder, folder)


def _is_front(module: str) -> bool:
    inside = module.removeprefix("rl_training.").replace(".", "/")
    return "/" not in inside or inside in SUB_DISTRICTS


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_imports_follow_the_order_of_districts(path: Path) -> None:
    if _district(path) == "assets":
        return
    for module, district in _own_imports(path):
        in_order = ORDER.index(district) <= ORDER.index(_district(path))
        assert in_order or (_name(path), module) in AGAINST_THE_ORDER, f"{_name(path)} imports {module}"


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_another_district_is_imported_through_its_front_and_the_own_one_file_by_file(path: Path) -> None:
    room = path.parent.relative_to(SOURCE).as_posix()
    for module, district in _own_imports(path):
        inside = module.removeprefix("rl_training.").replace(".", "/")
        if district == "core":
            continue
        if inside == room:
            assert path.name == "__init__.py", f"{_name(path)} imports its own front"
        elif not inside.startswith(f"{room}/") and not inside.startswith(f"{_district(path)}/"):
            assert _is_front(module), f"{_name(path)} imports the file {module}"


def test_every_front_lists_its_names() -> None:
    fronts = [front for front in SOURCE.rglob("*/__init__.py") if front.parent not in WITHOUT_SURFACE]
    assert not [_name(front) for front in fronts if not _offered(front)]


def _fronts() -> Iterator[tuple[str, set[str]]]:
    """Fronts with the names that each offers, except that of the package, which collects names of others."""
    for front in {path.parent for path in SOURCE.rglob("*/__init__.py")} - WITHOUT_SURFACE:
        module = ".".join(["rl_training", *front.relative_to(SOURCE).parts])
        yield module, set(import_module(module).__all__)


def test_a_name_is_offered_by_one_front() -> None:
    offered = defaultdict(set)
    for module, names in _fronts():
        again = set(OFFERED_AGAIN.get(module, "").split())
        assert again <= names, f"{module} no longer offers these: say so in OFFERED_AGAIN"
        for name in names - again:
            offered[name].add(module)
    # A district may offer what its own rooms offer.
    twice = {name: sorted(homes) for name, homes in offered.items() if len({home.split(".")[1] for home in homes}) > 1}
    assert not twice


def test_fronts_offer_no_files_but_libraries_of_formulas() -> None:
    for module, names in _fronts():
        files = {name for name in names if inspect.ismodule(getattr(import_module(module), name))}
        assert files == MODULES_OFFERED.get(module, set())


def test_districts_keep_their_budgets() -> None:
    lines: Counter[str] = Counter()
    files = defaultdict(list)
    for path in FILES:
        lines[_budget_of(path)] += code_lines(path)
        files[_budget_of(path)].append((code_lines(path), path.name))
    assert set(lines) == set(BUDGETS), "a new folder needs a budget, a front and a place in the order"
    over = [name for name in lines if lines[name] > BUDGETS[name]]
    assert not over, [f"{name}: {lines[name]} of {BUDGETS[name]}; {sorted(files[name])[-5:]}" for name in over]


def test_folders_and_files_have_sizes_that_can_be_read() -> None:
    folders = Counter(path.parent for path in FILES)
    assert not {_name(folder): n for folder, n in folders.items() if n > MOST_FILES and folder.name != "algorithms"}
    too_long = {}
    too_short = {}
    for path in FILES:
        is_algorithm = path.parent.name == "algorithms"
        most = MOST_LINES_OF_AN_ALGORITHM if is_algorithm else MOST_LINES
        if (n := len(path.read_text(encoding="utf-8").splitlines())) > most:
            too_long[_name(path)] = n
        may_be_small = is_algorithm or path.name == "__init__.py" or _name(path) in SMALL
        if not may_be_small and (n := code_lines(path)) < FEWEST_CODE_LINES:
            too_short[_name(path)] = n
    assert not too_long
    assert not too_short


def test_nothing_new_stands_at_the_top() -> None:
    folders = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders | {path.stem for path in SOURCE.glob("*.py")} == {*ORDER, "assets"}


def test_one_name_stands_for_one_thing() -> None:
    classes = defaultdict(list)
    stems = defaultdict(list)
    for path in FILES:
        if _district(path) == "assets":
            continue
        for node in _tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append(_name(path))
        if path.name != "__init__.py" and _district(path) not in {"cli", "algorithms"} and path.stem not in ONE_STEM:
            stems[path.stem].append(_name(path))
    assert not {name: where for name, where in classes.items() if len(where) > 1}
    assert not {name: where for name, where in stems.items() if len(where) > 1}
    assert not {path.stem for path in FILES} & {"utils", "helpers", "common", "misc"}
    assert {path.stem for path in FILES if path.stem.endswith("ing")} == PARTICIPLES


def test_some_things_are_done_in_one_place() -> None:
    for pattern, place in ONE_PLACE.items():
        elsewhere = [
            f"{_name(path)}:{number}"
            for path in FILES
            if not _name(path).startswith((place, "assets/"))
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
            if re.search(pattern, line)
        ]
        assert not elsewhere, f"{pattern} belongs in {place}"


def _examples() -> Iterator[tuple[str, ast.Module]]:
    """Python in the documentation, as far as it can be read alone, and the example programs."""
    for path in (ROOT / "examples").rglob("*.py"):
        yield path.name, _tree(path)
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for block in FENCED.findall(page.read_text(encoding="utf-8")):
            yield page.name, ast.parse(textwrap.dedent(block))


def _is_open(module: str) -> bool:
    """Whether everyone may import a module: a front, what it offers whole, `core`, and the modules that stay."""
    front, _, name = module.rpartition(".")
    offered = front == "rl_training.core" or name in MODULES_OFFERED.get(front, ())
    return offered or _is_front(module) or module.removeprefix("rl_training.") in PROMISED_PATHS


def test_documentation_imports_fronts_only() -> None:
    imported = {f"{name}: {module}": module for name, tree in _examples() for module in _imports(tree)}
    assert not [
        place for place, module in imported.items() if module.startswith("rl_training.") and not _is_open(module)
    ]


def test_programs_and_tests_import_few_files_of_other_districts() -> None:
    found: Counter[str] = Counter()
    for path in (each for folder in ("benchmarks", "docs", "tests") for each in (ROOT / folder).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        folder = parts[1] if parts[0] == "tests" else parts[0]
        found[folder] += sum(district != folder and not _is_open(module) for module, district in _own_imports(path))
    assert {name: n for name, n in found.items() if n} == FILES_LEFT, (
        "import fronts; if fewer are left, say so in FILES_LEFT"
    )


def test_the_page_on_architecture_names_files_that_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.py)?)`", page)
    assert len(named) > 60
    assert not [name for name in named if not (SOURCE / name).exists() and not (ROOT / name).exists()]


def _texts(path: Path) -> Iterator[str]:
    """Texts of a Python file, or another file as a whole."""
    if path.suffix != ".py":
        yield path.read_text(encoding="utf-8")
        return
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_words_that_were_given_up_do_not_come_back() -> None:
    others = (path for path in (SOURCE / "assets").rglob("*") if path.suffix in {".html", ".yaml"})
    pages = {path.relative_to(ROOT).as_posix(): path for path in (ROOT / "docs").rglob("*.md")}
    files = {_name(path): path for path in (*FILES, *others)} | pages
    found = {name: sum(len(BANNED_WORDS.findall(text)) for text in _texts(path)) for name, path in files.items()}
    more = {name: f"{n}, {WORDS_LEFT.get(name, 0)} allowed" for name, n in found.items() if n > WORDS_LEFT.get(name, 0)}
    assert not more
    assert not {name: n for name, n in WORDS_LEFT.items() if found[name] < n}, "fewer are left: say so in WORDS_LEFT"


@pytest.mark.parametrize("district", ["experiment", "pipeline", "reports"])
def test_a_point_of_a_sweep_is_no_cell(district: str) -> None:
    fields = ("id", "attr", "arg", "name")
    for path in (SOURCE / district).rglob("*.py"):
        names = {str(getattr(node, field, "")) for node in ast.walk(_tree(path)) for field in fields}
        assert not [name for name in names if SWEEP_WORDS.search(name)], _name(path)


def _packages(path: Path) -> Iterator[str]:
    """Packages that a file imports, also by name in a call such as `import_extra("onnx", ...)`."""
    yield from (module.split(".")[0] for module in _imports(_tree(path)))
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"import_extra", "import_module"}:
            named = next((part.value for part in ast.walk(node.args[0]) if isinstance(part, ast.Constant)), "")
            yield str(named).split(".")[0]


def test_third_party_packages_stay_in_their_places() -> None:
    used = [(package, _name(path)) for path in FILES for package in _packages(path) if package in THIRD_PARTY_HOMES]
    assert not [(package, name) for package, name in used if not name.startswith(THIRD_PARTY_HOMES[package])]
    unused = [
        (package, home)
        for package, homes in THIRD_PARTY_HOMES.items()
        for home in homes
        if not any(package == each and name.startswith(home) for each, name in used)
    ]
    assert not unused, "no home any more: say so in THIRD_PARTY_HOMES"


@pytest.mark.parametrize("path", [path for path in FILES if path.parent.name in {"algorithms", "base"}], ids=_name)
def test_algorithms_contain_losses_only(path: Path) -> None:
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            assert name not in FORBIDDEN_CALLS, f"{_name(path)}:{node.lineno} calls {name}"
        if isinstance(node, ast.Attribute):
            assert node.attr != "grad" or ast.unparse(node) == "torch.autograd.grad", f"{_name(path)}:{node.lineno}"
    assert not any(module.startswith("torch.optim") for module in _imports(_tree(path)))


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_an_algorithm_is_a_variant_of_one_other_at_most_and_says_what_its_loss_is(name: str) -> None:
    parents = [parent for parent in ALGORITHMS[name].__mro__[1:] if parent in ALGORITHMS.values()]
    assert len(parents) <= 1
    assert inspect.getdoc(getattr(algorithms, f"{name}_loss"))


def test_every_module_says_what_it_is_for() -> None:
    assert not [_name(path) for path in FILES if not ast.get_docstring(_tree(path))]


def test_what_documents_a_thing_begins_with_a_noun_or_a_verb() -> None:
    texts = [
        (path, ast.unparse(node)) for path in FILES for node in ast.walk(_tree(path)) if isinstance(node, ast.Expr)
    ]
    assert not [f"{_name(path)}: {text}" for path, text in texts if re.match(r"[\"']+(What|Who|Whatever)\b", text)]


@pytest.mark.parametrize("path", PROMISED_PATHS)
def test_promised_import_paths_hold_the_thing_itself(path: str) -> None:
    module = import_module(f"rl_training.{path}")
    assert ast.parse(inspect.getsource(module)).body[1:], f"{path} is empty"
    for name in PROMISED_PATHS[path].split():
        assert getattr(module, name).__module__ == module.__name__
