"""Write what follows from the code: tables of the docs, the index of options, the stub; `--check` only compares."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from stub import stub

from rl_training.config import TrainConfig
from rl_training.core.options import describe
from rl_training.data import DataOptions
from rl_training.diagnostics import GuardOptions
from rl_training.experiment import list_algorithms
from rl_training.experiment.registry import build_index
from rl_training.pipeline import PipelineConfig
from rl_training.runtime import mode_defaults
from rl_training.runtime.controls import ControlOptions, LoopOptions, OnlineOptions

ROOT = Path(__file__).parents[1]


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def algorithms() -> str:
    """The table of algorithms."""
    head = ["Name", "Class", "Mode", "Idea", "Configurations"]
    rows = [
        [
            f"`{spec.name}`",
            f"`{spec.algorithm.__name__}`",
            spec.mode,
            spec.idea,
            ", ".join(f"`{c}`" for c in spec.configs),
        ]
        for spec in list_algorithms()
    ]
    return table(head, rows)


def option_table(rows: list[dict[str, object]]) -> str:
    """The table of one group of options."""
    head = ["Option", "Type", "Bound", "Default", "Meaning"]
    return table(head, [[f"`{row['name']}`", *(_cell(row[key]) for key in list(row)[1:])] for row in rows])


def options() -> str:
    """The page of all options."""
    parts = [
        "# Options",
        "Written by `make docs` from the code.",
        "## TrainConfig",
        option_table(describe(TrainConfig)),
    ]
    parts += ["## In `algo_kwargs`, for every algorithm"]
    for group in (DataOptions, LoopOptions, OnlineOptions, ControlOptions, GuardOptions):
        parts += [f"### {group.__name__}", option_table(describe(group))]
    parts += ["## In `algo_kwargs`, by algorithm"]
    for spec in list_algorithms():
        parts += [f"### {spec.name}", option_table(describe(spec.algorithm.hyper_class))]
        if defaults := mode_defaults(spec.algorithm, spec.algorithm.mode):
            changed = ", ".join(f"`{name}: {_cell(value)}`" for name, value in defaults.items())
            parts.append(f"Defaults of shared options that differ, after the paper: {changed}.")
    parts += ["## PipelineConfig", "Options of `rl-training pipeline`.", option_table(describe(PipelineConfig))]
    return "\n\n".join(parts) + "\n"


def _cell(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(list(value)) if isinstance(value, tuple) else str(value)


def insert(text: str, name: str, content: str) -> str:
    """The text with what stands between a pair of markers replaced."""
    pattern = rf"(<!-- generated: {name} -->\n).*?(<!-- end -->)"
    return re.sub(pattern, lambda match: f"{match[1]}{content}\n{match[2]}", text, flags=re.DOTALL)


def pages() -> dict[Path, str]:
    """Every generated page with what it should contain."""
    page = ROOT / "docs" / "algorithms.md"
    return {
        page: insert(page.read_text(encoding="utf-8"), "algorithms", algorithms()),
        ROOT / "docs" / "options.md": options(),
        ROOT / "src" / "rl_training" / "assets" / "index.json": json.dumps(build_index(), indent=1) + "\n",
        ROOT / "src" / "rl_training" / "__init__.pyi": stub(),
    }


def main() -> None:
    """Write what is out of date, or with --check only name it."""
    stale = {path: text for path, text in pages().items() if not path.is_file() or path.read_text("utf-8") != text}
    for path, text in stale.items():
        print(path.relative_to(ROOT))
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
    sys.exit(1 if stale and "--check" in sys.argv else 0)


if __name__ == "__main__":
    main()
