"""Algorithms and their options without importing torch, from an index that is shipped with the package.

`make docs` writes the index from the registry. Where there are algorithms that it cannot know, the registry is asked.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from rl_training.importing import has_imported
from rl_training.types import ConfigError, nearest

Rows = list[dict[str, Any]]


@cache
def read_index() -> dict[str, Any]:
    """The index: `algorithms`, `rows` of options, and for each algorithm the numbers of its rows by group."""
    index: dict[str, Any] = json.loads(
        Path(__file__).parents[1].joinpath("assets", "index.json").read_text(encoding="utf-8")
    )
    return index


def is_complete() -> bool:
    """Whether the index has all algorithms: none was imported, and no installed package brings any."""
    # Imported here, since it takes a tenth of the time of --help, which asks nothing of packages.
    from importlib.metadata import entry_points

    return not has_imported() and not entry_points(group="rl_training.algorithms")


def list_rows() -> Rows:
    """One row per algorithm: name, mode, idea, configs."""
    if is_complete():
        rows: Rows = read_index()["algorithms"]
        return rows
    from rl_training.experiment.registry import list_algorithms

    return [spec.row() for spec in list_algorithms()]


def option_rows(algorithm: str | None) -> dict[str, Rows]:
    """The options of a run and, where one is named, of an algorithm, by group."""
    if not is_complete():
        from rl_training.experiment.registry import describe_options

        return describe_options(algorithm)
    index = read_index()
    groups = index["options"]
    if algorithm is not None and algorithm not in groups:
        hint = nearest(algorithm, groups) or f"; there are {', '.join(groups)}, and your own with --import"
        raise ConfigError(f"unknown algorithm {algorithm!r}{hint}")
    numbers = {"TrainConfig": index["run"]} | (groups[algorithm] if algorithm is not None else {})
    return {group: [index["rows"][number] for number in found] for group, found in numbers.items()}


def names_beginning(start: str) -> list[str]:
    """Algorithms and packaged configurations for the completion of a word in the shell."""
    rows = read_index()["algorithms"]
    names = [name for row in rows for name in (row["name"], *row["configs"])]
    return [name for name in names if name.startswith(start)]
