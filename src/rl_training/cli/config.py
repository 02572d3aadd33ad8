"""The commands `list` and `config ...`, and the index that answers them without importing torch."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer

from rl_training.cli.display.console import cell, print_json, print_table
from rl_training.cli.display.options import ImportOption, JsonOption, MoreSets, SetOption
from rl_training.core.errors import ConfigError, UserError, nearest
from rl_training.core.user_code import has_imported

config_app = typer.Typer(help="Look at configurations.", no_args_is_help=True)


def list_(import_: ImportOption = None, as_json: JsonOption = False) -> None:
    """List the algorithms, their ideas and the configurations shipped for them."""
    rows = list_rows()
    if as_json:
        print_json(rows)
    else:
        print_table(["algorithm", "mode", "idea", "configs"], [[*map(cell, row.values())] for row in rows])


@config_app.command("show")
def config_show(
    config: Annotated[str, typer.Argument()],
    more: MoreSets = None,
    set_: SetOption = None,
    import_: ImportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print a configuration with every option written out."""
    from rl_training.runtime import read_options

    record, options = read_options(config, overrides=[*(set_ or []), *(more or [])])
    resolved = options.resolve(record)
    if as_json:
        print_json(resolved.to_plain())
    else:
        print(resolved.to_yaml(), end="")


@config_app.command("explain")
def config_explain(
    algorithm: Annotated[
        str | None, typer.Argument(help="An algorithm; without one, the outer record.", autocompletion=names_beginning)
    ] = None,
    import_: ImportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print every option: type, bound, default, meaning."""
    groups = option_rows(algorithm)
    if as_json:
        print_json(groups)
        return
    for name, rows in groups.items():
        print(f"\n{name}{'' if name == 'TrainConfig' else ' (in algo_kwargs)'}")
        print_table(["option", "type", "bound", "default", "meaning"], [[*map(cell, row.values())] for row in rows])


@config_app.command("validate")
def config_validate(
    words: Annotated[
        list[str], typer.Argument(metavar="CONFIG|KEY=VALUE", help="Configurations; then overrides, as with --set.")
    ],
    set_: SetOption = None,
    import_: ImportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check configurations, and that the files they name exist, without running them."""
    from rl_training.runtime import missing_files, read_options

    configs = [word for word in words if "=" not in word]
    overrides = [*(set_ or []), *(word for word in words if "=" in word)]
    if not configs:
        raise ConfigError("name a configuration: a path, a packaged name, or an algorithm")
    problems: dict[str, list[str]] = {}
    for config in configs:
        try:
            problems[config] = missing_files(read_options(config, overrides=overrides)[1])
        except ConfigError as error:
            problems[config] = list(error.problems)
    if as_json:
        print_json(problems)
        raise typer.Exit(2 if any(problems.values()) else 0)
    wrong = [str(ConfigError(*found, where=config)) for config, found in problems.items() if found]
    for config in configs:
        if not problems[config]:
            print(f"{config}: ok")
    if wrong:
        raise UserError("\n".join(wrong))


Rows = list[dict[str, Any]]


@cache
def read_index() -> dict[str, Any]:
    """The index: `algorithms`, `rows` of options, and for each algorithm the numbers of its rows by group."""
    path = Path(__file__).parents[1] / "assets" / "index.json"
    index: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
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
    from rl_training.experiment import list_algorithms

    return [spec.row() for spec in list_algorithms()]


def option_rows(algorithm: str | None) -> dict[str, Rows]:
    """The options of a run and, where one is named, of an algorithm, by group."""
    if not is_complete():
        from rl_training.experiment import describe_options

        return describe_options(algorithm)
    index = read_index()
    groups = index["options"]
    if algorithm is not None and algorithm not in groups:
        hint = nearest(algorithm, groups) or f"; there are {', '.join(groups)}, and your own with --import"
        raise ConfigError(f"unknown algorithm {algorithm!r}{hint}")
    numbers = {"TrainConfig": index["run"]} | (groups[algorithm] if algorithm is not None else {})
    return {group: [index["rows"][number] for number in found] for group, found in numbers.items()}


def names_beginning(start: str) -> list[str]:
    """Algorithms and packaged configurations that begin so, for completion in the shell."""
    rows = read_index()["algorithms"]
    names = [name for row in rows for name in (row["name"], *row["configs"])]
    return [name for name in names if name.startswith(start)]
